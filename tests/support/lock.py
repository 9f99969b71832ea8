"""A lock under the hand: its place without a client, actors for plays and for the explorer, altered scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fencepost._core.keys import lock_keys
from fencepost._core.port import Cancelled, run_sync
from fencepost.errors import FencepostError
from fencepost.lock import protocol
from fencepost.lock.protocol import OVERTAKES, Ask, Ending, Place, Renewal, Tried
from fencepost.lock.scripts import SCRIPTS, Lost, Scripts, Taken
from fencepost.testing import Cell, Move, ScratchServer, ServerState, SimPort, View, restart_empty

Actor = Callable[[SimPort], Coroutine[Any, Any, Any]]


def altered(verb: str, old: str, new: str, scripts: Scripts = SCRIPTS) -> Scripts:
    """The scripts with one line of one of them changed: a guard taken out."""
    script = getattr(scripts, verb)
    assert script.plain.count(old) == 1, f"{verb}.lua has {script.plain.count(old)} × {old!r}"
    change = {verb: script.with_text(script.plain.replace(old, new))}
    return dataclasses.replace(scripts, **change)


def make_place(namespace: str = "t", name: str = "x", scripts: Scripts = SCRIPTS) -> Place:
    return Place(name, lock_keys(namespace, name), scripts)


@dataclasses.dataclass(frozen=True)
class Deaf:
    """A bell that never rings: a waiter looks again by itself."""

    def listen(self) -> None: ...

    def hear(self, seconds: float) -> None: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Seen:
    """What happened to a lock, in order.

    Args:
        taken: Each (attempt, fence), when it was first taken.
        inside: Who is in the body now.
        both: Somebody entered while another was inside: its lease had ended.
        wrong: The first thing that must not be.
    """

    taken: tuple[tuple[str, int], ...] = ()
    inside: tuple[str, ...] = ()
    both: bool = False
    wrong: str = ""


class LockWorld:
    """One lock, and actors on it for the explorer.

    Args:
        scripts: Those of the lock.
        alone: Nothing ends a lease but its holder, so two must never be inside.
    """

    def __init__(self, scripts: Scripts = SCRIPTS, *, alone: bool = True) -> None:
        self.place = make_place(scripts=scripts)
        self.keys = self.place.keys
        self.alone = alone
        self.seen = Cell(Seen())

    @property
    def cells(self) -> tuple[Any, ...]:
        return (self.seen,)

    @property
    def observe(self) -> dict[str, Any]:
        return {self.place.scripts.acquire.contract.verb: self._acquired}

    def _acquired(self, name: str, call: Any, answer: Any) -> None:
        if not isinstance(answer, Taken):
            return
        attempt, seen = call.args[0], self.seen.state
        before = dict(seen.taken)
        if attempt in before:
            if before[attempt] != answer.fence:  # taken again after it was lost: a new acquisition
                self._take(attempt, answer.fence)
            return
        self._take(attempt, answer.fence)

    def _take(self, attempt: str, fence: int) -> None:
        seen = self.seen.state
        wrong = seen.wrong
        if seen.taken and fence <= seen.taken[-1][1]:
            wrong = wrong or f"{attempt} drew fence {fence} after {seen.taken[-1]}"
        self.seen.state = dataclasses.replace(
            seen, taken=(*seen.taken, (attempt, fence)), wrong=wrong
        )

    # -- actors

    def ask(self, io: SimPort, **more: Any) -> Ask:
        settings = {"ttl": 10.0, "wait": 0.0, "overtakes": OVERTAKES, **more}
        return Ask(io.token(), io.name, **settings)

    def beside(self, inside: tuple[str, ...], name: str) -> bool:
        """Whether one enters beside those who are inside and keep it out."""
        return bool(inside)

    def holds(
        self,
        *,
        place: Place | None = None,
        doubt: bool = False,
        undoes: bool = True,
        after: str = "",
        **ask: Any,
    ) -> Actor:
        """Takes the lock, works, gives it back: what a face does.

        Args:
            place: What it takes, if that differs between actors.
            after: Begins when that one has taken it and its lease is gone.
            doubt: A first request of it went unanswered before.
            undoes: Ends what it gives up, and what is in doubt.
            **ask: Of the attempt.
        """
        seen = self.seen
        place = self.place if place is None else place

        def enter(name: str) -> None:
            state = seen.state
            both = self.alone and self.beside(state.inside, name)
            wrong = state.wrong or (f"{name} entered beside {state.inside[0]}" if both else "")
            seen.state = dataclasses.replace(
                state,
                inside=(*state.inside, name),
                both=state.both or bool(state.inside),
                wrong=wrong,
            )

        def leave(name: str) -> None:
            left = tuple(one for one in seen.state.inside if one != name)
            seen.state = dataclasses.replace(seen.state, inside=left)

        async def actor(io: SimPort) -> Any:
            if after:
                await io.until(
                    lambda view: bool(seen.state.taken) and self.keys.lock not in view.keys, "gone"
                )
            asked = self.ask(io, **ask)
            tried = Tried(open=doubt, doubt=doubt)
            ending = Ending(place, asked.attempt)
            try:
                grant = await protocol.acquire(io, place, asked, Deaf(), tried)
            except (FencepostError, Cancelled) as error:
                if tried.open and undoes:
                    await protocol.undo(io, ending, tries=3)
                return type(error).__name__
            try:
                await io.call(enter, io.name)
                await io.call(leave, io.name)
            except Cancelled:
                pass  # the end of a block gives the lock back all the same
            try:
                kept = await protocol.release(io, place, asked.attempt)
            except (FencepostError, Cancelled):
                kept, tried.doubt = True, True
            if tried.doubt and undoes:
                await protocol.undo(io, ending, tries=3)
            return grant.fence if kept else "lost"

        return actor

    def straggles(self, attempt: str, times: int = 1, **ask: Any) -> Actor:
        """A duplicate of an attempt's request, which comes at some time or never."""

        async def actor(io: SimPort) -> None:
            settings = {"ttl": 10.0, "wait": 0.0, **ask}
            for _ in range(times):
                await io.run(self.place.take(Ask(attempt, "straggler", **settings)))

        return actor

    def renews(self, attempt: str, times: int = 1) -> Actor:
        """The keeper of an attempt's lease."""

        async def actor(io: SimPort) -> Any:
            for _ in range(times):
                answer: Any
                [answer] = await protocol.tend(io, [Renewal(self.place, attempt, 10.0)], [])
                if isinstance(answer, Lost):
                    return "lost"
            return "kept"

        return actor

    def steals(self) -> Actor:
        """An operator."""

        async def actor(io: SimPort) -> Any:
            return await self.place.force_release(io)

        return actor

    # -- what must hold

    def invariant(self, view: View) -> str | None:
        return self.seen.state.wrong or None

    def nothing_left(self, view: View) -> str | None:
        """All have ended: nobody holds the lock, and nobody waits."""
        for key, what in (
            (self.keys.lock, "is held by nobody"),
            (self.keys.queue, "is waited for by nobody"),
            (self.keys.alive, "is waited for by nobody"),
        ):
            if key in view.keys:
                return f"the lock {what}: {view.value(key)}"
        return None


def empty_restart_a_moment_later(times: int = 1) -> Move:
    """A server that comes back empty; its clock has gone on meanwhile."""
    inner = restart_empty(times)

    def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
        for word, became, remembered in inner.choices(state, memory):
            yield word, became._replace(clock_ms=state.clock_ms + 1), remembered

    return Move(choices, times)


def take_step(scratch: ScratchServer, step: Any) -> Any:
    """Do what a protocol asks for, on a server."""
    if step.kind == "run":
        return run_sync(scratch.port.run(step.calls[0]))
    return step.fn(*step.args) if step.kind == "call" else None
