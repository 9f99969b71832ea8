"""The desk: seats that are held and released, reminders that come in time; jobs do the later part.

Whatever is to happen later is written with what it is about, in one transaction (an outbox), so there
is no held seat without its release and no moved activity with its old reminder. Jobs look at the rows
again when they run, and change nothing that is not theirs any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.concurrency import run_in_threadpool

from fencepost.campus import seats
from fencepost.campus.problems import Problem, database_away
from fencepost.campus.seats import Room, Rule, Seat
from fencepost.errors import FencepostError, Unavailable
from fencepost.jobs import Backoff, Cancel, Snooze, outbox
from fencepost.sql.transactions import transact

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from fencepost import AsyncClient
    from fencepost.jobs import AsyncWorker

T = TypeVar("T")
HOLD: Final = 600.0
_WAIT: Final = 2.0


class Desk:
    """Seats and reminders of a campus.

    Args:
        client: Of the server that the jobs wait on.
        engine: Of the database.
        hold: Seconds for which a seat is held.
    """

    def __init__(self, client: AsyncClient, engine: Engine, hold: float = HOLD) -> None:
        self._engine = engine
        self._hold = hold
        self.queue = client.jobs("desk", history=10_000)
        self.relay = outbox.AsyncRelay(client, engine, every=_WAIT)
        self.worker: AsyncWorker = self.queue.worker(concurrency=8, grace=1.0)
        again: dict[str, Any] = {
            "lease": 5.0,
            "retries": 50,
            "backoff": Backoff(1.0, cap=600.0),
            "result_ttl": 0,
        }

        @self.queue.job(**again)
        def release(activity_id: int, user: str, name: str) -> bool:
            return self._do(lambda one: seats.release(one, activity_id, user, name))

        # One an activity: a second one moves the first. Its key is free once it runs, so a change
        # that comes just then is not taken for known.
        @self.queue.job(key=str, unique="pending", debounce=0.001, **again)
        def remind(activity_id: int) -> int:
            return self._remind(activity_id)

        self.release, self.remind = release, remind

    def _do(self, work: Callable[[Connection], T]) -> T:
        return transact(self._engine, work, write=True)

    async def _ask(self, work: Callable[[Connection], T], *, write: bool = True) -> T:
        try:
            return await run_in_threadpool(transact, self._engine, work, write=write)
        except Unavailable as error:
            raise database_away(error) from error

    # -- seats

    async def hold(self, activity_id: int, user: str) -> Seat:
        """Hold a seat for ten minutes; the one that the user has, if there is one.

        Raises:
            UnknownItem: There is no such activity.
            Problem: No seat is free (409).
        """

        def work(connection: Connection) -> Seat | None:
            seat, name = seats.hold(connection, activity_id, user, self._hold)
            if name:  # in the same transaction: no hold without its end
                later = self.release.after(seconds=self._hold)
                outbox.add(connection, later, activity_id, user, name)
            return seat

        seat = await self._ask(work)
        if seat is None:
            raise Problem("full", "All seats are taken or held.")
        self.relay.ring()
        return seat

    async def confirm(self, activity_id: int, user: str) -> Seat:
        """Take the held seat for good.

        Raises:
            Problem: None is held (409).
        """
        if not await self._ask(lambda one: seats.confirm(one, activity_id, user)):
            raise Problem("hold-over", "No seat is held for this user, or not any more.")
        return Seat(seats.TAKEN, None)

    async def give_back(self, activity_id: int, user: str) -> bool:
        """Let a seat go, held or taken; whether there was one."""
        return await self._ask(lambda one: seats.give_back(one, activity_id, user))

    async def seat(self, activity_id: int, user: str) -> Seat | None:
        """A user's seat."""
        return await self._ask(lambda one: seats.find(one, activity_id, user), write=False)

    async def room(self, activity_id: int) -> Room:
        """How many seats there are; ``UnknownItem`` if there is no such activity."""
        return await self._ask(lambda one: seats.room(one, activity_id), write=False)

    # -- reminders

    async def set_rule(self, activity_id: int, rule: Rule) -> datetime:
        """Have everybody who has a seat reminded; when that will be."""

        def work(connection: Connection) -> datetime:
            due = seats.set_rule(connection, activity_id, rule)
            outbox.add(connection, self.remind.at(_soon(due)), activity_id)
            return due

        due = await self._ask(work)
        self.relay.ring()
        return due

    async def rule(self, activity_id: int) -> Rule | None:
        """When the people of an activity are reminded."""
        return await self._ask(lambda one: seats.rule_of(one, activity_id), write=False)

    async def notices(self, user: str, most: int) -> list[Any]:
        """What a user was reminded of, the newest first."""
        return await self._ask(lambda one: seats.notices_of(one, user, most), write=False)

    def changed(self, connection: Connection, activity_id: int) -> None:
        """In the transaction that changes or deletes an activity: its reminder goes with it."""
        if seats.rule_of(connection, activity_id) is None:
            return
        due = seats.due(connection, activity_id)
        at = datetime.now(UTC) if due is None else _soon(due)
        # Of one that is gone the job runs at once, finds nothing, and ends as cancelled.
        outbox.add(connection, self.remind.at(at), activity_id)

    def removed(self, connection: Connection, activity_id: int) -> None:
        """In the transaction that deletes an activity, before it does."""
        if seats.rule_of(connection, activity_id) is not None:
            outbox.add(connection, self.remind.after(seconds=0), activity_id)

    def _remind(self, activity_id: int) -> int:
        def work(connection: Connection) -> int:
            due = seats.due(connection, activity_id)
            if due is None:
                raise Cancel("the activity is gone, or nobody is to be reminded")
            if (left := (due - datetime.now(UTC)).total_seconds()) > 0:
                raise Snooze(left)  # it was moved meanwhile
            return seats.remind(connection, activity_id)

        return self._do(work)

    # -- its life

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Release and remind while the block runs; what runs at its end ends, or is handed back."""
        work = asyncio.create_task(self.worker.run(signals=False), name="campus-desk-work")
        carry = asyncio.create_task(self.relay.run(), name="campus-desk-carry")
        try:
            yield
        finally:
            carry.cancel()  # wherever it is: the next one goes on from there
            self.worker.stop()
            await asyncio.wait((work,), timeout=_WAIT)
            work.cancel()
            with contextlib.suppress(FencepostError):
                await asyncio.gather(work, carry, return_exceptions=True)


def _soon(due: datetime) -> datetime:
    return max(due, datetime.now(UTC))
