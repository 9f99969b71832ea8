"""The like cache under the hand: schedules on the real server with a real database.

The last unlike, headers and keys that are lost, all that is lost, items that do not exist, bounds.
The races that have a number (R1 to R47) stand in ``test_races_*.py``. Ours comes out right, and a
design without the guard (the common one, or ours with a line taken out) comes out wrong under the
same events. A schedule that the wrong design survives would prove nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from fencepost._core.port import run_sync
from fencepost.errors import ConfigMismatch, Overloaded, Refused, UnknownItem
from fencepost.likes import LikeOptions, SqlLikes, protocol
from fencepost.likes.protocol import Known, LikeStatus
from fencepost.likes.store import Id, Place, Snapshot
from likes.common_design import CommonDesign
from likes.schedules import (
    COLD_STATUS,
    dirty,
    told,
    warmed,
)
from support.likes import (
    TABLES,
    Lab,
    LabMaker,
    activities,
    count_of,
    delete_item,
    drifted,
    field,
    goes_wrong,
    lab_maker,
    without,
)
from support.require import require
from support.servers import ServerProcess, find_binary

if TYPE_CHECKING:
    from pathlib import Path


# -- the last unlike: what began it all


def test_last_unlike_is_not_a_miss(lab: Lab) -> None:
    """The only like is removed; the page asks before the flush. An empty set is no set: a design
    that takes "missing" for "look in SQL" finds the row that is still there, and the heart is full."""
    item = warmed(lab, "u1")
    play = lab.run("u1.set page.hmget", u1=lab.set(item, "u1", False), page=lab.status(item, "u1"))
    assert play.result("u1").count == 0
    assert play.result("page") == LikeStatus(False, 0)
    assert lab.rows(item) == {"u1"}  # nothing was flushed
    lab.holds(item, set(), {"u1", "u2"})


def test_last_unlike_is_not_a_miss_when_the_header_is_lost(lab: Lab) -> None:
    """The same, and then the header is evicted before the flush: it is not loaded from SQL, which
    still has the like, but flushed first."""
    item = warmed(lab, "u1")
    lab.unlike(item, "u1")
    lab.lose_header(item)
    play = lab.run(
        "page.hmget page.begin page.claim page.commit page.ack page.hmget",
        page=lab.status(item, "u1"),
    )
    play.run("page.begin page.snapshot page.fill page.hmget")
    assert play.result("page") == LikeStatus(False, 0)
    lab.holds(item, set(), {"u1"})


def test_last_unlike_does_not_expire(lab: Lab) -> None:
    """A header with a change that is not in SQL has no time to live; a flushed one has."""
    item = warmed(lab, "u1")
    header = lab.keys.header(str(item))
    assert lab.life(header) > 0
    lab.unlike(item, "u1")
    assert lab.life(header) == -1
    lab.flushed(item)
    assert lab.life(header) > 0
    assert lab.header(item)["#n"] == "0"
    assert lab.header(item)["#full"] == "1"
    lab.shows(item, set(), {"u1"})


def test_last_unlike_comes_back_without_a_sentinel(lab: Lab) -> None:
    """The control: the common design without a sentinel. Its empty set vanishes, and the rebuild
    finds the row."""
    common = CommonDesign(lab, lab.item("u1"), sentinel=False).warm()
    assert lab.do(common.click("u1", False)) is True
    assert lab.do(common.details("u1")) == (True, 1)  # wrong


# -- a header that is lost while its item is dirty


def test_header_lost_while_dirty_is_flushed_by_the_reader(lab: Lab) -> None:
    """The reader of a dirty item without a header brings the journal to SQL itself, then loads."""
    item = warmed(lab, "u1")
    lab.unlike(item, "u1")
    lab.lose_header(item)
    schedule = "r.hmget r.begin r.claim r.commit r.ack r.hmget r.begin r.snapshot r.fill r.hmget"
    play = lab.run(schedule, r=lab.status(item, "u1"))
    assert play.result("r") == LikeStatus(False, 0)
    assert lab.journal(item) == {}
    assert lab.rows(item) == set()


def test_header_lost_while_dirty_control(make_lab: LabMaker) -> None:
    guard = "if redis.call('HLEN', journal) > 0 then"
    scripts = dataclasses.replace(
        without("begin", guard, "if false then"),
        fill=without(
            "fill",
            "  if not clean then return {'DIRTY'} end\n  if field ~= '#'",
            "  if field ~= '#'",
        ).fill,
    )
    with goes_wrong():
        dirty(make_lab(scripts=scripts))


def test_header_lost_between_begin_and_fill(lab: Lab) -> None:
    """A load has begun on a clean item; others load it, change it and lose it: DIRTY at the fill."""
    item = lab.item("u1")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u1"))
    lab.unlike(item, "u1")
    lab.lose_header(item)
    play.run("a.fill a.claim a.commit a.ack a.hmget a.*")
    assert play.result("a") == LikeStatus(False, 0)
    lab.holds(item, set(), {"u1"})


def test_setter_of_a_dirty_item_without_header_flushes_it(lab: Lab) -> None:
    """A click, too, goes through: flush, load, then the change."""
    item = warmed(lab, "u1")
    lab.unlike(item, "u1")
    lab.lose_header(item)
    result = lab.like(item, "u1")
    assert (result.changed, result.count) == (True, 1)
    lab.holds(item, {"u1"})


def test_two_readers_of_a_dirty_item_without_header(lab: Lab) -> None:
    """Both flush it; one of them is refused by the fence and goes on."""
    item = warmed(lab, "u1")
    lab.unlike(item, "u1")
    lab.lose_header(item)
    play = lab.run(
        "a.hmget b.hmget a.begin b.begin a.claim b.claim b.commit a.commit b.ack",
        a=lab.status(item, "u1"),
        b=lab.status(item, "u2"),
    )
    play.run("a.* b.*")
    assert play.result("a") == play.result("b") == LikeStatus(False, 0)
    lab.holds(item, set(), {"u1"})


# -- keys lost alone


@pytest.mark.parametrize("pending", [True, False], ids=["dirty", "clean"])
@pytest.mark.parametrize("part", ["E", "H", "G"])
def test_key_lost_alone_changes_nothing(lab: Lab, part: str, pending: bool) -> None:
    """The opening record, a header or the tokens vanish: nothing is lost, and nothing comes back."""
    item = warmed(lab, "u1", "u2")
    lab.unlike(item, "u1")
    if not pending:
        lab.flushed(item)
    key = {"E": lab.keys.opening, "H": lab.keys.header(str(item)), "G": lab.keys.tokens(str(item))}
    lab.delete(key[part])
    lab.holds(item, {"u2"}, {"u1"})


def test_opening_record_lost_under_a_flusher(lab: Lab) -> None:
    """Fence and sequence vanish with the record, so the shard closes: a flusher that had read
    before is refused, and no fence is drawn twice."""
    item = warmed(lab, "u1")
    lab.unlike(item, "u1")
    play = lab.run("old.claim", old=lab.flush(item))
    lab.delete(lab.keys.opening)
    lab.like(item, "u1")  # opens the shard anew
    assert int(lab.opening()["e"]) == int(lab.known.epoch) + 1
    play.run("old.commit old.*")
    lab.open()
    lab.holds(item, {"u1"})


def test_opening_record_lost_in_part_is_no_opening_record(lab: Lab) -> None:
    """A record without its fence or sequence opens nothing."""
    for part in ("f", "s", "id"):
        before = int(lab.opening()["e"])
        lab.command("HDEL", lab.keys.opening, part)
        lab.open()
        assert int(lab.opening()["e"]) == before + 1
        assert lab.opening().keys() == {"e", "f", "s", "id"}


def test_journal_lost_alone(lab: Lab) -> None:
    """What was owed to SQL is lost; the header still shows it, and cannot expire by itself until the
    next flush of the item; then SQL's word counts. Nothing blocks and nothing drifts."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.delete(lab.keys.journal(str(item)))
    assert lab.drain() == 0
    lab.is_clean(item)
    lab.lose_header(item)
    lab.shows(item, {"u1"}, {"u2"})
    assert drifted(lab.engine) == []


def test_due_times_lost_alone(lab: Lab) -> None:
    """A journal that nobody would flush: the next click on the item, even one that changes nothing,
    puts it back on the list."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.delete(lab.keys.due, lab.keys.since)
    assert lab.drain() == 0
    assert lab.rows(item) == {"u1"}
    assert lab.like(item, "u2").changed is False
    lab.holds(item, {"u1", "u2"})


def test_due_times_lost_under_a_flush_that_leaves_a_rest(make_lab: LabMaker) -> None:
    """The due times vanish while a flush of a part is under way: its ack puts the rest back."""
    lab = make_lab(batch_changes=1)
    item = warmed(lab)
    lab.like(item, "u1")
    lab.like(item, "u2")
    play = lab.run("f.claim f.commit", f=lab.flush(item))
    lab.delete(lab.keys.due, lab.keys.since)
    play.run("f.ack")
    lab.holds(item, {"u1", "u2"})


def test_due_times_lost_and_header_lost(lab: Lab) -> None:
    """With the header gone too, a reader finds the journal and flushes it."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.delete(lab.keys.due, lab.keys.since, lab.keys.header(str(item)))
    lab.holds(item, {"u1", "u2"})


# -- all is lost


def test_everything_lost_between_claim_and_commit(lab: Lab) -> None:
    """The server is empty and nobody has opened the shard yet: the flusher's commit is still of
    SQL's epoch, so the like is saved; its ack finds a closed shard."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    play = lab.run("f.claim", f=lab.flush(item))
    lab.flushall()
    play.run("f.commit f.ack")
    assert play.result("f").changed == 1
    lab.holds(item, {"u1", "u2"})


def test_everything_lost_with_two_flushers_of_two_times(lab: Lab) -> None:
    """One flusher of the time before, one of the time after, commits in the worst order."""
    item = warmed(lab, "u1")
    lab.unlike(item, "u1")
    play = lab.run("old.claim", old=lab.flush(item))
    lab.flushall()
    lab.open()
    lab.like(item, "u3")
    play.add(new=lab.flush(item))
    play.run("new.claim old.commit new.commit new.ack old.*")
    lab.holds(item, {"u1", "u3"})


def test_slow_opener_cannot_open_the_past(lab: Lab) -> None:
    """A slow opener has raised epoch 2 in SQL; another raised 3, opened and served; all is lost; the
    slow one's record is written. What is read from SQL now is of epoch 3, so it fills nothing
    under 2: the shard is opened once more."""
    item = lab.item("u1")
    lab.flushall()
    play = lab.run("slow.epoch slow.look slow.raise_epoch", slow=lab.opener())
    assert lab.open().epoch == "3"
    lab.like(item, "u2")
    play.add(old=lab.flush(item))
    play.run("old.claim")
    lab.flushall()
    play.run("slow.open")
    assert lab.opening()["e"] == "2"
    lab.known = play.result("slow")
    reader = lab.run("r.hmget r.begin r.snapshot", r=lab.status(item, "u2"))
    play.run("old.commit")  # of epoch 3, as SQL is
    reader.run("r.fill r.epoch")  # closed: from the top
    reader.run("r.*")
    assert reader.result("r") == LikeStatus(True, 2)
    play.run("old.*")
    lab.open()
    lab.holds(item, {"u1", "u2"})


class Claiming(SqlLikes):
    """Says of each snapshot that it is of the epoch which stands on the server."""

    epoch_there = 0

    def snapshot(self, place: Place, item: Id, user: Id | None, full_max: int) -> Snapshot:
        return dataclasses.replace(
            super().snapshot(place, item, user, full_max), epoch=self.epoch_there
        )


def test_slow_opener_control_fill_without_its_epoch(make_lab: LabMaker) -> None:
    lab = make_lab(store=lambda engine: Claiming(engine, **TABLES))
    store = lab.store
    assert isinstance(store, Claiming)
    store.epoch_there = 1
    item = warmed(lab, "u1")
    lab.flushall()
    play = lab.run("slow.epoch slow.look slow.raise_epoch", slow=lab.opener())
    store.epoch_there = 3
    assert lab.open().epoch == "3"
    lab.like(item, "u2")
    play.add(old=lab.flush(item))
    play.run("old.claim")
    lab.flushall()
    play.run("slow.open")
    lab.known = play.result("slow")
    store.epoch_there = 2  # the lie
    assert lab.seen(item, "u2") == LikeStatus(False, 1)
    play.run("old.commit")
    assert lab.rows(item) == {"u1", "u2"}
    assert lab.seen(item, "u2") == LikeStatus(False, 1)  # wrong, for a whole time to live


def test_snapshot_of_an_older_epoch_fills_nothing(lab: Lab) -> None:
    """A load reads SQL; all is lost and the shard opens anew, and the token happens to be there
    again: the snapshot is of the epoch before, and is refused."""
    item = lab.item("u1")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u1"))
    lab.delete(lab.keys.opening)  # alone: the tokens stay
    before = lab.known
    lab.open()
    assert lab.tokens(item)
    play.run("a.fill")
    assert lab.header(item) == {}
    assert play.waits_at("a") == "epoch"
    play.run("a.*")
    assert play.result("a") == LikeStatus(True, 1)
    assert before.epoch != lab.known.epoch


def test_two_openers(lab: Lab) -> None:
    """Both find the shard closed; one raises the epoch, the other waits and finds it open."""
    lab.flushall()
    play = lab.run(
        "a.epoch b.epoch a.look b.look a.raise_epoch b.raise_epoch b.sleep a.open",
        a=lab.opener(),
        b=lab.opener(),
    )
    assert play.result("b") is None
    assert play.result("a") == Known("2", lab.known.server) == lab.open()
    assert lab.opening()["e"] == "2"


def test_opener_crashes_between_sql_and_server(lab: Lab) -> None:
    """SQL is an epoch ahead of the server: likes go on, the next flush is refused and opens."""
    item = warmed(lab, "u1")
    lab.command("HDEL", lab.keys.opening, "f")
    lab.run("a.epoch a.look a.raise_epoch a.crash", a=lab.opener())
    assert lab.like(item, "u2").changed
    play = lab.run("f.claim f.commit f.epoch f.look f.raise_epoch f.open", f=lab.flush(item))
    play.run("f.claim f.commit f.ack")
    assert play.result("f").changed == 1
    lab.open()
    lab.holds(item, {"u1", "u2"})


def test_journal_that_survived_is_flushed_under_the_new_epoch(lab: Lab) -> None:
    """Only the opening record is lost: what is in the journal is kept, and goes first."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.like(item, "u3")
    lab.delete(lab.keys.opening)
    lab.open()
    lab.unlike(item, "u3")
    assert lab.rows(item) == {"u1", "u2", "u3"}
    assert lab.journal(item) == {field("u3"): "0:2.1"}
    lab.holds(item, {"u1", "u2"}, {"u3"})


def test_old_journal_that_comes_back_is_skipped(lab: Lab) -> None:
    """A journal entry of before a commit comes back with an older copy of the data: SQL has gone
    past it."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    old = lab.journal(item)
    lab.unlike(item, "u2")
    lab.like(item, "u3")
    lab.flushed(item)
    lab.delete(lab.keys.opening)
    lab.command("HSET", lab.keys.journal(str(item)), field("u2"), old[field("u2")])
    lab.command("ZADD", lab.keys.due, 0, str(item))
    lab.open()
    assert lab.drain() == 0
    assert lab.rows(item) == {"u1", "u3"}
    assert drifted(lab.engine) == []
    lab.holds(item, {"u1", "u3"}, {"u2"})


# -- another server


@pytest.mark.parametrize("empty", [True, False], ids=["empty", "with its data"])
def test_server_restarts(namespace: str, tmp_path: Path, empty: bool) -> None:
    """The server restarts: its identity is another, so what was known of it is used no more, not
    even by the first call; the shard is opened anew, and headers of before count for nothing."""
    require("valkey", find_binary("valkey") is not None)
    with (
        ServerProcess("valkey", aof="always") as server,
        lab_maker(server.url, namespace, tmp_path) as make,
    ):
        lab = make()
        item = warmed(lab, "u1")
        lab.like(item, "u2")
        play = lab.run("old.claim", old=lab.flush(item))
        server.restart(empty=empty)
        survived = {"u1"} if empty else {"u1", "u2"}
        assert lab.seen(item, "u2") == LikeStatus(not empty, len(survived))
        assert int(lab.opening()["e"]) == int(lab.known.epoch) + 1
        play.run("old.commit old.*")
        lab.open()
        lab.holds(item, survived, {"u2", "u3"})


def test_server_that_evicts_anything_is_refused(namespace: str, tmp_path: Path) -> None:
    """A server that may evict the journal must not hold it."""
    limits = ("--maxmemory", "50mb", "--maxmemory-policy")
    with (
        ServerProcess("valkey", *limits, "allkeys-lru") as server,
        lab_maker(server.url, namespace, tmp_path) as make,
        pytest.raises(Refused, match="allkeys-lru"),
    ):
        make()
    with (
        ServerProcess("valkey", *limits, "volatile-lru") as server,
        lab_maker(server.url, namespace, tmp_path) as make,
    ):
        assert make().known.epoch != ""


# -- items that do not exist


def test_unknown_item_leaves_only_a_tombstone(lab: Lab) -> None:
    """A click on an item that does not exist writes a tombstone that ends by itself, and no more."""
    for ask in (lab.set(404, "u1", True), lab.status(404, "u1")):
        with pytest.raises(UnknownItem):
            lab.do(ask)
        assert lab.all_keys() == {"E", "H:404"}
        assert lab.header(404) == {"#gone": "1", "#e": lab.known.epoch}
        assert 0 < lab.life(lab.keys.header("404")) <= 5000
    assert lab.opening()["s"] == "0"


def test_tombstone_ends_and_the_item_is_found(lab: Lab) -> None:
    """An item that is created after somebody asked for it."""
    with pytest.raises(UnknownItem):
        lab.seen(1, "u1")
    item = lab.item("u1")
    assert item == 1
    lab.lose_header(item)
    lab.shows(item, {"u1"})


def test_tombstone_is_not_resurrected_by_a_late_ack(lab: Lab) -> None:
    """A flusher has committed; the item is deleted and found missing; its ack must not give the
    tombstone another life, nor make a header of it."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    play = lab.run("f.claim f.commit g.claim", f=lab.flush(item), g=lab.flush(item))
    delete_item(lab.engine, item)
    play.run("g.commit g.ack")
    assert play.result("g").orphans == 1
    before = lab.life(lab.keys.header(str(item)))
    assert lab.header(item)["#gone"] == "1"
    play.run("f.ack")
    assert lab.header(item) == {"#gone": "1", "#e": lab.known.epoch}
    assert 0 < lab.life(lab.keys.header(str(item))) <= before
    with pytest.raises(UnknownItem):
        lab.seen(item)
    assert lab.drain() == 0


def test_item_deleted_with_changes_pending(lab: Lab) -> None:
    """Its changes are counted as orphaned and dropped; other items of the batch go on."""
    gone, there = warmed(lab, "u1"), warmed(lab, "u1")
    lab.like(gone, "u2")
    lab.like(there, "u2")
    delete_item(lab.engine, gone)
    report = lab.do(lab.flush(gone, there))
    assert (report.orphans, report.changed) == (1, 1)
    with pytest.raises(UnknownItem):
        lab.seen(gone, "u2")
    assert lab.journal(gone) == {}
    lab.holds(there, {"u1", "u2"})


def made_anew(lab: Lab) -> None:
    """An item is deleted, found missing, made anew under its id and liked, before the late ack."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    play = lab.run("f.claim", f=lab.flush(item))
    delete_item(lab.engine, item)
    play.run("f.commit")
    with lab.engine.begin() as connection:
        connection.execute(activities.insert().values(id=item, like_count=0))
    lab.like(item, "u3")  # on the header that nobody has dropped yet
    play.run("f.ack")
    assert lab.drain() == 0
    assert lab.rows(item) == {"u3"}


def test_item_made_anew_under_a_late_ack_keeps_its_new_likes(lab: Lab) -> None:
    """The commit found no item, the ack comes when there is one again: only what was committed
    leaves the journal."""
    made_anew(lab)


def test_item_made_anew_control_ack_drops_the_journal(make_lab: LabMaker) -> None:
    whole = without(
        "ack",
        "if gone == '1' then redis.call('DEL', header, tokens) end",
        "if gone == '1' then left = 0 redis.call('DEL', header, tokens, journal) end",
    )
    with goes_wrong():
        made_anew(make_lab(scripts=whole))


@pytest.mark.parametrize("pending", [False, True], ids=["clean", "dirty"])
def test_pair_of_an_item_that_was_deleted(make_lab: LabMaker, pending: bool) -> None:
    """The header of a large item is cached and the item is deleted past fencepost; somebody whose
    state is not cached asks: there is no such item, and no endless asking."""
    lab = make_lab(full_max=0)
    item = warmed(lab, "u1")
    if pending:
        lab.like(item, "u5")
    delete_item(lab.engine, item)
    with pytest.raises(UnknownItem):
        lab.seen(item, "u2")
    assert lab.journal(item) == {}


def test_late_load_of_a_missing_item_does_not_bury_a_new_one(lab: Lab) -> None:
    """A read that the item does not exist; it is created and loaded; A's late fill is refused."""
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(1, "u1"))
    item = lab.item("u1")
    assert item == 1
    play.add(b=lab.status(item, "u1"))
    play.run(f"{told(COLD_STATUS, 'b')} a.fill a.hmget")
    assert play.result("a") == play.result("b") == LikeStatus(True, 1)


# -- bounds and settings


def test_another_number_of_shards_is_refused(lab: Lab) -> None:
    """Two numbers of shards are two truths of an item."""
    other = dataclasses.replace(lab.shard, place=Place("likes:likes", 0, 2))
    with pytest.raises(ConfigMismatch, match="Set shards=1"):
        run_sync(protocol.open_shard(lab.port, other))


@pytest.mark.parametrize("ask", ["set", "status", "flush"])
def test_shard_that_never_stays_open_is_overloaded(make_lab: LabMaker, ask: str) -> None:
    """Every round finds the shard closed again: the call ends, and says when to try again."""
    lab = make_lab(rounds=4, flush_delay=0.5)
    item = lab.item("u1")
    actors = {
        "set": lab.set(item, "u1", True),
        "status": lab.status(item, "u1"),
        "flush": lab.flush(item),
    }
    play = lab.play(a=actors[ask])
    for _ in range(40):
        step = play.waits_at("a")
        if step is None:
            break
        lab.delete(lab.keys.opening, lab.keys.header(str(item)))
        play.run(f"a.{step}")
    with pytest.raises(Overloaded) as caught:
        play.result("a")
    assert caught.value.retry_after == pytest.approx(0.6)
    assert lab.journal(item) == {}


def test_load_that_is_always_withdrawn_is_overloaded(make_lab: LabMaker) -> None:
    """A flush withdraws each token before the fill: bounded too."""
    lab = make_lab(rounds=4)
    item = lab.item("u1")
    play = lab.play(a=lab.status(item, "u1"))
    while (step := play.waits_at("a")) is not None:
        if step == "fill":
            lab.delete(lab.keys.tokens(str(item)))
        play.run(f"a.{step}")
    with pytest.raises(Overloaded):
        play.result("a")
    assert str(play).count("fill") == 4


def test_pair_loads_of_others_survive_a_flush(make_lab: LabMaker) -> None:
    """An item that is flushed all the time: a load of one user's state is withdrawn by a flush of
    that user only, or it would never get through."""
    lab = make_lab(full_max=0)
    item = warmed(lab, "u1", "u2")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u2"))
    lab.like(item, "u3")
    lab.flushed(item)
    play.run("a.fill a.hmget")
    assert play.result("a") == LikeStatus(True, 3)


def test_header_filled_by_a_pair_is_refused(make_lab: LabMaker) -> None:
    """A pair load begins while a header stands; the header expires: the pair must not make a new
    one, since its count is of another time than the header's."""
    lab = make_lab(full_max=0)
    item = warmed(lab, "u1")
    play = lab.run("a.hmget a.begin a.snapshot", a=lab.status(item, "u1"))
    lab.lose_header(item)
    play.run("a.fill")
    assert lab.header(item) == {}
    play.run("a.*")
    assert play.result("a") == LikeStatus(True, 1)


def test_full_is_claimed_only_by_who_read_all(make_lab: LabMaker) -> None:
    """A sparse header knows some; whom it does not know is unknown, never "no"."""
    lab = make_lab(full_max=1)
    item = warmed(lab, "u1", "u2", "u3")
    assert "#full" not in lab.header(item)
    assert lab.seen(item, "u9") == LikeStatus(False, 3)
    assert lab.header(item)[field("u9")] == "0"
    lab.shows(item, {"u1", "u2", "u3"}, {"u9"})
    assert lab.unlike(item, "u2").count == 2
    lab.holds(item, {"u1", "u3"}, {"u2", "u9"})


def test_max_age_reloads_a_busy_item(make_lab: LabMaker) -> None:
    """An item that is flushed again and again is loaded anew at its max_age all the same, so that
    writes past fencepost are seen."""
    lab = make_lab(ttl=0.001, max_age=0.001)
    item = lab.item("u1")
    play = lab.run("a.set a.begin a.snapshot a.fill", a=lab.set(item, "u2", True))
    lab.command("HSET", lab.keys.header(str(item)), "#born", 1)  # long ago
    play.run("a.*")
    lab.flushed(item)
    assert lab.header(item) == {}


def test_count_of_a_full_item_is_the_number_of_its_likers(lab: Lab) -> None:
    """Rows and counter have parted before fencepost came: the set is the truth."""
    item = lab.item("u1", "u2")
    CommonDesign(lab, item).write_count(7)
    lab.shows(item, {"u1", "u2"})
    lab.like(item, "u3")
    lab.flushed(item)
    assert count_of(lab.engine, item) == 8  # moved by what changed, nothing else


def test_options_that_cannot_work() -> None:
    """Fewer rounds than one cold call needs."""
    with pytest.raises(Refused, match="rounds"):
        LikeOptions(rounds=3)
