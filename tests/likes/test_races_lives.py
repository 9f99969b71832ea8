"""Races R39 to R44: items and users that go, rows that others write, and callers who ask twice.

Each race has two parts: ours comes out right, and a design without the guard (the common one, or
ours with a line taken out) comes out wrong under the same events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, update

from fencepost.errors import OutcomeUnknown, UnknownItem
from fencepost.likes import lives
from fencepost.likes.protocol import LikeStatus, set_like, status
from likes.common_design import CommonDesign
from likes.schedules import r41, r42, warmed
from support.likes import (
    Actor,
    Lab,
    LabMaker,
    activities,
    delete_item,
    drifted,
    goes_wrong,
    likes_table,
    rows_of,
    without,
)

if TYPE_CHECKING:
    from fencepost.testing import SimPort


def forget(lab: Lab, item: int) -> Actor:
    return lambda io: lives.forget_item(io, lab.shard, lab.known, str(item), None)


def item_deleted(lab: Lab) -> None:
    """A flusher has read a like of an item, and another like waits, when the item is deleted."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    play = lab.run("f.claim", f=lab.flush(item))
    lab.like(item, "u3")
    lab.do(forget(lab, item))
    with pytest.raises(UnknownItem):
        lab.seen(item, "u1")
    assert lab.journal(item) == {}
    play.run("f.commit f.ack")
    assert lab.drain() == 0
    assert lab.rows(item) == set()
    with pytest.raises(UnknownItem):
        lab.like(item, "u4")
    assert lab.journal(item) == {}


def test_r39_item_deleted(lab: Lab) -> None:
    """Nothing shows it any more, nothing brings its rows back: what waited is dropped under its
    tombstone, and what was on its way finds no item."""
    item_deleted(lab)


def test_r39_control_of_the_common_design(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    delete_item(lab.engine, common.item)
    assert lab.do(common.details("u1")) == (True, 2)  # wrong: it is gone
    lab.do(common.consume())
    assert common.select() == {"u2"}  # wrong: a row of an item that does not exist


def test_r39_control_without_the_tombstone(make_lab: LabMaker) -> None:
    scripts = without("forget", "redis.call('DEL', header, journal, tokens)\n", "")
    with goes_wrong():
        item_deleted(make_lab(scripts=scripts))


def writes_past_us(lab: Lab) -> int:
    """u1 is deleted by a hand in the database while u2's like waits for it; the item."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    with lab.engine.begin() as connection:
        connection.execute(delete(likes_table).where(likes_table.c.user_id == "u1"))
        connection.execute(update(activities).values(like_count=0))
    return item


def test_r40_outside_writer(lab: Lab) -> None:
    """Rows were written past fencepost: ``invalidate`` drops what is cached and keeps what is owed,
    so the next reader sees both."""
    item = writes_past_us(lab)
    lab.do(lambda io: lives.invalidate(io, lab.shard, str(item)))
    assert len(lab.journal(item)) == 1
    lab.holds(item, {"u2"}, {"u1"})
    assert drifted(lab.engine) == []


def test_r40_a_load_from_before_the_write_fills_nothing(lab: Lab) -> None:
    """A load has read the rows when they are written; ``invalidate`` withdraws its token too."""
    item = lab.item("u1")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u1"))
    with lab.engine.begin() as connection:
        connection.execute(delete(likes_table).where(likes_table.c.user_id == "u1"))
        connection.execute(update(activities).values(like_count=0))
    lab.do(lambda io: lives.invalidate(io, lab.shard, str(item)))
    play.run("a.fill a.*")
    assert play.result("a") == LikeStatus(False, 0)
    lab.holds(item, set(), {"u1"})


def test_r40_control_nobody_says_so(lab: Lab) -> None:
    item = writes_past_us(lab)
    assert lab.seen(item, "u1") == LikeStatus(True, 2)  # wrong, up to its time to live


def test_r40_control_invalidate_drops_what_is_owed(make_lab: LabMaker) -> None:
    """The common way to invalidate: delete the keys, the queue among them."""
    lab = make_lab()
    item = writes_past_us(lab)
    lab.delete(lab.keys.header(str(item)), lab.keys.journal(str(item)))
    with goes_wrong():
        lab.holds(item, {"u2"}, {"u1"})


def test_r41_elision(lab: Lab) -> None:
    """A like is on its way to SQL; unlike, like, unlike: "back where it began" must not drop the
    entry, since SQL is about to leave that place."""
    r41(lab)


def test_r41_control_drop_what_is_undone(make_lab: LabMaker) -> None:
    keep = "redis.call('HSET', journal, user, version)"
    drop = f"if redis.call('HGET', journal, user) then redis.call('HDEL', journal, user) else {keep} end"
    with goes_wrong():
        r41(make_lab(scripts=without("set", keep, drop)))


def test_r42_late_ack_of_an_older_entry(lab: Lab) -> None:
    """A like is committed; before its ack u1 unlikes: the ack removes only the very entry that
    was committed."""
    r42(lab)


def test_r42_control_ack_by_user(make_lab: LabMaker) -> None:
    exact = "stands[n] == ARGV[i + 2 * n - 1]"
    any_entry = "stands[n]"
    with goes_wrong():
        r42(make_lab(scripts=without("ack", exact, any_entry)))


# -- callers who ask twice


def test_r43_time_out_then_again(lab: Lab) -> None:
    """The reply to a like is lost, the caller asks again: a like is a state and not a flip, so it is
    there once, whether the first arrived or not."""
    for fault in ("lost", "dropped"):
        item = warmed(lab, "u1")
        play = lab.run(f"a.set!{fault}", a=lab.set(item, "u2", True))
        with pytest.raises(OutcomeUnknown):
            play.result("a")
        again = lab.like(item, "u2")
        assert (again.liked, again.changed) == (True, fault == "dropped")
        lab.holds(item, {"u1", "u2"})


def test_r43_control_a_toggle(lab: Lab) -> None:
    """An endpoint that flips what it finds, called again after a time-out."""
    item = warmed(lab, "u1")

    def toggle(io: SimPort) -> Any:
        async def protocol() -> None:
            now, known = await status(io, lab.shard, lab.known, str(item), "u2")
            await set_like(io, lab.shard, known, str(item), "u2", not now.liked)

        return protocol()

    play = lab.run("a.hmget a.set!lost", a=toggle)
    with pytest.raises(OutcomeUnknown):
        play.result("a")
    lab.do(toggle)
    assert lab.seen(item, "u2") == LikeStatus(False, 1)  # wrong: one click, and no heart


def test_r44_requests_that_overtake_each_other(lab: Lab) -> None:
    """A like was sent before an unlike of the same user, and arrives after it: it ends as they
    arrived, and so everywhere: in the cache, in the journal and, however it is flushed, in SQL."""
    item = warmed(lab, "u1", "u2")
    play = lab.play(like=lab.set(item, "u2", True), unlike=lab.set(item, "u2", False))
    play.run("unlike.set")
    play.add(f=lab.flush(item))
    play.run("f.claim like.set f.commit f.ack")
    assert play.result("unlike").changed is True
    assert play.result("like").changed is True
    lab.holds(item, {"u1", "u2"})


def test_r44_control(lab: Lab) -> None:
    """In the common design two consumers may swap them once more: cache and database differ."""
    common = CommonDesign(lab, lab.item("u1", "u2")).warm()
    lab.do(common.click("u2", False))
    lab.do(common.click("u2", True))
    lab.run("c.pop d.pop d.apply c.apply", c=common.consume(), d=common.consume())
    assert lab.do(common.details("u2"))[0] is True
    assert rows_of(lab.engine, common.item) == {"u1"}  # wrong
