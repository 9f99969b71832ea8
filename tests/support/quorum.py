"""A quorum under the hand: several servers played by one, each with keys of its own, for the explorer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from fencepost._core.keys import birth_record, lock_keys
from fencepost._core.port import Cancelled
from fencepost.errors import FencepostError
from fencepost.lock.protocol import Ask, Ending, Renewal
from fencepost.lock.quorum import protocol
from fencepost.lock.quorum.place import Polls
from fencepost.lock.quorum.protocol import QuorumPlace
from fencepost.lock.quorum.scripts import VOTE_SCRIPTS, Newborn, Open, VoteScripts
from fencepost.lock.scripts import Lost, Renewed
from fencepost.testing import Cell, Move, ServerState, SimPort, View
from fencepost.testing.several import SimFan
from support.lock import Deaf, Seen

Actor = Callable[[SimPort], Coroutine[Any, Any, Any]]
MAX_TTL = 30.0
IDENTITY = "a0:b0"


def altered(
    verb: str, old: str, new: str, scripts: VoteScripts = VOTE_SCRIPTS, times: int = 1
) -> VoteScripts:
    """The scripts with one line of one of them changed: a guard taken out."""
    script = getattr(scripts, verb)
    assert script.plain.count(old) == times, f"{verb}.lua has {script.plain.count(old)} × {old!r}"
    change = {verb: script.with_text(script.plain.replace(old, new))}
    return dataclasses.replace(scripts, **change)


class QuorumWorld:
    """One lock on several servers, and actors on it.

    Args:
        scripts: Those of the servers.
        servers: How many.
        highs: The greatest fence that each knows at first; None: it is empty.
        alone: No lease ends but by its holder, so two must never be inside.
        protocol: The protocol; tests put another in its place.
    """

    def __init__(
        self,
        scripts: VoteScripts = VOTE_SCRIPTS,
        *,
        servers: int = 3,
        highs: Sequence[int | None] = (),
        alone: bool = True,
        protocol: Any = protocol,
    ) -> None:
        spaces = [f"t{number}" for number in range(servers)]
        self.locks = tuple(lock_keys(space, "x") for space in spaces)
        self.born = tuple(birth_record(space) for space in spaces)
        polls = Polls(self.locks, self.born, MAX_TTL, scripts)
        self.place = QuorumPlace("x", self.locks[0], polls=polls)
        self.servers = servers
        self.highs = tuple(highs) or (0,) * servers
        self.alone = alone
        self.protocol = protocol
        self.seen = Cell(Seen())
        self.ended: Cell[frozenset[str]] = Cell(frozenset())

    @property
    def cells(self) -> tuple[Any, ...]:
        return (self.seen, self.ended)

    @property
    def setup(self) -> list[tuple[Any, ...]]:
        """The servers that are not empty may vote."""
        return [
            ("HSET", born, "id", IDENTITY, "since", 0, "max_ttl", 30000, "open", 1, "high", high)
            for born, high in zip(self.born, self.highs, strict=True)
            if high is not None
        ]

    # -- actors

    def holds(
        self,
        order: tuple[int, ...] = (),
        *,
        undoes: bool = True,
        gives_back: bool = True,
        renews: int = 0,
        after: Callable[[View], bool] | None = None,
        clock_ms: float = 0.0,
        wait: float = 0.0,
        floor: int = 0,
        doubt: bool = False,
    ) -> Actor:
        """Takes the lock, renews it, works, gives it back: what a face and its keeper do."""
        place, seen, law = self.place, self.seen, self.protocol
        arrive = order or tuple(range(self.servers))

        def before() -> int:
            """The greatest fence of those that were quicker for sure."""
            return max((fence for _, fence in seen.state.taken), default=0)

        def enter(name: str, attempt: str, fence: int, least: int) -> None:
            state = seen.state
            wrong = state.wrong
            if self.alone and state.inside:
                wrong = wrong or f"{name} entered beside {state.inside[0]}"
            if fence <= least or fence in {drawn for _, drawn in state.taken}:
                wrong = wrong or f"{name} drew fence {fence} after {state.taken[-1]}"
            seen.state = Seen((*state.taken, (attempt, fence)), (*state.inside, name), False, wrong)

        def leave(name: str) -> None:
            left = tuple(one for one in seen.state.inside if one != name)
            seen.state = dataclasses.replace(seen.state, inside=left)

        def passed(fence: int) -> bool:
            """Whether somebody has taken the lock since."""
            return any(drawn > fence for _, drawn in seen.state.taken)

        def trust(name: str) -> None:
            """It was told that its lease stands, though somebody had taken it before it asked."""
            wrong = seen.state.wrong or f"{name} was renewed behind {seen.state.taken[-1]}"
            seen.state = dataclasses.replace(seen.state, wrong=wrong)

        async def actor(sim: SimPort) -> Any:
            result = await life(sim)
            if sim.name == "a":  # others may wait for what it will not do any more
                await sim.call(self._end, sim.name)
            return result

        async def life(sim: SimPort) -> Any:
            if after is not None:
                await sim.until(lambda view: after(view) or "a" in self.ended.state, "when")
            io: Any = SimFan(sim, arrive, clock_ms)
            ask = Ask(sim.token(), sim.name, 10.0, wait, floor=floor)
            tried, least = place.new_tried(), await sim.call(before)
            tried.doubt = doubt
            try:
                grant = await law.acquire(io, place, ask, Deaf(), tried)
            except (FencepostError, Cancelled) as error:
                if undoes:
                    await self._undo(io, tried.left(ask.attempt))
                return type(error).__name__
            attempt, lost = grant.attempt, False
            await sim.call(enter, sim.name, attempt, grant.fence, least)
            for _ in range(renews):
                due = Renewal(place, attempt, 10.0, sim.name, grant.fence)
                behind = await sim.call(passed, grant.fence)
                [answer] = await law.tend(io, [due], [])
                if isinstance(answer, Lost):
                    lost = True
                    break
                if isinstance(answer, Renewed) and behind:
                    await sim.call(trust, sim.name)
                tried.doubt = tried.doubt or not getattr(answer, "sure", False)
            await sim.call(leave, sim.name)
            if not gives_back:
                return grant.fence
            left: list[bool] = []
            try:
                await law.release(io, place, attempt, tried, lambda: left.append(True))
            except (FencepostError, Cancelled):
                left.append(True)
            if undoes:
                names = tried.left(attempt)
                await self._undo(io, names if left or lost else names[1:])
            return grant.fence

        return actor

    def _end(self, name: str) -> None:
        self.ended.state = self.ended.state | {name}

    async def _undo(self, io: Any, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            for _ in range(3):
                [answer] = await self.protocol.tend(io, [], [Ending(self.place, attempt)])
                if not isinstance(answer, Exception):
                    break

    def straggles(self, attempt: str, server: int, what: str = "vote") -> Actor:
        """A duplicate of a request to one server, which comes at some time or never."""
        polls, ask = self.place.polls, Ask(attempt, "straggler", 10.0, 0.0)

        async def actor(sim: SimPort) -> None:
            if what == "vote":
                await sim.run(polls.votes(ask, 0)[server])
            else:
                await sim.run(polls.prolong(Renewal(self.place, attempt, 10.0, "s", 1))[server])

        return actor

    def meets(self, server: int) -> Actor:
        """Somebody asks a server who it is: a newborn's wait begins when it is met."""

        async def actor(sim: SimPort) -> None:
            await sim.run(self.place.polls.births()[server])

        return actor

    def steals(self, *servers: int) -> Actor:
        """An operator who reaches some of the servers."""
        scripts, locks = self.place.polls.scripts, self.locks

        async def actor(sim: SimPort) -> None:
            for number in servers:
                k = locks[number]
                await sim.run(scripts.force_release((k.lock, k.queue, k.alive), (k.channel,)))

        return actor

    # -- what may happen to a server

    def comes_back_empty(self, server: int, times: int = 1) -> Move:
        """It restarts and has nothing."""

        def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
            names = [name for name in state.by_name() if self._of(name, server)]
            if names:
                yield "empty", state.without(*names), None

        return Move(choices, times)

    def loses_its_tail(self, server: int) -> Move:
        """It restarts with what it had some time ago: the rest was not on its disk yet."""

        def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
            if memory is None:
                yield "synced", state, self._words(state, server)
            else:
                others = tuple(
                    word
                    for entry in _entries(state.words)
                    if not self._of(entry[0].decode(), server)
                    for word in entry
                )
                old = self._other_life(memory, server)
                merged = sorted([*_entries(others), *_entries(old)], key=lambda entry: entry[0])
                yield "lost", state._replace(words=tuple(w for e in merged for w in e)), memory

        return Move(choices, 2)

    def waits(self, times: int = 1) -> Move:
        """So much time passes that every lease is over, and every newborn's wait."""

        def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
            locks = {k.lock for k in self.locks}
            ended = [name for name in state.by_name() if name in locks]
            later = state.without(*ended)._replace(clock_ms=state.clock_ms + 30_000)
            yield "later", later, None

        return Move(choices, times)

    def _of(self, name: str, server: int) -> bool:
        return name.startswith((f"{{t{server}:", f"{{t{server}}}"))

    def _words(self, state: ServerState, server: int) -> tuple[bytes, ...]:
        return tuple(
            word
            for entry in _entries(state.words)
            if self._of(entry[0].decode(), server)
            for word in entry
        )

    def _other_life(self, words: tuple[bytes, ...], server: int) -> tuple[bytes, ...]:
        """The same data in another process: the record names who it was."""
        return tuple(b"a9:b9" if word == IDENTITY.encode() else word for word in words)

    # -- what must hold

    def invariant(self, view: View) -> str | None:
        return self.seen.state.wrong or None

    def nothing_left(self, view: View) -> str | None:
        """All have ended: no server's vote is with anybody, and nobody waits."""
        for number, k in enumerate(self.locks):
            for key in (k.lock, k.queue, k.alive):
                if key in view.keys:
                    return f"server {number} keeps its vote for nobody: {view.value(key)}"
        return None


def _entries(words: tuple[bytes, ...]) -> Iterable[tuple[bytes, ...]]:
    at = 0
    while at < len(words):
        size = int(words[at + 3])
        yield words[at : at + 4 + size]
        at += 4 + size


__all__ = ["Newborn", "Open", "QuorumWorld", "SimFan", "altered"]
