"""Rows that the database refuses, a database that is away for long, a server that is full.

Nothing that was answered may be lost, nobody may be stopped by somebody else's row, and what waits
must stay bounded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError

from fencepost import AsyncClient
from fencepost._core.observe import Event, SetAside
from fencepost.errors import Overloaded, Refused, Unavailable
from fencepost.journal import pressure
from fencepost.journal.pressure import Level, Pressure
from fencepost.likes import LikeOptions, SqlLikes, sql_poison
from fencepost.likes.scripts import SCRIPTS
from fencepost.likes.store import Change, Committed, ItemBatch, Place
from fencepost.sql import dialects
from support.likes import NEVER, TABLES, Lab, LabMaker, add_item, metadata, open_database, rows_of
from support.postgres import PostgresProcess, has_postgres
from support.require import require
from support.servers import ServerProcess, find_binary
from support.until import until

if TYPE_CHECKING:
    from pathlib import Path

# -- poison: tables that refuse


tables = MetaData()
users = Table("users", tables, Column("id", String(20), primary_key=True))
items = Table(
    "items",
    tables,
    Column("id", Integer, primary_key=True),
    Column("likes", Integer, nullable=False, server_default="0"),
)
item_likes = Table(
    "item_likes",
    tables,
    Column("item", ForeignKey(items.c.id), primary_key=True),
    Column("member", ForeignKey(users.c.id), primary_key=True),
)
STRICT: dict[str, Any] = {
    "item": items.c.id,
    "count": items.c.likes,
    "likes": item_likes,
    "like_item": "item",
    "like_user": "member",
    "liked_at": None,
}
PLACE = Place("likes:x", 0, 1)


@pytest.fixture(params=["sqlite", "postgres"])
def strict(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Users u0 to u9 exist, and items 1 to 3; nobody else may like, nothing else may be liked."""
    if request.param == "sqlite":
        engine = create_engine(f"sqlite:///{tmp_path / 'strict.db'}")
        event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys = ON"))
    else:
        engine = create_engine(request.getfixturevalue("postgres_url"))
    tables.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(users), [{"id": f"u{number}"} for number in range(10)])
        connection.execute(insert(items), [{"id": number} for number in range(1, 4)])
    SqlLikes(engine, **STRICT).create_tables()
    yield engine
    engine.dispose()


def opened(engine: Engine) -> SqlLikes:
    store = SqlLikes(engine, **STRICT)
    store.epoch(PLACE)
    assert store.raise_epoch(PLACE, 0, 1)
    return store


def likes_of(engine: Engine) -> set[tuple[int, str]]:
    with engine.connect() as connection:
        found = connection.execute(select(item_likes.c.item, item_likes.c.member))
        rows = {(item, user) for item, user in found}
        counts = {row.id: row.likes for row in connection.execute(select(items))}
    for item, count in counts.items():
        assert count == sum(one == item for one, _ in rows), f"item {item} counts {count}"
    return rows


def batches(*pairs: tuple[int, str], whole: bool = True) -> list[ItemBatch]:
    """Likes in order, an item each a batch."""
    found: dict[int, list[Change]] = {}
    for seq, (item, user) in enumerate(pairs, 1):
        found.setdefault(item, []).append(Change(user, True, (1, seq)))
    return [ItemBatch(item, whole, tuple(changes)) for item, changes in found.items()]


MIXED = [(1, "u0"), (1, "nobody"), (1, "u1"), (2, "u2"), (3, "no one"), (3, "u3"), (1, "u4")]
GOOD = {(item, user) for item, user in MIXED if user.startswith("u")}


def test_a_row_that_is_refused_stops_nobody(strict: Engine) -> None:
    store = opened(strict)
    done = store.commit(PLACE, 1, 1, batches(*MIXED))
    assert likes_of(strict) == GOOD
    assert (done.changed, {(one.item, one.user) for one in done.poison}) == (
        5,
        {(1, "nobody"), (3, "no one")},
    )
    kept = store.poison(PLACE, 10)
    assert {(one.item, one.user, one.liked) for one in kept} == {
        (1, "nobody", True),
        (3, "no one", True),
    }
    assert all("foreign key" in one.reason.lower() for one in kept)
    assert len(store.poison(PLACE, 1)) == 1


def test_without_looking_for_it_the_batch_is_refused_whole(
    strict: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects, "of_the_row", lambda error: False)
    store = opened(strict)
    with pytest.raises(IntegrityError):
        store.commit(PLACE, 1, 1, batches(*MIXED))
    assert likes_of(strict) == set()


def test_poison_that_comes_again_is_kept_once(strict: Engine) -> None:
    store = opened(strict)
    for fence in (1, 2):
        store.commit(PLACE, 1, fence, batches(*MIXED, whole=False))
    assert len(store.poison(PLACE, 10)) == 2
    assert likes_of(strict) == GOOD


def test_poison_has_bounds(strict: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_poison, "KEPT_MAX", 1)
    store = opened(strict)
    done = store.commit(PLACE, 1, 1, batches(*MIXED))
    assert sorted(one.kept for one in done.poison) == [False, True]
    assert len(store.poison(PLACE, 10)) == 1
    assert likes_of(strict) == GOOD


def test_what_a_trigger_objects_to_is_poison_and_a_lost_table_is_not(postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    tables.create_all(engine)
    store = SqlLikes(engine, **STRICT)
    store.create_tables()
    with engine.begin() as connection:
        connection.execute(insert(users), [{"id": "u0"}, {"id": "banned"}])
        connection.execute(insert(items), [{"id": 1}])
        connection.execute(
            text(
                "CREATE FUNCTION object() RETURNS trigger AS $$ BEGIN IF NEW.member = 'banned' "
                "THEN RAISE 'not you'; END IF; RETURN NEW; END $$ LANGUAGE plpgsql"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER t BEFORE INSERT ON item_likes FOR EACH ROW EXECUTE FUNCTION object()"
            )
        )
    opened(engine)
    done = store.commit(PLACE, 1, 1, batches((1, "u0"), (1, "banned")))
    assert [one.reason.partition(" CONTEXT")[0] for one in done.poison] == ["not you"]
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE item_likes"))
    with pytest.raises(Exception, match="item_likes"):
        store.commit(PLACE, 1, 2, batches((2, "-"), (2, "-"), (1, "u0")))
    assert len(store.poison(PLACE, 10)) == 1, "it is not the row's fault: nothing is set aside"
    engine.dispose()


def test_a_constraint_that_is_checked_late_is_found_too(postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    tables.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(users), [{"id": "u0"}])
        connection.execute(insert(items), [{"id": 1}])
        connection.execute(
            text(
                "ALTER TABLE item_likes ALTER CONSTRAINT item_likes_member_fkey "
                "DEFERRABLE INITIALLY DEFERRED"
            )
        )
    SqlLikes(engine, **STRICT).create_tables()
    done = opened(engine).commit(PLACE, 1, 1, batches((1, "u0"), (1, "nobody")))
    assert ([one.user for one in done.poison], likes_of(engine)) == (["nobody"], {(1, "u0")})
    engine.dispose()


@pytest.fixture
def strict_lab(make_lab: LabMaker, strict: Engine) -> Lab:
    return make_lab(engine=strict, store=lambda engine: SqlLikes(engine, **STRICT))


def test_the_cache_forgets_what_never_came_into_sql(strict_lab: Lab, strict: Engine) -> None:
    lab = strict_lab
    for _, user in MIXED:
        lab.like(1, user)
    assert lab.seen(1).count == len(MIXED)
    report = lab.flushed(1)
    assert (report.entries, report.changed, report.poison) == (7, 5, 2)
    assert lab.journal(1) == {}
    assert lab.seen(1, "nobody").liked is False
    assert lab.seen(1).count == 5
    assert len(likes_of(strict)) == 5


def test_what_finds_no_room_stays_in_the_journal(
    strict_lab: Lab, strict: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = strict_lab
    monkeypatch.setattr(sql_poison, "KEPT_MAX", 0)
    lab.like(1, "nobody")
    lab.like(1, "u1")
    lab.flushed(1)
    assert set(lab.journal(1)) == {"unobody"}
    assert likes_of(strict) == {(1, "u1")}
    with strict.begin() as connection:
        connection.execute(insert(users), [{"id": "nobody"}])  # the cause is mended
    assert lab.drain() == 0
    assert likes_of(strict) == {(1, "u1"), (1, "nobody")}


async def test_one_refused_row_fails_its_caller_only(
    server_url: str, namespace: str, strict: Engine
) -> None:
    events: list[Event] = []
    async with AsyncClient.from_url(
        server_url, namespace=namespace, observe=events.append
    ) as client:
        store = SqlLikes(strict, **STRICT)
        likes = client.likes("x", store=store, options=LikeOptions(shards=1))
        await likes.status(1)
        names = [*(f"u{number}" for number in range(10)), "nobody"]
        told = await asyncio.gather(
            *(likes.like(1, name, durability="committed") for name in names),
            return_exceptions=True,
        )
        refused = told.pop()
        assert isinstance(refused, Refused), refused
        assert "set aside" in str(refused)
        assert all(one.changed for one in told if not isinstance(one, BaseException))
        assert len(likes_of(strict)) == 10
        assert (await likes.status(1, "nobody")).liked is False
        assert (await likes.status(1)).count == 10
        assert [(one.item, one.user) for one in await likes.poison()] == [(1, "nobody")]
        assert likes.stats()["poison"] == 1
    assert [one.user for one in events if isinstance(one, SetAside)] == ["nobody"]


# -- pressure


def test_levels() -> None:
    seen = Pressure(LikeOptions(max_dirty=100, max_age_dirty=60.0), 2)
    levels = []
    for items, age in (
        (0, 0),
        (49, 0),
        (50, 0),
        (75, 0),
        (100, 0),
        (1, 29),
        (1, 30),
        (1, 45),
        (1, 60),
    ):
        seen.note(0, items, 1000.0 - age)
        seen.judge(1000.0)
        levels.append(seen.level.value)
    assert levels == [0, 0, 1, 2, 3, 0, 1, 2, 3]
    seen.note(0, 0, None)
    seen.note(1, 5, 999.0)
    seen.judge(1000.0)
    assert (seen.level, seen.dirty, seen.oldest) == (Level.CALM, 5, 1.0)


def test_many_shards_are_looked_at_in_turn() -> None:
    seen = Pressure(LikeOptions(), 70)
    assert [len(seen.some()) for _ in range(4)] == [32, 32, 6, 32]


@pytest.fixture
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call looks how much waits, not one in a quarter of a second."""
    monkeypatch.setattr(pressure, "LOOK_EVERY", 0.0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(tmp_path / "likes.db")
    for item in range(1, 10):
        add_item(engine, item)
    yield engine
    engine.dispose()


@pytest.fixture
async def client(server_url: str, namespace: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        yield client


@pytest.mark.usefixtures("always_look")
async def test_at_the_limit_nothing_is_sent_and_below_it_all_goes_on(
    client: AsyncClient, engine: Engine
) -> None:
    class Away(SqlLikes):
        away = True

        def commit(self, *args: Any) -> Committed:
            if self.away:
                raise Unavailable("the database is away")
            return super().commit(*args)

    store = Away(engine, **TABLES)
    options = LikeOptions(shards=2, max_dirty=4, flush_delay=NEVER)
    likes = client.likes("x", store=store, options=options)
    for item in range(1, 5):
        assert (await likes.like(item, "u")).changed, "the fourth would have joined a commit"
    with pytest.raises(Overloaded, match="4 items wait") as caught:
        await likes.like(5, "u")
    assert caught.value.retry_after > 0
    with pytest.raises(Overloaded):
        await likes.like(5, "u", durability="committed")
    assert not (await likes.status(5, "u")).liked
    assert (await likes.status(4, "u")).liked, "who only looks is not refused"
    store.away = False
    assert await likes.drain() == 0
    assert (await likes.like(5, "u")).changed
    assert all(rows_of(engine, item) == {"u"} for item in range(1, 5))


@pytest.mark.usefixtures("always_look")
async def test_under_pressure_callers_wait_for_their_commits(
    client: AsyncClient, engine: Engine
) -> None:
    options = LikeOptions(shards=1, max_dirty=4, flush_delay=NEVER)
    likes = client.likes("x", store=SqlLikes(engine, **TABLES), options=options)
    for item in (1, 2, 3):
        await likes.like(item, "u")
    assert likes.stats()["pressure"] == "join"
    await likes.like(4, "u")
    assert rows_of(engine, 4) == {"u"}
    assert rows_of(engine, 1) == set()


@pytest.mark.usefixtures("always_look")
async def test_the_age_of_the_oldest_counts(client: AsyncClient, engine: Engine) -> None:
    options = LikeOptions(shards=1, max_age_dirty=0.01, flush_delay=NEVER, commit_wait=0.001)
    likes = client.likes("x", store=SqlLikes(engine, **TABLES), options=options)
    await likes.like(1, "u")

    async def again() -> None:
        while True:
            await likes.like(1, "u")  # changes nothing; its look sees the age

    with pytest.raises(Overloaded, match="the oldest for"):
        await again()


@pytest.mark.usefixtures("always_look")
async def test_an_eager_flusher_does_not_wait_for_what_is_due(
    client: AsyncClient, engine: Engine
) -> None:
    options = LikeOptions(shards=1, max_dirty=8, flush_delay=NEVER)
    likes = client.likes("x", store=SqlLikes(engine, **TABLES), options=options)
    async with likes.flusher(drain=0.0) as stats:
        for item in (1, 2, 3):
            await likes.like(item, "u")
        passes = stats.passes
        await until(lambda: stats.passes > passes + 1)
        assert rows_of(engine, 1) == set(), "the control: nothing is due for an hour"
        await likes.like(4, "u")
        await until(lambda: all(rows_of(engine, item) for item in (1, 2, 3, 4)))


async def test_the_hit_path_asks_nothing(client: AsyncClient, engine: Engine) -> None:
    """Between two looks a like is one request, as it was without limits."""
    likes = client.likes("x", store=SqlLikes(engine, **TABLES), options=LikeOptions(shards=1))
    await likes.like(1, "u")
    likes._pressure.next_look = float("inf")
    before = await client.command("INFO", "commandstats")
    for number in range(50):
        await likes.set(1, f"v{number}", liked=True)
    after = await client.command("INFO", "commandstats")

    def calls(info: bytes, verb: str) -> int:
        for line in info.decode().splitlines():
            if line.startswith(f"cmdstat_{verb}:"):
                return int(line.partition("calls=")[2].partition(",")[0])
        return 0

    assert calls(after, "zcard") == calls(before, "zcard")
    # Not even the script does: the item is dirty, and has its times.
    assert calls(after, "time") == calls(before, "time")


async def test_a_database_that_is_down_for_long(
    server_url: str,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Likes go on until the limit; what was answered is kept, and comes into SQL when it is back."""
    require("postgres", has_postgres())
    monkeypatch.setattr(pressure, "LOOK_EVERY", 0.0)
    caplog.set_level(logging.INFO, "fencepost.likes")
    with PostgresProcess() as own:
        engine = create_engine(own.create_database())
        metadata.create_all(engine)
        for item in range(1, 30):
            add_item(engine, item)
        store = SqlLikes(engine, **TABLES)
        store.create_tables()
        options = LikeOptions(shards=2, max_dirty=20, flush_delay=0.0, claim_time=0.1)
        async with AsyncClient.from_url(server_url, namespace=namespace) as client:
            likes = client.likes("x", store=store, options=options)
            for item in range(1, 30):
                await likes.status(item)
            own.kill()
            answered = []
            async with likes.flusher(drain=20.0) as stats:

                async def like_all() -> None:
                    for item in range(1, 30):
                        await likes.like(item, "u")
                        answered.append(item)

                with pytest.raises(Overloaded):
                    await like_all()
                assert 15 <= len(answered) <= 20
                await until(lambda: stats.failures > 0)
                own.start()
                await until(lambda: likes.stats()["dirty"] == 0)
                assert (await likes.like(29, "u")).liked
            assert all(rows_of(engine, item) == {"u"} for item in answered)
            assert any("the flush goes on" in one.message for one in caplog.records)
        engine.dispose()


# -- a server that is full


@pytest.fixture
def small() -> Iterator[ServerProcess]:
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey", "--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as small:
        yield small


def fill(lab: Lab) -> None:
    """Until the server takes no more."""
    size = 100_000
    number = 0
    while size:
        try:
            lab.command("SET", f"filler{number}", "x" * size)
            number += 1
        except Overloaded:
            size //= 4


def full_lab(url: str, tmp_path: Path, **options: Any) -> tuple[Lab, int]:
    lab = Lab(url, "n", tmp_path, **options)
    item = lab.item("a")
    for number in range(20):
        lab.like(item, f"u{number}")
    lab.unlike(item, "a")
    fill(lab)
    return lab, item


def test_a_full_server_refuses_likes_whole_and_lets_the_journal_drain(
    small: ServerProcess, tmp_path: Path
) -> None:
    lab, item = full_lab(small.url, tmp_path)
    with lab:
        header, journal = lab.header(item), lab.journal(item)
        for liked in (True, False):
            with pytest.raises(Overloaded):
                lab.do(lab.set(item, "late" if liked else "u1", liked))
        assert (lab.header(item), lab.journal(item)) == (header, journal), "all or nothing"
        assert lab.drain() == 0
        assert lab.rows(item) == {f"u{number}" for number in range(20)}
        assert lab.journal(item) == {}
        lab.command("FLUSHALL")


def test_without_leave_to_write_the_journal_of_a_full_server_never_drains(
    small: ServerProcess, tmp_path: Path
) -> None:
    """The control: claim and ack as ordinary scripts."""

    def ordinary(script: Any) -> Any:
        contract = dataclasses.replace(script.contract, flags=())
        return dataclasses.replace(script, contract=contract)

    scripts = dataclasses.replace(SCRIPTS, claim=ordinary(SCRIPTS.claim), ack=ordinary(SCRIPTS.ack))
    lab, item = full_lab(small.url, tmp_path, scripts=scripts)
    with lab:
        with pytest.raises(Overloaded, match="out of memory"):
            lab.flushed(item)
        assert lab.rows(item) == {"a"}
        lab.command("FLUSHALL")
