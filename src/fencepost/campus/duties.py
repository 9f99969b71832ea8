"""What one service does for all: the audit of the likes, and a digest of each period.

Whoever is elected does it, and each run is of a period that has ended. Its result is a row, written in
the transaction that passes the gate of the leader's term, and whose key is claimed once. So:

- a leader that was paused, however late it goes on, is refused by the database: a newer one has been there;
- no period has two runs, whatever leaders die, are paused or lose replies;
- a run that fails is tried again by whoever leads, as long as its period is the last one.

Of periods that ended while nobody served, only the last one is made up for; the first period of all is
the one in which somebody leads for the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from fencepost.campus.problems import log
from fencepost.campus.tables import activities, activities_likes, runs
from fencepost.errors import FencepostError, FenceRefused, LeaseLost
from fencepost.sql.guards import once, pass_gate

if TYPE_CHECKING:
    from fencepost import AsyncClient
    from fencepost.campus.metrics import Metrics
    from fencepost.campus.settings import Settings
    from fencepost.election import AsyncTerm, Leader
    from fencepost.likes import AsyncLikes

ELECTION: Final = "campus"
GATE: Final = "campus:duties"
AGAIN: Final = 5.0  # seconds until what failed is tried again
Result = dict[str, Any]


@dataclass(frozen=True)
class Duty:
    """Something to be done for each period.

    Args:
        name: In the table, and in the figures.
        every: Seconds of a period.
        make: Makes the result, in the transaction that keeps it.
        prepare: What must be known for that and takes long; before the transaction.
    """

    name: str
    every: float
    make: Callable[[Connection, datetime, datetime, Any], Result]
    prepare: Callable[[], Awaitable[Any]] | None = None

    def last(self, now: datetime) -> datetime:
        """When the last period that has ended began."""
        ended = now.timestamp() // self.every * self.every
        return datetime.fromtimestamp(ended - self.every, UTC)

    def pause(self, now: datetime) -> float:
        """Seconds until the period that runs now has ended."""
        return self.every - now.timestamp() % self.every


def digest(connection: Connection, start: datetime, end: datetime, _: Any) -> Result:
    """What happened in a period: likes that still stand, new activities, and what was liked most."""
    liked = activities_likes.c.liked_at
    given = (liked >= start, liked < end)
    made = activities.c.created_at
    count = func.count()
    most = connection.execute(
        select(activities_likes.c.activity_id, count)
        .where(*given)
        .group_by(activities_likes.c.activity_id)
        .order_by(count.desc(), activities_likes.c.activity_id)
        .limit(3)
    ).all()
    return {
        "likes": connection.scalar(select(count).select_from(activities_likes).where(*given)),
        "activities": connection.scalar(
            select(count).select_from(activities).where(made >= start, made < end)
        ),
        "most_liked": [{"id": item, "likes": likes} for item, likes in most],
    }


class Duties:
    """The duties of a campus, and whether this process has them.

    Args:
        settings: Periods, and how long a leader is waited for.
        engine: Where results are kept.
        client: Of the election.
        likes: What is audited.
        metrics: Where runs are counted.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        client: AsyncClient,
        likes: AsyncLikes,
        metrics: Metrics,
    ) -> None:
        self._engine, self._likes, self._metrics = engine, likes, metrics
        self._sample, self._drain = settings.audit_sample, settings.drain
        ttl = settings.leader_ttl
        self.election = client.election(
            ELECTION, ttl=ttl, renew_deadline=ttl * 2 / 3, retry=ttl * 2 / 15, drain=self._drain
        )
        self.duties = (
            Duty("digest", settings.digest_every, digest),
            Duty("audit", settings.audit_every, _audited, self._audit),
        )
        self._leader: Leader | None = None
        self._leads = False

    def shown(self) -> dict[str, Any]:
        """For people who ask whether all is well."""
        return {"leader": self._leader.identity if self._leader else "", "leads": self._leads}

    @contextlib.asynccontextmanager
    async def on_duty(self) -> AsyncIterator[None]:
        """Stand for election while the block runs; at its end drain, stop and resign."""
        task = asyncio.create_task(self._campaign(), name="campus-duties")
        try:
            yield
        finally:
            self.election.stop()
            await asyncio.wait([task], timeout=self._drain)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _campaign(self) -> None:
        while not self.election.stopping:
            try:
                await self.election.run(
                    self.work, started=self._begin, stopped=self._end, new_leader=self._see
                )
            except Exception as error:
                # Whatever it is, it must not end the duties: this process or another one leads again.
                log.warning("the election of who audits goes on after: %s", error)
                await asyncio.sleep(self.election.options.retry)

    def _begin(self, term: AsyncTerm) -> None:
        self._leads = True
        self._metrics.leads.set(1)

    def _end(self, term: AsyncTerm) -> None:
        self._leads = False
        self._metrics.leads.set(0)

    def _see(self, leader: Leader) -> None:
        self._leader = leader

    # -- the work of a leader

    async def work(self, term: AsyncTerm) -> None:
        """Do what is due, until the term ends."""
        done = await self._beginning()
        while True:
            pause = min(duty.pause(datetime.now(UTC)) for duty in self.duties)
            for duty in self.duties:
                period = duty.last(datetime.now(UTC))
                if done.get(duty.name) == period:
                    continue
                if await self._run(term, duty, period):
                    done[duty.name] = period
                else:
                    pause = min(pause, AGAIN)
                if term.stopping:
                    return
            if not await term.sleep(pause):
                return

    async def _beginning(self) -> dict[str, datetime]:
        """The duties that have never been done: their first period is the one that runs now."""

        def never() -> list[Duty]:
            with self._engine.connect() as connection:
                known = set(connection.scalars(select(runs.c.duty).distinct()))
            return [duty for duty in self.duties if duty.name not in known]

        try:
            return {duty.name: duty.last(datetime.now(UTC)) for duty in await to_its_end(never)}
        except SQLAlchemyError as error:
            log.warning("what the leaders before have done can't be read: %s", error)
            return {}

    async def _run(self, term: AsyncTerm, duty: Duty, period: datetime) -> bool:
        """One run; whether the period needs no other.

        Raises:
            FenceRefused: A newer leader has been at the gate; nothing was changed.
            LeaseLost: The term is over; nothing was begun.
        """
        term.check()
        verdict = "failed"
        self._metrics.duty_running.labels(duty.name).set(1)
        try:
            prepared = await duty.prepare() if duty.prepare is not None else None
            # No check here could make it safe: what comes too late is refused in the transaction.
            verdict = await to_its_end(self._keep, term, duty, period, prepared)
        except FenceRefused:
            verdict = "refused"
            raise
        except LeaseLost:
            raise
        except (FencepostError, SQLAlchemyError) as error:
            log.warning("the %s of %s failed and is tried again: %s", duty.name, period, error)
        finally:
            self._metrics.duty_running.labels(duty.name).set(0)
            self._metrics.duty_runs.labels(duty.name, verdict).inc()
        return verdict != "failed"

    def _keep(self, term: AsyncTerm, duty: Duty, period: datetime, prepared: Any) -> str:
        """Gate, key, result: one transaction."""
        with self._engine.begin() as connection:
            pass_gate(connection, GATE, term)
            if not once(connection, f"campus:{duty.name}:{period.isoformat()}").first:
                return "skipped"
            result = duty.make(connection, period, period + timedelta(seconds=duty.every), prepared)
            connection.execute(
                insert(runs).values(
                    duty=duty.name,
                    period=period,
                    fence=term.fence,
                    leader=term.identity,
                    made_at=datetime.now(UTC),
                    result=json.dumps(result),
                )
            )
        return "done"

    async def _audit(self) -> Result:
        report = await self._likes.audit(self._sample)
        found = [f"{one.item} {one.kind}: {one.explanation}" for one in report.differences]
        for line in found:
            log.warning("the audit found: activity %s", line)
        return {"items": report.items, "differences": len(found), "found": found[:20]}


def _audited(_connection: Connection, _start: datetime, _end: datetime, result: Any) -> Result:
    return dict(result)


async def to_its_end(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a thread, and wait for its end even if cancelled: work has stopped only then."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
