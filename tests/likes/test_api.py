"""The like cache as an application sees it: both faces, flushers in processes, and what they report."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import random
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from fencepost import AsyncClient, Client
from fencepost.errors import FencepostError, Refused, Unavailable, UnknownItem
from fencepost.likes import AsyncSqlLikes, LikeOptions, SqlLikes
from fencepost.likes.protocol import LikeResult, LikeStatus
from support.likes import (
    NEVER,
    TABLES,
    add_item,
    count_of,
    delete_item,
    drifted,
    open_database,
    rows_of,
)
from support.likes_worker import NAME, OPTIONS, flushing
from support.until import PATIENCE, until

TESTS = Path(__file__).parent.parent


class Face:
    """One like cache by one of its faces, under async verbs.

    Args:
        kind: ``async`` (a loop and aiosqlite), ``mixed`` (a loop, SQL in threads) or ``threads``.
        url: The server.
        namespace: The first part of each key.
        path: The database file.
        busy: Seconds that a transaction waits for another one.
        **options: For ``LikeOptions``.
    """

    def __init__(
        self, kind: str, url: str, namespace: str, path: Path, busy: float = 10.0, **options: Any
    ) -> None:
        self.kind = kind
        self.engine = open_database(path, busy=busy)
        self._closing: list[Callable[[], Any]] = []
        store: Any = SqlLikes(self.engine, **TABLES)
        client: Any
        if kind == "threads":
            client = Client.from_url(url, namespace=namespace)
            self._closing.append(client.close)
        else:
            client = AsyncClient.from_url(url, namespace=namespace)
            self._closing.append(client.aclose)
        if kind == "async":
            file = f"sqlite+aiosqlite:///{path}"
            engine = create_async_engine(file, connect_args={"timeout": busy})
            store = AsyncSqlLikes(engine, **TABLES)
            self._closing.append(engine.dispose)
        self.client = client
        self.likes: Any = client.likes("likes", store=store, options=LikeOptions(**options))

    async def ask(self, verb: str, *args: Any, **named: Any) -> Any:
        function = getattr(self.likes, verb)
        if inspect.iscoroutinefunction(function):
            return await function(*args, **named)
        return await asyncio.to_thread(function, *args, **named)

    async def like(self, item: int, user: str) -> LikeResult:
        result: LikeResult = await self.ask("like", item, user)
        return result

    async def status(self, item: int, user: str | None = None) -> LikeStatus:
        result: LikeStatus = await self.ask("status", item, user)
        return result

    @contextlib.asynccontextmanager
    async def flusher(self, **named: Any) -> AsyncIterator[Any]:
        context = self.likes.flusher(**named)
        if self.kind == "threads":
            stats = await asyncio.to_thread(context.__enter__)
            try:
                yield stats
            finally:
                await asyncio.to_thread(context.__exit__, None, None, None)
        else:
            async with context as stats:
                yield stats

    def count_requests(self) -> list[int]:
        """From now on: [single requests, batches]."""
        counts = [0, 0]
        port = self.likes._io
        run, all_ = port._run, port._all

        def counting_run(call: Any) -> Any:
            counts[0] += 1
            return run(call)

        def counting_all(calls: Sequence[Any]) -> Any:
            counts[1] += 1
            return all_(calls)

        port._run, port._all = counting_run, counting_all
        return counts

    async def close(self) -> None:
        for closing in self._closing:
            done = closing()
            if inspect.isawaitable(done):
                await done
        self.engine.dispose()


MakeFace = Callable[..., Face]


@pytest.fixture(params=["async", "mixed", "threads"])
async def make_face(
    request: pytest.FixtureRequest, server_url: str, namespace: str, tmp_path: Path
) -> AsyncIterator[MakeFace]:
    faces: list[Face] = []

    def make(**options: Any) -> Face:
        common = {"shards": 2, "flush_delay": 0.0} | options
        face = Face(request.param, server_url, namespace, tmp_path / "likes.db", **common)
        faces.append(face)
        return face

    yield make
    for face in faces:
        await face.close()


@pytest.fixture
def face(make_face: MakeFace) -> Face:
    return make_face()


# -- one user, one item


async def test_like_and_unlike(face: Face) -> None:
    item = add_item(face.engine, 1, "u1")
    assert await face.status(item, "u1") == LikeStatus(True, 1)
    assert await face.status(item) == LikeStatus(False, 1)
    assert await face.like(item, "u2") == LikeResult(True, 2, True)
    assert await face.like(item, "u2") == LikeResult(True, 2, False)
    assert await face.ask("unlike", item, "u1") == LikeResult(False, 1, True)
    assert await face.ask("set", item, "u1", liked=False) == LikeResult(False, 1, False)
    assert await face.ask("drain") == 0
    assert rows_of(face.engine, item) == {"u2"}
    assert count_of(face.engine, item) == 1


async def test_last_unlike_at_once(face: Face) -> None:
    """The heart is empty and the count 0 the moment the click is answered, and stays so."""
    item = add_item(face.engine, 1, "u1")
    assert (await face.ask("unlike", item, "u1")).count == 0
    assert await face.status(item, "u1") == LikeStatus(False, 0)
    assert await face.ask("drain") == 0
    assert await face.status(item, "u1") == LikeStatus(False, 0)


async def test_item_that_does_not_exist(face: Face) -> None:
    for verb, args in (("like", (404, "u1")), ("status", (404, "u1")), ("status", (404,))):
        with pytest.raises(UnknownItem, match="404"):
            await face.ask(verb, *args)


async def test_two_processes_see_each_other(make_face: MakeFace) -> None:
    """Two clients of one cache; what one does the other shows."""
    one, other = make_face(), make_face()
    item = add_item(one.engine, 1)
    await one.like(item, "u1")
    assert await other.status(item, "u1") == LikeStatus(True, 1)
    assert await other.ask("unlike", item, "u1") == LikeResult(False, 0, True)
    assert await one.status(item, "u1") == LikeStatus(False, 0)


# -- at the door


@pytest.mark.parametrize("kind", ["async", "mixed", "threads"])
async def test_bad_input_is_refused_before_anything_is_sent(
    tmp_path: Path, namespace: str, kind: str
) -> None:
    """There is no server at all here, and nobody notices."""
    face = Face(kind, f"unix://{tmp_path}/nobody", namespace, tmp_path / "likes.db")
    for item, user in (("1", "u"), (True, "u"), (1.0, "u"), (None, "u"), (2**64, "u")):
        with pytest.raises(Refused):
            await face.ask("like", item, user)
        with pytest.raises(Refused):
            await face.ask("status_many", [item], user)
    for bad in ("", 7, None, "x" * 300, "\ud800"):
        with pytest.raises(Refused):
            await face.ask("like", 1, bad)
    for liked in (1, "yes", None):
        with pytest.raises(Refused, match="True or False"):
            await face.ask("set", 1, "u", liked=liked)
    await face.close()


# -- feeds


async def test_feed_is_one_write_when_warm(face: Face) -> None:
    """However many items: one batch, no script, no SQL."""
    items = [add_item(face.engine, number, "u1") for number in range(1, 31)]
    first = await face.ask("status_many", items, "u1")
    assert first == dict.fromkeys(items, LikeStatus(True, 1))
    counts = face.count_requests()
    assert await face.ask("status_many", items, "u1") == first
    assert counts == [0, 1]
    assert await face.status(items[0], "u1") == LikeStatus(True, 1)
    assert counts == [1, 1]


async def test_feed_keeps_its_order_and_leaves_out_what_does_not_exist(face: Face) -> None:
    for number in (3, 1, 2):
        add_item(face.engine, number, *(["u1"] if number == 2 else []))
    for _ in range(2):  # cold, then warm with tombstones
        found = await face.ask("status_many", iter([3, 404, 2, 405, 1, 2]), "u1")
        assert list(found.items()) == [
            (3, LikeStatus(False, 0)),
            (2, LikeStatus(True, 1)),
            (1, LikeStatus(False, 0)),
        ]
    assert await face.ask("status_many", [], "u1") == {}
    assert await face.ask("status_many", [2]) == {2: LikeStatus(False, 1)}


async def test_feed_after_all_was_lost(face: Face) -> None:
    """What the cache knew is gone; the feed shows what SQL has."""
    items = [add_item(face.engine, number, "u1") for number in (1, 2, 3)]
    warm = await face.ask("status_many", items, "u1")
    await wipe(face)
    assert await face.ask("status_many", items, "u1") == warm


async def wipe(face: Face) -> None:
    async def command(*words: str) -> Any:
        reply = face.client.command(*words)
        return await reply if inspect.isawaitable(reply) else reply

    keys = await command("KEYS", f"{{{face.client.namespace}:*")
    assert keys
    await command("DEL", *(key.decode() for key in keys))


# -- flushers


async def test_flusher_brings_everything_to_sql(face: Face) -> None:
    items = [add_item(face.engine, number) for number in range(1, 6)]
    async with face.flusher() as stats:
        for item in items:
            for user in ("u1", "u2"):
                await face.like(item, user)
        await face.ask("unlike", items[0], "u1")
        await until(lambda: all("u2" in rows_of(face.engine, item) for item in items))
    assert rows_of(face.engine, items[0]) == {"u2"}
    assert rows_of(face.engine, items[1]) == {"u1", "u2"}
    assert drifted(face.engine) == []
    assert stats.passes > 0
    told = face.likes.stats()
    assert (told["sets"], told["changes"]) == (11, 11)
    assert told["failures"] == 0
    backlog = await face.ask("backlog")
    assert (backlog.items, backlog.oldest) == (0, 0.0)


async def test_end_of_a_flusher_brings_what_is_left(make_face: MakeFace) -> None:
    """Nothing is due for an hour: the end of the block flushes it all the same."""
    face = make_face(flush_delay=NEVER)
    item = add_item(face.engine, 1)
    async with face.flusher():
        await face.like(item, "u1")
    assert rows_of(face.engine, item) == {"u1"}


async def test_backlog_tells_how_much_and_how_long(make_face: MakeFace) -> None:
    face = make_face(flush_delay=NEVER)
    assert (await face.ask("backlog")).items == 0
    for number in (1, 2, 3):
        await face.like(add_item(face.engine, number), "u1")
    first = await face.ask("backlog")
    assert first.items == 3

    async def older() -> bool:
        return bool((await face.ask("backlog")).oldest > first.oldest)

    while not await older():
        pass
    assert await face.ask("drain") == 0
    assert await face.ask("backlog") == type(first)(0, 0.0)


async def test_drain_says_what_is_left_at_its_deadline(
    make_face: MakeFace, caplog: pytest.LogCaptureFixture
) -> None:
    """The database is locked: the drain ends in time, says so, and nothing is lost."""
    face = make_face(busy=0.05)
    items = [add_item(face.engine, number) for number in (1, 2, 3)]
    for item in items:
        await face.like(item, "u1")
    with locked(face):
        assert await face.ask("drain", 0.05) == 3
        with caplog.at_level(logging.WARNING, "fencepost.likes"):
            async with face.flusher(drain=0.05):
                pass
        assert "3 items are still in the journal" in caplog.text
    assert await face.ask("drain") == 0
    assert all(rows_of(face.engine, item) == {"u1"} for item in items)


@contextlib.contextmanager
def locked(face: Face) -> Iterator[None]:
    """Nobody else can write to the database meanwhile."""
    with face.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
        connection.exec_driver_sql("ROLLBACK")


async def test_flusher_outlives_trouble(
    make_face: MakeFace, caplog: pytest.LogCaptureFixture
) -> None:
    """While the database is locked it tries and waits, tells it once, and goes on by itself."""
    face = make_face(busy=0.05)
    item = add_item(face.engine, 1)
    await face.like(item, "u1")
    with caplog.at_level(logging.WARNING, "fencepost.likes"), contextlib.ExitStack() as lock:
        lock.enter_context(locked(face))  # before the flusher begins, or it may be done already
        async with face.flusher() as stats:
            await until(lambda: stats.failures >= 2)
            lock.close()
            await until(lambda: rows_of(face.engine, item) == {"u1"})
    told = [one for one in caplog.records if "will be tried again" in one.message]
    assert len(told) == 1
    assert "locked" in stats.last_failure


async def test_one_bad_item_does_not_stop_the_others(face: Face) -> None:
    """An item is deleted while its likes wait: it is counted, and the rest is flushed."""
    gone, there = add_item(face.engine, 1), add_item(face.engine, 2)
    await face.like(gone, "u1")
    await face.like(there, "u1")
    delete_item(face.engine, gone)
    async with face.flusher():
        await until(lambda: rows_of(face.engine, there) == {"u1"})
        await until(lambda: face.likes.stats()["orphans"] == 1)
    with pytest.raises(UnknownItem):
        await face.status(gone, "u1")


async def test_several_flushers_in_one_process(make_face: MakeFace) -> None:
    faces = [make_face() for _ in range(3)]
    items = [add_item(faces[0].engine, number) for number in range(1, 9)]
    async with contextlib.AsyncExitStack() as stack:
        for face in faces:
            await stack.enter_async_context(face.flusher())
        for number in range(40):
            face = faces[number % 3]
            await face.like(items[number % 8], f"u{number % 5}")
    assert drifted(faces[0].engine) == []
    for number, item in enumerate(items):
        expected = {f"u{n % 5}" for n in range(40) if n % 8 == number}
        assert rows_of(faces[0].engine, item) == expected
        assert (await faces[0].status(item)).count == len(expected)


async def test_sync_face_refuses_an_async_store(server_url: str, namespace: str) -> None:
    """It could not await it; said at the first call, with what to do."""
    engine = create_async_engine("sqlite+aiosqlite://")
    with Client.from_url(server_url, namespace=namespace) as client:
        likes = client.likes("likes", store=AsyncSqlLikes(engine, **TABLES))
        with pytest.raises(Refused, match="async client"):
            likes.like(1, "u1")
    await engine.dispose()


async def test_server_that_is_not_there(tmp_path: Path, namespace: str) -> None:
    """Unavailable, which says that nothing was applied."""
    engine = open_database(tmp_path / "x.db")
    with Client.from_url(f"unix://{tmp_path}/nobody", namespace=namespace, budget=0.01) as client:
        likes = client.likes("likes", store=SqlLikes(engine, **TABLES))
        with pytest.raises(Unavailable):
            likes.like(1, "u1")
    engine.dispose()


# -- many at once


def test_threads_click_one_item(server_url: str, namespace: str, tmp_path: Path) -> None:
    """Eight threads share a client, their users and an item; counts are of one history."""
    engine = open_database(tmp_path / "threads.db")
    item = add_item(engine, 1)
    changes: list[tuple[str, bool]] = []
    lock = threading.Lock()
    with Client.from_url(server_url, namespace=namespace) as client:
        options = LikeOptions(shards=1, flush_delay=0.0, claim_time=0.1)
        likes = client.likes("likes", store=SqlLikes(engine, **TABLES), options=options)

        def clicks(seed: int) -> None:
            dice = random.Random(seed)
            for _ in range(40):
                user, liked = f"u{dice.randrange(4)}", dice.random() < 0.5
                result = likes.set(item, user, liked=liked)
                assert 0 <= result.count <= 4
                if result.changed:
                    with lock:
                        changes.append((user, liked))

        with likes.flusher(), ThreadPoolExecutor(8) as pool:
            list(pool.map(clicks, range(8)))
        # Every change of a user is the other way round than the one before it.
        net = {user: 0 for user, _ in changes}
        for user, liked in changes:
            net[user] += 1 if liked else -1
        likers = {user for user, balance in net.items() if balance}
        assert set(net.values()) <= {0, 1}
        assert rows_of(engine, item) == likers
        assert likes.status(item).count == count_of(engine, item) == len(likers)
    engine.dispose()


def test_processes_click_while_flushers_are_killed(
    server_url: str, namespace: str, tmp_path: Path
) -> None:
    """Three processes click; two flusher processes are killed by SIGKILL, each at a moment of chance;
    what the clickers were told is what is in SQL and in the cache."""
    path = tmp_path / "processes.db"
    engine = open_database(path)
    database = f"sqlite:///{path}"
    items = [add_item(engine, number) for number in range(1, 7)]
    dice = random.Random(7)
    clickers = [click(server_url, namespace, database, who, 80, items) for who in "abc"]
    with flushing(server_url, namespace, database, 2) as flushers:
        for flusher in flushers:
            # time itself: a moment of chance in the life of a flusher
            with contextlib.suppress(subprocess.TimeoutExpired):
                clickers[0].wait(dice.random() * 0.3)
            flusher.send_signal(signal.SIGKILL)
    truth: dict[str, bool] = {}
    for one in clickers:
        out, _ = one.communicate(timeout=PATIENCE)
        assert one.returncode == 0
        truth |= json.loads(out)
    with Client.from_url(server_url, namespace=namespace) as client:
        likes = client.likes(NAME, store=SqlLikes(engine, **TABLES), options=OPTIONS)
        expected: dict[int, set[str]] = {item: set() for item in items}
        for pair, liked in truth.items():
            item, user = pair.split()
            assert likes.status(int(item), user).liked is liked
            if liked:
                expected[int(item)].add(user)
        assert likes.drain() == 0
        for number, likers in expected.items():
            assert rows_of(engine, number) == likers
            assert likes.status(number).count == count_of(engine, number) == len(likers)
        assert likes.backlog().items == 0
    engine.dispose()


def click(
    url: str, namespace: str, database: str, who: str, count: int, items: list[int]
) -> subprocess.Popen[str]:
    words = [url, namespace, database, who, str(count), *map(str, items)]
    return subprocess.Popen(
        [sys.executable, "-m", "support.likes_clicks", *words],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_errors_are_of_one_family() -> None:
    """What an application catches."""
    assert issubclass(UnknownItem, FencepostError)
    assert issubclass(UnknownItem, LookupError)
    assert issubclass(Refused, ValueError)
