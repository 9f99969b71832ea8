"""Races R33 to R38: what is not in the cache.

Each race has two parts: ours comes out right, and a design without the guard (the common one, or
ours with a line taken out) comes out wrong under the same events.
"""

from __future__ import annotations

import pytest

from fencepost import Client
from fencepost.errors import UnknownItem
from fencepost.likes import LikeOptions
from fencepost.likes.protocol import LikeStatus
from likes.common_design import SENTINEL, CommonDesign
from likes.common_variants import CommonVariant
from likes.schedules import r36, warmed
from support.likes import NEVER, Lab, LabMaker, goes_wrong, without


def test_r33_cold_is_not_no(lab: Lab) -> None:
    """Nothing is cached and SQL has the row: the heart is full, and a toggle would unlike."""
    item = lab.item("u1")
    assert lab.seen(item, "u1") == LikeStatus(True, 1)
    assert lab.like(item, "u1").changed is False
    lab.holds(item, {"u1"}, {"u2"})


def test_r33_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1"))
    assert lab.do(common.blind_details("u1")) is False  # wrong


def test_r34_like_on_a_cold_set_creates_it(lab: Lab) -> None:
    """A click on an item that is not cached: the script changes nothing and says so; only a load
    makes a header, with everybody in it."""
    item = lab.item("u1")
    play = lab.run("a.set", a=lab.set(item, "u9", True))
    assert lab.header(item) == {}
    assert lab.journal(item) == {}
    play.run("a.begin a.snapshot a.fill a.set")
    assert play.result("a").count == 2
    lab.holds(item, {"u1", "u9"}, {"u2"})


def test_r34_control(lab: Lab) -> None:
    common = CommonDesign(lab, lab.item("u1"))
    assert lab.do(common.blind_click("u9", True)) == 1
    assert lab.do(common.details("u1")) == (False, 1)  # wrong: one click made the whole set


@pytest.mark.parametrize("lost_before", ["hmget", "begin", "snapshot", "fill", "hmget again"])
def test_r35_expiry_between_two_looks(lab: Lab, lost_before: str) -> None:
    """A header is lost at any moment of a status: what is answered comes from one look at one
    header, so heart and count are of one moment."""
    item = warmed(lab, "u1", "u2")
    lab.unlike(item, "u2")
    play = lab.play(a=lab.status(item, "u1"))
    if lost_before != "hmget":
        lab.lose_header(item)  # so that the status has to load
        steps = [
            "a.hmget",
            "a.begin",
            "a.claim",
            "a.commit",
            "a.ack",
            "a.hmget",
            "a.begin",
            "a.snapshot",
            "a.fill",
        ]
        last = steps.index("a.fill") + 1
        upto = last if lost_before == "hmget again" else steps.index(f"a.{lost_before}")
        play.run(" ".join(steps[:upto]))
    lab.delete(lab.keys.header(str(item)))
    play.run("a.*")
    assert play.result("a") == LikeStatus(True, 1)
    lab.holds(item, {"u1"}, {"u2"})


def test_r35_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item("u1", "u2")).warm()
    play = lab.run("a.exists", a=common.details_in_three_calls("u1"))
    lab.delete(common.likers)  # the set alone, or both
    play.run("a.sismember a.count")
    assert play.result("a") == (False, 2)  # wrong: no heart of one moment, the count of another


def test_r36_pair_hint_is_stale(make_lab: LabMaker) -> None:
    """A reads that u1 has no row; u1's other device likes, is flushed and acked, and the state is
    forgotten; A applies what it read: refused, or u1 would count twice."""
    r36(make_lab(full_max=0))


def test_r36_control_ack_keeps_the_users_token(make_lab: LabMaker) -> None:
    scripts = without("ack", "  redis.call('HDEL', tokens, unpack(users))\n")
    with goes_wrong():
        r36(make_lab(full_max=0, scripts=scripts))


HEADER_FIELDS = ("#n", "#full", "#e", "#gone", "#", "#born")


def test_r37_sentinel_leaks(lab: Lab) -> None:
    """What marks a header is no member: users who are called like its fields, or like a sentinel,
    are users; count and list hold nobody else."""
    item = warmed(lab)
    odd = (*HEADER_FIELDS, SENTINEL, "u", "0")
    store = lab.store
    with Client.from_url(lab.client_url, namespace=lab.client.namespace) as client:
        likes = client.likes("likes", store=store, options=LikeOptions(shards=1, flush_delay=NEVER))
        assert likes.status(item, SENTINEL) == LikeStatus(False, 0)
        assert likes.likers(item).items == []
        for number, user in enumerate(odd, 1):
            assert likes.like(item, user).count == number
        assert set(likes.likers(item).items) == set(odd)
        assert likes.drain() == 0
        assert lab.rows(item) == set(odd)
        for user in odd[:-1]:
            likes.unlike(item, user)
        assert likes.status(item, odd[-1]) == LikeStatus(True, 1)
        assert likes.drain() == 0
    assert lab.life(lab.keys.header(str(item))) > 0  # refreshed by unlikes as by likes


def test_r37_control(lab: Lab) -> None:
    common = CommonVariant(lab, lab.item("u1")).warm()
    assert lab.command("SCARD", common.likers) == 2  # wrong: one likes it
    assert SENTINEL.encode() in lab.command("SMEMBERS", common.likers)  # wrong
    assert lab.do(common.details(SENTINEL))[0] is True  # wrong: a user of that name does not


def test_r38_unknown_items(lab: Lab) -> None:
    """Somebody asks for a thousand items that do not exist: each leaves a tombstone that ends within
    seconds, and nothing else."""
    for number in range(1000, 1500):
        with pytest.raises(UnknownItem):
            lab.seen(number, "u1")
        with pytest.raises(UnknownItem):
            lab.like(number + 500, "u1")
    keys = lab.all_keys()
    assert keys == {"E"} | {f"H:{number}" for number in range(1000, 2000)} & keys
    lives = [lab.life(lab.keys.header(str(number))) for number in range(1990, 2000)]
    assert all(life == -2 or 0 < life <= 5000 for life in lives)
    assert lab.opening()["s"] == "0"


def test_r38_control(lab: Lab) -> None:
    for number in range(1000, 1100):
        assert lab.do(CommonDesign(lab, number).details("u1")) == (False, 0)
    sets = [CommonDesign(lab, number).likers for number in range(1000, 1100)]
    assert {lab.life(name) for name in sets} == {-1}  # wrong: a set each, for ever
