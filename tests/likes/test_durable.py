"""Durability per call: what ``committed`` and ``replicated`` promise, and the holes that look like it.

Each hole of ``committed`` is played on the real server, with the guard and without it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from fencepost import AsyncClient, Client
from fencepost._core.group import AsyncGroup, Group, _Last
from fencepost._core.keys import field_of
from fencepost._core.port import Port
from fencepost.errors import ConfigMismatch, OutcomeUnknown, Refused, Unavailable
from fencepost.likes import LikeOptions, SqlLikes, durable, protocol
from fencepost.likes.durable import DONE, Lately, Verdict, Wanted, commit_group, set_committed
from fencepost.likes.store import Committed, ItemBatch, Place, Poisoned
from fencepost.wire.barrier import Copies
from support.likes import TABLES, Actor, Lab, LabMaker, add_item, open_database, rows_of
from support.replicas import Pair
from support.require import require
from support.servers import ServerProcess, find_binary
from support.until import until

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine


# -- committed, played


def committed(lab: Lab, item: int, user: str, liked: bool) -> Actor:
    """One caller, whose group is itself."""

    async def actor(io: Port) -> Any:
        async def join(wanted: Wanted) -> Verdict:
            verdicts, _, _ = await commit_group(io, lab.shard, lab.known, [wanted])
            return verdicts[0]

        result, _ = await set_committed(io, lab.shard, lab.known, str(item), user, liked, join)
        return result

    return actor


def warm(lab: Lab, *users: str) -> int:
    item = lab.item(*users)
    lab.seen(item)
    return item


def test_it_is_in_sql_when_it_is_answered(lab: Lab) -> None:
    item = warm(lab)
    play = lab.play(a=committed(lab, item, "u", True))
    play.run("a.set a.claim")
    assert lab.rows(item) == set()
    play.run("a.commit a.ack")
    assert (play.result("a").changed, lab.rows(item)) == (True, {"u"})
    lab.holds(item, {"u"})


def test_what_changes_nothing_waits_for_the_change_before_it(lab: Lab) -> None:
    item = warm(lab)
    lab.like(item, "u")
    play = lab.play(b=committed(lab, item, "u", True))
    play.run("b.set")
    assert (play.waits_at("b"), lab.rows(item)) == ("claim", set())
    play.run("b.claim b.commit b.ack")
    assert (play.result("b").changed, lab.rows(item)) == (False, {"u"})


def test_answered_at_once_it_would_be_in_the_cache_alone(lab: Lab) -> None:
    """The control: a caller who takes NOOP for done."""
    item = warm(lab)
    lab.like(item, "u")

    def hasty(io: Port) -> Any:
        async def join(wanted: Wanted) -> Verdict:
            return DONE

        return set_committed(io, lab.shard, lab.known, str(item), "u", True, join)

    play = lab.run("b.set", b=hasty)
    assert play.result("b")[0].liked
    assert lab.rows(item) == set()


def test_gone_from_the_journal_is_done_if_the_row_says_so(lab: Lab) -> None:
    item = warm(lab)
    play = lab.play(a=committed(lab, item, "u", True))
    play.run("a.set")
    lab.flushed(item)  # somebody else's flusher was faster
    play.run("a.claim a.ack a.snapshot")
    assert play.result("a").changed
    assert lab.rows(item) == {"u"}


def lose_the_journal(lab: Lab, item: int) -> None:
    assert lab.delete(lab.keys.journal(str(item))) == 1


def test_gone_from_the_journal_is_unknown_if_the_row_says_otherwise(lab: Lab) -> None:
    item = warm(lab)
    play = lab.play(a=committed(lab, item, "u", True))
    play.run("a.set")
    lose_the_journal(lab, item)
    play.run("a.claim a.ack a.snapshot a.poison")
    with pytest.raises(OutcomeUnknown, match="superseded, or lost"):
        play.result("a")
    assert lab.rows(item) == set()


def test_gone_taken_for_done_would_be_a_like_that_is_nowhere(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "judge", lambda shard, one, flush: DONE)
    item = warm(lab)
    play = lab.play(a=committed(lab, item, "u", True))
    play.run("a.set")
    lose_the_journal(lab, item)
    play.run("a.claim a.ack")
    assert play.result("a").liked
    assert lab.rows(item) == set()


def go_back_to(lab: Lab, item: int, user: str, version: str) -> None:
    """What a failover to an older copy leaves of a journal."""
    lab.command("HSET", lab.keys.journal(str(item)), field_of(user), version)
    lab.command("ZADD", lab.keys.due, 0, str(item))


def test_an_older_entry_of_the_user_is_not_mine(lab: Lab) -> None:
    item = warm(lab)
    play = lab.play(a=committed(lab, item, "u", True))
    play.run("a.set")
    go_back_to(lab, item, "u", "0:1.0")
    play.run("a.claim a.commit a.ack a.snapshot a.poison")
    with pytest.raises(OutcomeUnknown):
        play.result("a")
    assert lab.rows(item) == set()


def test_without_comparing_versions_it_would_pass_for_mine(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "read_version", lambda version: (True, (9, 9)))
    item = warm(lab)
    play = lab.play(a=committed(lab, item, "u", True))
    play.run("a.set")
    go_back_to(lab, item, "u", "0:1.0")
    play.run("a.claim a.commit a.ack")
    assert play.result("a").liked
    assert lab.rows(item) == set()


def old_journal_after(lab: Lab) -> set[str]:
    """An unlike is replicated, a like is committed, the primary is lost; the copy flushes what it has."""
    item = warm(lab, "u")
    lab.unlike(item, "u")
    lab.do(committed(lab, item, "u", True))
    assert lab.rows(item) == {"u"}
    go_back_to(lab, item, "u", "0:1.1")
    lab.flushed(item)
    return lab.rows(item)


def test_an_old_journal_never_undoes_what_was_committed(lab: Lab) -> None:
    assert old_journal_after(lab) == {"u"}


def test_without_the_version_in_sql_it_would(make_lab: LabMaker) -> None:
    class Forgetful(SqlLikes):
        def _newest(self, *_: Any) -> list[dict[str, Any]]:
            return []

    lab = make_lab(store=lambda engine: Forgetful(engine, **TABLES))
    assert old_journal_after(lab) == set()


def test_an_entry_that_sql_has_gone_past_is_looked_up(lab: Lab) -> None:
    item = warm(lab)
    lab.do(committed(lab, item, "v", True))
    play = lab.play(a=committed(lab, item, "u", True))
    play.run("a.set")
    (version,) = lab.journal(item).values()
    lab.engine.dispose()
    with lab.engine.begin() as connection:  # a whole commit of a time that was lost with its rows
        connection.execute(text("UPDATE fencepost_like_version SET epoch = 9"))
    play.run("a.claim a.commit a.ack a.snapshot a.poison")
    assert version.startswith("1:1.")
    with pytest.raises(OutcomeUnknown):
        play.result("a")


def test_a_row_that_others_changed_is_set_again(lab: Lab) -> None:
    """The cache says liked and nothing waits; SQL was changed past us."""
    item = warm(lab, "u")
    with lab.engine.begin() as connection:
        connection.execute(text("DELETE FROM activities_likes"))
        connection.execute(text("UPDATE activities SET like_count = 0"))
    assert lab.do(committed(lab, item, "u", True)).changed
    lab.holds(item, {"u"})


def test_a_superseded_change_is_done_when_the_newer_one_is(lab: Lab) -> None:
    item = warm(lab)
    play = lab.play(a=committed(lab, item, "u", True))
    play.run("a.set")
    lab.unlike(item, "u")
    play.run("a.claim a.commit a.ack")
    assert play.result("a").liked
    lab.holds(item, set(), {"u"})


def test_a_commit_whose_reply_is_lost_is_unknown_and_not_doubled(lab: Lab) -> None:
    item = warm(lab)
    play = lab.play(a=committed(lab, item, "u", True))
    play.run("a.set a.claim a.commit!lost")
    with pytest.raises(OutcomeUnknown, match="whether it is in SQL is not known"):
        play.result("a")
    lab.holds(item, {"u"})


def test_a_refusal_that_another_flush_met_is_told(lab: Lab) -> None:
    with lab.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TRIGGER no BEFORE INSERT ON activities_likes WHEN NEW.user_id = 'nobody' "
                "BEGIN SELECT RAISE(ABORT, 'not you'); END"
            )
        )
    item = warm(lab)
    play = lab.play(a=committed(lab, item, "nobody", True))
    play.run("a.set")
    assert lab.flushed(item).poison == 1
    play.run("a.claim a.ack a.snapshot a.poison")
    with pytest.raises(Refused, match="not you"):
        play.result("a")
    assert not lab.seen(item, "nobody").liked


def test_a_long_journal_is_worked_off_until_the_change_is_in(make_lab: LabMaker) -> None:
    lab = make_lab(batch_changes=2)
    item = warm(lab)
    for number in range(7):
        lab.like(item, f"v{number}")
    lab.do(committed(lab, item, "u", True))
    assert "u" in lab.rows(item)


def test_more_items_than_a_transaction_holds(make_lab: LabMaker) -> None:
    lab = make_lab(batch_items=2)
    items = [warm(lab) for _ in range(5)]
    wanted = [Wanted(str(item), "u", True, lab.like(item, "u").version) for item in items]
    verdicts, report, _ = lab.do(lambda io: commit_group(io, lab.shard, lab.known, wanted))
    assert (verdicts, report.changed) == ([DONE] * 5, 5)


# -- committed, by both faces


class Watched(SqlLikes):
    """A store that sees how many commits run at once, and can hold them up."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, **TABLES)
        self.commits = self.running = self.most = 0
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self._guard = threading.Lock()

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        with self._guard:
            self.commits += 1
            self.running += 1
            self.most = max(self.most, self.running)
        self.begun.set()
        assert self.go.wait(30)
        try:
            return super().commit(place, epoch, fence, batches)
        finally:
            with self._guard:
                self.running -= 1


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(tmp_path / "likes.db")
    add_item(engine, 1)
    yield engine
    engine.dispose()


@pytest.fixture
async def client(server_url: str, namespace: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        yield client


ONE_SHARD = LikeOptions(shards=1)


async def test_callers_share_transactions_one_at_a_time(
    client: AsyncClient, engine: Engine
) -> None:
    store = Watched(engine)
    likes = client.likes("x", store=store, options=ONE_SHARD)
    await likes.status(1)
    store.go.clear()

    async def caller(user: str) -> None:
        await likes.like(1, user, durability="committed")
        assert user in await asyncio.to_thread(rows_of, engine, 1)

    first = asyncio.create_task(caller("first"))
    await asyncio.to_thread(store.begun.wait)
    others = [asyncio.create_task(caller(f"u{number}")) for number in range(63)]
    await until(lambda: waiting_in(likes) == 63)
    store.go.set()
    await asyncio.gather(first, *others)
    assert (store.commits, store.most) == (2, 1)
    assert (await likes.status(1)).count == 64


def waiting_in(likes: Any) -> int:
    """How many callers wait for the next group."""
    return sum(len(loop.queue) for loop in likes._groups_of[0]._loops.values())


def test_threads_share_transactions_one_at_a_time(
    server_url: str, namespace: str, engine: Engine
) -> None:
    store = Watched(engine)
    with Client.from_url(server_url, namespace=namespace) as client:
        likes = client.likes("x", store=store, options=ONE_SHARD)
        likes.status(1)
        store.go.clear()

        def caller(user: str) -> None:
            likes.like(1, user, durability="committed")
            assert user in rows_of(engine, 1)

        with ThreadPoolExecutor(16) as pool:
            first = pool.submit(caller, "first")
            assert store.begun.wait(30)
            others = [pool.submit(caller, f"u{number}") for number in range(15)]
            group = likes._groups_of[0]
            while len(group._queue) < 15:
                assert not first.done()
            store.go.set()
            for one in (first, *others):
                one.result()
        assert (store.commits, store.most) == (2, 1)
        assert likes.status(1).count == 16


async def test_who_is_cancelled_takes_nobody_along(client: AsyncClient, engine: Engine) -> None:
    store = Watched(engine)
    likes = client.likes("x", store=store, options=ONE_SHARD)
    await likes.status(1)
    store.go.clear()
    leaver = asyncio.create_task(likes.like(1, "leaver", durability="committed"))
    await asyncio.to_thread(store.begun.wait)
    stayer = asyncio.create_task(likes.like(1, "stayer", durability="committed"))
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    store.go.set()
    assert (await stayer).liked
    assert rows_of(engine, 1) == {"leaver", "stayer"}


async def test_a_database_that_hangs_is_unknown_in_time(
    client: AsyncClient, engine: Engine
) -> None:
    store = Watched(engine)
    likes = client.likes("x", store=store, options=LikeOptions(shards=1, commit_wait=0.05))
    await likes.status(1)
    store.go.clear()
    with pytest.raises(OutcomeUnknown, match="not done within"):
        await likes.like(1, "u", durability="committed")
    store.go.set()
    assert await likes.drain() == 0
    assert rows_of(engine, 1) == {"u"}


async def test_a_database_that_is_away_loses_nothing(client: AsyncClient, engine: Engine) -> None:
    class Away(Watched):
        away = False

        def commit(self, *args: Any) -> Committed:
            if self.away:
                raise Unavailable("the database is away")
            return super().commit(*args)

    store = Away(engine)
    likes = client.likes("x", store=store, options=ONE_SHARD)
    await likes.status(1)
    store.away = True
    with pytest.raises(OutcomeUnknown, match="the database is away"):
        await likes.like(1, "u", durability="committed")
    assert (await likes.status(1, "u")).liked
    store.away = False
    assert (await likes.like(1, "u", durability="committed")).changed is False
    assert rows_of(engine, 1) == {"u"}


async def test_an_unknown_durability_is_refused_at_the_door(
    client: AsyncClient, engine: Engine
) -> None:
    likes = client.likes("x", store=SqlLikes(engine, **TABLES), options=ONE_SHARD)
    for wrong in ("", "sure", None, "Committed"):
        with pytest.raises(Refused, match="behind, replicated, committed"):
            await likes.set(1, "u", liked=True, durability=wrong)  # type: ignore[arg-type]
    assert not (await likes.status(1, "u")).liked


# -- groups


async def test_a_group_tells_each_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(batch: Sequence[int]) -> list[int]:
        if 13 in batch:
            raise Unavailable("no luck")
        return [2 * one for one in batch]

    group: AsyncGroup[int, int] = AsyncGroup(work, 2)
    assert await asyncio.gather(*(group.join(one, 5) for one in range(7))) == [
        2 * one for one in range(7)
    ]
    errors = await asyncio.gather(
        group.join(13, 5), group.join(14, 5), group.join(15, 5), return_exceptions=True
    )
    assert [type(one) for one in errors] == [Unavailable, Unavailable, int]
    assert errors[0] is not errors[1]


def test_a_group_of_threads_hands_the_lead_on() -> None:
    sizes: list[int] = []
    full = threading.Event()

    def work(batch: Sequence[int]) -> list[int]:
        if not sizes:
            assert full.wait(30)
        sizes.append(len(batch))
        if 13 in batch:
            raise Unavailable("no luck")
        return [2 * one for one in batch]

    group: Group[int, int] = Group(work, 5)
    with ThreadPoolExecutor(14) as pool:
        asked = [pool.submit(group.join, one, 30.0) for one in range(14)]
        while len(group._queue) < 13 and not asked[0].done():
            pass
        full.set()
        for number, one in enumerate(asked):
            if one.exception() is None:
                assert one.result() == 2 * number
            else:
                assert isinstance(one.exception(), Unavailable)
    assert sum(sizes) == 14
    assert max(sizes) <= 5


def test_a_thread_that_gives_up_leaves_the_others() -> None:
    hold, begun = threading.Event(), threading.Event()

    def work(batch: Sequence[int]) -> list[int]:
        begun.set()
        assert hold.wait(30)
        return list(batch)

    group: Group[int, int] = Group(work, 5)
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(group.join, 1, 30.0)
        assert begun.wait(30)
        with pytest.raises(TimeoutError):
            group.join(2, 0.01)
        third = pool.submit(group.join, 3, 30.0)
        hold.set()
        assert (leader.result(), third.result()) == (1, 3)
    assert group.join(4, 1.0) == 4


async def rounds_of(patience: float) -> list[int]:
    """The sizes of groups of callers who ask again, some a little later than others."""
    sizes: list[int] = []

    async def work(batch: Sequence[int]) -> list[int]:
        sizes.append(len(batch))
        await asyncio.sleep(0)
        return list(batch)

    group: AsyncGroup[int, int] = AsyncGroup(work, 100, patience)

    async def caller(number: int) -> None:
        for _ in range(20):
            assert await group.join(number, 30) == number
            for _ in range(number):
                await asyncio.sleep(0)

    await asyncio.gather(*(caller(number) for number in range(6)))
    return sizes


async def test_callers_who_come_back_are_waited_for() -> None:
    assert await rounds_of(1e6) == [6] * 20


async def test_without_patience_they_fall_apart() -> None:
    """The control."""
    assert len(await rounds_of(0.0)) > 30


async def test_who_does_not_come_back_is_not_waited_for_longer_than_a_part_of_a_round() -> None:
    last = _Last()
    last.note(expected=10, began=monotonic() - 8.0, patience=0.25)
    assert last.wait(there=10) <= 0
    assert 1.0 < last.wait(there=9) <= 2.1
    last.note(expected=10, began=monotonic() - 8.0, patience=0.0)
    assert last.wait(there=9) <= 0


def test_threads_who_come_back_are_waited_for() -> None:
    sizes: list[int] = []
    begun, hold = threading.Event(), threading.Event()

    def work(batch: Sequence[int]) -> list[int]:
        sizes.append(len(batch))
        begun.set()
        assert hold.wait(30)
        return list(batch)

    group: Group[int, int] = Group(work, 100, patience=1e9)

    def caller(number: int, rounds: int) -> None:
        for _ in range(rounds):
            assert group.join(number, 30.0) == number

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(caller, 0, 21)]  # the first of its rounds is its own
        assert begun.wait(30)
        asked += [pool.submit(caller, number, 20) for number in (1, 2, 3)]
        while len(group._queue) < 3:
            pass
        hold.set()
        for one in asked:
            one.result()
    assert sizes == [1] + [4] * 20


async def test_who_was_served_by_the_group_before_waits_no_longer() -> None:
    """A batch does more than it was asked for: whoever comes for that meanwhile, or after it, is
    answered by it."""
    done: set[int] = set()
    begun, hold = asyncio.Event(), asyncio.Event()
    batches: list[list[int]] = []

    async def work(batch: Sequence[int]) -> list[int]:
        batches.append(list(batch))
        begun.set()
        await hold.wait()
        done.update(range(10))
        return list(batch)

    def known(one: int) -> int | None:
        return -one if one in done else None

    group: AsyncGroup[int, int] = AsyncGroup(work, 100, known=known)
    first = asyncio.create_task(group.join(1, 30))
    await begun.wait()
    meanwhile = [asyncio.create_task(group.join(one, 30)) for one in (2, 3, 11)]
    await asyncio.sleep(0)
    hold.set()
    assert await first == 1
    assert [await one for one in meanwhile] == [-2, -3, 11]
    assert await group.join(4, 30) == -4
    assert batches == [[1], [11]]


async def test_who_is_done_does_not_wait_for_the_end_of_the_group() -> None:
    """Callers of a group, and those behind it, are answered as soon as their change is known to be
    done; what is left of the batch is nobody's wait, and counts nobody twice."""
    done: set[int] = set()
    hold = asyncio.Event()

    async def work(batch: Sequence[int]) -> list[int]:
        done.update({1, 2, 3})
        group.settle()
        await hold.wait()
        return list(batch)

    group: AsyncGroup[int, int] = AsyncGroup(
        work, 100, 1.0, lambda one: -one if one in done else None
    )
    first, other = (asyncio.create_task(group.join(one, 30)) for one in (1, 11))
    assert await first == -1
    assert not other.done()
    assert await group.join(2, 30) == -2
    hold.set()
    assert await other == 11
    (waiting,) = group._loops.values()
    assert waiting.last.expected == 2


async def test_each_caller_waits_as_long_as_it_said() -> None:
    """Later callers may have less time; one timer serves those who have the same."""
    hold = asyncio.Event()

    async def work(batch: Sequence[int]) -> list[int]:
        await hold.wait()
        return list(batch)

    group: AsyncGroup[int, int] = AsyncGroup(work, 100)
    patient = asyncio.create_task(group.join(1, 60.0))
    await asyncio.sleep(0)
    hasty = [asyncio.create_task(group.join(one, 0.01)) for one in (2, 3)]
    found = await asyncio.gather(*hasty, return_exceptions=True)
    assert [type(one) for one in found] == [TimeoutError, TimeoutError]
    assert not patient.done()
    hold.set()
    assert await patient == 1
    assert await group.join(4, 60.0) == 4
    hold.clear()
    same = [asyncio.create_task(group.join(one, 60.0)) for one in (5, 6)]
    await asyncio.sleep(0)
    (waiting,) = group._loops.values()
    assert len(waiting.limits) == 2, "those who were answered are forgotten"
    hold.set()
    assert await asyncio.gather(*same) == [5, 6]

    other: AsyncGroup[int, int] = AsyncGroup(work, 100)
    hold.clear()
    late = [asyncio.create_task(other.join(one, 0.01)) for one in (7, 8)]
    found = await asyncio.gather(*late, return_exceptions=True)
    assert [type(one) for one in found] == [TimeoutError, TimeoutError]
    hold.set()


def test_threads_that_were_served_by_the_group_before_wait_no_longer() -> None:
    done: set[int] = set()
    begun, hold = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def work(batch: Sequence[int]) -> list[int]:
        batches.append(list(batch))
        begun.set()
        assert hold.wait(30)
        done.update(range(10))
        return list(batch)

    group: Group[int, int] = Group(work, 100, known=lambda one: -one if one in done else None)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(group.join, 1, 30.0)
        assert begun.wait(30)
        meanwhile = [pool.submit(group.join, one, 30.0) for one in (2, 3, 11)]
        while len(group._queue) < 3:
            pass
        hold.set()
        assert first.result() == 1
        assert [one.result() for one in meanwhile] == [-2, -3, 11]
    assert group.join(4, 30.0) == -4
    assert batches == [[1], [11]]


# -- what the commit before held


def test_a_change_that_the_commit_before_held_is_done(lab: Lab) -> None:
    """Two callers change something; one of them comes to wait when the other one's commit, which
    took the whole journal, is over: it has been done, and nobody asks SQL again."""
    item, lately = warm(lab), Lately()
    mine, other = (lab.like(item, user).version for user in ("u", "v"))
    wanted = [Wanted(str(item), "v", True, other)]
    assert lately.verdict(Wanted(str(item), "u", True, mine)) is None
    lab.do(lambda io: commit_group(io, lab.shard, lab.known, wanted, lately.note))
    assert lab.rows(item) == {"u", "v"}
    assert lately.verdict(Wanted(str(item), "u", True, mine)) is DONE
    newer = lab.unlike(item, "u").version
    assert lately.verdict(Wanted(str(item), "u", False, newer)) is None, "older than this one"
    assert lately.verdict(Wanted(str(item), "u", True, "")) is None, "nobody knows of which time"
    assert lately.verdict(Wanted("404", "u", True, mine)) is None


async def test_a_caller_is_answered_at_the_commit_and_not_at_the_acknowledgement(
    client: AsyncClient, engine: Engine
) -> None:
    """The row is there and the journal still holds the change: that is committed. Whoever fails
    to acknowledge it leaves a change that SQL skips."""
    likes = client.likes("x", store=SqlLikes(engine, **TABLES), options=LikeOptions(shards=1))
    await likes.status(1)
    begun, hold = asyncio.Event(), asyncio.Event()
    send = likes._io._all

    async def slowly(calls: Any) -> Any:
        if any(call.verb == "ack" for call in calls):
            begun.set()
            await hold.wait()
        return await send(calls)

    likes._io._all = slowly  # type: ignore[method-assign, assignment]
    assert (await likes.like(1, "u", durability="committed")).changed
    await begun.wait()
    assert rows_of(engine, 1) == {"u"}
    assert len(await client.command("HGETALL", likes._shards[0].keys.journal("1"))) > 0
    hold.set()
    await until(lambda: likes.stats()["flushes"] == 1)
    assert (await likes.backlog()).items == 0


@pytest.mark.parametrize("what", ["skipped", "orphans", "poison"])
def test_a_commit_that_did_not_do_all_says_nothing_of_others(lab: Lab, what: str) -> None:
    item, lately = warm(lab), Lately()
    version = lab.like(item, "u").version
    flush, _ = lab.do(lambda io: protocol.flush_batch(io, lab.shard, lab.known, [str(item)]))
    one = Wanted(str(item), "u", True, version)
    lately.note(flush)
    assert lately.verdict(one) is DONE
    part: Any = {"skipped": 1, "orphans": (404,), "poison": (Poisoned(1, "x", True, (1, 1), ""),)}
    done = dataclasses.replace(flush.done, **{what: part[what]})
    lately.note(dataclasses.replace(flush, done=done))
    assert lately.verdict(one) is None


# -- replicated


@pytest.fixture
def pair() -> Iterator[Pair]:
    require("valkey", find_binary("valkey") is not None)
    with Pair() as pair:
        yield pair


FROZEN = LikeOptions(shards=1, replicated_wait=0.2)
PATIENT = LikeOptions(shards=1, replicated_wait=20.0)


def naive_wait(server: ServerProcess) -> bytes:
    """The reply to WAIT on a second connection that wrote nothing."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(str(server.socket))
        sock.sendall(b"WAIT 1 200\r\n")
        return sock.recv(100)


async def test_a_frozen_replica_is_told(pair: Pair, engine: Engine, namespace: str) -> None:
    url = pair.primary.unix_url
    async with AsyncClient.from_url(url, namespace=namespace) as client:
        store = SqlLikes(engine, **TABLES)
        patient = client.likes("x", store=store, options=PATIENT)
        hasty = client.likes("x", store=store, options=FROZEN)
        assert (await patient.like(1, "a", durability="replicated")).changed
        pair.replica.pause()
        for user in ("b", "b"):  # and what changes nothing waits likewise
            with pytest.raises(OutcomeUnknown, match="applied here, not known to be replicated"):
                await hasty.like(1, user, durability="replicated")
        assert (await hasty.status(1, "b")).liked
        assert naive_wait(pair.primary) == b":1\r\n", "the control: a frozen replica has it all"
        waiting = asyncio.gather(
            *(patient.like(1, f"u{n}", durability="replicated") for n in range(50))
        )
        while (await hasty.status(1)).count < 52:  # until all of them are applied here
            pass
        assert not waiting.done()
        pair.replica.resume()
        assert all(one.changed for one in await waiting)
        assert (await hasty.status(1)).count == 52


def test_a_frozen_replica_is_told_to_threads(pair: Pair, engine: Engine, namespace: str) -> None:
    with Client.from_url(pair.primary.unix_url, namespace=namespace) as client:
        store = SqlLikes(engine, **TABLES)
        patient = client.likes("x", store=store, options=PATIENT)
        hasty = client.likes("x", store=store, options=FROZEN)
        assert patient.like(1, "a", durability="replicated").changed
        pair.replica.pause()
        with pytest.raises(OutcomeUnknown, match="applied here, not known to be replicated"):
            hasty.like(1, "b", durability="replicated")
        with ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(patient.like, 1, f"u{n}", durability="replicated") for n in range(8)
            ]
            pair.replica.resume()
            assert all(one.result().changed for one in asked)


async def test_the_link_of_others_is_not_held_up(
    pair: Pair, engine: Engine, namespace: str
) -> None:
    async with AsyncClient.from_url(pair.primary.unix_url, namespace=namespace) as client:
        likes = client.likes("x", store=SqlLikes(engine, **TABLES), options=PATIENT)
        await likes.like(1, "a", durability="replicated")
        pair.replica.pause()
        waiting = asyncio.create_task(likes.like(1, "b", durability="replicated"))
        while not (await likes.status(1, "b")).liked:
            pass
        for number in range(100):
            await likes.like(1, f"u{number}")
        assert not waiting.done()
        pair.replica.resume()
        assert (await waiting).changed


async def test_a_server_that_changed_meanwhile_confirms_nothing(
    server_url: str, namespace: str
) -> None:
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        barrier = client.barrier(Copies(1, "memory", 0.01))
        with pytest.raises(OutcomeUnknown, match="the server changed meanwhile"):
            await barrier.confirm("somebody:else")
        ttl = await client.command("PTTL", f"{{{namespace}}}:barrier")
        assert 0 < ttl <= 60_000


@pytest.mark.parametrize("kind", ["loop", "threads"])
async def test_to_disk(kind: str, engine: Engine, namespace: str) -> None:
    require("valkey", find_binary("valkey") is not None)
    options = LikeOptions(shards=1, replicas=0, replicated="aof", replicated_wait=20.0)

    async def like(url: str) -> Any:
        store = SqlLikes(engine, **TABLES)
        if kind == "threads":
            with Client.from_url(url, namespace=namespace) as client:
                likes = client.likes("x", store=store, options=options)
                likes.status(1)
                return await asyncio.to_thread(likes.like, 1, "u", durability="replicated")
        async with AsyncClient.from_url(url, namespace=namespace) as client:
            likes = client.likes("x", store=store, options=options)
            return await likes.like(1, "u", durability="replicated")

    with ServerProcess("valkey") as without, Client.from_url(without.url) as look:
        with pytest.raises(Refused, match="append-only file"):
            await like(without.url)
        assert look.command("KEYS", "*:P:*") == [], "refused at the door: nothing was liked"
    with ServerProcess("valkey", aof="everysec") as server:
        assert (await like(server.url)).changed
        server.kill()  # whatever it had not made durable is gone
        server.start()
        with Client.from_url(server.url, namespace=namespace) as client:
            assert client.likes("x", store=SqlLikes(engine, **TABLES), options=options).drain() == 0
        assert rows_of(engine, 1) == {"u"}


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_to_disk_is_refused_at_birth_where_the_server_can_not(
    kind: str, engine: Engine, namespace: str
) -> None:
    """A Valkey without an append-only file, a Redis that knows no WAITAOF: told when a service starts."""
    require(kind, find_binary(kind) is not None)
    options = LikeOptions(shards=1, replicas=0, replicated="aof", replicated_wait=20.0)
    with ServerProcess(kind, aof="everysec" if kind == "redis" else None) as server:
        store = SqlLikes(engine, **TABLES)
        with Client.from_url(server.url, namespace=namespace) as client:
            with pytest.raises(Refused, match="WAITAOF"):
                client.likes("x", store=store, options=options).check()
            client.likes("x", store=store, options=LikeOptions(shards=1)).check()
        async with AsyncClient.from_url(server.url, namespace=namespace) as loop:
            with pytest.raises(Refused, match="WAITAOF"):
                await loop.likes("x", store=store, options=options).check()
    with (
        ServerProcess("valkey", aof="everysec") as server,
        Client.from_url(server.url, namespace=namespace) as client,
    ):
        client.likes("x", store=store, options=options).check()


async def test_what_can_not_work_is_refused_at_birth(
    engine: Engine, server_url: str, namespace: str
) -> None:
    store = SqlLikes(engine, **TABLES)
    with Client.from_url(server_url, namespace=namespace) as client:
        client.likes("x", store=store, options=LikeOptions(shards=2)).check()
        with pytest.raises(ConfigMismatch, match="Set shards=2"):
            client.likes("x", store=store, options=LikeOptions(shards=3)).check()
    limits = ("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lfu")
    with (
        ServerProcess("valkey", *limits) as server,
        Client.from_url(server.url, namespace=namespace) as client,
        pytest.raises(Refused, match="allkeys-lfu"),
    ):
        client.likes("y", store=store).check()


def test_options_that_cannot_work_are_refused() -> None:
    for wrong in ({"replicas": 0}, {"replicated": "tape"}, {"replicas": -1, "replicated": "aof"}):
        with pytest.raises(Refused):
            LikeOptions(**wrong)  # type: ignore[arg-type]
