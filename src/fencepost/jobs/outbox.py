"""A transactional outbox: a job that is sent if the application's transaction commits, and only then.

    from fencepost.jobs import outbox

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.add(session, welcome, 7)                      # or welcome.after(hours=24)

    await outbox.AsyncRelay(client, engine).run()            # beside the workers, as many as you like

With an async session: ``await session.run_sync(outbox.add, welcome, 7)``. The job's row stands in the
application's own database, so it is there with the order or not at all; a relay carries it over, once
(``fencepost.jobs.relay`` says why). ``once`` is the other end: an effect in SQL that a job has once,
though its worker was lost and the job ran again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from fencepost._core.keys import job_keys
from fencepost._core.port import run_sync
from fencepost.errors import (
    FencepostError,
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    Overloaded,
    Refused,
    Unavailable,
)
from fencepost.jobs.protocol import Place
from fencepost.jobs.relay import Row, relay
from fencepost.jobs.task import Task, Timing
from fencepost.sql import guards
from fencepost.sql.transactions import transact, transact_async

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.orm import Session

    from fencepost.client import AsyncClient, Client
    from fencepost.jobs.job import Job

P = ParamSpec("P")
log = logging.getLogger("fencepost.jobs")
_PASSING: Final = (Unavailable, OutcomeUnknown, Overloaded)
_LOCK: Final = {"ttl": 5.0, "wait": 2.0}

metadata: Final = MetaData()

outbox: Final = Table(
    "fencepost_outbox",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("id", String(255), nullable=False),
    Column("queue", String(255), nullable=False),
    Column("task", String(255), nullable=False),  # for people
    Column("due", String(24), nullable=False),
    Column("moves", Boolean, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("at_ms", BigInteger, nullable=False),  # when it was written, by the database's clock
)


class _now_ms(FunctionElement[int]):  # it is written like a function of SQL
    """Milliseconds since 1970 by the database's clock."""

    type = BigInteger()
    inherit_cache = True


@compiles(_now_ms, "sqlite")
def _of_sqlite(*_: Any, **__: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@compiles(_now_ms, "postgresql")
def _of_postgres(*_: Any, **__: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


def create_tables(engine: Engine) -> None:
    """Create the tables of the outbox and of ``once`` where they are missing."""
    metadata.create_all(engine)
    guards.create_tables(engine)


async def create_tables_async(engine: AsyncEngine) -> None:
    """The same on an async engine."""
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await guards.create_tables_async(engine)


def add(
    where: Session | Connection,
    task: Task[P, Any] | Timing[P, Any],
    *args: P.args,
    **kwargs: P.kwargs,
) -> str:
    """Have a job sent if this transaction commits.

    Args:
        where: The session or connection whose transaction it is.
        task: What is to run; or ``task.after(…)``, ``task.at(…)``, ``task.named(…)``.
        *args: Its arguments.
        **kwargs: Likewise.

    Returns:
        The job's id, for ``jobs.handle(id)``.

    Raises:
        Refused: The arguments can't be stored, or ``task`` is none.
    """
    if not isinstance(task, Task | Timing):
        raise Refused(f"outbox.add takes a task or task.after(…), got {task!r}")
    message = task.message(*args, **kwargs)
    new = message.new
    row = {
        "id": new.id,
        "queue": message.task.queue.name,
        "task": message.task.name,
        "due": new.when,
        "moves": new.moves,
        "record": new.record,
        "at_ms": _now_ms(),
    }
    where.execute(insert(outbox).values(row))
    return new.id


def backlog(where: Session | Connection) -> tuple[int, float]:
    """How many jobs wait to be carried over, and for how many seconds the oldest has waited."""
    count, oldest = where.execute(
        select(func.count(), func.max(_now_ms() - outbox.c.at_ms)).select_from(outbox)
    ).one()
    return count, max(float(oldest or 0), 0.0) / 1000


def once(job: Job, where: Session | Connection) -> guards.Once:
    """Claim a job's effect in the caller's transaction: it is had once, however often the job runs.

    Args:
        job: As ``this_job()`` tells it; its id is the key, so jobs that are sent under one id
            (``task.named``) have one effect between them.
        where: The session or connection whose transaction has the effect.

    Returns:
        ``first``: have the effect, in this transaction. Else it was had; ``result`` is what was left.
    """
    return guards.once(_connection(where), _key(job))


def keep_result(job: Job, where: Session | Connection, result: str) -> None:
    """Leave a result for the same job when it runs again, in the transaction that had the effect."""
    guards.keep_result(_connection(where), _key(job), result)


def _key(job: Job) -> str:
    return f"job:{job.queue}:{job.id}"


def _connection(where: Session | Connection) -> Connection:
    return where if isinstance(where, Connection) else where.connection()


# -- the rows


def _read(connection: Connection, most: int) -> list[Row]:
    one = outbox.c
    columns = (one.number, one.id, one.queue, one.due, one.moves, one.record)
    query = select(*columns, _now_ms() - one.at_ms).order_by(one.number).limit(most)
    return [Row(*row) for row in connection.execute(query)]


def _delete(connection: Connection, numbers: Sequence[int]) -> None:
    connection.execute(delete(outbox).where(outbox.c.number.in_(numbers)))


class _Store:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, most: int) -> list[Row]:
        return transact(self._engine, lambda one: _read(one, most), write=False)

    def delete(self, numbers: Sequence[int]) -> None:
        transact(self._engine, lambda one: _delete(one, numbers), write=True)


class _AsyncStore:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def read(self, most: int) -> list[Row]:
        return await transact_async(self._engine, lambda one: _read(one, most), write=False)

    async def delete(self, numbers: Sequence[int]) -> None:
        await transact_async(self._engine, lambda one: _delete(one, numbers), write=True)


# -- relays


class _Relay:
    def __init__(self, client: Any, every: float, batch: int) -> None:
        if not 0.01 <= every <= 3600:
            raise Refused(f"every is in seconds, 0.01 to 3600, got {every!r}")
        if type(batch) is not int or not 1 <= batch <= 1000:
            raise Refused(f"batch is a whole number, 1 to 1000, got {batch!r}")
        self._client = client
        self._every = every
        self._batch = batch
        self._stopping = False
        self.carried = 0
        """How many rows it has carried over."""

    def _place(self, queue: str) -> Place:
        return Place(queue, job_keys(self._client.namespace, queue))

    def _lock(self) -> Any:
        # So that one of many does the work. Nothing rests on it.
        return self._client.lock("fencepost:outbox", **_LOCK)


class AsyncRelay(_Relay):
    """Carries jobs from an outbox into their queues.

    Args:
        client: Of the server and the namespace that the queues are in.
        engine: Of the database that the outbox is in; a sync one is used in threads.
        every: Seconds between two looks at an outbox that was empty.
        batch: How many rows are carried over at once, 1 to 1000.

    Raises:
        Refused: A value that can't work.
    """

    def __init__(
        self,
        client: AsyncClient,
        engine: AsyncEngine | Engine,
        *,
        every: float = 0.5,
        batch: int = 100,
    ) -> None:
        super().__init__(client, every, batch)
        self._store = _Store(engine) if isinstance(engine, Engine) else _AsyncStore(engine)
        self._rung = asyncio.Event()

    async def once(self) -> int:
        """Carry over the oldest rows, a batch; how many it were.

        Raises:
            Unavailable: The database or the server could not be reached; nothing is lost.
            OutcomeUnknown: Likewise: do it again.
        """
        count = await relay(self._client.port, self._place, self._store, self._batch)
        self.carried += count
        return count

    async def run(self) -> None:
        """Carry rows over until ``stop``; of several relays one works, the others stand by."""
        while not self._stopping:
            try:
                async with self._lock():
                    await self._work()
            except (LeaseLost, LockTimeout):
                continue
            except _PASSING as error:
                await self._failed(error)

    async def _work(self) -> None:
        while not self._stopping:
            try:
                full = await self.once() == self._batch
            except _PASSING as error:
                await self._failed(error)
                continue
            if not full:
                await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._every):
                await self._rung.wait()
        except TimeoutError:
            return
        self._rung.clear()

    async def _failed(self, error: FencepostError) -> None:
        log.warning("the outbox waits: %s", error)
        await self._pause()

    def ring(self) -> None:
        """Look at once: something was committed."""
        self._rung.set()

    def stop(self) -> None:
        """Let ``run`` return."""
        self._stopping = True
        self._rung.set()


class Relay(_Relay):
    """Carries jobs from an outbox into their queues; see ``AsyncRelay``."""

    def __init__(
        self, client: Client, engine: Engine, *, every: float = 0.5, batch: int = 100
    ) -> None:
        super().__init__(client, every, batch)
        self._store = _Store(engine)
        self._rung = threading.Event()

    def once(self) -> int:
        count = run_sync(relay(self._client.port, self._place, self._store, self._batch))
        self.carried += count
        return count

    def run(self) -> None:
        while not self._stopping:
            try:
                with self._lock() as lease:
                    self._work(lease)
            except (LeaseLost, LockTimeout):
                continue
            except _PASSING as error:
                self._failed(error)

    def _work(self, lease: Any) -> None:
        while not (self._stopping or lease.lost):
            try:
                full = self.once() == self._batch
            except _PASSING as error:
                self._failed(error)
                continue
            if not full:
                self._pause()

    def _pause(self) -> None:
        if self._rung.wait(self._every):
            self._rung.clear()

    def _failed(self, error: FencepostError) -> None:
        log.warning("the outbox waits: %s", error)
        self._pause()

    def ring(self) -> None:
        self._rung.set()

    def stop(self) -> None:
        self._stopping = True
        self._rung.set()
