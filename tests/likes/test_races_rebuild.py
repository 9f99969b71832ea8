"""Races R1 to R10: a cache that is rebuilt while changes are not in SQL yet, or half-way.

Each race has two parts: ours comes out right, and a design without the guard (the common one, or
ours with a line taken out) comes out wrong under the same events.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from fencepost.likes import SqlLikes
from fencepost.likes.protocol import LikeStatus
from likes.common_design import CommonDesign
from likes.common_variants import CommonVariant
from likes.schedules import COLD_SET, COLD_STATUS, r4, r5, r8, told, warmed
from support.likes import TABLES, Lab, LabMaker, field, goes_wrong, open_database, without

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from fencepost.likes.store import Id, Place, Snapshot

MANY = [f"u{number:03}" for number in range(300)]
LAST = MANY[-1]


def test_r1_expiry_with_a_queued_unlike(lab: Lab) -> None:
    """u1 unlikes, the cache is lost, u2's page loads it: u1 stays unliked at every instant."""
    item = warmed(lab, "u1", "u2")
    lab.unlike(item, "u1")
    lab.lose_header(item)
    assert lab.seen(item, "u2") == LikeStatus(True, 1)
    assert lab.seen(item, "u1") == LikeStatus(False, 1)
    lab.holds(item, {"u2"}, {"u1"})


def test_r1_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1", "u2")).warm()
    lab.do(common.click("u1", False))
    common.expire()
    lab.do(common.details("u2"))
    lab.do(common.consume())
    assert common.select() == {"u2"}
    assert lab.do(common.details("u1")) == (True, 2)  # wrong: for everybody, and for good


def test_r2_expiry_with_a_queued_like(lab: Lab) -> None:
    """u3 likes, the cache is lost: u3 sees the like, and a second click changes nothing."""
    item = warmed(lab, "u1")
    lab.like(item, "u3")
    lab.lose_header(item)
    assert lab.seen(item, "u3") == LikeStatus(True, 2)
    again = lab.like(item, "u3")
    assert (again.changed, again.count) == (False, 2)
    lab.holds(item, {"u1", "u3"})


def test_r2_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u3", True))
    common.expire()
    assert lab.do(common.details("u3")) == (False, 1)  # wrong, so the user clicks again
    assert lab.do(common.click("u3", True)) is True
    for _ in range(2):
        lab.do(common.consume(blind=True))
    assert common.read() == ({"u1", "u3"}, 3)  # wrong: +1 twice


def test_r3_snapshot_then_write_then_fill(lab: Lab) -> None:
    """A reads SQL; B loads and u2 likes; A's late fill merges, it does not overwrite."""
    item = lab.item("u1")
    schedule = f"a.hmget a.begin a.snapshot {told(COLD_SET, 'u2')} a.fill a.hmget"
    play = lab.run(schedule, a=lab.status(item, "u1"), u2=lab.set(item, "u2", True))
    assert play.result("a") == LikeStatus(True, 2)
    lab.holds(item, {"u1", "u2"})


def test_r3_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1"))
    play = lab.run("a.look a.select", a=common.details("u1"))
    lab.do(common.click("u2", True))
    play.run("a.refill a.look")
    assert lab.do(common.details("u2")) == (False, 1)  # wrong: the like is only in the queue


def test_r4_two_rebuilds_the_older_one_last(lab: Lab) -> None:
    """A reads SQL; u2's like is flushed; the header expires; A fills. What A read is older than
    the flush: its token was withdrawn, so it fills nothing."""
    r4(lab)


def test_r4_newer_load_wins_over_an_older_one(lab: Lab) -> None:
    """The same with a second load in between, which the older one must not disturb."""
    item = lab.item("u1")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u1"))
    lab.like(item, "u2")
    lab.flushed(item)
    lab.lose_header(item)
    play.add(b=lab.status(item, "u2"))
    play.run(f"{told(COLD_STATUS, 'b')} a.fill a.hmget")
    assert play.result("a") == play.result("b") == LikeStatus(True, 2)
    lab.holds(item, {"u1", "u2"})


def test_r4_control_without_the_token(make_lab: LabMaker) -> None:
    guard = "if redis.call('HGET', tokens, field) ~= token then return {'REFUSED'} end"
    with goes_wrong():
        r4(make_lab(scripts=without("fill", guard)))


def test_r4_control_of_the_common_design(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    common.expire()
    play = lab.run("a.look a.select", a=common.details("u1"))
    lab.do(common.consume())
    assert lab.do(common.details("u2")) == (True, 2)
    play.run("a.refill a.look")
    assert lab.do(common.details("u2")) == (False, 1)  # wrong until the set expires


def test_r5_fill_onto_a_newer_set(lab: Lab) -> None:
    """A reads {u1, u2}; B loads and u1 unlikes; A's fill must not bring u1 back."""
    r5(lab)


def test_r5_control_fill_overwrites(make_lab: LabMaker) -> None:
    with goes_wrong():
        r5(make_lab(scripts=without("fill", "HSETNX", "HSET")))


def test_r5_control_of_the_common_design(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1", "u2"), anew=False)
    play = lab.run("a.look a.select", a=common.details("u2"))
    lab.do(common.click("u1", False))
    play.run("a.refill a.look")
    assert lab.do(common.details("u1"))[0] is True  # wrong: the deleted like is back


@pytest.mark.parametrize("seen_after", ["begin", "snapshot", "fill"])
def test_r6_chunked_fill_seen_half_way(lab: Lab, seen_after: str) -> None:
    """A load of many likers is under way and the last of them asks: at no moment does the cache hold
    some of them and say "no" of the others, since one script writes them all."""
    item = lab.item(*MANY)
    play = lab.play(a=lab.status(item, "u000"))
    while (step := play.waits_at("a")) is not None:
        play.run(f"a.{step}")
        header = lab.header(item)
        assert not header or {field(user) for user in MANY} <= header.keys()
        if step == seen_after:
            assert lab.seen(item, LAST) == LikeStatus(True, len(MANY))
    lab.holds(item, MANY, {"u999"})


def test_r6_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item(*MANY))
    lab.run("a.select a.counted a.chunk", a=common.rebuild_in_chunks(100))
    assert lab.do(common.details(LAST)) == (False, len(MANY))  # wrong: LAST likes it
    assert lab.do(common.click(LAST, True)) is True  # wrong: a change, and an event


@pytest.mark.parametrize("crash_before", ["begin", "snapshot", "fill"])
def test_r7_rebuild_dies_half_way(lab: Lab, crash_before: str) -> None:
    """A loader dies at any step: what it leaves is a token with a time to live, and no header."""
    item = lab.item(*MANY)
    play = lab.play(a=lab.status(item, "u000"))
    while (step := play.waits_at("a")) not in (crash_before, None):
        play.run(f"a.{step}")
    play.run("a.crash")
    assert lab.header(item) == {}
    if crash_before != "begin":
        assert lab.life(lab.keys.tokens(str(item))) > 0
    assert lab.seen(item, LAST) == LikeStatus(True, len(MANY))
    lab.holds(item, MANY, {"u999"})


def test_r7_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item(*MANY))
    lab.run("a.select a.counted a.chunk a.crash", a=common.rebuild_in_chunks(100))
    assert lab.life(common.likers) == -1  # wrong: believed complete, for ever
    assert lab.do(common.details(LAST))[0] is False


def test_r8_overlay_aba(lab: Lab) -> None:
    """A reads SQL without u1; u1's pending like is flushed and leaves the journal; A fills. The ack
    withdrew A's token, since nothing else remembers what A has missed."""
    r8(lab)


def test_r8_control_ack_keeps_the_header_token(make_lab: LabMaker) -> None:
    with goes_wrong():
        r8(make_lab(scripts=without("ack", "redis.call('HDEL', tokens, '#')\n")))


class LaggingReads(SqlLikes):
    """Loads from a copy of the database: a replica that has stopped applying."""

    copy: SqlLikes

    def snapshot(self, place: Place, item: Id, user: Id | None, full_max: int) -> Snapshot:
        return self.copy.snapshot(place, item, user, full_max)


def flushed_and_loaded_anew(lab: Lab, item: int) -> None:
    lab.like(item, "u2")
    lab.flushed(item)
    lab.lose_header(item)
    lab.shows(item, {"u1", "u2"})


def test_r9_rebuild_from_a_lagging_replica(lab: Lab) -> None:
    """A like is committed and leaves the journal; the header is lost: the load must read what that
    commit wrote. A store reads where it commits, never from a replica of the database."""
    flushed_and_loaded_anew(lab, warmed(lab, "u1"))


def test_r9_control(make_lab: LabMaker, tmp_path: Path) -> None:
    def lagging(engine: Engine) -> SqlLikes:
        return LaggingReads(engine, **TABLES)

    lab = make_lab(store=lagging)
    item = lab.item("u1")
    lab.engine.dispose()  # all of it is in the file
    shutil.copy(str(lab.engine.url.database), tmp_path / "replica.db")
    store = lab.store
    assert isinstance(store, LaggingReads)
    replica = open_database(tmp_path / "replica.db")
    store.copy = SqlLikes(replica, **TABLES)
    lab.seen(item)
    with goes_wrong():
        flushed_and_loaded_anew(lab, item)  # u2's like has vanished
    replica.dispose()


@pytest.mark.parametrize("lost_before", ["begin", "snapshot", "fill"])
def test_r10_staging_evicted(lab: Lab, lost_before: str) -> None:
    """All that a load has on the server is lost while it runs: it begins again, and never makes a
    header of what is left."""
    item = lab.item(*MANY)
    play = lab.play(a=lab.status(item, "u000"))
    while (step := play.waits_at("a")) not in (lost_before, None):
        play.run(f"a.{step}")
    lab.delete(lab.keys.header(str(item)), lab.keys.tokens(str(item)))
    play.run("a.*")
    assert play.result("a") == LikeStatus(True, len(MANY))
    lab.holds(item, MANY, {"u999"})


def test_r10_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item(*MANY))
    play = lab.run("a.select a.chunk a.chunk", a=common.rebuild_staged(120))
    lab.delete(common.staging)
    play.run("a.chunk a.swap a.counted")
    assert lab.do(common.details("u000")) == (False, len(MANY))  # wrong: the first chunks are gone
    assert lab.do(common.details(LAST)) == (True, len(MANY))


# -- the sentinel


def test_the_sentinel_passes_the_last_unlike_and_fails_r1_r2_r3_and_r25(lab: Lab) -> None:
    """A member that is no user keeps the set of an item without likes from vanishing: with it the
    common design passes the story that everything began with, and no other."""
    common = CommonDesign(lab, lab.item("u1")).warm()
    assert common.sentinel
    assert lab.do(common.click("u1", False)) is True
    assert lab.do(common.details("u1")) == (False, 0)
    assert common.select() == {"u1"}  # nothing was flushed, as in the story
    lab.do(common.consume())
    assert lab.do(common.details("u1")) == (False, 0)
    for goes_wrong_with_it in (test_r1_control, test_r2_control, test_r3_control):
        goes_wrong_with_it(lab)
    evicted = CommonVariant(lab, lab.item()).warm()
    assert lab.do(evicted.click("u1", True)) is True
    lab.delete(evicted.queue)
    lab.do(evicted.consume())
    assert evicted.select() == set()  # wrong, and nobody knows
    assert lab.do(evicted.details("u1")) == (True, 1)
