"""Races R19 to R28: between the journal and SQL.

Each race has two parts: ours comes out right, and a design without the guard (the common one, or
ours with a line taken out) comes out wrong under the same events.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import IntegrityError

from fencepost import Client
from fencepost.errors import Overloaded, Refused, Unavailable, UnknownItem
from fencepost.likes import SqlLikes
from likes.common_design import CommonDesign
from likes.common_variants import CommonVariant
from likes.schedules import r24, unfenced, warmed
from support.likes import (
    TABLES,
    Lab,
    LabMaker,
    add_item,
    count_of,
    delete_item,
    field,
    goes_wrong,
    lab_maker,
    open_database,
    rows_of,
)
from support.likes_worker import NAME, OPTIONS, flushing
from support.servers import ServerProcess
from support.until import until_sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


def test_r19_taken_then_crashed(lab: Lab) -> None:
    """A flusher dies with what it has read: nothing has left the journal."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.run("f.claim f.crash", f=lab.flush(item))
    assert set(lab.journal(item)) == {field("u2")}
    lab.holds(item, {"u1", "u2"})


def test_r19_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    lab.run("c.pop c.crash", c=common.consume())
    lab.do(common.consume())
    common.expire()
    assert lab.do(common.details("u2")) == (False, 1)  # wrong: the like is lost


def test_r20_applied_then_crashed_before_the_ack(lab: Lab) -> None:
    """A flusher dies after its COMMIT; the next one finds the work done."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.run("f.claim f.commit f.crash", f=lab.flush(item))
    assert lab.flushed(item).changed == 0
    lab.holds(item, {"u1", "u2"})


def test_r20_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    lab.run("c.peek c.apply_blindly c.crash", c=common.consume(reliable=True, blind=True))
    lab.do(common.consume(reliable=True, blind=True))
    assert common.read() == ({"u1", "u2"}, 3)  # wrong


def test_r21_one_user_in_two_consumers(lab: Lab) -> None:
    """f reads u1's like, g reads u1's later unlike and commits first: f is refused."""
    item = warmed(lab, "u2")
    lab.like(item, "u1")
    play = lab.run("f.claim", f=lab.flush(item))
    lab.unlike(item, "u1")
    play.add(g=lab.flush(item))
    play.run("g.claim g.commit f.commit")
    assert play.waits_at("f") == "claim"  # from the top, with a new fence
    assert lab.rows(item) == {"u2"}
    play.run("g.ack f.claim f.ack")
    lab.holds(item, {"u2"}, {"u1"})


def test_r21_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u2")).warm()
    lab.do(common.click("u1", True))
    lab.do(common.click("u1", False))
    lab.run("c.pop d.pop d.apply c.apply", c=common.consume(), d=common.consume())
    assert common.select() == {"u1", "u2"}  # wrong
    assert lab.do(common.details("u1")) == (False, 1)


def test_r22_retry_reorders(lab: Lab) -> None:
    """The flush of a like fails (a deadlock), u1 takes the like back, and it is tried again: what is
    tried again is read anew, so it is the newest state and never the older one."""
    item = warmed(lab, "u2")
    lab.like(item, "u1")
    play = lab.run("f.claim f.commit!cut", f=lab.flush(item))
    with pytest.raises(Unavailable):
        play.result("f")
    lab.unlike(item, "u1")
    lab.flushed(item)
    assert lab.rows(item) == {"u2"}
    lab.holds(item, {"u2"}, {"u1"})


def test_r22_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item("u2")).warm()
    lab.do(common.click("u1", True))
    lab.do(common.click("u1", False))
    consume = common.consume_or_requeue()
    lab.run("c.pop c.apply!cut c.requeue", c=consume)
    assert common.queued() == ["u1:0", "u1:1"]
    for _ in range(2):
        lab.do(consume)
    assert common.select() == {"u1", "u2"}  # wrong


def test_r23_batch_split_by_kind(lab: Lab) -> None:
    """A batch with likes and unlikes of the same users: the journal holds the newest state of each,
    so it does not matter in which order the rows of a batch are written."""
    item = warmed(lab, "u1", "u3")
    for user, liked in (("u2", True), ("u2", False), ("u1", False), ("u1", True), ("u3", False)):
        lab.do(lab.set(item, user, liked))
    assert {who: entry[0] for who, entry in lab.journal(item).items()} == {
        field("u1"): "1",
        field("u2"): "0",
        field("u3"): "0",
    }
    lab.flushed(item)
    assert lab.rows(item) == {"u1"}
    lab.holds(item, {"u1"}, {"u2", "u3"})


def test_r23_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    lab.do(common.click("u2", False))
    lab.do(common.consume_by_kind())
    assert common.select() == {"u1", "u2"}  # wrong


def test_r24_zombie_flusher(lab: Lab) -> None:
    """A flusher reads a like and stalls; another one takes over and flushes the later unlike; the
    first wakes up and commits: SQL refuses its fence."""
    r24(lab)


def test_r24_control_without_the_fence(make_lab: LabMaker) -> None:
    with goes_wrong():
        r24(make_lab(store=unfenced))


# -- the queue is evicted


# So many samples that what was used last longest ago is nearly always among them.
FULL = ("--maxmemory", "4mb", "--maxmemory-samples", "64", "--maxmemory-policy")


def crowd(lab: Lab, key: str, ttl: bool) -> None:
    """Values of others, until ``key`` is evicted or the server takes no more."""
    for number in range(200_000):
        words = ("EX", 3600) if ttl else ()
        try:
            lab.command("SET", f"{lab.keys.tag}:crowd{number}", "x" * 1000, *words)
        except Overloaded:
            return
        # EXISTS is no use of a key: to read it would keep it.
        if number % 50 == 0 and not lab.command("EXISTS", key):
            return


def test_r25_journal_evicted_or_trimmed(namespace: str, tmp_path: Path) -> None:
    """Memory runs out under other keys. A server whose policy may evict keys that never expire is
    refused; under the others the journal stays whole, and what yields are clean headers."""
    with (
        ServerProcess("valkey", *FULL, "volatile-lru") as server,
        lab_maker(server.url, namespace, tmp_path) as make,
    ):
        lab = make()
        clean, item = warmed(lab, *(f"u{number}" for number in range(200))), warmed(lab, "u1")
        for number in range(500):
            lab.like(item, f"v{number}")
        lab.unlike(item, "u1")
        crowd(lab, lab.keys.header(clean), ttl=True)
        assert lab.header(clean) == {}  # evicted
        assert len(lab.journal(item)) == 501
        assert lab.drain() == 0
        assert lab.rows(item) == {f"v{number}" for number in range(500)}
    with (
        ServerProcess("valkey", *FULL, "allkeys-lru") as server,
        lab_maker(server.url, namespace + "x", tmp_path) as make,
        pytest.raises(Refused, match="allkeys-lru"),
    ):
        make()


def test_r25_control(namespace: str, tmp_path: Path) -> None:
    """The common design, sentinel and all, on a server that evicts the key that nobody reads: the
    queue goes, whole, without a word."""
    with (
        ServerProcess("valkey", *FULL, "volatile-lru") as server,
        lab_maker(server.url, namespace, tmp_path) as make,
    ):
        lab = make()
        common = CommonVariant(lab, lab.item("u1")).warm()
        assert common.sentinel
        for number in range(500):
            lab.do(common.click(f"v{number}", True))
        lab.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        crowd(lab, common.queue, ttl=False)
        assert common.queued() == []
        assert common.select() == {"u1"}  # wrong: 500 likes will never come into SQL


# -- the database is away


def test_r26_database_is_down_for_long(lab: Lab) -> None:
    """Clicks go on for as long as the database is away: what waits is one entry a user, however
    often each changed her mind, and it is flushed as one batch."""
    item = warmed(lab, "u0")
    for turn in range(40):
        for number in range(5):
            lab.do(lab.set(item, f"u{number}", turn % 2 == 0))
        if turn % 10 == 0:
            play = lab.run("f.claim f.commit!cut", f=lab.flush(item))
            with pytest.raises(Unavailable):
                play.result("f")
    assert len(lab.journal(item)) == 5
    assert lab.flushed(item).entries == 5
    lab.holds(item, set(), {f"u{number}" for number in range(5)})


def test_r26_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item("u0")).warm()
    for turn in range(40):
        for number in range(5):
            lab.do(common.click(f"u{number}", turn % 2 == 0))
    assert len(common.queued()) == 199  # one a click, to be replayed one by one


def test_r26_server_runs_full_meanwhile(namespace: str, tmp_path: Path) -> None:
    """The server has no memory left: likes and unlikes are refused alike, and whole. The control in
    the same run: the common script removes a member first, which is always allowed."""
    with (
        ServerProcess("valkey", *FULL, "noeviction") as server,
        lab_maker(server.url, namespace, tmp_path) as make,
    ):
        lab = make()
        item = warmed(lab, "u1")
        lab.like(item, "u2")
        common = CommonVariant(lab, lab.item("u1")).warm()
        lab.do(common.click("u3", True))
        crowd(lab, lab.keys.opening, ttl=False)
        before = lab.header(item), lab.journal(item)
        for user, liked in (("u9", True), ("u1", False)):
            with pytest.raises(Overloaded, match="out of memory"):
                lab.do(lab.set(item, user, liked))
        assert (lab.header(item), lab.journal(item)) == before
        assert lab.drain() == 0  # the journal drains all the same
        assert lab.rows(item) == {"u1", "u2"}
        with pytest.raises(Overloaded):
            lab.do(common.click("u9", True))
        assert lab.do(common.click("u1", False)) is True  # wrong: unlikes alone go through


# -- a row that can't be written


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Engine]:
    """A database that refuses likes of items that do not exist."""
    path = tmp_path / "strict.db"
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys = ON"))
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE activities (id INTEGER PRIMARY KEY, like_count INTEGER NOT NULL DEFAULT 0)",
            "CREATE TABLE activities_likes (activity_id INTEGER NOT NULL REFERENCES activities(id),"
            " user_id VARCHAR(64) NOT NULL, liked_at DATETIME, PRIMARY KEY (activity_id, user_id))",
        ):
            connection.exec_driver_sql(statement)
    SqlLikes(engine, **TABLES).create_tables()
    yield engine
    engine.dispose()


def test_r27_poison_event(make_lab: LabMaker, strict: Engine) -> None:
    """An activity is deleted while its likes wait: they are counted and dropped in the same flush
    that brings the others into SQL, and nothing is tried twice. (Rows that are refused for other
    reasons: ``test_pressure.py``.)"""
    lab = make_lab(engine=strict)
    gone, there = warmed(lab, "u1"), warmed(lab, "u1")
    for item in (gone, there):
        lab.like(item, "u2")
    delete_item(lab.engine, gone)
    report = lab.do(lab.flush(gone, there))
    assert (report.orphans, report.changed) == (1, 1)
    assert lab.do(lab.flush(gone, there)).entries == 0
    with pytest.raises(UnknownItem):
        lab.seen(gone, "u2")
    lab.holds(there, {"u1", "u2"})


def test_r27_control(make_lab: LabMaker, strict: Engine) -> None:
    lab = make_lab(engine=strict)
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    delete_item(lab.engine, common.item)
    for _ in range(3):  # a reliable queue meets it again and again; one that is not has lost it
        with pytest.raises(IntegrityError):
            lab.do(common.consume(reliable=True))


# -- a deploy


def test_r28_deploy_in_the_middle_of_a_flush(
    server_url: str, namespace: str, tmp_path: Path
) -> None:
    """A flusher process is told to end while its transaction waits for a lock: nothing was taken
    out of the journal, so the next process finds all of it."""
    path = tmp_path / "deploy.db"
    engine = open_database(path)
    items = [add_item(engine, number, "u1") for number in (1, 2, 3)]
    with Client.from_url(server_url, namespace=namespace) as client:
        likes = client.likes(NAME, store=SqlLikes(engine, **TABLES), options=OPTIONS)

        def fences() -> int:
            keys = (shard.keys.opening for shard in likes._shards)
            return sum(int(client.command("HGET", key, "f") or 0) for key in keys)

        with (
            engine.connect() as lock,
            flushing(server_url, namespace, f"sqlite:///{path}") as (worker,),
        ):
            for item in items:
                likes.like(item, "u2")
            until_sync(lambda: likes.backlog().items == 0)  # it has opened every shard it needs
            before = fences()
            lock.exec_driver_sql("BEGIN IMMEDIATE")
            for item in items:
                likes.unlike(item, "u1")
            until_sync(lambda: fences() > before)  # it has read, and waits for the lock
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == -signal.SIGTERM
            lock.exec_driver_sql("ROLLBACK")
        assert likes.backlog().items == len(items)
        with flushing(server_url, namespace, f"sqlite:///{path}"):
            until_sync(lambda: likes.backlog().items == 0)
    for item in items:
        assert rows_of(engine, item) == {"u2"}
        assert count_of(engine, item) == 1
    engine.dispose()


def test_r28_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    lab.run("c.pop c.crash", c=common.consume())  # told to end between the two
    lab.do(common.consume())
    assert common.select() == {"u1"}  # wrong
    assert lab.do(common.details("u2")) == (True, 2)  # what users see until the set expires
