"""Write-behind into SQLite and PostgreSQL: the gate, and flushers that are killed and paused for real."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from fencepost import AsyncClient, Client
from fencepost.cache import Batch, Unsaved
from fencepost.errors import ConfigMismatch, Superseded
from fencepost.journal.protocol import Place
from fencepost.sql.gate import AsyncSqlGate, SqlGate
from support.behind_sql import OPTIONS, metadata, rows_of, save_in, save_rows
from support.process import Told


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rows.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = create_engine(database)
    metadata.create_all(engine)
    SqlGate(engine).create_tables()
    yield engine
    engine.dispose()


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


def batch(fence: int, *entries: tuple[str, str, int], epoch: int = 1) -> Batch[str]:
    return Batch("c/0", epoch, fence, tuple(Unsaved(*one) for one in entries))


def opened(engine: Engine) -> SqlGate:
    gate = SqlGate(engine)
    assert gate.epoch(Place("c", 0, 1)) == 0
    assert gate.raise_epoch(Place("c", 0, 1), 0, 1)
    return gate


def test_an_older_batch_is_refused_whole(engine: Engine) -> None:
    gate = opened(engine)
    save_rows(engine, gate, batch(7, ("a", "new", 2)))
    with pytest.raises(Superseded) as refused:
        save_rows(engine, gate, batch(6, ("a", "old", 1), ("b", "old", 1)))
    assert refused.value.by == "fence"
    assert rows_of(engine) == {"a": "new"}
    save_rows(engine, gate, batch(7, ("b", "halved", 1)))  # the other half of the same claim
    assert rows_of(engine) == {"a": "new", "b": "halved"}


def test_another_epoch_is_refused(engine: Engine) -> None:
    gate = opened(engine)
    assert gate.raise_epoch(Place("c", 0, 1), 1, 2)
    assert not gate.raise_epoch(Place("c", 0, 1), 1, 3)
    with pytest.raises(Superseded) as refused:
        save_rows(engine, gate, batch(9, ("a", "old", 1)))
    assert refused.value.by == "epoch"
    save_rows(engine, gate, batch(1, ("a", "new", 1), epoch=2))


def test_a_journal_that_comes_back_is_not_saved_again(engine: Engine) -> None:
    gate = opened(engine)
    save_rows(engine, gate, batch(1, ("a", "new", 5), ("b", "b", 6)))
    save_rows(engine, gate, batch(2, ("a", "old", 4), ("b", "b", 6), ("c", "c", 4)))
    assert rows_of(engine) == {"a": "new", "b": "b", "c": "c"}


def test_a_batch_that_is_undone_leaves_the_gate_as_it_was(engine: Engine) -> None:
    gate = opened(engine)

    def broken() -> None:
        with engine.begin() as connection:
            save_in(connection, gate.admit(connection, batch(9, ("a", "new", 9))))
            raise RuntimeError("the application's own")

    with pytest.raises(RuntimeError):
        broken()
    save_rows(engine, gate, batch(1, ("a", "first", 1)))
    assert rows_of(engine) == {"a": "first"}


def test_shards_are_agreed_on(engine: Engine) -> None:
    gate = opened(engine)
    with pytest.raises(ConfigMismatch):
        gate.epoch(Place("c", 0, 2))


def test_values_come_into_rows(engine: Engine, client: Client) -> None:
    gate = SqlGate(engine)
    products = client.cache("rows", **OPTIONS)
    writes = products.behind(lambda batch: save_rows(engine, gate, batch), gate=gate)
    with writes.flusher():
        for number in range(30):
            writes.set(f"k{number % 10}", f"v{number}")
        writes.set("k0", None)
        assert products.get("k9", lambda: pytest.fail("it is there")) == "v29"
    assert rows_of(engine) == {f"k{number}": f"v{20 + number}" for number in range(1, 10)}


async def test_the_gate_of_an_async_engine(tmp_path: Path, server_url: str, namespace: str) -> None:
    path = tmp_path / "rows.db"
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    gate = AsyncSqlGate(engine)
    await gate.create_tables()
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)

    async def save(batch: Batch[str]) -> None:
        async with engine.begin() as connection:
            entries = await connection.run_sync(gate.admit, batch)
            await connection.run_sync(save_in, entries)

    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        writes = client.cache("rows", **OPTIONS).behind(save, gate=gate)
        async with writes.flusher():
            await writes.set("k", "new")
    await engine.dispose()
    assert rows_of(create_engine(f"sqlite:///{path}")) == {"k": "new"}


def test_a_server_that_loses_everything_is_gone_on_with(
    engine: Engine, client: Client, namespace: str
) -> None:
    """Its counters begin anew; the epoch in SQL is higher by then, and so nothing is refused for ever."""
    gate = SqlGate(engine)
    products = client.cache("rows", **OPTIONS)
    writes = products.behind(lambda batch: save_rows(engine, gate, batch), gate=gate)
    for number in range(3):
        writes.set("k", f"v{number}")
        writes.drain()
    writes.set("k", "lost")
    for key in client.command("KEYS", f"{{{namespace}:*"):
        client.command("DEL", key)
    assert products.get("k", lambda: rows_of(engine)["k"]) == "v2"
    writes.set("k", "after")
    assert writes.drain() == 0
    assert rows_of(engine) == {"k": "after"}


def test_a_lost_reply_of_commit_is_saved_once(engine: Engine, client: Client) -> None:
    """The flusher can't know that it was applied: it saves again, and the gate knows the version."""
    gate, losses, executed = SqlGate(engine), [1], []

    def save(batch: Batch[str]) -> None:
        save_rows(engine, gate, batch)
        if losses.pop() if losses else 0:
            raise ConnectionResetError("the reply of COMMIT")

    writes = client.cache("rows", **OPTIONS).behind(save, gate=gate)
    writes.set("k", "new")

    @event.listens_for(engine, "before_cursor_execute")
    def note(*words: Any) -> None:
        if "INTO rows" in words[2]:
            executed.append(words[2])

    assert writes.drain() == 0
    assert writes.stats()["failures"] == 1
    assert rows_of(engine) == {"k": "new"}
    assert len(executed) == 1


# -- processes


@pytest.fixture
def flusher(
    server_url: str, namespace: str, database: str, engine: Engine
) -> Iterator[Callable[[], Told]]:
    with ExitStack() as stack:

        def make() -> Told:
            one = Told("behind_worker", server_url, namespace, database)
            stack.callback(one.close)
            return one

        yield make


def test_a_flusher_that_is_killed_loses_nothing(
    flusher: Callable[[], Told], engine: Engine, client: Client
) -> None:
    gate = SqlGate(engine)
    writes = client.cache("rows", **OPTIONS).behind(
        lambda batch: save_rows(engine, gate, batch), gate=gate
    )
    writes.set("k", "new")
    one = flusher()
    assert one.says() == "saving"
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    assert writes.waiting().values == 1
    assert writes.drain() == 0
    assert rows_of(engine) == {"k": "new"}


def test_a_flusher_that_was_stopped_is_refused_when_it_comes_back(
    flusher: Callable[[], Told], engine: Engine, client: Client
) -> None:
    gate = SqlGate(engine)
    products = client.cache("rows", **OPTIONS)
    writes = products.behind(lambda batch: save_rows(engine, gate, batch), gate=gate)
    writes.set("k", "old")
    one = flusher()
    assert one.says() == "saving"
    one.process.send_signal(signal.SIGSTOP)
    writes.set("k", "new")
    assert writes.drain() == 0
    assert rows_of(engine) == {"k": "new"}
    one.process.send_signal(signal.SIGCONT)
    one.go()
    assert [one.says(), one.says()] == ["refused", "done"]
    assert rows_of(engine) == {"k": "new"}
    assert products.peek("k").value == "new"
