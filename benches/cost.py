"""What a like costs the server: microseconds of its one thread, and bytes.

Both scripts go over the same link, so that the server meets them under the same conditions.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from benches.likes import COMMON, WIDTH, Turns, database, warm
from benches.runner import Case, Row, Scale, compare, server
from fencepost import AsyncClient
from fencepost.likes import AsyncLikes, LikeOptions

PEER: Final = "set + count + list"
AIM: Final = 0.5  # our `set` costs at most twice the common script
FEED: Final = 20
LIKERS: Final = 4000


async def server_us(
    client: AsyncClient, kinds: tuple[str, ...], work: Callable[[], Awaitable[int]]
) -> float:
    """Microseconds a unit of work that the server spent in commands of these kinds."""
    await client.command("CONFIG", "RESETSTAT")
    units = await work()
    text = (await client.command("INFO", "commandstats")).decode()
    spent = 0.0
    for line in text.splitlines():
        name, _, fields = line.removeprefix("cmdstat_").partition(":")
        if name in kinds:
            spent += float(dict(one.split("=") for one in fields.split(","))["usec"])
    return spent / units


class _Pair:
    """The two designs on one server, asked the same."""

    def __init__(self, client: AsyncClient, likes: AsyncLikes, calls: int) -> None:
        self._client, self._likes, self._calls = client, likes, calls
        self._ours, self._peers = Turns(spread=False), Turns(spread=False)
        self._sha = hashlib.sha1(COMMON.encode(), usedforsecurity=False).hexdigest()

    async def _wide(self, work: Callable[[int, int], Awaitable[None]]) -> int:
        each = self._calls // WIDTH
        await asyncio.gather(*(work(worker, each) for worker in range(WIDTH)))
        return each * WIDTH

    async def set(self) -> int:
        async def work(worker: int, calls: int) -> None:
            for item, user, liked in self._ours.take(worker, calls):
                await self._likes.set(item, user, liked=liked)

        return await self._wide(work)

    async def common_set(self) -> int:
        async def work(worker: int, calls: int) -> None:
            for item, user, liked in self._peers.take(worker, calls):
                keys = (f"s:{item}", f"n:{item}", "events")
                await self._client.command(
                    "EVALSHA", self._sha, 3, *keys, user, "1" if liked else "0"
                )

        done = await self._wide(work)
        await self._client.command("DEL", "events")
        return done

    async def status(self) -> int:
        async def work(worker: int, calls: int) -> None:
            for number in range(calls):
                await self._likes.status(number % FEED + 1, f"{worker}")

        return await self._wide(work)

    async def common_status(self) -> int:
        async def work(worker: int, calls: int) -> None:
            for number in range(calls):
                item = number % FEED + 1
                await self._client.command("SISMEMBER", f"s:{item}", f"{worker}")
                await self._client.command("GET", f"n:{item}")

        return await self._wide(work)

    async def feed(self) -> int:
        for number in range(self._calls // FEED):
            await self._likes.status_many(range(1, FEED + 1), f"{number}")
        return self._calls // FEED

    async def common_feed(self) -> int:
        ask = self._client.command
        for number in range(self._calls // FEED):
            hearts = (ask("SISMEMBER", f"s:{item}", f"{number}") for item in range(1, FEED + 1))
            counts = (ask("GET", f"n:{item}") for item in range(1, FEED + 1))
            await asyncio.gather(*hearts, *counts)
        return self._calls // FEED


async def _microseconds(path: str, store: Any, scale: Scale) -> list[Row]:
    rows = []
    async with AsyncClient.from_url(f"unix://{path}") as client:
        likes = client.likes("bench", store=store)
        await warm(likes, FEED)
        pair = _Pair(client, likes, max(int(20_000 * scale.seconds), 2000))
        await client.command("SCRIPT", "LOAD", COMMON)
        plans: list[tuple[str, Any, Any, float | None]] = [
            ("like set", pair.set, pair.common_set, AIM),
            ("status", pair.status, pair.common_status, None),
            (f"feed of {FEED}", pair.feed, pair.common_feed, None),
        ]
        kinds = ("evalsha", "hmget", "sismember", "get")
        for what, ours, peer, aim in plans:
            # Commands within a script are counted, too: a script is its EVALSHA alone.
            counted = ("evalsha",) if what == "like set" else kinds
            figures: tuple[list[float], list[float]] = ([], [])
            await ours(), await peer()
            for _ in range(scale.rounds):
                figures[0].append(await server_us(client, counted, ours))
                figures[1].append(await server_us(client, counted, peer))
            rows.append(compare(f"server: {what}", "µs", figures[0], PEER, figures[1], aim))
    return rows


async def _bytes(path: str, store: Any) -> list[Row]:
    async with AsyncClient.from_url(f"unix://{path}") as client:
        likes = client.likes("memory", store=store, options=LikeOptions(shards=1))
        await warm(likes, 1)

        async def used(pattern: str) -> int:
            keys = await client.command("KEYS", pattern)
            sizes = [await client.command("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys]
            return sum(sizes)

        empty = await used("*:H:1")
        users = [f"{10_000_000 + number}" for number in range(LIKERS)]
        for user in users:
            await likes.set(1, user, liked=True)
        header, journal = await used("*:H:1") - empty, await used("*:P:1")
        await client.command("SADD", "s:1", *users)
        await client.command("LPUSH", "events", *(f"1:{user}" for user in users))
        members, events = await used("s:1"), await used("events")
        each = [one / LIKERS for one in (header, members, journal, events)]
        await client.command("DEL", "s:1", "events")
        await likes.drain()
    return [
        compare("memory: a liker", "bytes", [each[0]], "set member", [each[1]]),
        compare("memory: a journal entry", "bytes", [each[2]], "list entry", [each[3]]),
    ]


def _time(scale: Scale) -> list[Row]:
    with server() as path, database(FEED) as store:
        return asyncio.run(_microseconds(path, store, scale))


def _memory(scale: Scale) -> list[Row]:
    with contextlib.ExitStack() as stack:
        path, store = stack.enter_context(server()), stack.enter_context(database(1))
        return asyncio.run(_bytes(path, store))


def cases() -> list[Case]:
    return [Case("cost server microseconds", _time), Case("cost memory", _memory)]
