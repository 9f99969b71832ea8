"""Races R11 to R18: the count, which is a number beside a set and beside rows.

Each race has two parts: ours comes out right, and a design without the guard (the common one, or
ours with a line taken out) comes out wrong under the same events.
"""

from __future__ import annotations

import pytest

from fencepost.likes.protocol import LikeStatus
from likes.common_design import CommonDesign
from likes.common_variants import CommonVariant
from likes.schedules import warmed
from support.likes import Lab, LabMaker, drifted, goes_wrong, without

TEN = [f"u{number:02}" for number in range(10)]


def test_r11_count_expires_alone(lab: Lab) -> None:
    """Three likes are not in SQL yet and the count alone is lost: it is a field of the header, and a
    header without it is none; the journal is flushed first, then all is loaded."""
    item = warmed(lab, *TEN)
    for user in ("x", "y", "z"):
        lab.like(item, user)
    assert lab.command("HDEL", lab.keys.header(str(item)), "#n") == 1
    assert lab.seen(item, "x") == LikeStatus(True, 13)
    lab.holds(item, {*TEN, "x", "y", "z"}, {"w"})


def test_r11_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item(*TEN)).warm()
    for user in ("x", "y", "z"):
        lab.do(common.click(user, True))
    lab.delete(common.counter)
    assert lab.do(common.details_or_what_sql_says("x")) == (True, 10)  # wrong: 13 hearts are full


def stale_fallback(lab: Lab) -> None:
    """A reads the count 10 of an item that is not cached; three likes come and are flushed, and the
    header is lost; A goes on with its 10."""
    item = lab.item(*TEN)
    play = lab.run("a.set a.begin a.snapshot", a=lab.set(item, "w", True))
    for user in ("x", "y", "z"):
        lab.like(item, user)
    lab.flushed(item)
    lab.lose_header(item)
    play.run("a.fill a.*")
    assert play.result("a").count == 14
    lab.holds(item, {*TEN, "w", "x", "y", "z"})


def test_r12_stale_fallback(lab: Lab) -> None:
    """A count that was read before a flush is never written after it: its token is withdrawn."""
    stale_fallback(lab)


def test_r12_control_without_the_token(make_lab: LabMaker) -> None:
    guard = "if redis.call('HGET', tokens, field) ~= token then return {'REFUSED'} end"
    with goes_wrong():
        stale_fallback(make_lab(scripts=without("fill", guard)))


def test_r12_control_of_the_common_design(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item(*TEN)).warm()
    for user in ("x", "y", "z"):
        lab.do(common.click(user, True))
    lab.delete(common.counter)
    play = lab.run("a.count a.read", a=common.click_or_what_sql_says("w", True))
    for _ in range(3):
        lab.do(common.consume())
    play.run("a.click a.count")
    assert play.result("a") == 11  # wrong: 14


@pytest.mark.parametrize("full_max", [100, 0], ids=["whole", "pair by pair"])
def test_r13_count_and_set_from_two_readings(make_lab: LabMaker, full_max: int) -> None:
    """A like is flushed at each moment of a load: what is cached in the end is one moment's count
    and one moment's hearts. On PostgreSQL the reading itself is one snapshot
    (``test_r13_a_snapshot_is_one_moment``); here its token is withdrawn."""
    for moment in ("begin", "snapshot", "fill"):
        lab = make_lab(full_max=full_max)
        item = lab.item("u1")
        play = lab.play(a=lab.status(item, "u2"))
        while (step := play.waits_at("a")) is not None:
            if step == moment:
                moment = ""
                lab.like(item, "u2")
                lab.flushed(item)
            play.run(f"a.{step}")
        assert play.result("a") == LikeStatus(True, 2)
        lab.holds(item, {"u1", "u2"}, {"u3"})


def test_r13_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    play = lab.run("a.select", a=common.details_of_two_readings())
    lab.do(common.consume())
    play.run("a.read")
    assert play.result("a") == ({"u1"}, 2)  # wrong: one heart, and a 2 beside it


def test_r14_double_count_through_a_partial_set(lab: Lab) -> None:
    """Somebody whose like is in SQL clicks while a load is under way, at each step of it: a change
    of nothing, and the number stays."""
    item = lab.item(*TEN)
    play = lab.play(a=lab.status(item, "u00"))
    while (step := play.waits_at("a")) is not None:
        again = lab.like(item, "u09")
        assert (again.changed, again.count) == (False, 10)
        play.run(f"a.{step}")
    lab.holds(item, TEN)


def test_r14_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item(*TEN))
    play = lab.run("a.select a.counted a.chunk", a=common.rebuild_in_chunks(4))
    assert lab.do(common.click("u09", True)) is True
    play.run("a.*")
    assert lab.do(common.details("u09")) == (True, 11)  # wrong: ten like it


def test_r15_negative_count(lab: Lab) -> None:
    """A like that is not in SQL yet is taken back after the header was lost: 0, and never less."""
    item = warmed(lab)
    lab.like(item, "u1")
    lab.lose_header(item)
    result = lab.unlike(item, "u1")
    assert (result.changed, result.count) == (True, 0)
    lab.holds(item, set(), {"u1"})


def test_r15_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item()).warm()
    lab.do(common.click("u1", True))
    lab.delete(common.counter)
    assert lab.do(common.click_or_what_sql_says("u1", False)) == -1  # wrong


@pytest.mark.parametrize("crash_before", ["claim", "commit", "ack"])
def test_r16_crash_between_row_and_count(lab: Lab, crash_before: str) -> None:
    """A flusher dies at any step: row and counter are in one transaction, so they never part."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    steps = ["claim", "commit", "ack"]
    before = " ".join(f"f.{step}" for step in steps[: steps.index(crash_before)])
    play = lab.run(before, f=lab.flush(item))
    assert play.waits_at("f") == crash_before
    play.run("f.crash")
    assert drifted(lab.engine) == []
    lab.holds(item, {"u1", "u2"})


def test_r16_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    lab.run("c.pop c.read c.write_row c.crash", c=common.consume(apart=True))
    assert common.read() == ({"u1", "u2"}, 1)  # wrong, for good


def test_r17_the_same_change_applied_twice(lab: Lab) -> None:
    """Two flushers read the same entry and both commit it: the counter moves by rows that changed."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    play = lab.run("f.claim f.commit g.claim g.commit", f=lab.flush(item), g=lab.flush(item))
    play.run("f.ack g.ack")
    assert play.result("f").changed == 1
    assert play.result("g").changed == 0
    lab.holds(item, {"u1", "u2"})


def test_r17_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    schedule = "c.peek c.apply_blindly d.peek d.apply_blindly c.remove d.remove"
    consume = common.consume(reliable=True, blind=True)
    lab.run(schedule, c=consume, d=consume)
    assert common.read() == ({"u1", "u2"}, 3)  # wrong, for good


@pytest.mark.parametrize(
    "schedule",
    [
        "f.claim g.claim f.commit g.commit f.ack g.ack",
        "f.claim g.claim g.commit f.commit f.claim g.ack f.commit f.ack",
        "f.claim g.claim g.commit g.ack f.commit f.claim f.ack",
        "f.claim f.commit g.claim g.commit g.ack f.ack",
    ],
)
def test_r18_overlapping_flushers(lab: Lab, schedule: str) -> None:
    """Two flushers have read the same entries; in each order of commits the delta is exact, since
    it is computed in the transaction that holds the locks."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.unlike(item, "u1")
    lab.run(schedule, f=lab.flush(item), g=lab.flush(item))
    lab.holds(item, {"u2"}, {"u1"})


def test_r18_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1")).warm()
    lab.do(common.click("u2", True))
    lab.do(common.click("u3", True))
    consume = common.consume(apart=True)
    schedule = "c.pop d.pop c.read d.read c.write_row d.write_row c.write_count d.write_count"
    lab.run(schedule, c=consume, d=consume)
    assert common.read() == ({"u1", "u2", "u3"}, 2)  # wrong though the rows are right
