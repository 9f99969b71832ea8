"""An item that a million people like beside one that a hundred do: what it costs to have one.

The large one is never loaded whole: the cache holds its count and the states of those who asked. Its
"peer" here is the small one, so a ratio below 1 is what the million costs.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import insert, update

from benches.likes import database
from benches.runner import Case, Row, Scale, compare, server
from fencepost import AsyncClient
from fencepost.likes import AsyncLikes, LikeOptions, SqlLikes

LARGE: Final = 1_000_000
SMALL: Final = 100
ASKED: Final = 100  # users whose state was asked for since the item was loaded
PEER: Final = f"{SMALL} likers"
_AT_ONCE: Final = 50_000


def fill(store: SqlLikes, item: int, likers: int) -> None:
    """So many people like it, says SQL."""
    likes, items = store._likes, store._items
    with store.engine.begin() as connection:
        for first in range(0, likers, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, likers))
            rows = [{"activity_id": item, "user_id": f"{number:08}"} for number in numbers]
            connection.execute(insert(likes), rows)
        connection.execute(
            update(items).where(items.c.id == item).values({store._count.name: likers})
        )


class _Item:
    """One of the two, asked again and again."""

    def __init__(self, client: AsyncClient, likes: AsyncLikes, item: int) -> None:
        self._client, self._likes, self._item = client, likes, item
        self._new = 0
        self._header = likes._shards[0].keys.header(str(item))

    async def cold(self) -> float:
        """Seconds of a status when nothing is cached."""
        await self._client.command("DEL", self._header)
        return await self._timed(lambda: self._likes.status(self._item, "00000001"))

    async def stranger(self) -> float:
        """Seconds of a like by somebody whom the cache has not heard of."""
        self._new += 1
        return await self._timed(lambda: self._like(f"new{self._new}", True))

    async def known(self) -> float:
        """Seconds of a like by somebody whom it has."""
        liked = (await self._likes.status(self._item, "00000002")).liked
        return await self._timed(lambda: self._like("00000002", not liked))

    async def _like(self, user: str, liked: bool) -> Any:
        return await self._likes.set(self._item, user, liked=liked)

    async def _timed(self, work: Callable[[], Awaitable[Any]]) -> float:
        began = time.perf_counter()
        await work()
        return time.perf_counter() - began

    async def size(self) -> float:
        """Bytes of the cached item, after some people asked."""
        await self._client.command("DEL", self._header)
        for number in range(ASKED):
            await self._likes.status(self._item, f"{number * 7:08}")
        return float(await self._client.command("MEMORY", "USAGE", self._header, "SAMPLES", 0))


async def _measure(path: str, store: SqlLikes, scale: Scale) -> list[Row]:
    options = LikeOptions(shards=1, flush_delay=3600.0)
    rows = []
    async with AsyncClient.from_url(f"unix://{path}") as client:
        likes = client.likes("sparse", store=store, options=options)
        large, small = _Item(client, likes, 1), _Item(client, likes, 2)
        memory = [[await one.size()] for one in (large, small)]
        rows.append(_row(f"memory, {ASKED} users asked", "bytes", *memory))
        plans = [
            ("cold read, from SQL", "cold"),
            ("like of a user not cached", "stranger"),
            ("like of a user cached", "known"),
        ]
        for what, verb in plans:
            figures: tuple[list[float], list[float]] = ([], [])
            for _ in range(scale.rounds):
                for one, found in zip((large, small), figures, strict=True):
                    await one.cold()
                    times = [await getattr(one, verb)() for _ in range(20)]
                    found.append(statistics.median(times) * 1e6)
                await likes.drain()  # a cold read would have to flush them first
            rows.append(_row(what, "µs", *figures))
    return rows


def _row(what: str, unit: str, large: list[float], small: list[float]) -> Row:
    return compare(f"{LARGE:,} likers: {what}", unit, large, PEER, small)


def _sparse(scale: Scale) -> list[Row]:
    with server() as path, database(2) as store:
        fill(store, 1, LARGE)
        fill(store, 2, SMALL)
        return asyncio.run(_measure(path, store, scale))


def cases() -> list[Case]:
    return [Case("sparse item", _sparse)]
