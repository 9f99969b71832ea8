"""Audits: two systems compared at one moment, while others go on writing to both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

from fencepost._core.keys import field_of
from fencepost.likes import SqlLikes
from fencepost.likes.audit import Difference, audit_item
from fencepost.likes.store import Id, Inspected, Place
from support.likes import TABLES, Actor, Lab, LabMaker, activities, likes_table


def auditor(lab: Lab, item: int, *, repair: bool = False) -> Actor:
    async def actor(io: Any) -> list[Difference]:
        found, _ = await audit_item(io, lab.shard, lab.known, str(item), repair=repair)
        return found

    return actor


def kinds(found: Sequence[Difference]) -> list[str]:
    return [one.kind for one in found]


def warmed(lab: Lab, *users: str) -> int:
    item = lab.item(*users)
    lab.seen(item)
    return item


class WithoutFence(SqlLikes):
    """A store whose audits read whatever there is."""

    def inspect(
        self,
        place: Place,
        epoch: int,
        fence: int | None,
        item: Id,
        users: Sequence[Id],
        repair: bool,
    ) -> Inspected:
        return super().inspect(place, epoch, None, item, users, repair)


def flushed_between(lab: Lab) -> list[Difference]:
    """A like comes and is flushed between the two readings of an audit."""
    item = warmed(lab, "u1")
    play = lab.run("a.inspect", a=auditor(lab, item))
    lab.like(item, "u2")
    lab.flushed(item)
    play.run("a.*")
    found: list[Difference] = play.result("a")
    return found


def test_a_flush_between_the_readings_makes_it_begin_again(lab: Lab) -> None:
    assert flushed_between(lab) == []


def test_without_the_fence_it_would_be_a_false_alarm(make_lab: LabMaker) -> None:
    lab = make_lab(store=lambda engine: WithoutFence(engine, **TABLES))
    assert kinds(flushed_between(lab)) == ["count"]


def test_a_flusher_that_read_before_can_not_commit_after(lab: Lab) -> None:
    """Its fence is older than the audit's: it claims again, and nothing is lost by it."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    play = lab.run("f.claim a.inspect a.inspect", a=auditor(lab, item), f=lab.flush(item))
    assert play.result("a") == []
    play.run("f.commit")
    assert play.waits_at("f") == "claim"
    play.run("f.*")
    lab.holds(item, {"u1", "u2"})


def test_what_is_owed_is_no_difference(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.unlike(item, "u1")
    assert lab.do(auditor(lab, item)) == []


def test_what_is_committed_and_not_acknowledged_is_no_difference(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.run("f.claim f.commit", f=lab.flush(item))
    assert lab.do(auditor(lab, item)) == []


def test_rows_written_past_us_are_found_and_mended(lab: Lab) -> None:
    item = warmed(lab, "u1", "u2")
    lab.like(item, "u3")  # stays owed through it all
    with lab.engine.begin() as connection:
        connection.execute(insert(likes_table).values(activity_id=item, user_id="x"))
        connection.execute(delete(likes_table).where(likes_table.c.user_id == "u1"))
    found = lab.do(auditor(lab, item))
    assert kinds(found) == ["heart"]
    assert (found[0].expected, found[0].found) == ("u1: False", "True")
    assert kinds(lab.do(auditor(lab, item, repair=True))) == ["heart"]
    assert lab.do(auditor(lab, item)) == []
    lab.holds(item, {"u2", "x", "u3"})


def test_a_count_written_past_us_is_found_and_mended(lab: Lab) -> None:
    item = warmed(lab, "u1")
    with lab.engine.begin() as connection:
        connection.execute(update(activities).values(like_count=7))
    assert kinds(lab.do(auditor(lab, item))) == ["rows"]
    assert kinds(lab.do(auditor(lab, item, repair=True))) == ["rows"]
    assert lab.do(auditor(lab, item)) == []
    lab.holds(item, {"u1"})


def test_a_wrong_heart_in_the_cache_is_found_and_mended(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.command("HSET", lab.keys.header(str(item)), field_of("u1"), "0")
    assert "heart" in kinds(lab.do(auditor(lab, item, repair=True)))
    assert lab.do(auditor(lab, item)) == []
    lab.holds(item, {"u1"})


def test_an_older_journal_that_came_back_is_named(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    old = lab.journal(item)
    lab.unlike(item, "u2")
    lab.flushed(item)
    for who, version in old.items():
        lab.command("HSET", lab.keys.journal(str(item)), who, version)
    assert "superseded" in kinds(lab.do(auditor(lab, item)))


@pytest.mark.parametrize("pending", [False, True], ids=["clean", "dirty"])
def test_an_item_deleted_past_us_is_named(lab: Lab, pending: bool) -> None:
    item = warmed(lab, "u1")
    if pending:
        lab.like(item, "u2")
    with lab.engine.begin() as connection:
        connection.execute(delete(activities))
    assert kinds(lab.do(auditor(lab, item))) == (["orphan", "count"] if pending else ["count"])
