"""Write-behind through both faces: who reads what, what is saved when, and what the source refuses."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fencepost import Client
from fencepost.cache import Batch, Loaded, SaveReport, Unsaveable
from fencepost.errors import (
    FenceRefused,
    OutcomeUnknown,
    Overloaded,
    Refused,
    Superseded,
    Unavailable,
)
from fencepost.testing import Play
from support.behind import BehindWorld
from support.cache import KEY, make_region
from support.cachefaces import CacheFace, Loader
from support.faces import every_face
from support.require import require
from support.servers import ServerProcess, find_binary
from support.until import until

Make = Callable[..., CacheFace]
LATER = {"flush_delay": 3600.0}


class DataError(Exception):
    """Named as drivers name what is about a value."""


class Source:
    """Rows by key, and what was asked of it."""

    def __init__(self, kind: str, **rows: Any) -> None:
        self.kind, self.rows = kind, rows
        self.batches: list[Batch[Any]] = []
        self.refuses: dict[Any, Exception] = {}
        self.down: Exception | None = None
        self.held = threading.Event()
        self.held.set()
        self.entered = threading.Event()

    def _save(self, batch: Batch[Any]) -> None:
        self.batches.append(batch)
        if self.down is not None:
            raise self.down
        for one in batch:
            if one.value in self.refuses:
                raise self.refuses[one.value]
        for one in batch:
            self.rows[one.key] = one.value

    @property
    def save(self) -> Callable[[Batch[Any]], Any]:
        async def save(batch: Batch[Any]) -> None:
            self.entered.set()
            while not self.held.is_set():  # noqa: ASYNC110  # threads tell it, too
                await asyncio.sleep(0)
            self._save(batch)

        def save_now(batch: Batch[Any]) -> None:
            self.entered.set()
            assert self.held.wait(30)
            self._save(batch)

        return save if self.kind == "async" else save_now

    def load(self, key: str) -> Any:
        async def load() -> Any:
            return self.rows.get(key)

        return load if self.kind == "async" else lambda: self.rows.get(key)


class Writer:
    """What writes behind, both faces under one."""

    def __init__(self, face: CacheFace, source: Source, **options: Any) -> None:
        self.face, self.source = face, source
        self.writes = face.cache.behind(source.save, **options)

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.writes, verb)
        if self.face.kind == "async" or verb == "stats":
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.face._threads, lambda: method(*args, **kwargs))

        return call

    @contextlib.asynccontextmanager
    async def flushing(self, **options: Any) -> AsyncIterator[Any]:
        if self.face.kind == "async":
            async with self.writes.flusher(**options) as stats:
                yield stats
            return
        scope = self.writes.flusher(**options)
        yield scope.__enter__()
        await asyncio.to_thread(scope.__exit__, None, None, None)

    async def read(self, key: str = "k") -> Any:
        return await self.face.get(key, self.source.load(key))


@pytest.fixture
def writer(make: Make, kind: str) -> Callable[..., Writer]:
    """Makes caches that are written behind, each of a client of its own, on one source."""
    source = Source(kind, k="old")

    def one(cache: dict[str, Any] | None = None, **options: Any) -> Writer:
        face = make(**{"shards": 2, "on_down": "raise", **(cache or {})})
        return Writer(face, source, **{"flush_delay": 0.01, **options})

    return one


MakeWriter = Callable[..., Writer]


# -- who reads what


@every_face
async def test_a_write_is_read_before_it_is_saved(writer: MakeWriter, kind: str) -> None:
    here, there = writer(**LATER), writer(**LATER)
    assert await here.read() == "old"
    first = await here.set("k", "new")
    for one in (here, there):
        assert await one.read() == "new"
        assert (await one.face.peek("k")).value == "new"
        assert await one.face.get_many(["k"], Loader(kind).load) == {"k": "new"}
    assert here.source.rows == {"k": "old"}
    assert await here.set("k", "newer") > first
    assert await there.read() == "newer"
    explained = await there.face.explain("k")
    assert (explained.state, explained.ends_in) == ("fresh", None)
    assert explained.unsaved > first
    assert (await here.waiting()).values == 1
    assert await here.drain() == 0
    assert here.source.rows == {"k": "newer"}
    assert (await here.face.explain("k")).unsaved is None
    assert [(one.key, one.value) for one in here.source.batches[0]] == [("k", "newer")]


@every_face
async def test_nothing_makes_an_unsaved_value_a_miss(writer: MakeWriter, kind: str) -> None:
    one = writer(cache={"ttl": 0.001, "beta": 1.0}, **LATER)
    await one.set("k", "new", tags=["g"])
    key = one.face.key("k")
    assert await one.face.command("PTTL", key.entry) == -1  # it has no end
    await one.face.invalidate("k")
    await one.face.invalidate("k", hard=False)
    await one.face.invalidate_tags("g")
    assert await one.face.touch("k", ttl=0.001)
    assert await one.read() == "new"
    assert await one.face.get("k", one.source.load("k"), tags=["other"], stale=0) == "new"
    assert (await one.face.refresh("k", one.source.load("k"))).value == "new"
    await one.face.command("DEL", key.entry)
    assert await one.read() == "new"
    await one.face.command("SET", key.entry, b"rubbish")
    assert await one.read() == "new"


@every_face
async def test_a_saved_value_ends_like_any_entry(writer: MakeWriter, kind: str) -> None:
    one = writer(cache={"ttl": 60, "stale": 40}, **LATER)
    await one.set("k", "new", tags=["g"])
    await one.drain()
    entry = one.face.key("k").entry
    left = await one.face.command("PTTL", entry)
    assert 90_000 < left <= 100_000
    read = await one.face.entry("k", one.source.load("k"), tags=["g"])
    assert (read.value, read.status) == ("new", "hit")
    await one.face.invalidate_tags("g")
    one.source.rows["k"] = "by somebody else"
    assert await one.face.get("k", one.source.load("k"), tags=["g"]) == "by somebody else"


@every_face
async def test_a_load_from_before_is_not_published_after_the_save(
    writer: MakeWriter, kind: str
) -> None:
    one, other = writer(**LATER), writer(**LATER)
    load = Loader(kind, "old", held=True)
    reading = asyncio.ensure_future(other.face.entry("k", load.load))
    await load.wait_began()
    await one.set("k", "new")
    await one.drain()
    load.go.set()
    await reading
    assert await other.read() == "new"


@every_face
async def test_none_deletes(writer: MakeWriter, kind: str) -> None:
    one = writer(**LATER)
    await one.set("k", None)
    entry = await one.face.peek("k")
    assert (entry.value, entry.status) == (None, "negative")
    assert await one.read() is None
    await one.drain()
    assert one.source.rows == {"k": None}


# -- what is saved when


@every_face
async def test_writes_between_two_flushes_are_one_save(writer: MakeWriter, kind: str) -> None:
    one = writer(**LATER)
    for value in range(20):
        await one.set("k", value)
        await one.set(f"k{value % 3}", value)
    await one.drain()
    saved = [(entry.key, entry.value) for batch in one.source.batches for entry in batch]
    assert sorted(saved) == [("k", 19), ("k0", 18), ("k1", 19), ("k2", 17)]
    assert one.stats()["saved"] == 4


@every_face
async def test_a_flusher_saves_what_is_due_and_drains_at_its_end(
    writer: MakeWriter, kind: str
) -> None:
    one = writer()
    async with one.flushing() as stats:
        await one.set("k", "new")
        await until(lambda: stats.done.saved == 1)
        assert one.source.rows == {"k": "new"}
    assert (await one.waiting()).values == 0
    late = writer(**LATER)
    async with late.flushing():
        await late.set("k", "at the end")
    assert late.source.rows == {"k": "at the end"}


@every_face
async def test_what_comes_while_a_save_runs_is_for_the_next(writer: MakeWriter, kind: str) -> None:
    one = writer(**LATER)
    await one.set("k", "first")
    one.source.held.clear()
    flushing = asyncio.ensure_future(one.drain())
    await until(one.source.entered.is_set)
    await one.set("k", "second")
    one.source.held.set()
    assert await flushing == 0
    saved = [entry.value for batch in one.source.batches for entry in batch]
    assert saved == ["first", "second"]
    assert await one.read() == "second"


@every_face
async def test_a_drain_that_has_no_time_leaves_what_is_safe(
    writer: MakeWriter, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = writer(**LATER)
    async with one.flushing(drain=0):
        await one.set("k", "new")
    assert "1 items are still in the journal" in caplog.text
    assert await one.read() == "new"
    assert await writer().drain() == 0  # the next flusher takes it
    assert one.source.rows == {"k": "new"}


@every_face
async def test_batches_carry_scope_epoch_fence_and_versions(writer: MakeWriter, kind: str) -> None:
    one = writer(cache={"shards": 1}, **LATER)
    version = await one.set("k", 1)
    await one.drain()
    await one.set("k", 2)
    await one.drain()
    first, second = one.source.batches
    assert first.scope == second.scope == f"{one.face.client.namespace}:cache:products/0"
    assert first.order < second.order
    assert first.entries[0].version >> 40 == first.epoch
    assert [entry.version for entry in first] == [version]
    assert second.entries[0].version > version
    assert len(first) == 1


# -- trouble


@every_face
async def test_a_source_that_is_down_loses_nothing(writer: MakeWriter, kind: str) -> None:
    one = writer()
    one.source.down = ConnectionRefusedError("down")
    async with one.flushing(drain=0) as stats:
        await one.set("k", "new")
        await until(lambda: stats.failures > 0)
        assert await one.read() == "new"
    assert one.source.rows == {"k": "old"}
    assert await one.aside() == []
    assert await one.drain(0.1) == 1
    one.source.down = None
    assert await one.drain() == 0
    assert one.source.rows == {"k": "new"}


@every_face
async def test_a_value_that_the_source_refuses_stops_nobody(writer: MakeWriter, kind: str) -> None:
    one = writer(cache={"shards": 1}, **LATER)
    one.source.refuses = {"poison": Unsaveable("too bad")}
    for number in range(9):
        await one.set(f"k{number}", "poison" if number == 4 else number)
    assert await one.drain() == 0
    assert one.source.rows == {"k": "old"} | {f"k{n}": n for n in range(9) if n != 4}
    (aside,) = await one.aside()
    assert (aside.key, aside.value, aside.reason) == ("k4", "poison", "Unsaveable: too bad")
    assert await one.read("k4") is None  # readers see what the source has
    one.source.refuses = {}
    assert await one.retry("k4", "k5") == 1
    assert await one.aside() == []
    assert await one.drain() == 0
    assert one.source.rows["k4"] == "poison"


@every_face
async def test_a_newer_write_replaces_what_was_set_aside(writer: MakeWriter, kind: str) -> None:
    one = writer(**LATER)
    one.source.refuses = {"poison": Unsaveable("too bad")}
    await one.set("k", "poison")
    await one.drain()
    await one.set("k", "better")
    assert await one.aside() == []
    await one.drain()
    assert one.source.rows == {"k": "better"}


@every_face
async def test_a_value_that_fails_alone_is_tried_so_often(writer: MakeWriter, kind: str) -> None:
    one = writer(cache={"shards": 1}, tries=3, **LATER)
    one.source.refuses = {"poison": DataError("out of range")}
    await one.set("k", "poison")
    for tried in range(1, 4):
        report: SaveReport = await flush(one, "k")
        assert (report.deferred, report.aside) == ((1, 0) if tried < 3 else (0, 1))
    (aside,) = await one.aside()
    assert aside.reason == "DataError: out of range"


@every_face
async def test_an_error_that_may_be_of_the_source_sets_nothing_aside(
    writer: MakeWriter, kind: str
) -> None:
    """A ``save_many`` with a mistake in it must not empty the journal."""
    one = writer(cache={"shards": 1}, tries=1, **LATER)
    one.source.down = KeyError("a mistake")
    for number in range(4):
        await one.set(f"k{number}", number)
    names = [f"k{number}" for number in range(4)]
    with pytest.raises(KeyError):
        await flush(one, *names)
    assert (await one.waiting()).values == 4
    one.source.down = None
    one.source.refuses = {2: KeyError("a mistake of this one")}
    report = await flush(one, *names)
    assert (report.saved, report.aside) == (3, 1)


@every_face
async def test_a_source_that_fails_is_not_asked_for_each_value(
    writer: MakeWriter, kind: str
) -> None:
    one = writer(cache={"shards": 1}, **LATER)
    one.source.down = KeyError("a mistake")
    for number in range(64):
        await one.set(f"k{number}", number)
    with pytest.raises(KeyError):
        await flush(one, *(f"k{number}" for number in range(64)))
    assert len(one.source.batches) == 16
    one.source.batches.clear()
    one.source.down = ConnectionRefusedError("down")
    with pytest.raises(ConnectionRefusedError):
        await flush(one, *(f"k{number}" for number in range(64)))
    assert len(one.source.batches) == 1


@every_face
async def test_there_is_room_for_so_many_set_aside(writer: MakeWriter, kind: str) -> None:
    one = writer(cache={"shards": 1}, max_aside=1, **LATER)
    one.source.refuses = {"poison": Unsaveable("too bad")}
    await one.set("a", "poison")
    await one.set("b", "poison")
    report = await flush(one, "a", "b")
    assert report.aside == 1
    assert (await one.waiting()).values == 1  # safe in the journal, and read
    assert {await one.read("a"), await one.read("b")} == {None, "poison"}


@every_face
async def test_a_value_of_another_type_is_set_aside(writer: MakeWriter, kind: str) -> None:
    first = writer(cache={"shards": 1}, **LATER)
    await first.set("k", "a text")
    typed = writer(cache={"shards": 1, "type": int}, **LATER)
    report = await flush(typed, "k")
    assert report.aside == 1
    (aside,) = await first.aside()
    assert aside.value == "a text"


@every_face
async def test_writers_are_slowed_and_then_refused(writer: MakeWriter, kind: str) -> None:
    one = writer(cache={"shards": 1}, max_dirty=8, **LATER)
    one.source.down = ConnectionRefusedError("down")
    refused: Overloaded | None = None
    for number in range(100):
        one.writes._pressure.next_look = 0.0
        try:
            await one.set(f"k{number}", number)
        except Overloaded as error:
            refused = error
            break
    assert refused is not None
    assert "the source does not keep up" in str(refused)
    waiting = (await one.waiting()).values
    assert waiting == number == 8
    one.source.down = None
    await one.drain()
    await one.set("k", "again")
    # From three quarters on, a writer saves its own value before it returns.
    for number in range(20):
        one.writes._pressure.next_look = one.writes._pressure.no_join_before = 0.0
        await one.set(f"k{number}", number)
    assert (await one.waiting()).values <= 6


@every_face
async def test_a_server_without_memory_refuses_a_write_whole_and_can_be_drained(
    kind: str, namespace: str
) -> None:
    with ServerProcess("valkey") as server:
        face = CacheFace(kind, server.url, namespace, shards=1, on_down="raise")
        one = Writer(face, Source(kind, k="old"), **LATER)
        await one.set("k", "new")
        await face.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Overloaded):
            await one.set("k", "newer")
        with pytest.raises(Overloaded):
            await one.set("other", "newer")
        assert await one.read() == "new"
        assert await face.command("EXISTS", face.key("other").entry, face.key("other").journal) == 0
        assert await one.drain() == 0
        assert one.source.rows == {"k": "new"}
        assert await face.command("EXISTS", face.key("k").journal) == 0
        await face.close()


@every_face
async def test_two_ways_of_writing_are_refused(writer: MakeWriter, make: Make, kind: str) -> None:
    one = writer(**LATER)
    with pytest.raises(Refused, match="written behind"):
        await one.face.set("k", 1)
    with pytest.raises(Refused, match="written behind"):
        await one.face.write_through("k", 1, Loader(kind).load)
    with pytest.raises(Refused, match="written behind"):
        await one.face.write_around("k", Loader(kind).load)
    with pytest.raises(Refused, match="shards=16"):
        make().cache.behind(one.source.save)
    with pytest.raises(Refused, match="on_down='raise'"):
        make(shards=4)
    with pytest.raises(Refused, match="no revision"):
        await one.set("k", Loaded(1))
    with pytest.raises(Refused):
        await one.set("k", object())
    with pytest.raises(Refused, match="batch_items"):
        one.face.cache.behind(one.source.save, batch_items=0)
    assert one.source.batches == []


async def flush(one: Writer, *names: str) -> SaveReport:
    """Flush some keys of the only shard, due or not."""
    if one.face.kind == "async":
        report: SaveReport = await one.writes._flush(0, names)
        return report
    from fencepost._core.port import run_sync

    return await asyncio.to_thread(lambda: run_sync(one.writes._flush(0, names)))


# -- plays: each race by its schedule


@pytest.fixture
def world(server_url: str, namespace: str) -> Iterator[tuple[BehindWorld, Any]]:
    with Client.from_url(server_url) as client:
        yield BehindWorld(opened=False, namespace=namespace), client


OPEN = "{0}.epoch {0}.look {0}.raise_epoch {0}.open"


def test_a_paused_flusher_is_refused(world: tuple[BehindWorld, Any]) -> None:
    behind, client = world
    play = Play(client.port, w=behind.writes(2), f=behind.flushes())
    play.run(OPEN.format("w") + " w.put w.answered f.epoch f.look f.claim")
    play.add(v=behind.writes(3), g=behind.flushes())
    play.run("v.epoch v.look v.put v.answered g.epoch g.look g.claim g.save g.ack")
    assert behind.db.state.value == 3
    play.run("f.save")  # refused by the fence: it claims again, and there is nothing
    assert behind.db.state.value == 3
    play.run("f.claim f.ack")
    assert play.result("f") == 0
    assert behind.db.state.undone == ""


def test_a_paused_flusher_without_a_fence_writes_the_older_value(
    world: tuple[BehindWorld, Any],
) -> None:
    behind, client = world
    behind.source.fenced = behind.source.versioned = False
    play = Play(client.port, w=behind.writes(2), f=behind.flushes())
    play.run(OPEN.format("w") + " w.put w.answered f.epoch f.look f.claim")
    play.add(v=behind.writes(3), g=behind.flushes())
    play.run("v.epoch v.look v.put v.answered g.epoch g.look g.claim g.save g.ack f.save")
    assert behind.db.state.value == 2  # wrong


@pytest.mark.parametrize("fault", ["lost", "dropped", "cut"])
def test_a_write_whose_reply_is_lost_is_not_repeated(
    world: tuple[BehindWorld, Any], fault: str
) -> None:
    """Repeated it could undo a newer one; its caller is told that nobody knows."""
    behind, client = world
    play = Play(client.port, w=behind.writes(2))
    play.run(OPEN.format("w") + f" w.put!{fault}")
    with pytest.raises(Unavailable if fault == "cut" else OutcomeUnknown):
        play.result("w")
    play.add(r=behind.reads())
    behind.truth.state = behind.truth.state._replace(versions=((1, 0), (2, 1)))
    rest = "r.version_of" if fault == "lost" else "r.claim r.load r.publish r.version_of"
    play.run(f"r.begin r.get {rest}")
    assert play.result("r") == ((2,) if fault == "lost" else (1,))


def test_a_server_that_may_evict_the_journal_is_refused(
    world: tuple[BehindWorld, Any], namespace: str
) -> None:
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey") as server, Client.from_url(server.url) as client:
        client.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        cache = client.cache("c", shards=1, on_down="raise")
        writes = cache.behind(lambda batch: None)
        with pytest.raises(Refused, match="may evict writes"):
            writes.set("k", 1)


def test_a_refusal_can_be_told_by_any_source() -> None:
    error = Superseded("412 Precondition Failed", by="fence")
    assert (error.by, isinstance(error, FenceRefused)) == ("fence", True)
    assert make_region(shards=3, on_down="raise").keys(KEY).entry.endswith("}:k:v")
