"""The outbox and done-once, on SQLite and on PostgreSQL, with a real queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencepost import AsyncClient, Client
from fencepost.errors import OutcomeUnknown, Refused, Unavailable
from fencepost.jobs import Backoff, this_job
from fencepost.jobs import outbox as module
from fencepost.jobs.outbox import AsyncRelay, Relay, add, backlog, create_tables, keep_result, once
from fencepost.sql.guards import Once
from fencepost.sql.transactions import transact
from support.proxy import Proxy
from support.until import until

orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True), Column("who", String))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/x.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    create_tables(engine)
    orders.metadata.create_all(engine)
    yield engine
    engine.dispose()


class Mail:
    """A queue, its task, and what it has run."""

    def __init__(self, client: Client) -> None:
        self.jobs = client.jobs("mail")
        self.ran: list[int] = []
        self.extra: Callable[[int], None] = lambda user: None

        @self.jobs.job()
        def welcome(user: int) -> None:
            self.extra(user)
            self.ran.append(user)

        self.welcome = welcome

    def work(self) -> list[int]:
        self.jobs.worker(concurrency=4).run(burst=True, signals=False)
        return self.ran


@pytest.fixture
def mail(client: Client) -> Mail:
    return Mail(client)


# -- with the transaction, or not at all ------------------------------------------------------------


def test_job_is_sent_if_its_transaction_commits(engine: Engine, client: Client, mail: Mail) -> None:
    relay = Relay(client, engine)
    with engine.begin() as connection:
        connection.execute(insert(orders).values(id=1, who="ann"))
        id = add(connection, mail.welcome, 1)
        assert relay.once() == 0  # not committed yet
    assert backlog_of(engine)[0] == 1
    with engine.connect() as connection:
        add(connection, mail.welcome, 2)
        connection.rollback()
    assert (relay.once(), relay.once()) == (1, 0)
    assert mail.jobs.handle(id).status().state == "ready"
    assert mail.work() == [1]
    assert backlog_of(engine) == (0, 0.0)


def test_job_of_a_session(engine: Engine, client: Client, mail: Mail) -> None:
    with Session(engine) as session, session.begin():
        session.execute(insert(orders).values(id=1, who="ann"))
        add(session, mail.welcome, user=1)
    with Session(engine) as session:
        add(session, mail.welcome, 2)
        session.rollback()
    assert Relay(client, engine).once() == 1
    assert mail.work() == [1]


async def test_job_of_an_async_session(
    engine: Engine, url: str, server_url: str, namespace: str
) -> None:
    there = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        jobs = client.jobs("mail")
        ran = []

        @jobs.job()
        async def welcome(user: int) -> None:
            ran.append(user)

        async with AsyncSession(there) as session, session.begin():
            await session.run_sync(add, welcome, 1)
        assert await AsyncRelay(client, there).once() == 1
        await jobs.worker().run(burst=True, signals=False)
        assert ran == [1]
    await there.dispose()


def test_rows_are_carried_over_in_order(engine: Engine, client: Client, mail: Mail) -> None:
    for user in range(25):
        with engine.begin() as connection:
            add(connection, mail.welcome, user)
    relay = Relay(client, engine, batch=10)
    assert [relay.once() for _ in range(4)] == [10, 10, 5, 0]
    mail.jobs.worker(concurrency=1).run(burst=True, signals=False)
    assert mail.ran == list(range(25))
    assert relay.carried == 25


def test_delay_counts_from_when_the_row_was_written(
    engine: Engine, client: Client, mail: Mail
) -> None:
    with engine.begin() as connection:
        young = add(connection, mail.welcome.after(hours=24), 1)
        old = add(connection, mail.welcome.after(hours=24), 2)
        at = add(connection, mail.welcome.at(datetime(2090, 1, 1, tzinfo=UTC)), 3)
        late = update(module.outbox).where(module.outbox.c.id == old)
        connection.execute(late.values(at_ms=module.outbox.c.at_ms - 23 * 3_600_000))
    assert backlog_of(engine)[1] >= 23 * 3600
    Relay(client, engine).once()
    begins, ends = (mail.jobs.handle(id).status().at for id in (old, young))
    assert 22.9 * 3600 < ends - begins < 23.1 * 3600
    assert mail.jobs.handle(at).status().at == datetime(2090, 1, 1, tzinfo=UTC).timestamp()


def test_rows_go_to_their_queues(engine: Engine, client: Client, mail: Mail) -> None:
    other = client.jobs("other")

    @other.job()
    def bill(order: int) -> None: ...

    with engine.begin() as connection:
        for n in range(3):
            add(connection, mail.welcome, n)
            add(connection, bill, n)
    assert Relay(client, engine).once() == 6
    assert (mail.jobs.count().ready, other.count().ready) == (3, 3)


def test_what_is_no_task_is_refused(engine: Engine, client: Client, mail: Mail) -> None:
    with engine.begin() as connection:
        with pytest.raises(Refused, match="takes a task"):
            add(connection, print, 1)  # type: ignore[arg-type]
        with pytest.raises(Refused, match="welcome"):
            add(connection, mail.welcome, 1, 2)  # type: ignore[call-arg]
    for bad in ({"every": 0}, {"batch": 0}, {"batch": 1001}):
        with pytest.raises(Refused):
            Relay(client, engine, **bad)


# -- once, whatever happens -------------------------------------------------------------------------


class Death(BaseException):
    """The process is gone."""


class Dying:
    """A client whose process dies just before a step."""

    def __init__(self, client: Client, step: str) -> None:
        self.namespace, self._port, self._step = client.namespace, client.port, step

    @property
    def port(self) -> Dying:
        return self

    def _may_die(self, step: str) -> None:
        if step == self._step:
            raise Death

    async def run(self, call: Any) -> Any:
        self._may_die(call.verb)
        return await self._port.run(call)

    async def call(self, fn: Any, *args: Any) -> Any:
        self._may_die(fn.__name__)
        return await self._port.call(fn, *args)


@pytest.mark.parametrize(
    ("step", "added"),
    [("time", 0), ("read", 0), ("relay", 0), ("delete", 1), ("let_go", 1)],
)
def test_relay_that_dies_between_two_steps(
    step: str, added: int, engine: Engine, client: Client, mail: Mail
) -> None:
    """The job runs to its end before the next relay comes: it must not be added again."""
    with engine.begin() as connection:
        add(connection, mail.welcome, 1)
    with pytest.raises(Death):
        Relay(Dying(client, step), engine).once()  # type: ignore[arg-type]
    assert mail.work() == [1] * added
    Relay(client, engine).once()
    assert mail.work() == [1]
    assert backlog_of(engine)[0] == 0


def test_lost_replies_add_nothing_twice(
    engine: Engine, server: Any, namespace: str, mail: Mail
) -> None:
    with engine.begin() as connection:
        for user in range(3):
            add(connection, mail.welcome, user)
    with Proxy(server) as proxy, Client.from_url(proxy.url, namespace=namespace) as behind:
        relay = Relay(behind, engine)
        for _ in range(2):
            proxy.fault("reply", "relay", "cut")
            try:
                relay.once()
            except (OutcomeUnknown, Unavailable):
                mail.work()  # they run to their end, and are asked for once more
        while backlog_of(engine)[0]:
            relay.once()
    assert sorted(mail.work()) == [0, 1, 2]


def test_many_relays_at_once(engine: Engine, client: Client, mail: Mail) -> None:
    total = 60
    for user in range(total):
        with engine.begin() as connection:
            add(connection, mail.welcome, user)
    relays = [Relay(client, engine, batch=7) for _ in range(4)]

    def carry(relay: Relay) -> None:
        while backlog_of(engine)[0]:
            relay.once()
            mail.work()

    threads = [threading.Thread(target=carry, args=(relay,)) for relay in relays]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(mail.work()) == list(range(total))


async def test_relays_that_run_share_the_work(
    engine: Engine, url: str, server_url: str, namespace: str, client: Client, mail: Mail
) -> None:
    there = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    async with AsyncClient.from_url(server_url, namespace=namespace) as other:
        theirs, ours = AsyncRelay(other, there, every=0.05), Relay(client, engine, every=0.05)
        task = asyncio.create_task(theirs.run())
        thread = threading.Thread(target=ours.run)
        thread.start()
        try:
            for user in range(20):
                await asyncio.to_thread(_commit, engine, mail, user)
                theirs.ring()
                ours.ring()
            await until(lambda: backlog_of(engine)[0] == 0)
        finally:
            theirs.stop()
            ours.stop()
            await task
            await asyncio.to_thread(thread.join)
    assert sorted(await asyncio.to_thread(mail.work)) == list(range(20))
    await there.dispose()


def _commit(engine: Engine, mail: Mail, user: int) -> None:
    with engine.begin() as connection:
        add(connection, mail.welcome, user)


def backlog_of(engine: Engine) -> tuple[int, float]:
    with engine.connect() as connection:
        return backlog(connection)


# -- one effect ------------------------------------------------------------------------------------


def test_effect_is_had_once_though_the_job_runs_again(engine: Engine, client: Client) -> None:
    jobs, seen = client.jobs("bills"), list[tuple[bool, str | None]]()

    @jobs.job(backoff=Backoff(0.0))
    def charge(user: int) -> None:
        job = this_job()

        def effect(connection: Connection) -> Once:
            done = once(job, connection)
            if done.first:
                connection.execute(insert(orders).values(id=user, who="charged"))
                keep_result(job, connection, "receipt 7")
            return done

        done = transact(engine, effect, write=True)
        seen.append((done.first, done.result))
        if done.first:
            raise ConnectionError("the effect was had, and nobody was told")

    charge.send(7)
    while not jobs.count().dead and len(seen) < 2:
        jobs.worker().run(burst=True, signals=False)
    assert seen == [(True, None), (False, "receipt 7")]
    assert charged(engine) == 1


def test_effect_that_was_rolled_back_was_not_had(engine: Engine, client: Client) -> None:
    jobs, seen = client.jobs("bills"), list[bool]()

    @jobs.job(backoff=Backoff(0.0))
    def charge(user: int) -> None:
        with Session(engine) as session, session.begin():
            seen.append(once(this_job(), session).first)
            session.execute(insert(orders).values(id=user, who="charged"))
            if len(seen) < 3:
                raise ConnectionError("before the commit")

    charge.send(7)
    while not jobs.count().dead and len(seen) < 3:
        jobs.worker().run(burst=True, signals=False)
    assert seen == [True, True, True]
    assert charged(engine) == 1


def charged(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(orders)).scalar_one()
