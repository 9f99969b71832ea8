"""A hold that expires and a payment that confirms it: ``fencepost explore examples/seat_hold.py``.

A seat is held for ten minutes; a job releases it then. The payment may come at that very moment, the job
may run twice, its worker may be paused in the middle. Every order is run, with the real scripts of the
queue; the seat is a row under a transaction (``fencepost.testing.Rows``: PostgreSQL's locks).

What must hold: a seat that was paid for is not released, and not sold twice. What decides is the row,
locked and compared in the transaction that changes it. Cancelling the job is tidy, and no more: a job
that was cancelled may be on its way already. ``seat_that_is_looked_at_first`` is the same without the
lock, and ``payment_that_trusts_the_cancel`` believes the queue instead of the row: both go wrong.
"""

from __future__ import annotations

from typing import Any

from fencepost._core.keys import job_keys
from fencepost.jobs.protocol import Ack, Me, New, Place, add, cancel, turn
from fencepost.jobs.record import head, pack
from fencepost.jobs.scripts import Cancelling
from fencepost.testing import Rows, Scenario, SimPort, View, tick

PLACE = Place("seats", job_keys("example", "seats"))
TEN_MINUTES = 600_000
HELD, PAID, FREE, SOLD = "held by ann", "paid by ann", "free", "paid by bob"
RECORD = head(20.0, 5, 3, "-", "-", 0) + pack("release", (), {}, 100)


class Hall:
    """One seat, and what is done to it; each step of a transaction is one of the explorer's."""

    def __init__(self, locks: bool = True) -> None:
        self.seat = Rows({"seat": HELD})
        self._look = self.seat.lock if locks else self._reads

    async def _reads(self, io: SimPort, name: str, key: str) -> Any:
        return await io.call(self.seat.read, name, key)

    async def change(self, io: SimPort, old: str, new: str) -> bool:
        """In one transaction: what was found to be ``old`` becomes ``new``."""
        await io.call(self.seat.begin, io.name)
        found = await self._look(io, io.name, "seat")
        if found != old:
            await io.call(self.seat.rollback, io.name)
            return False
        await self.seat.lock(io, io.name, "seat")
        await io.call(self.seat.write, io.name, "seat", new)
        await io.call(self.seat.commit, io.name)
        return True

    async def pays(self, io: SimPort) -> str:
        """Ann pays: the seat is hers if it is still held for her; then its job is not needed."""
        if not await self.change(io, HELD, PAID):
            return "too late, nothing was charged"
        await cancel(io, PLACE, "release", False)
        return "paid"

    async def trusts(self, io: SimPort) -> str:
        """Ann pays: no job, no release."""
        if await cancel(io, PLACE, "release", False) is Cancelling.GONE:
            return "too late, nothing was charged"
        await io.call(self.seat.begin, io.name)
        await self.seat.lock(io, io.name, "seat")
        await io.call(self.seat.write, io.name, "seat", PAID)
        await io.call(self.seat.commit, io.name)
        return "paid"

    async def buys(self, io: SimPort) -> str:
        """Bob takes the seat if it is free."""
        return "paid" if await self.change(io, FREE, SOLD) else "no seat"

    async def works(self, io: SimPort) -> None:
        """A worker: it takes the job when it is due, releases the seat, and says so."""
        await io.until(lambda view: view.server.clock_ms >= 1_000_000 + TEN_MINUTES, "due")
        me = Me(io.name)
        answer = await turn(io, PLACE, me, 1, [])
        for claim in getattr(answer, "claims", ()):
            await self.change(io, HELD, FREE)
            await turn(io, PLACE, me, 0, [Ack(claim.id, claim.epoch, "D")])

    def judge(self, view: View) -> str | None:
        """Who has paid has the seat."""
        seat = self.seat.values["seat"]
        for name, theirs in (("ann", PAID), ("bob", SOLD)):
            if view.results.get(name) == "paid" and seat != theirs:
                return f"{name} has paid, and the seat is {seat}"
        return None


def scenario(hall: Hall, pays: Any) -> Scenario:
    async def begins(io: SimPort) -> Any:
        await add(io, PLACE, [New("release", f"+{TEN_MINUTES}", RECORD)])
        return await pays(io)

    return Scenario(
        actors={"ann": begins, "bob": hall.buys, "w1": hall.works, "w2": hall.works},
        # The ten minutes end, and later the lease of whoever took the job: it is taken again.
        environment={"ten": tick(TEN_MINUTES + 1), "lease": tick(20_001)},
        cells=[hall.seat],
        invariant=hall.judge,
        final=hall.judge,
    )


def seat_that_is_compared_under_its_lock() -> Scenario:
    """No order releases a seat that was paid for."""
    hall = Hall()
    return scenario(hall, hall.pays)


def seat_that_is_looked_at_first() -> Scenario:
    """The job looks, the payment comes between, and the job releases what it saw."""
    hall = Hall(locks=False)
    return scenario(hall, hall.pays)


def payment_that_trusts_the_cancel() -> Scenario:
    """A job that runs can't be cancelled: it releases the seat, Bob buys it, and Ann pays for it too."""
    hall = Hall()
    return scenario(hall, hall.trusts)
