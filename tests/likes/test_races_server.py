"""Races R29 to R32 and R45 to R47: servers that lose data, lag behind, or keep keys apart.

Real servers are killed, promoted and given another clock. Each race has two parts: ours comes out
right, and a design without the guard comes out wrong under the same events.
"""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost import AsyncClient, Client, ServerError, Unavailable
from fencepost._core.keys import like_shard
from fencepost._core.observe import Event, LikesLost, ShardOpened
from fencepost._core.port import run_sync
from fencepost.likes import LikeOptions, SqlLikes, flush, protocol
from fencepost.likes.protocol import LikeStatus
from likes.common_design import CommonDesign
from likes.schedules import AnyEpoch, OneTimeline, r31, r32, warmed
from support.likes import (
    NEVER,
    TABLES,
    Lab,
    LabMaker,
    add_item,
    drifted,
    field,
    goes_wrong,
    lab_maker,
    open_database,
    rows_of,
    without,
)
from support.replicas import Pair
from support.require import require
from support.servers import ServerProcess, find_binary, free_port
from support.until import until_sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

SLOW = LikeOptions(flush_delay=NEVER, shards=1)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(tmp_path / "server.db")
    for item in (1, 2, 3):
        add_item(engine, item, "ann")
    yield engine
    engine.dispose()


@pytest.fixture
def pair() -> Iterator[Pair]:
    require("valkey", find_binary("valkey") is not None)
    with Pair() as pair:
        yield pair


# -- a restart


async def test_r29_restart_without_its_data(engine: Engine) -> None:
    """The server dies with what it had not made durable: what SQL has is what counts from the first
    call on, what users were told and is lost is reported, and what was ``committed`` is not among
    it."""
    events: list[Event] = []
    with ServerProcess("valkey") as server:
        async with AsyncClient.from_url(server.url, observe=events.append) as client:
            likes = client.likes("activities", store=SqlLikes(engine, **TABLES), options=SLOW)
            await likes.like(1, "bob")
            await likes.unlike(2, "ann")
            assert (await likes.like(3, "bob", durability="committed")).count == 2
            server.restart()
            assert await likes.status(1, "bob") == LikeStatus(False, 1)
            await asyncio.gather(*likes._reports)
            assert await likes.status(2, "ann") == LikeStatus(True, 1)
            assert await likes.status(3, "bob") == LikeStatus(True, 2)
            assert (await likes.like(1, "bob")).changed  # the second click counts, once
            assert await likes.drain() == 0
    lost = [(one.count, set(one.items)) for one in events if isinstance(one, LikesLost)]
    assert lost == [(2, {"1", "2"})]
    assert likes.stats()["lost"] == 2
    assert drifted(engine) == []
    assert rows_of(engine, 1) == rows_of(engine, 3) == {"ann", "bob"}


def test_r29_control(namespace: str, tmp_path: Path) -> None:
    with (
        ServerProcess("valkey") as server,
        lab_maker(server.url, namespace, tmp_path) as make,
    ):
        lab = make()
        common = CommonDesign(lab, lab.item("ann")).warm()
        assert lab.do(common.click("bob", True)) is True
        server.restart()
        lab.do(common.consume())  # wrong: nothing in the queue, and nobody notices
        assert lab.do(common.details("bob")) == (False, 1)


# -- a failover


@dataclasses.dataclass
class Lost:
    """What the replica that is promoted had not received."""

    item: int

    def told(self, lab: Lab, pair: Pair) -> None:
        """On the old primary: bob and cid are flushed, dan is not; of cid the replica has an older
        change that was never flushed there."""
        lab.unlike(self.item, "cid")
        pair.caught_up()
        pair.fall_behind()
        lab.like(self.item, "cid")
        lab.like(self.item, "bob")
        lab.flushed(self.item)
        lab.like(self.item, "dan")
        assert lab.rows(self.item) == {"ann", "bob", "cid"}


def failed_over(pair: Pair, namespace: str, home: Path, **options: Any) -> tuple[Lab, int]:
    """A lab after a real promotion that lost a suffix, and its item."""
    lab = Lab(pair.url, namespace, home, **options)
    item = warmed(lab, "ann", "cid")
    Lost(item).told(lab, pair)
    pair.fail_over()
    return lab, item


def test_r30_failover_loses_a_suffix(pair: Pair, namespace: str, tmp_path: Path) -> None:
    """A replica that lacks the last changes is promoted. Its header says that it knows all, and does
    not know bob, whom SQL has; its journal has an older change of cid. The header counts for
    nothing, cid's old change is skipped, bob's second click changes nothing; dan's like is lost."""
    lab, item = failed_over(pair, namespace, tmp_path)
    with lab:
        assert lab.header(item)["#full"] == "1"
        assert field("bob") not in lab.header(item)
        assert lab.journal(item) == {field("cid"): "0:1.1"}
        assert lab.seen(item, "bob") == LikeStatus(True, 3)
        assert lab.like(item, "bob").changed is False
        lab.open()
        lab.holds(item, {"ann", "bob", "cid"}, {"dan"})
        assert drifted(lab.engine) == []


def test_r30_control_without_the_identity(pair: Pair, namespace: str, tmp_path: Path) -> None:
    """The opening record says that it was written by the server that was promoted, as if nobody
    compared: its header is believed."""
    lab, item = failed_over(pair, namespace, tmp_path)
    with lab:
        run_id = pair.ask_replica("INFO", "server")["run_id"]
        history = pair.ask_replica("INFO", "replication")["master_replid"]
        lab.command("HSET", lab.keys.opening, "id", f"{run_id}:{history}")
        lab.open()
        assert lab.seen(item, "bob") == LikeStatus(False, 1)  # wrong: SQL has bob, and cid
        assert lab.like(item, "bob").changed is True  # wrong


def test_r30_the_epoch_is_raised_in_sql_first(pair: Pair, namespace: str, tmp_path: Path) -> None:
    """After a promotion the shard is closed to everybody, until SQL has a greater epoch and then the
    server is told; a flusher of the time before is refused in between already."""
    with Lab(pair.url, namespace, tmp_path) as lab:
        item = warmed(lab, "ann", "cid")
        lab.unlike(item, "ann")
        zombie = lab.run("f.claim", f=lab.flush(item))  # of the old primary
        pair.caught_up()
        pair.fail_over()
        before = lab.opening()
        play = lab.run("o.epoch o.look o.raise_epoch", o=lab.opener())
        assert lab.opening() == before  # the server still says the old epoch, and is closed
        assert lab.store.epoch(lab.shard.place) == int(before["e"]) + 1
        zombie.run("f.commit f.epoch")
        assert lab.rows(item) == {"ann", "cid"}
        play.run("o.open")
        assert int(lab.opening()["e"]) == int(before["e"]) + 1
        lab.known = play.result("o")
        zombie.run("f.*")
        lab.holds(item, {"cid"}, {"ann"})  # the unlike was replicated, and is not lost


async def test_r30_what_users_were_told_is_reported(pair: Pair, engine: Engine) -> None:
    """The same with a client that lives through it: it goes to the new primary by itself, opens the
    shard anew, and says which answered changes are gone."""
    events: list[Event] = []
    async with AsyncClient.from_url(pair.url, observe=events.append) as client:
        likes = client.likes("activities", store=SqlLikes(engine, **TABLES), options=SLOW)
        await likes.like(1, "bob")
        await likes.drain()
        await asyncio.to_thread(pair.caught_up)
        pair.fall_behind()
        await likes.like(1, "cid")
        await likes.drain()  # SQL has it, the replica has not
        await likes.like(1, "dan")
        await likes.unlike(2, "ann")
        await likes.like(3, "eve", durability="committed")
        pair.fail_over()
        assert await likes.status(1, "cid") == LikeStatus(True, 3)
        await asyncio.gather(*likes._reports)
        assert await likes.status(2, "ann") == LikeStatus(True, 1)
        assert await likes.status(3, "eve") == LikeStatus(True, 2)
        assert await likes.drain() == 0
    lost = [(one.count, set(one.items)) for one in events if isinstance(one, LikesLost)]
    assert lost == [(2, {"1", "2"})]
    assert [one.epoch for one in events if isinstance(one, ShardOpened)] == [1, 2]
    assert rows_of(engine, 1) == {"ann", "bob", "cid"}
    assert rows_of(engine, 2) == {"ann"}
    assert rows_of(engine, 3) == {"ann", "eve"}
    assert drifted(engine) == []


def test_r30_an_old_primary_that_lives_on_writes_nothing(
    pair: Pair, namespace: str, tmp_path: Path
) -> None:
    """The old primary is not dead, only left: a flusher that still talks to it has read a change of
    the time before; SQL refuses it from the moment that the new one is open."""
    with Lab(pair.url, namespace, tmp_path) as lab:
        item = warmed(lab, "ann")
        pair.caught_up()
        pair.fall_behind()
        with Client.from_url(pair.primary.unix_url, namespace=namespace) as left:
            shard, known = lab.shard, lab.known
            result, _ = run_sync(protocol.set_like(left.port, shard, known, str(item), "bob", True))
            assert result.changed
            pair.promote()
            lab.client.close()
            lab.client = Client.from_url(pair.url, namespace=namespace)
            lab.port = lab.client.port
            lab.open()
            claimed = run_sync(
                left.port.run(
                    shard.scripts.claim(
                        (shard.keys.opening, shard.keys.due, shard.keys.journal(str(item))),
                        (known.epoch, known.server, 1000, 10, str(item)),
                        known.server,
                    )
                )
            )
            batch = flush.read_batch(shard.store, str(item), claimed.journals[0])
            assert [one.user for one in batch.changes] == ["bob"]
            done = lab.store.commit(shard.place, int(known.epoch), claimed.fence, [batch])
            assert done.refused == "epoch"  # type: ignore[union-attr]
        assert lab.rows(item) == {"ann"}
        lab.holds(item, {"ann"}, {"bob"})


# -- versions and clocks


def test_r31_version_counter_regresses(lab: Lab) -> None:
    """All data is lost and sequences begin at 1 again: versions carry the epoch, so new likes are
    newer than what was flushed before."""
    r31(lab)


def test_r31_control_versions_without_epoch(make_lab: LabMaker) -> None:
    with goes_wrong():
        r31(make_lab(store=lambda engine: OneTimeline(engine, **TABLES)))


def test_r32_flush_from_the_old_timeline(lab: Lab) -> None:
    """A flusher has read; all is lost; the shard is opened anew and read from SQL; the old flusher
    commits: its epoch is refused, so what was shown stays true."""
    r32(lab)


def test_r32_control_without_the_epoch(make_lab: LabMaker) -> None:
    with goes_wrong():
        r32(make_lab(store=lambda engine: AnyEpoch(engine, **TABLES)))


class Clock:
    """The clock of a server that is started with it: steps when it is told to.

    Args:
        home: Where its files go.
    """

    def __init__(self, home: Path) -> None:
        self._file = home / "clock"
        self.step(0)
        found = subprocess.run(
            ["faketime", "-f", "+0s", "env"], capture_output=True, text=True, check=True
        )
        words = [line.partition("=") for line in found.stdout.splitlines()]
        (preload,) = (value for name, _, value in words if name == "LD_PRELOAD")
        self.server = home / "server"
        self.server.write_text(
            f"#!/bin/sh\nexport LD_PRELOAD='{preload}' FAKETIME_TIMESTAMP_FILE='{self._file}'\n"
            "export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n"
            f"exec '{find_binary('valkey')}' \"$@\"\n"
        )
        self.server.chmod(0o700)

    def step(self, seconds: int) -> None:
        """From now on the clock is so many seconds away from the true one."""
        written = self._file.with_name("next")
        written.write_text(f"{seconds:+d}\n")
        written.rename(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    require("valkey", find_binary("valkey") is not None)
    require("faketime", find_binary("faketime") is not None)
    return Clock(tmp_path)


DAY = 86_400


def clock_steps_back(lab: Lab, clock: Clock) -> int:
    """Likes before and after the server's clock goes back by a day; the item."""
    item = warmed(lab, "u1")
    lab.like(item, "u2")
    lab.unlike(item, "u1")
    told = int(lab.command("TIME")[0])
    clock.step(-DAY)
    until_sync(lambda: int(lab.command("TIME")[0]) < told - DAY + 600)
    lab.like(item, "u3")
    lab.like(item, "u1")
    seqs = [int(entry.partition(".")[2]) for _, entry in sorted(lab.journal(item).items())]
    assert seqs == [4, 1, 3]  # of u1, u2, u3: in the order in which they came
    return item


def due_in(lab: Lab) -> tuple[str, ...]:
    """What a flusher would flush now."""
    return run_sync(lab.port.run(protocol.look_due(lab.shard))).items


def test_r31_clock_steps_back(clock: Clock, namespace: str, tmp_path: Path) -> None:
    """The server's clock goes back by a day. Versions, fences and epochs are counted and not timed,
    so none goes back; and what was due in an hour is not due in a day and an hour."""
    with (
        ServerProcess(str(clock.server)) as server,
        lab_maker(server.url, namespace, tmp_path) as make,
    ):
        lab = make(claim_time=2.0)
        item = clock_steps_back(lab, clock)
        assert due_in(lab) == (str(item),)
        lab.flushed(item)
        assert lab.rows(item) == {"u1", "u2", "u3"}
        lab.unlike(item, "u2")
        lab.flushed(item)
        lab.holds(item, {"u1", "u3"}, {"u2"})


def test_r31_clock_steps_back_before_a_restart(
    clock: Clock, namespace: str, tmp_path: Path
) -> None:
    """A server comes back with its data and a clock that is lower than when they were written: the
    epoch that is opened is greater, and so are the versions and fences of it."""
    with (
        ServerProcess(str(clock.server), aof="always") as server,
        lab_maker(server.url, namespace, tmp_path) as make,
    ):
        lab = make()
        item = warmed(lab, "u1")
        lab.like(item, "u2")
        lab.flushed(item)
        lab.like(item, "u3")
        before = int(lab.opening()["e"])
        clock.step(-DAY)
        server.restart()
        assert lab.seen(item, "u3") == LikeStatus(True, 3)
        lab.open()
        assert int(lab.opening()["e"]) == before + 1
        lab.unlike(item, "u2")
        lab.holds(item, {"u1", "u3"}, {"u2"})


def test_r31_control_late_taken_for_early(clock: Clock, namespace: str, tmp_path: Path) -> None:
    """Without the look ahead an item that was dirty then would be flushed in a day."""
    scripts = without("due", "if #items < limit then", "if false then")
    with (
        ServerProcess(str(clock.server)) as server,
        lab_maker(server.url, namespace, tmp_path) as make,
    ):
        lab = make(claim_time=2.0, scripts=scripts)
        clock_steps_back(lab, clock)
        assert due_in(lab) == ()  # wrong


# -- replicas, slots


def test_r45_read_from_a_replica(pair: Pair, namespace: str, tmp_path: Path) -> None:
    """A replica lags behind the like that was just answered: it is never asked. A client that is
    sent to one says so, and does not say "no"."""
    with Lab(pair.url, namespace, tmp_path) as lab:
        item = warmed(lab, "u1")
        pair.caught_up()
        pair.fall_behind()
        lab.like(item, "me")
        header = lab.keys.header(str(item))
        # The control: what a read of the replica would have said.
        assert pair.ask_replica("HGET", header, field("me")) is None
        assert pair.ask_replica("HGET", header, "#full") == b"1"
        with Client.from_url(pair.replica.unix_url, namespace=namespace, budget=0.6) as lost:
            likes = lost.likes("likes", store=lab.store, options=SLOW)
            with pytest.raises(Unavailable, match="replica"):
                likes.status(item, "me")
        assert lab.seen(item, "me") == LikeStatus(True, 2)


@pytest.fixture
def slotted() -> Iterator[ServerProcess]:
    """A server in cluster mode that holds all slots: it refuses keys of several slots in one call."""
    require("valkey", find_binary("valkey") is not None)
    bus = str(free_port())  # else it is the port + 10,000, which there may not be
    with (
        ServerProcess(
            "valkey", "--cluster-enabled", "yes", "--cluster-port", bus, port=0
        ) as server,
        Client.from_url(server.unix_url) as client,
    ):
        assert client.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383) == b"OK"
        while b"cluster_state:ok" not in client.command("CLUSTER", "INFO"):
            pass
        yield server


def test_r46_keys_in_different_slots(
    slotted: ServerProcess, namespace: str, tmp_path: Path
) -> None:
    """Everything that a like touches lies in one slot: each script runs on a server that enforces
    it, and the shards of a cache lie in many slots."""
    with lab_maker(slotted.unix_url, namespace, tmp_path) as make:
        lab = make(pairs_max=120, full_max=10)
        item = warmed(lab, "u1", "u2")
        lab.like(item, "u3")
        lab.unlike(item, "u1")
        lab.seen(item, "u9")
        keys = lab.keys
        names = [keys.opening, keys.due, keys.since]
        names += [of(str(item)) for of in (keys.header, keys.journal, keys.tokens)]
        assert len({lab.command("CLUSTER", "KEYSLOT", name) for name in names}) == 1
        lab.holds(item, {"u2", "u3"}, {"u1"})
        tags = [like_shard(namespace, "likes", number).opening for number in range(256)]
        assert len({lab.command("CLUSTER", "KEYSLOT", tag) for tag in tags}) > 200


def test_r46_control(slotted: ServerProcess, namespace: str, tmp_path: Path) -> None:
    class Scattered(CommonDesign):
        def _key(self, part: str) -> str:
            return f"{self.lab.client.namespace}:{part}:{self.item}"  # no hash tag

    with lab_maker(slotted.unix_url, namespace, tmp_path) as make:
        lab = make()
        common = Scattered(lab, lab.item("u1"))
        with pytest.raises(ServerError, match="CROSSSLOT"):
            lab.do(common.blind_click("u2", True))


def test_r47_user_index_in_another_slot(engine: Engine, server_url: str, namespace: str) -> None:
    """What a user likes can't be in the item's slot: a process dies between the like and the note of
    it under its user. The note is a hint; the list is the rows, so the flush brings it."""
    options = dataclasses.replace(SLOW, hints=True)
    with Client.from_url(server_url, namespace=namespace) as client:
        likes = client.likes("likes", store=SqlLikes(engine, **TABLES), options=options)
        likes.like(1, "bob")
        likes.status(2)
        shard, known = likes._shards[0], likes._known[0]
        run_sync(protocol.set_like(client.port, shard, known, "2", "bob", True))  # and dies
        assert likes.liked_by("bob").items == [1]  # at worst it is missing until its flush
        assert likes.status(2, "bob").liked
        assert likes.drain() == 0
        assert likes.liked_by("bob").items == [2, 1]
        client.command("DEL", likes._hint("bob"))
        assert likes.liked_by("bob").items == [2, 1]


def test_r47_control(lab: Lab) -> None:
    """The common way: the click writes the index, and nothing else ever does."""
    common = CommonDesign(lab, lab.item()).warm()
    index = f"{{{lab.client.namespace}:index}}:u1"

    def click(crash: bool) -> None:
        assert lab.do(common.click("u1", True)) is True
        if not crash:
            lab.command("ZADD", index, 1, common.item)

    click(crash=True)
    lab.do(common.consume())
    assert common.select() == {"u1"}
    assert lab.command("ZRANGE", index, 0, -1) == []  # wrong, for good
