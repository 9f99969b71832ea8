"""A like, end to end: the public ``likes.set`` against redis-py's pool.

Twice: with our own script, so that only the clients differ, and with the common script, which keeps
a set, a count and a list of events. It is what most like counters do, and it has none of the guards
of ours: no epoch, no journal that SQL confirms, no state that is unknown.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
)

from benches.runner import Case, Load, Looped, Row, Scale, duel, server
from fencepost import AsyncClient
from fencepost._core.keys import shard_number
from fencepost.likes import AsyncLikes, LikeOptions, SqlLikes
from fencepost.likes.options import milliseconds
from fencepost.likes.scripts import SCRIPTS

PEER: Final = "redis-py, common script"
SAME: Final = "redis-py, our script"
AIM: Final = 4.0  # times the likes/s at 64 coroutines, the script being the same
WIDTH: Final = 64
USERS: Final = 100  # a coroutine: each likes, and is back to unlike after all the others
ITEMS: Final = 1000

COMMON: Final = """
local changed
if ARGV[2] == '1' then changed = redis.call('SADD', KEYS[1], ARGV[1])
else changed = redis.call('SREM', KEYS[1], ARGV[1]) end
if changed == 0 then return {0, tonumber(redis.call('GET', KEYS[2]) or '0')} end
local count = redis.call('INCRBY', KEYS[2], ARGV[2] == '1' and 1 or -1)
redis.call('LPUSH', KEYS[3], ARGV[2] .. ':' .. ARGV[1])
return {1, count}
"""


@contextlib.contextmanager
def database(items: int) -> Iterator[SqlLikes]:
    """A SQLite file with so many items, set up as the service does it."""
    with tempfile.TemporaryDirectory(prefix="fpb-") as home:
        engine = create_engine(f"sqlite:///{Path(home) / 'likes.sqlite'}")
        event.listen(engine, "connect", _prepare)
        try:
            yield set_up(engine, items)
        finally:
            engine.dispose()


def _prepare(connection: Any, _record: object) -> None:
    for line in ("busy_timeout = 5000", "journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {line}")


def set_up(engine: Engine, items: int) -> SqlLikes:
    """The application's tables with so many items, and fencepost's."""
    metadata = MetaData()
    item = Table(
        "item",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("like_count", Integer, nullable=False, server_default="0"),
    )
    likes = Table(
        "likes",
        metadata,
        Column("activity_id", Integer, primary_key=True),
        Column("user_id", String(64), primary_key=True),
    )
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(item), [{"id": number} for number in range(1, items + 1)])
    store = SqlLikes(engine, item=item.c.id, count=item.c.like_count, likes=likes, liked_at=None)
    store.create_tables()
    return store


class Turns:
    """Which like comes next: every call changes something, as it is the other way round after a lap."""

    def __init__(self, spread: bool) -> None:
        self._spread = spread
        self._done = [0] * WIDTH

    def take(self, worker: int, calls: int) -> Iterator[tuple[int, str, bool]]:
        start = self._done[worker]
        self._done[worker] += calls
        lap = ITEMS if self._spread else USERS
        for number in range(start, start + calls):
            liked = number // lap % 2 == 0
            if self._spread:
                yield (worker * 37 + number) % ITEMS + 1, f"{worker}", liked
            else:
                yield 1, f"{worker * USERS + number % USERS}", liked


async def warm(likes: AsyncLikes, items: int) -> None:
    """Load every item, so that what is measured is the script."""
    for first in range(1, items + 1, 100):
        await likes.status_many(range(first, min(first + 100, items + 1)))


@contextlib.asynccontextmanager
async def _ours(path: str, store: SqlLikes, spread: bool, flushed: bool) -> AsyncIterator[Load]:
    turns = Turns(spread)
    async with (
        AsyncClient.from_url(f"unix://{path}") as client,
        contextlib.AsyncExitStack() as stack,
    ):
        likes = client.likes("bench", store=store, options=LikeOptions())
        await warm(likes, ITEMS if spread else 1)

        async def work(worker: int, calls: int) -> None:
            for item, user, liked in turns.take(worker, calls):
                await likes.set(item, user, liked=liked)

        if flushed:
            await stack.enter_async_context(likes.flusher())
        # Nothing of ours may go on while the peer has its turn.
        yield Load(work, partial(likes.drain, 60.0) if flushed else None)


@contextlib.asynccontextmanager
async def _common(path: str, spread: bool) -> AsyncIterator[Load]:
    turns = Turns(spread)
    async with Redis(unix_socket_path=path) as client:
        script = client.register_script(COMMON)

        async def work(worker: int, calls: int) -> None:
            for item, user, liked in turns.take(worker, calls):
                await script((f"s:{item}", f"n:{item}", "events"), (user, "1" if liked else "0"))

        yield Load(work, partial(client.delete, "events"))


@contextlib.asynccontextmanager
async def _our_script(path: str, store: SqlLikes, spread: bool) -> AsyncIterator[Load]:
    """What ``likes.set`` sends, sent by redis-py."""
    turns = Turns(spread)
    async with (
        AsyncClient.from_url(f"unix://{path}", namespace="peer") as client,
        Redis(unix_socket_path=path) as redis,
    ):
        likes = client.likes("bench", store=store)
        await warm(likes, ITEMS if spread else 1)
        script = redis.register_script(SCRIPTS.set.plain)
        shards, known = likes._shards, likes._known
        delay_ms = milliseconds(likes.options.flush_delay)

        async def work(worker: int, calls: int) -> None:
            for item, user, liked in turns.take(worker, calls):
                number = shard_number(str(item), len(shards))
                keys, at = shards[number].keys, known[number]
                assert at is not None
                reply = await script(
                    (
                        keys.opening,
                        keys.header(str(item)),
                        keys.journal(str(item)),
                        keys.due,
                        keys.since,
                    ),
                    (at.epoch, at.server, item, f"u{user}", "1" if liked else "0", delay_ms),
                )
                assert reply[0] == b"DONE"

        yield Load(work, partial(likes.drain, 60.0))


def _same_sets(spread: bool, scale: Scale) -> list[Row]:
    where = f"{ITEMS} items" if spread else "1 hot item"
    with (
        server() as path,
        database(ITEMS if spread else 1) as mine,
        database(ITEMS if spread else 1) as theirs,
        Looped(partial(_ours, path, mine, spread, False), WIDTH) as ours,
        Looped(partial(_our_script, path, theirs, spread), WIDTH) as peer,
    ):
        result = duel(ours, peer, scale)
    what = f"like, {where}, {WIDTH} coroutines, the same script"
    return [result.cpu(what, SAME), result.rate(what, SAME, AIM)]


def _sets(spread: bool, flushed: bool, scale: Scale) -> list[Row]:
    where = f"{ITEMS} items" if spread else "1 hot item"
    what = f"like, {where}, {WIDTH} coroutines, flusher {'on' if flushed else 'off'}"
    with (
        server() as path,
        database(ITEMS if spread else 1) as store,
        Looped(partial(_ours, path, store, spread, flushed), WIDTH) as ours,
        Looped(partial(_common, path, spread), WIDTH) as peer,
    ):
        result = duel(ours, peer, scale)
    return [result.cpu(what, PEER), result.rate(what, PEER)]


def cases() -> list[Case]:
    return [
        *(
            Case(
                f"likes set, {'spread' if spread else 'hot'}, the same script",
                partial(_same_sets, spread),
            )
            for spread in (False, True)
        ),
        *_common_cases(),
    ]


def _common_cases() -> list[Case]:
    return [
        Case(
            f"likes set, {'spread' if spread else 'hot'}, flusher {'on' if flushed else 'off'}",
            partial(_sets, spread, flushed),
        )
        for spread in (False, True)
        for flushed in (False, True)
    ]
