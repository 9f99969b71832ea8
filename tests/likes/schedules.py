"""Schedules that come out right, and come out wrong where a guard is missing; stores without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from fencepost.likes import SqlLikes
from fencepost.likes.store import Committed, ItemBatch, LikeStore, Place
from support.likes import TABLES, field

if TYPE_CHECKING:
    from support.likes import Lab

COLD_SET = "{0}.set {0}.begin {0}.snapshot {0}.fill {0}.set"
COLD_STATUS = "{0}.hmget {0}.begin {0}.snapshot {0}.fill {0}.hmget"


def told(lines: str, *names: str) -> str:
    """A schedule with actors' names put in."""
    return lines.format(*names)


def warmed(lab: Lab, *users: str) -> int:
    """An item that these users like, with its header in the cache."""
    item = lab.item(*users)
    lab.seen(item)
    return item


def r4(lab: Lab) -> None:
    item = lab.item("u1")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u1"))
    lab.like(item, "u2")
    lab.flushed(item)
    lab.lose_header(item)
    play.run("a.fill")
    lab.shows(item, {"u1", "u2"})


def r5(lab: Lab) -> None:
    item = lab.item("u1", "u2")
    schedule = f"a.hmget a.begin a.snapshot {told(COLD_SET, 'u1')} a.fill a.hmget"
    lab.run(schedule, a=lab.status(item, "u2"), u1=lab.set(item, "u1", False))
    lab.holds(item, {"u2"}, {"u1"})


def r8(lab: Lab) -> None:
    item = lab.item("u2")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u2"))
    lab.like(item, "u1")  # pending: a rebuild would have to lay it over what it read
    lab.flushed(item)  # acknowledged: now nothing is left to lay over
    lab.lose_header(item)
    play.run("a.fill")
    lab.shows(item, {"u1", "u2"})


def r24(lab: Lab) -> None:
    item = warmed(lab, "u2")
    lab.like(item, "u1")
    play = lab.run("zombie.claim", zombie=lab.flush(item))
    lab.unlike(item, "u1")
    lab.flushed(item)  # by somebody else, whole: nothing is left to do
    play.run("zombie.commit zombie.*")
    lab.holds(item, {"u2"}, {"u1"})


def r31(lab: Lab) -> None:
    item = warmed(lab, "u1")
    for liked in (False, True, False, True):
        lab.do(lab.set(item, "u1", liked))
    lab.flushed(item)
    lab.flushall()
    lab.open()
    assert lab.opening()["s"] == "0"
    lab.like(item, "u2")  # its sequence is 1, long after 4
    lab.flushed(item)
    assert lab.rows(item) == {"u1", "u2"}
    lab.holds(item, {"u1", "u2"})


def r32(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.unlike(item, "u1")
    play = lab.run("old.claim", old=lab.flush(item))
    lab.flushall()
    lab.open()  # from SQL, where u1 still likes it: the unlike is lost, and that is the truth now
    lab.shows(item, {"u1"})
    play.run("old.commit old.*")
    lab.shows(item, {"u1"})
    lab.holds(item, {"u1"})


def r36(lab: Lab) -> None:
    item = lab.item("u8", "u9")
    lab.seen(item)  # a sparse header: the count, and nobody's state
    play = lab.run("a.set a.begin a.snapshot", a=lab.set(item, "u1", True))
    assert lab.tokens(item).keys() == {"#", field("u1")}
    assert lab.like(item, "u1").count == 3  # the other device
    lab.flushed(item)
    lab.lose_header(item)
    lab.seen(item)  # by somebody who does not ask for u1
    play.run("a.fill a.*")
    assert play.result("a").changed is False
    assert play.result("a").count == 3
    lab.holds(item, {"u1", "u8", "u9"})


def r41(lab: Lab) -> None:
    item = warmed(lab, "u2")
    lab.like(item, "u1")
    play = lab.run("f.claim", f=lab.flush(item))
    for liked in (False, True, False):
        lab.do(lab.set(item, "u1", liked))
    play.run("f.commit f.ack")
    lab.holds(item, {"u2"}, {"u1"})


def r42(lab: Lab) -> None:
    item = warmed(lab, "u2")
    lab.like(item, "u1")
    play = lab.run("f.claim f.commit", f=lab.flush(item))
    lab.unlike(item, "u1")
    play.run("f.ack")
    lab.holds(item, {"u2"}, {"u1"})


def dirty(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.unlike(item, "u1")
    lab.like(item, "u2")
    lab.lose_header(item)
    lab.shows(item, {"u2"}, {"u1"})
    lab.holds(item, {"u2"}, {"u1"})


class Unfenced(SqlLikes):
    """Without the fence, and without the memory of what was flushed last."""

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        forgetful = [dataclasses.replace(batch, whole=False) for batch in batches]
        return super().commit(place, self.epoch(place), 2**62, forgetful)


def unfenced(engine: Engine) -> LikeStore:
    return Unfenced(engine, **TABLES)


class OneTimeline(SqlLikes):
    """Versions without their epoch: as if one counter had counted for ever."""

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        plain = [
            dataclasses.replace(
                batch,
                changes=tuple(one._replace(version=(1, one.version[1])) for one in batch.changes),
            )
            for batch in batches
        ]
        return super().commit(place, epoch, fence, plain)


class AnyEpoch(SqlLikes):
    """Commits whatever epoch it was claimed in."""

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        return super().commit(place, self.epoch(place), fence + 1000, batches)
