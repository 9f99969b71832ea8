"""Each guard of the like cache, taken out alone: a schedule that is right with it goes wrong.

A row names the guard, the piece of text (or the store's rule) that is taken out, and the schedule.
Two guards are missing here on purpose. The epoch check of an ack: entries are unique, so nothing
goes wrong without it; it stands since it is cheap. One snapshot for count and rows: the token and
the journal catch what two of them could mix up; it is there for writers past fencepost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from fencepost._core.port import run_sync
from fencepost.likes import SqlLikes
from fencepost.likes.protocol import LikeStatus
from fencepost.likes.scripts import SCRIPTS, Scripts
from likes import schedules
from likes.schedules import warmed
from support.likes import TABLES, Lab, LabMaker, altered, drifted, field, goes_wrong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.likes.store import Committed, ItemBatch, Place

ELSEWHERE = "0" * 40 + ":" + "0" * 40


# -- schedules that no race is named for


def dirty_never_expires(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.unlike(item, "u1")
    assert lab.life(lab.keys.header(str(item))) == -1


def lost_between_begin_and_fill(lab: Lab) -> None:
    item = lab.item("u1")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u1"))
    lab.unlike(item, "u1")
    lab.lose_header(item)
    play.run("a.fill")
    lab.shows(item, set(), {"u1"})


def pair_without_header(lab: Lab) -> None:
    item = warmed(lab, "u1")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u1"))
    lab.like(item, "u3")
    lab.flushed(item)
    lab.lose_header(item)
    play.run("a.fill")
    lab.shows(item, {"u1", "u3"})


def pair_claims_to_know_all(lab: Lab) -> None:
    item = warmed(lab, "u1", "u2")
    who, keys = field("u1"), lab.keys
    lab.command("HSET", keys.tokens(str(item)), who, "t")
    words: tuple[Any, ...] = (lab.known.epoch, lab.known.server, "t", who, "2", "1", 1000, 1000)
    names = (keys.opening, keys.header(str(item)), keys.journal(str(item)), keys.tokens(str(item)))
    run_sync(lab.port.run(lab.shard.scripts.fill(names, (*words, who, "1"))))
    lab.shows(item, {"u1", "u2"})


def older_copy(lab: Lab) -> int:
    """A failover: the server is another one, its data are of before u2's like was flushed."""
    item = warmed(lab, "u1")
    before = lab.dump()
    lab.like(item, "u2")
    lab.flushed(item)
    lab.flushall()
    for key, (value, expires) in before.items():
        lab.command("RESTORE", f"{lab.keys.tag}:{key}", 60_000 if expires else 0, value)
    lab.command("HSET", lab.keys.opening, "id", ELSEWHERE)
    return item


def failover_loses_a_suffix(lab: Lab) -> None:
    item = older_copy(lab)
    assert lab.unlike(item, "u2").changed
    lab.open()
    lab.holds(item, {"u1"}, {"u2"})


def failover_noticed_by_another(lab: Lab) -> None:
    item = older_copy(lab)
    lab.open()  # by somebody else; the header of before is still there
    assert lab.header(item)["#e"] != lab.known.epoch
    assert lab.unlike(item, "u2").changed
    lab.holds(item, {"u1"}, {"u2"})


def older_snapshot(lab: Lab) -> None:
    """The slow opener: see test_slow_opener_cannot_open_the_past."""
    item = lab.item("u1")
    lab.flushall()
    play = lab.run("slow.epoch slow.look slow.raise_epoch", slow=lab.opener())
    lab.open()
    lab.like(item, "u2")
    play.add(old=lab.flush(item))
    play.run("old.claim")
    lab.flushall()
    play.run("slow.open")
    lab.known = play.result("slow")
    reader = lab.run("r.hmget r.begin r.snapshot r.fill", r=lab.status(item, "u2"))
    play.run("old.commit")
    reader.run("r.*")
    assert lab.rows(item) == {"u1", "u2"}
    lab.shows(item, {"u1", "u2"})


def old_journal_comes_back(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    old = lab.journal(item)[field("u2")]
    lab.unlike(item, "u2")
    lab.flushed(item)
    lab.delete(lab.keys.opening, lab.keys.header(str(item)))
    lab.command("HSET", lab.keys.journal(str(item)), field("u2"), old)
    lab.command("ZADD", lab.keys.due, 0, str(item))
    lab.open()
    lab.drain()
    assert lab.rows(item) == {"u1"}


def zombie_with_a_part(lab: Lab) -> None:
    """Batches of one change: no batch is whole, so no version is remembered, and only the fence
    knows who is late."""
    item = warmed(lab, "u2")
    lab.like(item, "u1")
    lab.like(item, "u3")
    play = lab.run("zombie.claim", zombie=lab.flush(item))
    lab.unlike(item, "u1")
    lab.flushed(item)
    play.run("zombie.commit")
    assert "u1" not in lab.rows(item)
    play.run("zombie.*")
    lab.holds(item, {"u2", "u3"}, {"u1"})


def due_list_lost(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.delete(lab.keys.due)
    lab.like(item, "u2")
    lab.drain()
    assert lab.rows(item) == {"u1", "u2"}


def due_list_lost_with_the_header(lab: Lab) -> None:
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.delete(lab.keys.due, lab.keys.header(str(item)))
    play = lab.run("a.hmget a.begin a.crash", a=lab.status(item, "u2"))
    assert str(play)
    lab.drain()
    assert lab.rows(item) == {"u1", "u2"}


def evicted_liker(lab: Lab) -> None:
    item = warmed(lab, "u1", "u2")
    evict(lab, item, "u1")
    assert lab.seen(item, "u1") == LikeStatus(True, 2)
    assert lab.unlike(item, "u1").changed


def evicted_while_dirty(lab: Lab) -> None:
    item = warmed(lab, "u1", "u2")
    lab.unlike(item, "u1")
    evict(lab, item, "u1")
    assert lab.seen(item, "u1") == LikeStatus(False, 1)
    lab.holds(item, {"u2"}, {"u1"})


def evict(lab: Lab, item: int, user: str) -> None:
    keys = (lab.keys.header(str(item)), lab.keys.journal(str(item)))
    run_sync(lab.port.run(lab.shard.scripts.evict(keys, (field(user),))))


def invalidated_load(lab: Lab) -> None:
    item = lab.item("u1")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u1"))
    write_past(lab, item)
    keys = (lab.keys.header(str(item)), lab.keys.tokens(str(item)))
    run_sync(lab.port.run(lab.shard.scripts.invalidate(keys)))
    play.run("a.fill")
    lab.shows(item, {"u1", "outside"})


def write_past(lab: Lab, item: int) -> None:
    with lab.engine.begin() as connection:
        likes, items = TABLES["likes"], TABLES["item"].table
        connection.execute(likes.insert().values(activity_id=item, user_id="outside"))
        more = {"like_count": items.c.like_count + 1}
        connection.execute(items.update().where(items.c.id == item).values(more))


# -- stores without a rule


class Fenceless(SqlLikes):
    """Any fence is the newest."""

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        return super().commit(place, epoch, 2**62, batches)


class Forgetful(SqlLikes):
    """Does not remember which version was flushed last."""

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        parts = [dataclasses.replace(batch, whole=False) for batch in batches]
        return super().commit(place, epoch, fence, parts)


class Believing(SqlLikes):
    """Takes every batch for a whole one."""

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        wholes = [dataclasses.replace(batch, whole=True) for batch in batches]
        return super().commit(place, epoch, fence, wholes)


def parts_in_two_flushes(lab: Lab) -> None:
    item = warmed(lab)
    for user in ("u3", "u2", "u1"):
        lab.like(item, user)
    lab.like(item, "u4")
    lab.unlike(item, "u3")  # the oldest place in the journal, the newest version
    lab.drain()
    assert lab.rows(item) == {"u1", "u2", "u4"}
    assert drifted(lab.engine) == []


# -- the table


@dataclass(frozen=True)
class Mutant:
    """A guard, how it is taken out, and what then goes wrong."""

    guard: str
    schedule: Callable[[Lab], None]
    texts: tuple[tuple[str, str, str], ...] = ()  # (script, what stands there, what instead)
    store: type[SqlLikes] | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def scripts(self) -> Scripts:
        scripts = SCRIPTS
        for verb, old, new in self.texts:
            script = altered(getattr(scripts, verb), old, new)
            scripts = dataclasses.replace(scripts, **{verb: script})
        return scripts


SPARSE = (("full_max", 0),)
ONE_BY_ONE = (("batch_changes", 1),)
EPOCH_OF_HEADER = "if known[1] and known[1] ~= epoch then"

MUTANTS = [
    Mutant(
        "fill compares the load's token",
        schedules.r4,
        (("fill", "if redis.call('HGET', tokens, field) ~= token then", "if false then"),),
    ),
    Mutant(
        "ack withdraws the header's token",
        schedules.r8,
        (("ack", "redis.call('HDEL', tokens, '#')", ""),),
    ),
    Mutant(
        "ack withdraws the users' tokens",
        schedules.r36,
        (("ack", "redis.call('HDEL', tokens, unpack(users))", ""),),
        options=SPARSE,
    ),
    Mutant(
        "a lost header is not loaded over its journal",
        schedules.dirty,
        (
            ("begin", "redis.call('HLEN', journal) > 0", "false"),
            ("fill", "  if not clean then return {'DIRTY'} end\n  if field", "  if field"),
        ),
    ),
    Mutant(
        "fill looks at the journal again",
        lost_between_begin_and_fill,
        (("fill", "  if not clean then return {'DIRTY'} end\n  if field", "  if field"),),
    ),
    Mutant(
        "a pair does not make a header",
        pair_without_header,
        (("fill", "if field ~= '#' then return {'REFUSED'} end", ""),),
        options=SPARSE,
    ),
    Mutant("fill keeps what is known", schedules.r5, (("fill", "HSETNX", "HSET"),)),
    Mutant(
        "a dirty header never expires",
        dirty_never_expires,
        (("set", "redis.call('PERSIST', header)", ""),),
    ),
    Mutant(
        "ack removes the exact entry",
        schedules.r42,
        (("ack", "stands[n] == ARGV[i + 2 * n - 1]", "true"),),
    ),
    Mutant("SQL refuses an older epoch", schedules.r32, store=schedules.AnyEpoch),
    Mutant(
        "an opening record is of one server",
        failover_loses_a_suffix,
        (("set", " or record[2] ~= server", ""),),
    ),
    Mutant(
        "a header of an older epoch counts for nothing",
        failover_noticed_by_another,
        (("set", EPOCH_OF_HEADER, "if false then"),),
    ),
    Mutant(
        "fill carries the epoch of its snapshot",
        older_snapshot,
        (("fill", "local refusal", "epoch = redis.call('HGET', opening, 'e')\nlocal refusal"),),
    ),
    Mutant(
        "only a header load claims to know all",
        pair_claims_to_know_all,
        (("fill", "if full == '1' and field == '#' then", "if full == '1' then"),),
        options=SPARSE,
    ),
    Mutant("SQL skips what it has gone past", old_journal_comes_back, store=Forgetful),
    Mutant(
        "only a whole batch is remembered",
        parts_in_two_flushes,
        store=Believing,
        options=ONE_BY_ONE,
    ),
    Mutant("SQL refuses an older fence", zombie_with_a_part, store=Fenceless, options=ONE_BY_ONE),
    Mutant("versions carry their epoch", schedules.r31, store=schedules.OneTimeline),
    Mutant(
        "every change of a user is a new entry",
        schedules.r41,
        (
            (
                "set",
                "redis.call('HSET', journal, user, version)",
                "if redis.call('HGET', journal, user) then redis.call('HDEL', journal, user) "
                "else redis.call('HSET', journal, user, version) end",
            ),
        ),
    ),
    Mutant(
        "a click that changes nothing still sees to the flush",
        due_list_lost,
        (("set", "if pending and not waits then", "if false then"),),
    ),
    Mutant(
        "a load that finds a journal sees to its flush",
        due_list_lost_with_the_header,
        (("begin", "redis.call('ZADD', due, 'NX', now() + delay_ms, item)", ""),),
    ),
    Mutant(
        "evict stops claiming to know all",
        evicted_liker,
        (("evict", "redis.call('HDEL', header, '#full')", ""),),
    ),
    Mutant(
        "evict spares what is owed to SQL",
        evicted_while_dirty,
        (("evict", "and redis.call('HEXISTS', journal, ARGV[i]) == 0", ""),),
    ),
    Mutant(
        "invalidate withdraws the tokens",
        invalidated_load,
        (("invalidate", "redis.call('DEL', header, tokens)", "redis.call('DEL', header)"),),
    ),
]
named = pytest.mark.parametrize("mutant", MUTANTS, ids=[one.guard for one in MUTANTS])


@named
def test_schedule_is_right(make_lab: LabMaker, mutant: Mutant) -> None:
    mutant.schedule(make_lab(**dict(mutant.options)))


@named
def test_schedule_goes_wrong_without(make_lab: LabMaker, mutant: Mutant) -> None:
    store = mutant.store
    lab = make_lab(
        scripts=mutant.scripts(),
        store=(lambda engine: store(engine, **TABLES)) if store else None,
        **dict(mutant.options),
    )
    with goes_wrong():
        mutant.schedule(lab)
