"""The database side by itself: one fence, exact deltas, and errors that are true."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    select,
)
from sqlalchemy.ext.asyncio import create_async_engine

from fencepost.errors import ConfigMismatch, OutcomeUnknown, Refused, Unavailable
from fencepost.likes import AsyncSqlLikes, SqlLikes
from fencepost.likes.store import Change, Committed, ItemBatch, Place, Snapshot
from support.likes import (
    TABLES,
    activities,
    add_item,
    count_of,
    drifted,
    metadata,
    open_database,
    rows_of,
)

PLACE = Place("likes:test", 3, 8)
LIKE, UNLIKE = True, False


class Store:
    """Each store under one async face; the epoch is 1.

    Args:
        kind: ``sync`` and ``async`` are on a SQLite file, ``postgres`` flushes in one statement where
            it can, ``postgres apart`` never does.
        where: The file, or the database's URL.
    """

    def __init__(self, kind: str, where: Path | str) -> None:
        self._close: Callable[[], Any] = lambda: None
        if isinstance(where, str):
            self.engine = create_engine(where)
            metadata.create_all(self.engine)
            self.likes: Any = SqlLikes(self.engine, **TABLES)
            if kind == "postgres apart":
                self.likes._at_once = None
        else:
            self.engine = open_database(where, busy=0.05)
            self.likes = SqlLikes(self.engine, **TABLES)
        if kind == "async":
            url = f"sqlite+aiosqlite:///{where}"
            engine = create_async_engine(url, connect_args={"timeout": 0.05})
            self.likes = AsyncSqlLikes(engine, **TABLES)
            self._close = engine.dispose
        self.events = self.likes.engine if kind != "async" else self.likes.engine.sync_engine

    async def ask(self, verb: str, *args: Any) -> Any:
        reply = getattr(self.likes, verb)(*args)
        return await reply if inspect.isawaitable(reply) else reply

    async def commit(
        self, *batches: ItemBatch, epoch: int = 1, fence: int = 1, place: Place = PLACE
    ) -> Committed:
        done: Committed = await self.ask("commit", place, epoch, fence, batches)
        return done

    async def close(self) -> None:
        closing = self._close()
        if inspect.isawaitable(closing):
            await closing
        self.engine.dispose()


async def begun(kind: str, where: Path | str) -> Store:
    """A store whose shard is open."""
    store = Store(kind, where)
    await store.ask("create_tables")
    assert await store.ask("epoch", PLACE) == 0
    assert await store.ask("raise_epoch", PLACE, 0, 1)
    return store


@pytest.fixture(params=["sync", "async", "postgres", "postgres apart"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Each of them."""
    of_postgres = request.param.startswith("postgres")
    where = request.getfixturevalue("postgres_url") if of_postgres else tmp_path / "likes.db"
    opened = await begun(request.param, where)
    yield opened
    await opened.close()


@pytest.fixture(params=["sync", "async"])
async def lite(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Those on a SQLite file."""
    opened = await begun(request.param, tmp_path / "likes.db")
    yield opened
    await opened.close()


def batch(
    item: int, *changes: tuple[str, bool, int], whole: bool = True, epoch: int = 1
) -> ItemBatch:
    """Changes as (user, liked, seq)."""
    return ItemBatch(
        item, whole, tuple(Change(user, liked, (epoch, seq)) for user, liked, seq in changes)
    )


# -- epochs and fences


async def test_epoch_is_raised_once(store: Store) -> None:
    """Of several who saw the same epoch one raises it."""
    assert await store.ask("epoch", PLACE) == 1
    assert await store.ask("raise_epoch", PLACE, 1, 2)
    assert not await store.ask("raise_epoch", PLACE, 1, 2)
    assert await store.ask("epoch", PLACE) == 2


async def test_shards_have_epochs_of_their_own(store: Store) -> None:
    other = Place(PLACE.scope, 4, PLACE.shards)
    assert await store.ask("epoch", other) == 0
    assert await store.ask("raise_epoch", other, 0, 5)
    assert await store.ask("epoch", PLACE) == 1


async def test_another_number_of_shards_is_refused(store: Store) -> None:
    with pytest.raises(ConfigMismatch, match="Set shards=8"):
        await store.ask("epoch", Place(PLACE.scope, 3, 16))
    assert await store.ask("epoch", Place("likes:other", 3, 16)) == 0


async def test_older_fence_is_refused(store: Store) -> None:
    """Whoever read before somebody who has committed writes nothing; the same fence may again."""
    item = add_item(store.engine, 1)
    assert (await store.commit(batch(item, ("u1", LIKE, 1)), fence=5)).changed == 1
    refused = await store.commit(batch(item, ("u1", UNLIKE, 2), ("u2", LIKE, 3)), fence=4)
    assert refused == Committed(refused="fence")
    assert rows_of(store.engine, item) == {"u1"}
    assert (await store.commit(batch(item, ("u2", LIKE, 3)), fence=5)).changed == 1


@pytest.mark.parametrize("epoch", [0, 2, 99])
async def test_other_epoch_is_refused(store: Store, epoch: int) -> None:
    """Whatever the fence: it is of another life of the server."""
    item = add_item(store.engine, 1)
    refused = await store.commit(batch(item, ("u1", LIKE, 1)), epoch=epoch, fence=2**40)
    assert refused == Committed(refused="epoch")
    assert rows_of(store.engine, item) == set()


async def test_new_epoch_begins_its_fences_anew(store: Store) -> None:
    item = add_item(store.engine, 1)
    await store.commit(batch(item, ("u1", LIKE, 1)), fence=1000)
    assert await store.ask("raise_epoch", PLACE, 1, 2)
    done = await store.commit(batch(item, ("u2", LIKE, 1), epoch=2), epoch=2, fence=1)
    assert (done.refused, done.changed) == ("", 1)


async def test_shard_that_sql_does_not_know_is_refused(store: Store) -> None:
    item = add_item(store.engine, 1)
    done = await store.commit(batch(item, ("u1", LIKE, 1)), place=Place(PLACE.scope, 7, 8))
    assert done.refused == "epoch"


# -- deltas


async def test_count_moves_by_rows_that_changed(store: Store) -> None:
    """Some are there already, some were never there: only the difference counts."""
    item = add_item(store.engine, 1, "u1", "u2")
    changes = [("u1", LIKE, 1), ("u2", UNLIKE, 2), ("u3", LIKE, 3), ("u4", UNLIKE, 4)]
    done = await store.commit(batch(item, *changes))
    assert (done.changed, done.skipped, done.orphans) == (2, 0, ())
    assert rows_of(store.engine, item) == {"u1", "u3"}
    assert count_of(store.engine, item) == 2


async def test_count_that_had_parted_from_its_rows_moves_by_the_change_only(store: Store) -> None:
    item = add_item(store.engine, 1, "u1")
    with store.engine.begin() as connection:
        connection.execute(activities.update().values(like_count=7))
    await store.commit(batch(item, ("u2", LIKE, 1)))
    assert count_of(store.engine, item) == 8


async def test_what_sql_has_gone_past_is_skipped(store: Store) -> None:
    item = add_item(store.engine, 1)
    await store.commit(batch(item, ("u1", LIKE, 5), ("u2", LIKE, 7)))
    done = await store.commit(batch(item, ("u1", UNLIKE, 6), ("u2", UNLIKE, 7), ("u3", LIKE, 8)))
    assert (done.skipped, done.changed) == (2, 1)
    assert rows_of(store.engine, item) == {"u1", "u2", "u3"}


async def test_part_of_a_journal_moves_no_version(store: Store) -> None:
    """Its newest entry may have come before older ones that are still to come."""
    item = add_item(store.engine, 1)
    await store.commit(batch(item, ("u9", LIKE, 9), whole=False))
    done = await store.commit(batch(item, ("u1", LIKE, 1)))
    assert (done.skipped, done.changed) == (0, 1)
    assert rows_of(store.engine, item) == {"u1", "u9"}


async def test_version_never_goes_back(store: Store) -> None:
    item = add_item(store.engine, 1)
    await store.commit(batch(item, ("u1", LIKE, 9)))
    await store.commit(batch(item, ("u2", LIKE, 3)))  # skipped, and must not lower it
    done = await store.commit(batch(item, ("u3", LIKE, 5)))
    assert done.skipped == 1


async def test_newer_epoch_is_newer_whatever_its_sequence(store: Store) -> None:
    item = add_item(store.engine, 1)
    await store.commit(batch(item, ("u1", LIKE, 10_000)))
    done = await store.commit(batch(item, ("u2", LIKE, 1), epoch=2))
    assert (done.skipped, done.changed) == (0, 1)


async def test_items_that_do_not_exist_are_orphans(store: Store) -> None:
    """Theirs are dropped; the rest of the batch is committed."""
    there = add_item(store.engine, 2)
    batches = [batch(item, ("u1", LIKE, 1)) for item in (3, there, 1)]
    done = await store.commit(*batches)
    assert sorted(done.orphans) == [1, 3]
    assert done.changed == 1
    assert rows_of(store.engine, 1) == set()
    assert drifted(store.engine) == []


async def test_more_changes_than_a_statement_takes(store: Store) -> None:
    item = add_item(store.engine, 1, *(f"u{number}" for number in range(0, 3000, 2)))
    changes = [(f"u{number}", LIKE, number + 1) for number in range(3000)]
    assert (await store.commit(batch(item, *changes))).changed == 1500
    assert drifted(store.engine) == []


# -- snapshots


async def test_snapshot(store: Store) -> None:
    item = add_item(store.engine, 1, "u1", "u2")
    ask = store.ask
    assert await ask("snapshot", PLACE, item, "u1", 2) == Snapshot(1, 2, ("u1", "u2"), True)
    assert await ask("snapshot", PLACE, item, "u9", 2) == Snapshot(1, 2, ("u1", "u2"), False)
    assert await ask("snapshot", PLACE, item, "u1", 1) == Snapshot(1, 2, None, True)
    assert await ask("snapshot", PLACE, item, "u9", 1) == Snapshot(1, 2, None, False)
    assert await ask("snapshot", PLACE, item, None, 0) == Snapshot(1, 2, None, False)
    assert await ask("snapshot", PLACE, 404, "u1", 9) == Snapshot(1, None, None, False)


async def test_snapshot_of_a_wrong_count_is_bounded_all_the_same(store: Store) -> None:
    """The counter says 0, and there are three: not more is read than was asked for."""
    item = add_item(store.engine, 1, "u1", "u2", "u3")
    with store.engine.begin() as connection:
        connection.execute(activities.update().values(like_count=0))
    assert await store.ask("snapshot", PLACE, item, "u1", 2) == Snapshot(1, 0, None, True)


# -- errors


async def test_locked_database_is_unavailable_and_nothing_is_applied(lite: Store) -> None:
    item = add_item(lite.engine, 1)
    with lite.engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        for verb, args in (
            ("commit", (PLACE, 1, 1, [batch(item, ("u1", LIKE, 1))])),
            ("raise_epoch", (PLACE, 1, 2)),
            ("epoch", (PLACE,)),
        ):
            with pytest.raises(Unavailable, match="nothing was applied"):
                await lite.ask(verb, *args)
        # Readers do not wait for a writer.
        assert (await lite.ask("snapshot", PLACE, item, "u1", 9)).count == 0
        other.exec_driver_sql("ROLLBACK")
    assert rows_of(lite.engine, item) == set()
    assert (await lite.commit(batch(item, ("u1", LIKE, 1)))).changed == 1


@pytest.mark.parametrize("applied", [False, True])
async def test_lost_commit_is_unknown(lite: Store, applied: bool) -> None:
    """COMMIT fails: it was done or not, and the caller is told that nobody knows."""
    item = add_item(lite.engine, 1)

    def fail(connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if statement == "COMMIT":
            if applied:
                cursor.execute("COMMIT")
            raise sqlite3.OperationalError("disk I/O error")

    event.listen(lite.events, "before_cursor_execute", fail)
    with pytest.raises(OutcomeUnknown, match="once or not at all"):
        await lite.commit(batch(item, ("u1", LIKE, 1)))
    event.remove(lite.events, "before_cursor_execute", fail)
    assert rows_of(lite.engine, item) == ({"u1"} if applied else set())
    done = await lite.commit(batch(item, ("u1", LIKE, 1)))  # the same again: harmless
    assert done.changed == (0 if applied else 1)
    assert (rows_of(lite.engine, item), count_of(lite.engine, item)) == ({"u1"}, 1)


@pytest.mark.parametrize("at", ["a statement", "COMMIT"])
async def test_full_disk_applies_nothing_and_says_so(lite: Store, at: str, tmp_path: Path) -> None:
    """SQLite has no room left, before COMMIT or while it writes the commit itself."""
    item = add_item(lite.engine, 1)
    users = [f"u{number:05}" for number in range(1500)]
    full: list[sqlite3.OperationalError] = []

    def shrink(connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if at == "a statement" and statement.startswith("BEGIN"):
            cursor.execute("PRAGMA max_page_count = 1")  # of this connection: as small as it is
        if at == "COMMIT" and statement == "COMMIT":
            raise full[0]

    with contextlib.closing(sqlite3.connect(tmp_path / "small")) as small:
        small.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError, match="disk is full") as refused:
            small.execute("CREATE TABLE t (a)")
        full.append(refused.value)
    event.listen(lite.events, "before_cursor_execute", shrink)
    changes = batch(item, *((user, LIKE, number) for number, user in enumerate(users, 1)))
    with pytest.raises(Unavailable, match=r"nothing was applied: .*disk is full"):
        await lite.commit(changes)
    event.remove(lite.events, "before_cursor_execute", shrink)
    assert (rows_of(lite.engine, item), count_of(lite.engine, item)) == (set(), 0)
    if at == "COMMIT":
        assert (await lite.commit(changes)).changed == len(users)


async def test_failure_half_way_applies_nothing(lite: Store) -> None:
    """Rows are written and the counter's statement fails: neither is there, nor the fence."""
    item = add_item(lite.engine, 1)

    def fail(connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("UPDATE activities"):
            raise sqlite3.OperationalError("database is locked")

    event.listen(lite.events, "before_cursor_execute", fail)
    with pytest.raises(Unavailable):
        await lite.commit(batch(item, ("u1", LIKE, 1)), fence=9)
    event.remove(lite.events, "before_cursor_execute", fail)
    assert rows_of(lite.engine, item) == set()
    assert (await lite.commit(batch(item, ("u1", LIKE, 1)), fence=3)).changed == 1


async def test_database_that_is_not_there(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/no/such/folder/x.db")
    with pytest.raises(Unavailable):
        SqlLikes(engine, **TABLES).epoch(PLACE)
    engine.dispose()


# -- ids and columns


def odd_tables(user: Any) -> tuple[Table, Table, dict[str, Any]]:
    """Tables with other names, whose columns also have other names in Python."""
    metadata = MetaData()
    songs = Table(
        "songs",
        metadata,
        Column("song", String(100), key="code", primary_key=True),
        Column("hearts", Integer, key="how_many"),
    )
    hearts = Table(
        "hearts",
        metadata,
        Column("of_song", String(100), key="what", primary_key=True),
        Column("by_user", user, key="who", primary_key=True),
    )
    tables = {
        "item": songs.c.code,
        "count": songs.c.how_many,
        "likes": hearts,
        "like_item": "what",
        "like_user": "who",
        "liked_at": None,
    }
    return songs, hearts, tables


def test_other_names_other_types_and_a_count_that_was_never_set(tmp_path: Path) -> None:
    """Text for items, numbers for users, no time, NULL for the count."""
    songs, hearts, tables = odd_tables(BigInteger)
    engine = create_engine(f"sqlite:///{tmp_path}/odd.db")
    songs.metadata.create_all(engine)
    store = SqlLikes(engine, **tables)
    store.create_tables()
    store.raise_epoch(PLACE, 0, 1)
    with engine.begin() as connection:
        connection.execute(insert(songs).values(code="a:b {x}"))
    assert store.snapshot(PLACE, "a:b {x}", 7, 10) == Snapshot(1, 0, (), False)
    change = Change(7, True, (1, 1))
    done = store.commit(PLACE, 1, 1, [ItemBatch("a:b {x}", True, (change,))])
    assert (done.changed, done.orphans) == (1, ())
    with engine.connect() as connection:
        assert connection.execute(select(hearts.c.what, hearts.c.who)).all() == [("a:b {x}", 7)]
        assert connection.execute(select(songs.c.how_many)).scalar() == 1
    assert store.snapshot(PLACE, "a:b {x}", 7, 10) == Snapshot(1, 1, (7,), True)
    assert store.item_id(store.item_key("a:b {x}")) == "a:b {x}"
    assert store.user_id(store.user_key(7)) == 7
    engine.dispose()


@pytest.mark.parametrize("name", ["like_item", "like_user", "liked_at"])
def test_column_that_does_not_exist_is_refused(tmp_path: Path, name: str) -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(Refused, match="has no column 'nobody'"):
        SqlLikes(engine, **TABLES, **{name: "nobody"})


def test_column_of_another_type_is_refused() -> None:
    _, _, tables = odd_tables(Float)
    with pytest.raises(Refused, match="whole numbers or text"):
        SqlLikes(create_engine("sqlite://"), **tables)


@pytest.mark.parametrize("value", ["1", 1.0, True, None, 2**63, -(2**63) - 1, b"1"], ids=repr)
def test_item_id_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(Refused):
        SqlLikes(create_engine("sqlite://"), **TABLES).item_key(value)


@pytest.mark.parametrize("value", ["", 1, None, "x" * 201, "ä" * 101, "\ud800", b"u"], ids=repr)
def test_user_id_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(Refused):
        SqlLikes(create_engine("sqlite://"), **TABLES).user_key(value)


@pytest.mark.parametrize("user", ["#n", "#full", "a b", "a:b", "{x}", "50%", "é", "~", "u\x00v"])
def test_ids_come_back_as_they_were(user: str) -> None:
    store = SqlLikes(create_engine("sqlite://"), **TABLES)
    key = store.user_key(user)
    assert store.user_id(key) == user
    assert not set(key) & set("{}#: \x00")


# -- several at once


def test_threads_with_one_shard(tmp_path: Path) -> None:
    """Eight threads commit with fences of their own: each is applied whole or refused whole."""
    engine = open_database(tmp_path / "threads.db")
    store = SqlLikes(engine, **TABLES)
    store.raise_epoch(PLACE, 0, 1)
    items = [add_item(engine, number) for number in range(1, 4)]

    def flush(fence: int) -> Committed:
        batches = [
            batch(item, *((f"u{fence}-{n}", LIKE, 10 * fence + n) for n in range(3)), whole=False)
            for item in items
        ]
        return store.commit(PLACE, 1, fence, batches)

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(flush, range(1, 41)))
    applied = [fence for fence, one in enumerate(done, 1) if not one.refused]
    assert 40 in applied
    for item in items:
        assert rows_of(engine, item) == {f"u{fence}-{n}" for fence in applied for n in range(3)}
    assert drifted(engine) == []
    engine.dispose()


async def test_tasks_with_one_shard(tmp_path: Path) -> None:
    """The same on an event loop."""
    path = tmp_path / "tasks.db"
    engine = open_database(path)
    engine.dispose()
    asynchronous = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 10})
    store = AsyncSqlLikes(asynchronous, **TABLES)
    await store.raise_epoch(PLACE, 0, 1)
    item = add_item(engine, 1)
    done = await asyncio.gather(
        *(
            store.commit(PLACE, 1, fence, [batch(item, (f"u{fence}", LIKE, fence), whole=False)])
            for fence in range(1, 21)
        )
    )
    applied = {f"u{fence}" for fence, one in enumerate(done, 1) if not one.refused}
    assert "u20" in applied
    assert rows_of(engine, item) == applied
    assert drifted(engine) == []
    await asynchronous.dispose()
    engine.dispose()
