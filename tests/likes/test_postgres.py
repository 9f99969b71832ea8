"""The like cache on a real PostgreSQL, fsync on: exact deltas, and every way to be interrupted.

What must hold at the end of each: rows, counters and the cache say the same, whatever happened.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from fencepost import AsyncClient, Client
from fencepost.errors import OutcomeUnknown, Refused, Unavailable
from fencepost.likes import AsyncSqlLikes, LikeOptions, SqlLikes
from fencepost.likes.store import Change, Committed, ItemBatch, Place
from fencepost.sql import dialects, transactions
from fencepost.sql.transactions import transact
from support.likes import (
    TABLES,
    Lab,
    LabMaker,
    activities,
    add_item,
    count_of,
    drifted,
    likes_table,
    metadata,
    rows_of,
)
from support.likes_worker import NAME, OPTIONS, flushing
from support.postgres import CommitCutter, PostgresProcess, has_postgres
from support.require import require

if TYPE_CHECKING:
    from fencepost.likes import Likes

PLACE = Place("likes:x", 0, 1)


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    """The application's tables and fencepost's, in a database of this test."""
    engine = prepared(postgres_url)
    yield engine
    engine.dispose()


def prepared(url: str, **options: Any) -> Engine:
    engine = create_engine(url, **options)
    metadata.create_all(engine)
    SqlLikes(engine, **TABLES).create_tables()
    return engine


@pytest.fixture
def lab(make_lab: LabMaker, engine: Engine) -> Lab:
    """One shard, opened, on PostgreSQL."""
    return make_lab(engine=engine)


def batch(item: int, *changes: tuple[str, bool, int], whole: bool = True) -> ItemBatch:
    return ItemBatch(
        item, whole, tuple(Change(user, liked, (1, seq)) for user, liked, seq in changes)
    )


def opened(engine: Engine) -> SqlLikes:
    """A store whose only shard stands at epoch 1."""
    store = SqlLikes(engine, **TABLES)
    store.epoch(PLACE)
    assert store.raise_epoch(PLACE, 0, 1)
    return store


def wait_for_lock(engine: Engine, running: Future[Any]) -> None:
    """Until a transaction of this database waits for somebody's lock, and ``running`` still runs."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'"
    )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.execute(waiting).scalar_one():
            if running.done():
                running.result()
                raise AssertionError("it came through without waiting")
            connection.execute(text("SELECT pg_sleep(0.01)"))


# -- the statements


def test_likes_come_into_the_rows_and_the_counter(lab: Lab) -> None:
    item = lab.item("u1", "u2")
    lab.like(item, "u3")
    lab.unlike(item, "u1")
    lab.like(item, "u4")
    lab.unlike(item, "u4")
    report = lab.flushed(item)
    assert (report.entries, report.changed) == (3, 2)
    lab.holds(item, {"u2", "u3"}, {"u1", "u4"})


def test_many_items_go_in_one_transaction_each_with_its_own_delta(lab: Lab) -> None:
    items = [lab.item("a", "b"), lab.item(), lab.item("c")]
    for item in items:
        lab.like(item, "z")
    lab.unlike(items[0], "a")
    lab.unlike(items[2], "c")
    sent: list[str] = []
    event.listen(lab.engine, "before_cursor_execute", lambda *seen: sent.append(seen[2]))
    lab.do(lab.flush(*items))
    assert len(sent) == 1, "one statement, which commits by itself"
    for item, likers in zip(items, ({"b", "z"}, {"z"}, {"z"}), strict=True):
        lab.holds(item, likers)


def test_a_transaction_holds_so_many_changes_and_no_more(
    make_lab: LabMaker, engine: Engine
) -> None:
    lab = make_lab(engine=engine, batch_changes=4)
    items = [lab.item(), lab.item(), lab.item()]
    for item in items:
        for number in range(3):
            lab.like(item, f"u{number}")
    reports = [lab.do(lab.flush(*items)).entries for _ in range(4)]
    assert reports == [4, 4, 1, 0]
    for item in items:
        lab.holds(item, {"u0", "u1", "u2"})


def test_a_committed_batch_that_comes_again_changes_nothing(engine: Engine) -> None:
    store = opened(engine)
    add_item(engine, 1, "old")
    one = [batch(1, ("new", True, 5), ("old", False, 6))]
    assert store.commit(PLACE, 1, 10, one) == Committed("", 2)
    assert store.commit(PLACE, 1, 10, one) == Committed("", 0, 2)  # the reply had been lost
    assert store.commit(PLACE, 1, 9, one).refused == "fence"
    assert store.commit(PLACE, 2, 11, one).refused == "epoch"
    assert (rows_of(engine, 1), count_of(engine, 1)) == ({"new"}, 1)


def test_an_orphan_is_told_and_stops_nobody(engine: Engine) -> None:
    store = opened(engine)
    add_item(engine, 1)
    done = store.commit(PLACE, 1, 1, [batch(99, ("u", True, 1)), batch(1, ("u", True, 2))])
    assert (done.orphans, done.changed) == ((99,), 1)


# -- somebody writes past us


def outside(engine: Engine, item: int, user: str, during: Callable[[], Any]) -> Any:
    """While ``during`` runs, a like of an item is written by somebody else, and committed last."""
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as connection:
            connection.execute(insert(likes_table).values(activity_id=item, user_id=user))
            running = pool.submit(during)
            wait_for_lock(engine, running)
        return running.result()


def test_a_row_that_somebody_else_inserts_meanwhile_moves_no_count(engine: Engine) -> None:
    store = opened(engine)
    add_item(engine, 1)
    changes = [batch(1, ("both", True, 1), ("ours", True, 2))]
    done = outside(engine, 1, "both", lambda: store.commit(PLACE, 1, 1, changes))
    assert done.changed == 1
    assert rows_of(engine, 1) == {"both", "ours"}
    assert count_of(engine, 1) == 1, "one row is ours: the other writer keeps count of its own"


def test_a_look_before_the_insert_would_break_on_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the statements that SQLite gets, whose write lock lets nobody between."""
    store = opened(engine)
    add_item(engine, 1)
    monkeypatch.setattr(store, "_at_once", None)
    monkeypatch.setattr(
        store,
        "_apply",
        lambda connection, fresh, newest=(): store._apply_by_looking(connection, fresh),
    )
    changes = [batch(1, ("both", True, 1), ("ours", True, 2))]
    seen: list[BaseException] = []
    event.listen(engine, "handle_error", lambda context: seen.append(context.sqlalchemy_exception))
    outside(engine, 1, "both", lambda: store.commit(PLACE, 1, 1, changes))
    assert any(isinstance(error, IntegrityError) for error in seen)


# -- a flush that is one statement, and what it must not overlook


def blind(engine: Engine, guard: str) -> None:
    """Take a guard out of the one statement."""
    found: list[str] = []

    def alter(*seen: Any) -> tuple[str, Any]:
        statement, parameters = seen[2], seen[3]
        if statement.startswith("WITH held AS"):
            found.append(statement)
            assert statement.count(guard) == 1, statement
            statement = statement.replace(guard, "TRUE")
        return statement, parameters

    event.listen(engine, "before_cursor_execute", alter, retval=True)


def behind_another_flush(engine: Engine, store: SqlLikes) -> Committed:
    """A flush waits for another one, which writes a like that it is to take back (and takes one
    away, so that the count, and with it the item's row, stays as it is)."""
    add_item(engine, 1, "a", "z")
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as first:
            changes = [batch(1, ("u", True, 1), ("z", False, 2))]
            assert store._commit(first, PLACE, 1, 1, changes).changed == 2
            second = [batch(1, ("u", False, 3), ("a", True, 4))]
            running = pool.submit(store.commit, PLACE, 1, 2, second)
            wait_for_lock(engine, running)
        return running.result()


SAW = (
    "fencepost_fence.fence = (SELECT before.fence \nFROM fencepost_fence AS before "
    "\nWHERE before.scope = %(of_scope)s::VARCHAR)"
)


def test_a_flush_that_waited_for_another_one_sees_what_that_wrote(engine: Engine) -> None:
    """It saw the moment before it waited, so it applies nothing of that and reads anew."""
    done = behind_another_flush(engine, opened(engine))
    assert (done.changed, done.skipped) == (1, 0)
    assert rows_of(engine, 1) == {"a"}
    assert not drifted(engine)


def test_a_flush_that_overlooks_that_it_waited_leaves_a_like(engine: Engine) -> None:
    """The control."""
    store = opened(engine)
    blind(engine, SAW)
    behind_another_flush(engine, store)
    assert rows_of(engine, 1) == {"a", "u"}


def behind_a_writer(engine: Engine, store: SqlLikes) -> Committed:
    """A flush waits for somebody who writes a like past fencepost, with its count, and commits."""
    add_item(engine, 1)
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as other:
            other.execute(update(activities).values(like_count=1))
            other.execute(insert(likes_table).values(activity_id=1, user_id="x"))
            running = pool.submit(
                store.commit, PLACE, 1, 1, [batch(1, ("x", False, 1), ("u", True, 2))]
            )
            wait_for_lock(engine, running)
        return running.result()


def test_a_flush_that_waited_for_a_writer_sees_what_that_wrote(engine: Engine) -> None:
    assert behind_a_writer(engine, opened(engine)).changed == 2
    assert rows_of(engine, 1) == {"u"}
    assert not drifted(engine)


def test_a_flush_that_overlooks_that_a_row_changed_leaves_a_like(engine: Engine) -> None:
    """The control."""
    store = opened(engine)
    blind(engine, "activities.xmin = seen.xmin")
    behind_a_writer(engine, store)
    assert rows_of(engine, 1) == {"u", "x"}


def test_a_flush_that_waited_for_a_deletion_writes_nothing(engine: Engine) -> None:
    store = opened(engine)
    add_item(engine, 1, "a")
    add_item(engine, 2)
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as other:
            assert store._remove_item(other, PLACE, 1) == 1
            changes = [batch(1, ("u", True, 1)), batch(2, ("u", True, 2))]
            running = pool.submit(store.commit, PLACE, 1, 1, changes)
            wait_for_lock(engine, running)
        done = running.result()
    assert (done.orphans, done.changed) == ((1,), 1)
    assert rows_of(engine, 1) == set()
    assert rows_of(engine, 2) == {"u"}


def during_the_snapshot(engine: Engine, store: SqlLikes) -> tuple[int, int]:
    """Count and rows of a snapshot, where somebody likes and commits between the two statements."""

    def between(*seen: Any) -> None:
        if "like_count" in seen[2] and not done:
            done.append(True)

    def after(*seen: Any) -> None:
        if done == [True]:
            done.append(False)
            with engine.begin() as connection:
                connection.execute(insert(likes_table).values(activity_id=1, user_id="late"))
                connection.execute(update(activities).values(like_count=2))

    done: list[bool] = []
    event.listen(engine, "before_cursor_execute", between)
    event.listen(engine, "after_cursor_execute", after)
    snapshot = store.snapshot(PLACE, 1, "u", 10)
    assert snapshot.count is not None
    assert snapshot.likers is not None
    return snapshot.count, len(snapshot.likers)


def test_r13_a_snapshot_is_one_moment(engine: Engine) -> None:
    add_item(engine, 1, "u")
    assert during_the_snapshot(engine, opened(engine)) == (1, 1)


def test_r13_control_two_moments_would_not_agree(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_item(engine, 1, "u")
    store = opened(engine)
    begin = dialects.begin
    monkeypatch.setattr(dialects, "begin", lambda connection, write: begin(connection, write=True))
    assert during_the_snapshot(engine, store) == (1, 2)


# -- interrupted, by the database


@pytest.fixture
def impatient(postgres_url: str, engine: Engine) -> Iterator[Engine]:
    """Sessions that look for a deadlock early, so that they are its victims."""
    impatient = create_engine(postgres_url, connect_args={"options": "-c deadlock_timeout=50ms"})
    yield impatient
    impatient.dispose()


def provoke_a_deadlock(engine: Engine, victim: SqlLikes) -> Committed:
    """Somebody locks item 2 and wants item 1, which the flush has locked and which wants item 2."""
    with ThreadPoolExecutor(1) as pool, engine.connect() as other:
        other.execute(text("SET deadlock_timeout = '60s'"))
        lock = select(activities.c.id).with_for_update()
        other.execute(lock.where(activities.c.id == 2))
        flush = pool.submit(
            victim.commit, PLACE, 1, 1, [batch(2, ("u", True, 1)), batch(1, ("u", True, 2))]
        )
        wait_for_lock(engine, flush)
        other.execute(lock.where(activities.c.id == 1))
        other.rollback()
        return flush.result()


def test_the_victim_of_a_deadlock_tries_again(engine: Engine, impatient: Engine) -> None:
    opened(engine)
    add_item(engine, 1)
    add_item(engine, 2)
    assert provoke_a_deadlock(engine, SqlLikes(impatient, **TABLES)).changed == 2
    assert not drifted(engine)


def test_without_another_try_it_is_told_that_nothing_was_applied(
    engine: Engine, impatient: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_TRIES", 1)
    opened(engine)
    add_item(engine, 1)
    add_item(engine, 2)
    with pytest.raises(Unavailable, match="deadlock"):
        provoke_a_deadlock(engine, SqlLikes(impatient, **TABLES))
    assert rows_of(engine, 1) == rows_of(engine, 2) == set()


def test_what_could_not_be_serialized_is_tried_again(engine: Engine) -> None:
    add_item(engine, 1)
    tries: list[int] = []

    def work(connection: Connection) -> None:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
        count = connection.execute(select(activities.c.like_count)).scalar_one()
        if not tries:
            with engine.begin() as other:
                other.execute(update(activities).values(like_count=10))
        tries.append(count)
        connection.execute(update(activities).values(like_count=count + 1))

    transact(engine, work, write=True)
    assert tries == [0, 10]
    assert count_of(engine, 1) == 11


def test_a_statement_that_runs_out_of_time_applied_nothing(
    postgres_url: str, engine: Engine, make_lab: LabMaker
) -> None:
    hasty = create_engine(postgres_url, connect_args={"options": "-c statement_timeout=100ms"})
    lab = make_lab(engine=hasty)
    item = lab.item()
    lab.like(item, "u")
    with engine.begin() as other:
        other.execute(select(activities.c.id).with_for_update())
        with pytest.raises(Unavailable, match="statement timeout"):
            lab.flushed(item)
    assert set(lab.journal(item)) == {"uu"}
    lab.holds(item, {"u"})
    hasty.dispose()


def test_a_connection_that_died_idle_is_replaced(engine: Engine, postgres: PostgresProcess) -> None:
    store = opened(engine)
    add_item(engine, 1)
    killed = kill_sessions(postgres, engine)
    assert killed > 0
    assert store.commit(PLACE, 1, 1, [batch(1, ("u", True, 1))]).changed == 1


def kill_sessions(postgres: PostgresProcess, engine: Engine) -> int:
    name = engine.url.database
    return len(
        postgres.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
    )


def test_a_session_killed_before_its_commit_is_tried_again(engine: Engine) -> None:
    add_item(engine, 1)
    tries: list[int] = []

    def work(connection: Connection) -> None:
        connection.execute(update(activities).values(like_count=activities.c.like_count + 1))
        tries.append(1)
        if len(tries) == 1:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    transact(engine, work, write=True)
    assert (len(tries), count_of(engine, 1)) == (2, 1)


@pytest.mark.parametrize(("when", "applied"), [("before", 0), ("after", 1)])
def test_a_reply_to_commit_that_is_lost_is_unknown(
    when: Any, applied: int, postgres: PostgresProcess, postgres_url: str, engine: Engine
) -> None:
    add_item(engine, 1)

    def work(connection: Connection) -> None:
        connection.execute(update(activities).values(like_count=activities.c.like_count + 1))

    with CommitCutter(postgres) as cutter:
        cut_off = create_engine(cutter.database(postgres_url))
        cutter.cut(when)
        with pytest.raises(OutcomeUnknown):
            transact(cut_off, work, write=True)
        cut_off.dispose()
    assert count_of(engine, 1) == applied


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_flush_whose_connection_breaks_is_sent_again_and_not_doubled(
    when: Any, postgres: PostgresProcess, postgres_url: str, engine: Engine, make_lab: LabMaker
) -> None:
    with CommitCutter(postgres) as cutter:
        cut_off = create_engine(cutter.database(postgres_url))
        lab = make_lab(engine=cut_off)
        item = lab.item("a")
        lab.like(item, "u")
        lab.unlike(item, "a")
        before = cutter.commits
        cutter.cut(when)
        assert lab.flushed(item).changed == (2 if when == "before" else 0)
        assert cutter.commits == before + 2
        lab.holds(item, {"u"}, {"a"})
        cut_off.dispose()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_flush_that_never_hears_back_is_unknown_and_not_doubled(
    when: Any, postgres: PostgresProcess, postgres_url: str, engine: Engine, make_lab: LabMaker
) -> None:
    with CommitCutter(postgres) as cutter:
        cut_off = create_engine(cutter.database(postgres_url))
        lab = make_lab(engine=cut_off)
        item = lab.item("a")
        lab.like(item, "u")
        lab.unlike(item, "a")
        for _ in range(transactions._TRIES):
            cutter.cut(when)
        with pytest.raises(OutcomeUnknown):
            lab.flushed(item)
        assert set(lab.journal(item)) == {"uu", "ua"}, "nothing left the journal"
        lab.holds(item, {"u"}, {"a"})
        cut_off.dispose()


def test_a_deferred_constraint_that_objects_at_commit_undid_all(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE strict (id int REFERENCES activities DEFERRABLE INITIALLY DEFERRED)")
        )

    def work(connection: Connection) -> None:
        connection.execute(text("INSERT INTO strict VALUES (404)"))

    with pytest.raises(IntegrityError):
        transact(engine, work, write=True)


# -- many processes


class Crowd:
    """Threads that like and unlike at random through one face, and what they were told last."""

    def __init__(self, likes: Likes, items: int, users: int, seed: int) -> None:
        self.likes = likes
        self.items = range(1, items + 1)
        self.users = [f"u{number}" for number in range(users)]
        self.told: dict[tuple[int, str], bool] = {}
        self._seed = seed

    def run(self, changes: int, threads: int = 4) -> None:
        """Each thread has users of its own, so that the last word on each pair is known."""
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(self._work, n, threads, changes) for n in range(threads)]:
                done.result()

    def _work(self, number: int, threads: int, changes: int) -> None:
        dice = random.Random(f"{self._seed} {number}")
        mine = self.users[number::threads]
        for _ in range(changes // threads):
            item, user, liked = dice.choice(self.items), dice.choice(mine), dice.random() < 0.6
            self.likes.set(item, user, liked=liked)
            self.told[item, user] = liked

    def holds(self, engine: Engine) -> None:
        """All is in SQL: rows, counters and the cache say what was told last."""
        for _ in range(5):
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                if self.likes.drain(30.0) == 0:
                    break
        assert self.likes.backlog().items == 0
        assert not drifted(engine)
        for item in self.items:
            likers = {user for (one, user), liked in self.told.items() if one == item and liked}
            assert rows_of(engine, item) == likers
            assert self.likes.status(item).count == len(likers)
            for user in likers:
                assert self.likes.status(item, user).liked


@pytest.fixture
def crowd(server_url: str, namespace: str, engine: Engine) -> Iterator[Crowd]:
    with Client.from_url(server_url, namespace=namespace) as client:
        likes = client.likes(NAME, store=SqlLikes(engine, **TABLES), options=OPTIONS)
        for item in range(1, 9):
            add_item(engine, item)
        yield Crowd(likes, 8, 24, seed=1)


def test_flushers_in_several_processes_count_right(
    crowd: Crowd, server_url: str, namespace: str, postgres_url: str, engine: Engine
) -> None:
    with flushing(server_url, namespace, postgres_url, processes=2):
        crowd.run(800)
    crowd.holds(engine)


def test_sessions_killed_at_random_lose_and_double_nothing(
    crowd: Crowd,
    server_url: str,
    namespace: str,
    postgres: PostgresProcess,
    postgres_url: str,
    engine: Engine,
) -> None:
    over = threading.Event()
    killed: list[Any] = []

    def kill() -> None:
        dice = random.Random(2)
        while not over.is_set():
            sessions = postgres.execute(
                f"SELECT pid FROM pg_stat_activity WHERE datname = '{engine.url.database}' "
                "AND xact_start IS NOT NULL"  # in the middle of a transaction
            )
            if sessions:
                (victim,) = dice.choice(sessions)
                killed.extend(postgres.execute(f"SELECT pg_terminate_backend({victim})"))

    with flushing(server_url, namespace, postgres_url, processes=2):
        # Opened while nobody kills: what is asked here is what happens to flushes.
        for item in crowd.items:
            crowd.likes.status(item, "u0")
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill)
            while len(killed) < 10:
                crowd.run(200)
            over.set()
            killing.result()
    crowd.holds(engine)


def test_who_was_told_committed_is_in_sql_whatever_was_killed(
    server_url: str, namespace: str, postgres: PostgresProcess, engine: Engine
) -> None:
    over = threading.Event()
    killed: list[Any] = []

    def kill() -> None:
        while not over.is_set() and len(killed) < 6:  # else none may ever get through
            killed.extend(
                postgres.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    f"WHERE datname = '{engine.url.database}' AND xact_start IS NOT NULL "
                    "ORDER BY random() LIMIT 1"
                )
            )

    with Client.from_url(server_url, namespace=namespace) as client:
        add_item(engine, 1)
        options = LikeOptions(shards=1, flush_delay=3600)
        likes = client.likes("x", store=SqlLikes(engine, **TABLES), options=options)
        likes.status(1)
        told: list[str] = []
        unknown: list[str] = []

        def caller(number: int) -> None:
            for turn in range(12):
                user = f"u{number}-{turn}"
                try:
                    likes.like(1, user, durability="committed")
                except OutcomeUnknown:
                    unknown.append(user)
                else:
                    told.append(user)

        with ThreadPoolExecutor(9) as pool:
            killing = pool.submit(kill)
            for done in [pool.submit(caller, number) for number in range(8)]:
                done.result()
            over.set()
            killing.result()
        assert killed
        assert told
        assert set(told) <= rows_of(engine, 1), "nothing was flushed but for those who waited"
        for _ in range(5):
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                if likes.drain(30.0) == 0:
                    break
        assert rows_of(engine, 1) == {*told, *unknown}
        assert not drifted(engine)


def test_a_database_killed_in_the_middle_of_flushes_goes_on_where_it_was(
    server_url: str, namespace: str
) -> None:
    require("postgres", has_postgres())
    with PostgresProcess() as own, Client.from_url(server_url, namespace=namespace) as client:
        url = own.create_database()
        engine = prepared(url)
        likes = client.likes(NAME, store=SqlLikes(engine, **TABLES), options=OPTIONS)
        for item in range(1, 9):
            add_item(engine, item)
        crowd = Crowd(likes, 8, 24, seed=3)
        for item in crowd.items:
            likes.status(item)
        with flushing(server_url, namespace, url, processes=2):
            for _ in range(2):
                crowd.run(200)
                own.kill()
                crowd.run(200)  # the likes go on
                own.start()
            crowd.holds(engine)
        engine.dispose()


# -- what a column can't hold


strict = MetaData()
strict_items = Table(
    "things",
    strict,
    Column("id", SmallInteger, primary_key=True),
    Column("like_count", Integer, nullable=False, server_default="0"),
)
strict_likes = Table(
    "things_likes",
    strict,
    Column("activity_id", ForeignKey(strict_items.c.id), primary_key=True),
    Column("user_id", String(8), primary_key=True),
    Column("liked_at", DateTime),  # without a zone
)


def test_ids_that_a_column_cannot_hold_are_refused_at_the_door(postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    store = SqlLikes(
        engine, item=strict_items.c.id, count=strict_items.c.like_count, likes=strict_likes
    )
    for item in (2**15, -(2**15) - 1, "1", True, 1.0):
        with pytest.raises(Refused):
            store.item_key(item)
    for user in ("", "123456789", "a\0b", 1):
        with pytest.raises(Refused):
            store.user_key(user)
    assert store.item_id(store.item_key(-(2**15))) == -(2**15)
    assert store.user_id(store.user_key("ä:{#%} ~")) == "ä:{#%} ~"
    engine.dispose()


def test_a_time_without_a_zone_is_utc_whatever_the_session_thinks(postgres_url: str) -> None:
    engine = create_engine(postgres_url, connect_args={"options": "-c timezone=Asia/Tokyo"})
    strict.create_all(engine)
    store = SqlLikes(
        engine, item=strict_items.c.id, count=strict_items.c.like_count, likes=strict_likes
    )
    store.create_tables()
    store.epoch(PLACE)
    store.raise_epoch(PLACE, 0, 1)
    with engine.begin() as connection:
        connection.execute(insert(strict_items).values(id=1))
    store.commit(PLACE, 1, 1, [batch(1, ("u", True, 1))])
    age = func.timezone("UTC", func.now()) - strict_likes.c.liked_at
    with engine.connect() as connection:
        seconds = connection.execute(select(func.extract("epoch", age))).scalar_one()
    assert abs(seconds) < 3600
    engine.dispose()


# -- the async face


@pytest.mark.anyio
async def test_the_async_face_and_engine(
    server_url: str, namespace: str, postgres_url: str, engine: Engine
) -> None:
    asynchronous = create_async_engine(postgres_url)
    add_item(engine, 1, "a")
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        store = AsyncSqlLikes(asynchronous, **TABLES)
        likes = client.likes("n", store=store, options=LikeOptions(shards=2))
        assert (await likes.like(1, "b")).count == 2
        await likes.unlike(1, "a")
        assert await likes.drain() == 0
        assert (await likes.status(1, "a")).count == 1
    await asynchronous.dispose()
    assert (rows_of(engine, 1), count_of(engine, 1)) == ({"b"}, 1)
