"""One election for the explorer: campaigns as the faces run them, on a simulated port."""

from __future__ import annotations

import dataclasses
from typing import Any

from fencepost._core import commands
from fencepost._core.port import Cancelled
from fencepost.election import protocol as election
from fencepost.errors import FencepostError, FenceRefused, LeaseLost, OutcomeUnknown, Unavailable
from fencepost.lock import protocol
from fencepost.lock.protocol import Ending, Grant, Tried
from fencepost.lock.scripts import SCRIPTS, Scripts
from fencepost.testing import Cell, SimPort, View
from support.lock import Actor, Deaf, LockWorld


@dataclasses.dataclass(frozen=True)
class SimTerm:
    """A term under exploration."""

    attempt: str
    grant: Grant
    doubt: bool
    lost: bool = False

    @property
    def fence(self) -> int:
        return self.grant.fence


@dataclasses.dataclass
class SimSeat:
    """A candidate: what ``AsyncSeat`` is on a loop.

    Args:
        io: The port.
        world: Of which election.
        terms: How often it leads, then it stops.
        tries: How often it tries, then it stops.
        fails: Where it raises: ``started`` or ``work``.
        refused_at: The fence of a gate that refuses its first term.
    """

    io: SimPort
    world: ElectionWorld
    terms: int
    tries: int
    fails: str = ""
    refused_at: int = 0
    told: int = 0
    fences: tuple[int, ...] = ()
    undoes = True

    @property
    def stopping(self) -> bool:
        return self.tries == 0 or self.terms == 0

    async def take(self, floor: int) -> SimTerm:
        self.tries -= 1
        io, place = self.io, self.world.place
        asked, tried = self.world.ask(io, floor=floor), Tried()
        try:
            grant = await protocol.acquire(io, place, asked, Deaf(), tried)
        except (FencepostError, Cancelled):
            if tried.open and self.undoes:
                await protocol.undo(io, Ending(place, asked.attempt), tries=4)
            raise
        self.fences = (*self.fences, grant.fence)
        return SimTerm(asked.attempt, grant, tried.doubt)

    async def look(self) -> None:
        return None

    async def tell(self, leader: Any) -> None: ...

    async def begin(self, term: SimTerm) -> None:
        await self.io.call(self.world.begins, self.io.name, term.attempt)

    async def end(self, term: SimTerm) -> None:
        await self.io.call(self.world.ends, self.io.name, term.attempt)

    async def reign(self, term: SimTerm) -> BaseException | None:
        self.terms -= 1
        await self.begin(term)
        error: BaseException | None = None
        if self.fails:
            error = ValueError(self.fails)
        if self.refused_at and len(self.fences) == 1:
            error = FenceRefused("a gate", fence=self.refused_at)
        await self.end(term)
        return error

    async def resign(self, term: SimTerm) -> None:
        io, place = self.io, self.world.place
        doubt = term.doubt
        try:
            await protocol.release(io, place, term.attempt)
        except (Unavailable, OutcomeUnknown, Cancelled):
            doubt = True
        if doubt:
            await protocol.undo(io, Ending(place, term.attempt), tries=4)


class ElectionWorld(LockWorld):
    """One election, and candidates in it.

    Args:
        scripts: Those of the lock that it rests on.
        alone: Nothing ends a lease but its leader, so two must never lead.
    """

    def __init__(self, scripts: Scripts = SCRIPTS, *, alone: bool = True) -> None:
        super().__init__(scripts, alone=alone)
        self.work: Cell[tuple[tuple[str, str], ...]] = Cell(())
        self.pairs: Cell[tuple[tuple[str, int], ...]] = Cell(())

    @property
    def cells(self) -> tuple[Any, ...]:
        return (self.seen, self.work, self.pairs)

    # -- steps

    def says(self, name: str, word: str) -> None:
        """A callback: each ``started`` must be followed by one ``stopped``, and none without."""
        open_now = dict(self.pairs.state)
        open_now[name] = open_now.get(name, 0) + (1 if word == "started" else -1)
        self.pairs.state = tuple(sorted(open_now.items()))

    def begins(self, name: str, attempt: str) -> None:
        self.says(name, "started")
        if self.work.state:
            seen = self.seen.state
            other = self.work.state[0][0]
            wrong = seen.wrong or (f"{name} leads beside {other}" if self.alone else "")
            self.seen.state = dataclasses.replace(seen, both=True, wrong=wrong)
        self.work.state = (*self.work.state, (name, attempt))

    def ends(self, name: str, attempt: str) -> None:
        self.work.state = tuple(one for one in self.work.state if one != (name, attempt))
        self.says(name, "stopped")

    def stands(
        self,
        *,
        terms: int = 1,
        tries: int = 3,
        seat: type[SimSeat] = SimSeat,
        after_expiry: bool = False,
        **more: Any,
    ) -> Actor:
        """A campaign; returns the fences that it led with.

        Args:
            after_expiry: Begins when somebody has been elected and its lease is gone.
        """

        async def actor(io: SimPort) -> Any:
            if after_expiry:
                await io.until(
                    lambda view: bool(self.seen.state.taken) and self.keys.lock not in view.keys,
                    "gone",
                )
            mine = seat(io, self, terms, tries, **more)
            try:
                await election.run(io, mine, Deaf(), 1.0)
            except (ValueError, LeaseLost) as error:
                return type(error).__name__
            return mine.fences

        return actor

    def comes_after(self) -> Actor:
        """All have died, and the lease of whoever led has ended: a candidate stands alone."""
        stands = self.stands(tries=1)

        async def actor(io: SimPort) -> Any:
            await io.run(commands.delete(self.keys.lock))
            return await stands(io)

        return actor

    # -- what must hold

    def now(self) -> tuple[str, ...]:
        """Who is at work."""
        return tuple(name for name, _ in self.work.state)

    def wrong(self) -> str:
        """What must not be, whatever ends leases."""
        for name, count in self.pairs.state:
            if count not in (0, 1):
                return f"started and stopped of {name} are not paired"
        return self.seen.state.wrong

    def judge(self, view: View) -> str | None:
        if self.alone:
            held = view.value(self.keys.lock, {}).get("attempt")
            for name, attempt in self.work.state:
                if held != attempt:
                    return f"{name} is at work and does not hold the lock"
        return self.wrong() or None

    def all_over(self, view: View) -> str | None:
        if any(count for _, count in self.pairs.state):
            return "somebody was started and never stopped: not paired"
        return self.nothing_left(view)
