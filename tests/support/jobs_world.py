"""A queue for the explorer: actors on it, what happened to it, and what must hold at every moment."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fencepost._core import commands
from fencepost.errors import FencepostError
from fencepost.jobs import protocol
from fencepost.jobs.protocol import Ack, Me, New
from fencepost.jobs.scripts import (
    SCRIPTS,
    Added,
    Cancelling,
    Claim,
    Moved,
    Scripts,
    Turned,
    counts_of,
)
from fencepost.testing import Cell, SimPort, View
from support.jobs import make_place

Actor = Callable[[SimPort], Coroutine[Any, Any, Any]]


@dataclasses.dataclass(frozen=True)
class Took:
    """A claim that was handed out: in which turn of which worker."""

    id: str
    epoch: int
    worker: str
    turn: int


@dataclasses.dataclass(frozen=True)
class Seen:
    """What happened to a queue, in order.

    Args:
        took: Every claim.
        turns: Of each turn that was applied, what it answered: (worker, turn, applied, ids).
        ended: Every word about a claim that counted: (id, epoch, verdict).
        shown: The latest turn that each worker has shown that it knows of.
        back: Jobs whose latest claim may have been taken back.
        added: Ids that were created.
        cancelled: Ids that were cancelled before they ran, or stopped.
        due: Until when jobs must not begin.
        begun: Claims by which a job began: (id, epoch).
        wrong: The first thing that must not be.
    """

    took: tuple[Took, ...] = ()
    turns: tuple[tuple[str, int, tuple[bool, ...], tuple[str, ...]], ...] = ()
    ended: tuple[tuple[str, int, str], ...] = ()
    shown: tuple[tuple[str, int], ...] = ()
    back: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    due: tuple[tuple[str, int], ...] = ()
    begun: tuple[tuple[str, int], ...] = ()
    wrong: str = ""


def acks_of(call: Any) -> list[Ack]:
    """What a turn has to say."""
    words = call.args[9:]
    return [Ack(*words[n : n + 5]) for n in range(0, len(words), 5)]


class JobsWorld:
    """One queue, and actors on it.

    Args:
        scripts: Those of the queue.
    """

    def __init__(self, scripts: Scripts = SCRIPTS) -> None:
        self.place = make_place(scripts=scripts)
        self.keys = self.place.keys
        self.seen = Cell(Seen())
        self.awake: Cell[tuple[str, ...]] = Cell(("a", "b"))

    @property
    def cells(self) -> tuple[Any, ...]:
        return (self.seen, self.awake)

    def setup(self, *jobs: New) -> list[tuple[Any, ...]]:
        """Commands that put jobs into an empty queue: ready at once, or due at that time."""
        words: list[tuple[Any, ...]] = []
        for job in jobs:
            head = job.record.partition(b"\n")[0].decode().split()
            due_ms, priority, window, key = int(job.when), int(head[2]), head[4], head[5]
            words.append(("HSET", self.keys.bodies, job.id, job.record))
            if due_ms:
                words.append(("ZADD", self.keys.due, due_ms + priority / 16, job.id))
            else:
                words.append(("ZADD", self.keys.ready, priority * 2**42, job.id))
            if window != "-":
                words.append(("HSET", self.keys.unique, key, job.id))
        ids = tuple(job.id for job in jobs)
        due = tuple((job.id, int(job.when)) for job in jobs if int(job.when))
        self.seen.state = Seen(added=ids, due=due)
        return words

    # -- what is seen

    @property
    def observe(self) -> dict[str, Any]:
        return {
            "turn": self._turned,
            "hset": self._knew,
            "renew": self._renewed,
            "add": self._added,
            "cancel": self._cancelled,
            "move": self._moved,
        }

    def _note(self, **change: Any) -> None:
        self.seen.state = dataclasses.replace(self.seen.state, **change)

    def _wrong(self, text: str) -> None:
        if not self.seen.state.wrong:
            self._note(wrong=text)

    def _shows(self, worker: str, turn: int) -> None:
        shown = dict(self.seen.state.shown)
        if shown.get(worker, 0) < turn:
            self._note(shown=tuple(sorted({**shown, worker: turn}.items())))

    def _turned(self, name: str, call: Any, answer: Any) -> None:
        if not isinstance(answer, Turned):
            return
        worker, turn = str(call.args[0]), int(call.args[1])
        ids = tuple(claim.id for claim in answer.claims)
        for one in self.seen.state.turns:
            if one[:2] == (worker, turn):
                if one[2] != answer.applied:
                    self._wrong(
                        f"turn {turn} of {worker} was answered {one[2]}, then {answer.applied}"
                    )
                if set(ids) - set(one[3]):
                    self._wrong(f"turn {turn} of {worker} took {one[3]}, then {ids}")
                return
        if any(one[0] == worker and one[1] > turn for one in self.seen.state.turns):
            self._wrong(f"turn {turn} of {worker} was done after a later one")
        self._shows(worker, turn - 1)
        for ack, applied in zip(acks_of(call), answer.applied, strict=True):
            self._acked(ack, applied)
        if answer.reclaimed:
            self._note(back=tuple(sorted({one.id for one in self.seen.state.took})))
        for claim in answer.claims:
            self._took(Took(claim.id, claim.epoch, worker, turn))
        self._note(turns=(*self.seen.state.turns, (worker, turn, answer.applied, ids)))

    def _acked(self, ack: Ack, applied: bool) -> None:
        seen = self.seen.state
        latest = max((one.epoch for one in seen.took if one.id == ack.id), default=0)
        over = ack.id in seen.cancelled or any(one[:2] == (ack.id, ack.epoch) for one in seen.ended)
        if applied:
            if ack.epoch != latest:
                self._wrong(f"a late {ack.verdict} of {ack.id} counted")
            if over or any(one[0] == ack.id and one[2] == "D" for one in seen.ended):
                self._wrong(f"{ack.id} ended twice")
            self._note(ended=(*seen.ended, (ack.id, ack.epoch, ack.verdict)))
        elif ack.epoch == latest and not over and ack.id not in seen.back:
            self._wrong(f"{ack.verdict} of {ack.id} was refused though its claim stood")

    def _took(self, claim: Took) -> None:
        seen = self.seen.state
        if seen.took and claim.epoch <= max(one.epoch for one in seen.took):
            self._wrong(f"{claim.id} drew epoch {claim.epoch} after {seen.took[-1].epoch}")
        if claim.id in seen.cancelled:
            self._wrong(f"{claim.id} was taken after it was cancelled")
        if any(one[0] == claim.id and one[2] == "D" for one in seen.ended):
            self._wrong(f"{claim.id} was taken after it had ended")
        back = tuple(id for id in seen.back if id != claim.id)
        self._note(took=(*seen.took, claim), back=back)

    def _knew(self, name: str, call: Any, answer: Any) -> None:
        if call is not None and call.args[1] == self.keys.known:
            self._shows(str(call.args[2]), int(call.args[3]))

    def _renewed(self, name: str, call: Any, answer: Any) -> None:
        if isinstance(answer, str):
            self._shows(str(call.args[0]), int(call.args[1]))

    def _added(self, name: str, call: Any, answer: Any) -> None:
        if isinstance(answer, list):
            new = [
                one.id
                for one in answer
                if isinstance(one, Added) and one.verdict.value == "created"
            ]
            again = set(new) & set(self.seen.state.added)
            if again:
                self._wrong(f"{sorted(again)} was added twice")
            self._note(added=(*self.seen.state.added, *new))

    def _cancelled(self, name: str, call: Any, answer: Any) -> None:
        if answer in (Cancelling.CANCELLED, Cancelling.STOPPED):
            id = str(call.args[0])
            if answer is Cancelling.CANCELLED and self._runs(id):
                self._wrong(f"{id} was cancelled as if it had never begun")
            self._note(cancelled=(*self.seen.state.cancelled, id))

    def _runs(self, id: str) -> bool:
        seen = self.seen.state
        ended = {one[1] for one in seen.ended}
        return id not in seen.back and any(
            one.id == id and one.epoch not in ended for one in seen.took
        )

    def _moved(self, name: str, call: Any, answer: Any) -> None:
        if isinstance(answer, Moved):
            due = dict(self.seen.state.due)
            self._note(due=tuple({**due, str(call.args[0]): answer.due_ms}.items()))

    # -- actors

    def works(
        self,
        turns: int = 1,
        *,
        room: int = 1,
        verdict: str = "D",
        number: int = 0,
        knows: bool = False,
        renews: bool = False,
    ) -> Actor:
        """A worker: takes, runs, says what became of it in its next turn.

        Args:
            turns: In which it takes; one more says the last words.
            room: How many it takes at once.
            verdict: What it says of each.
            number: With which number.
            knows: It says first that it knows of its claims.
            renews: It renews each claim once while it runs.
        """
        place, seen = self.place, self.seen

        def begin(id: str, epoch: int) -> None:
            seen.state = dataclasses.replace(seen.state, begun=(*seen.state.begun, (id, epoch)))

        async def actor(io: SimPort) -> Any:
            me = Me(io.name)
            acks: list[Ack] = []
            told: list[str] = []
            for n in range(turns + 1):
                if n == turns and not acks:
                    break
                answer = await protocol.turn(io, place, me, room if n < turns else 0, acks)
                if not isinstance(answer, Turned):
                    return "late"
                told += [f"{ack.id}:{ok}" for ack, ok in zip(acks, answer.applied, strict=True)]
                acks = []
                if answer.claims and knows:
                    with contextlib.suppress(FencepostError):
                        await io.run(protocol.knowing(place, me))
                for claim in answer.claims:
                    await io.call(begin, claim.id, claim.epoch)
                    if renews:
                        held = [(claim.id, claim.epoch, 20.0)]
                        with contextlib.suppress(FencepostError):
                            await protocol.renew(io, place, me, held)
                    acks.append(Ack(claim.id, claim.epoch, verdict, number, b""))
            return tuple(told)

        return actor

    def sleeps(self, full: bool = False) -> Actor:
        """A worker that sleeps until there is a token, and then does what it can.

        Args:
            full: It has no room: its look takes nothing.
        """
        wake = self.keys.wake

        def lie_down(name: str) -> None:
            self.awake.state = tuple(one for one in self.awake.state if one != name)

        def wake_up(name: str) -> None:
            self.awake.state = tuple(sorted({*self.awake.state, name}))

        async def actor(io: SimPort) -> Any:
            me = Me(io.name)
            acks: list[Ack] = []
            for _ in range(2 if full else 4):
                await io.call(lie_down, io.name)
                await io.until(lambda view: wake in view.keys or over(view), "called")
                await io.call(wake_up, io.name)
                if not await io.run(commands.raw("EXISTS", self.keys.bodies)):
                    break
                if not await io.run(commands.raw("LPOP", wake)):
                    continue
                answer = await protocol.turn(io, self.place, me, 0 if full else 1, acks)
                claims = answer.claims if isinstance(answer, Turned) else ()
                acks = [Ack(claim.id, claim.epoch, "D") for claim in claims]
                while acks:  # it is awake as long as it works
                    answer = await protocol.turn(io, self.place, me, 0 if full else 1, acks)
                    claims = answer.claims if isinstance(answer, Turned) else ()
                    acks = [Ack(claim.id, claim.epoch, "D") for claim in claims]
            await io.call(lie_down, io.name)
            return "done"

        def over(view: View) -> bool:
            return bool(self.seen.state.added) and self.keys.bodies not in view.keys

        return actor

    def straggles(self, worker: str, turn: int, room: int, acks: Sequence[Ack] = ()) -> Actor:
        """A duplicate of a worker's turn, which comes at some time after it, or never."""

        async def actor(io: SimPort) -> None:
            await io.until(
                lambda view: any(one[:2] == (worker, turn) for one in self.seen.state.turns), "sent"
            )
            await io.run(protocol.turning(self.place, Me(worker, turn - 1), room, acks))

        return actor

    def adds(self, *jobs: New) -> Actor:
        async def actor(io: SimPort) -> Any:
            return tuple(one.verdict.value for one in await protocol.add(io, self.place, jobs))

        return actor

    def cancels(self, job: str, running: bool = False) -> Actor:
        async def actor(io: SimPort) -> Any:
            return (await protocol.cancel(io, self.place, job, running)).value

        return actor

    def moves(self, job: str, when: str) -> Actor:
        async def actor(io: SimPort) -> Any:
            return isinstance(await protocol.move(io, self.place, job, when), Moved)

        return actor

    def heals(self, *ids: str) -> Actor:
        """A worker that comes when all leases have ended and everything is due, and runs what there is."""

        async def actor(io: SimPort) -> Any:
            for id in ids:
                for key in (self.keys.claimed, self.keys.due):
                    await io.run(commands.raw("ZADD", key, "XX", 1, id))
            me, ran = Me("heal"), []
            acks: list[Ack] = []
            while True:
                answer = await protocol.turn(io, self.place, me, 5, acks)
                claims: Sequence[Claim] = answer.claims if isinstance(answer, Turned) else ()
                ran += [claim.id for claim in claims]
                acks = [Ack(claim.id, claim.epoch, "D") for claim in claims]
                if not acks:
                    return tuple(ran)

        return actor

    # -- what must hold

    def invariant(self, view: View) -> str | None:
        seen = self.seen.state
        if seen.wrong:
            return seen.wrong
        keys = self.keys
        bodies = view.value(keys.bodies, {})
        places = {
            "due": view.value(keys.due, {}),
            "ready": view.value(keys.ready, {}),
            "claimed": view.value(keys.claimed, {}),
            "dead": view.value(keys.dead, {}),
        }
        for id in bodies:
            where = [name for name, ids in places.items() if id in ids]
            if len(where) != 1:
                return f"{id} is in {where or 'no place'}"
        claims = view.value(keys.claims, {})
        if claims.keys() != places["claimed"].keys():
            return f"claims of {sorted(claims)}, leases of {sorted(places['claimed'])}"
        due = dict(seen.due)
        for id in claims:
            if due.get(id, 0) > view.server.clock_ms:
                return f"{id} began {due[id] - view.server.clock_ms} ms before its time"
        return self._counted(view, bodies) or self._keyed(view, bodies)

    def _counted(self, view: View, bodies: dict[str, Any]) -> str | None:
        seen, shown = self.seen.state, dict(self.seen.state.shown)
        for id, text in view.value(self.keys.counts, {}).items():
            if id not in bodies:
                return f"counts of {id} are left, and it has ended"
            counts = counts_of(text.encode())
            ended = {one[1] for one in seen.ended}
            known = [
                one
                for one in seen.took
                if one.id == id and one.epoch not in ended and shown.get(one.worker, 0) >= one.turn
            ]
            if counts.crashes > len(known):
                return f"{id} has {counts.crashes} crashes, of claims that its workers never saw"
            failed = sum(one[0] == id and one[2] in "RX" for one in seen.ended)
            if counts.tries != failed:
                return f"{id} has {counts.tries} failed tries, and failed {failed} times"
        return None

    def _keyed(self, view: View, bodies: dict[str, Any]) -> str | None:
        holders = view.value(self.keys.unique, {})
        live: dict[str, list[str]] = {}
        for id, record in bodies.items():
            window, key = record.partition("\n")[0].split()[4:6]
            waits = id in view.value(self.keys.due, {}) or id in view.value(self.keys.ready, {})
            if (window == "r" and id not in view.value(self.keys.dead, {})) or (
                window == "p" and waits
            ):
                live.setdefault(key, []).append(id)
                if window == "r" and holders.get(key) != id:
                    return f"{id} lives and does not hold its key: {holders.get(key)} does"
        for key, ids in live.items():
            if len(ids) > 1 and all(bodies[id].split()[4] == "r" for id in ids):
                return f"{ids} live with the same key {key}"
        return None

    def healed(self, view: View) -> str | None:
        """Whatever died where: nothing was lost, and nothing ran after its end."""
        seen = self.seen.state
        ran = view.results["heal"]
        done = {one[0] for one in seen.ended if one[2] in "DC"}
        dead = view.value(self.keys.dead, {})
        for id in seen.added:
            if id not in done and id not in seen.cancelled and id not in ran and id not in dead:
                return f"{id} is lost"
            if id in ran and (id in done or id in seen.cancelled):
                return f"{id} ran after its end"
        return None
