"""Runs in a peer's venv: ``cache_worker.py GROUP SOCKET OP SIZE WIDTH``; see ``worker.py``.

``hit`` reads one cached value. ``miss`` and ``stampede`` forget it and let WIDTH callers ask at once;
what is printed then is the number of loads, seconds and CPU. ``paused`` and ``invalidated`` play the
two races of a refresh and print ``old`` or ``new``: what the cache holds in the end.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LEASE = 1.0
Load = Callable[[], Awaitable[Any]]


class Cashews:
    """``lock=True``, its guard against a stampede; the lock lasts as long as the value would."""

    def __init__(self, path: str, ttl: float) -> None:
        from cashews import Cache
        from cashews.picklers import PicklerType
        from cashews.wrapper import backend_settings as settings

        # Its own factory; only the scheme of a unix socket has no name there.
        fabric = settings._redis_fabric
        settings.register_backend("unix", fabric, pass_uri=True, pickler=PicklerType.DEFAULT)
        self.cache = Cache()
        self.cache.setup(f"unix://{path}", max_connections=200)
        self.load: Load
        self.ttl = ttl

    async def open(self) -> None:
        await self.cache.init()

        @self.cache(ttl=self.ttl, key="b:{key}", lock=True)
        async def plain(key: str) -> Any:
            return await self.load()

        self._plain = plain

    async def get(self, key: str, load: Load) -> Any:
        self.load = load
        return await self._plain(key)

    async def peek(self, key: str) -> Any:
        return await self.cache.get(f"b:{key}")

    async def forget(self, key: str) -> None:
        await self.cache.delete(f"b:{key}")


class AioCache:
    """``RedLock`` around get and set, as its documentation shows."""

    def __init__(self, path: str, ttl: float) -> None:
        import redis.asyncio as redis
        from aiocache import RedisCache
        from aiocache.serializers import JsonSerializer

        self.cache = RedisCache(serializer=JsonSerializer())
        self.cache.client = redis.Redis(unix_socket_path=path, max_connections=10_000)

    async def open(self) -> None:
        pass

    async def get(self, key: str, load: Load) -> Any:
        from aiocache.lock import RedLock

        value = await self.cache.get(key)
        if value is not None:
            return value
        async with RedLock(self.cache, key, lease=LEASE):
            value = await self.cache.get(key)
            if value is None:
                value = await load()
                await self.cache.set(key, value, ttl=60)
        return value

    async def peek(self, key: str) -> Any:
        return await self.cache.get(key)

    async def forget(self, key: str) -> None:
        await self.cache.delete(key)


class Dogpile:
    """A region with a distributed lock; each call is a thread's."""

    def __init__(self, path: str, ttl: float) -> None:
        from dogpile.cache import make_region

        self.region = make_region().configure(
            "dogpile.cache.redis",
            expiration_time=60,
            arguments={
                "url": f"unix://{path}",
                "distributed_lock": True,
                "lock_timeout": LEASE,
                "redis_expiration_time": 120,
                "thread_local_lock": False,
            },
        )
        self.threads = ThreadPoolExecutor(64)

    async def open(self) -> None:
        pass

    async def get(self, key: str, load: Load) -> Any:
        loop = asyncio.get_running_loop()

        def create() -> Any:
            return asyncio.run_coroutine_threadsafe(load(), loop).result()

        return await loop.run_in_executor(self.threads, self.region.get_or_create, key, create)

    def get_here(self, key: str) -> Any:
        return self.region.get_or_create(key, lambda: VALUE)

    async def peek(self, key: str) -> Any:
        from dogpile.cache.api import NO_VALUE

        value = await asyncio.to_thread(self.region.get, key)
        return None if value is NO_VALUE else value

    async def forget(self, key: str) -> None:
        await asyncio.to_thread(self.region.delete, key)


PEERS: dict[str, Any] = {"cashews": Cashews, "aiocache": AioCache, "dogpile.cache": Dogpile}
VALUE: dict[str, Any] = {}


async def hits(peer: Any, width: int, calls: int) -> tuple[int, float, float]:
    async def load() -> Any:
        return VALUE

    each = max(calls // width, 1)
    await peer.get("k", load)
    if isinstance(peer, Dogpile):

        def run(_: int) -> None:
            for _ in range(each):
                peer.get_here("k")

        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.to_thread(lambda: list(peer.threads.map(run, range(min(width, 64)))))
        return (
            each * min(width, 64),
            time.perf_counter() - wall,
            time.process_time() - cpu,
        )

    async def work() -> None:
        for _ in range(each):
            await peer.get("k", load)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(width)))
    return each * width, time.perf_counter() - wall, time.process_time() - cpu


async def misses(peer: Any, width: int, calls: int) -> tuple[int, float, float]:
    loads = 0

    async def load() -> Any:
        nonlocal loads
        loads += 1
        await asyncio.sleep(0.05)
        return VALUE

    await peer.forget("m")
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(peer.get("m", load) for _ in range(width)), return_exceptions=True)
    return loads, time.perf_counter() - wall, time.process_time() - cpu


async def race(peers: list[Any], op: str) -> str:
    """What the cache holds after OLD was paused in its load, and CURRENT published (or invalidated)."""
    old, current = peers
    began, go = asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        began.set()
        await go.wait()
        return "old"

    async def quick() -> Any:
        return "new"

    await old.forget("r")
    reading = asyncio.ensure_future(old.get("r", slow))
    await began.wait()
    if op == "paused":
        await asyncio.sleep(LEASE * 1.5)  # its lock has run out by now
        await current.get("r", quick)
    else:
        await current.forget("r")
    go.set()
    await asyncio.gather(reading, return_exceptions=True)
    held = await current.peek("r")
    return "nothing" if held is None else str(held)


async def main(group: str, path: str, op: str, size: int, width: int) -> None:
    VALUE.update({"id": 42, "name": "x" * size, "price": 3})
    ttl = LEASE if (group, op) == ("cashews", "paused") else 60.0
    peers = [PEERS[group](path, ttl) for _ in range(2)]
    for peer in peers:
        await peer.open()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if op in ("paused", "invalidated"):
            print(await race(peers, op), 0, 0, flush=True)
            continue
        what = hits if op == "hit" else misses
        print(*await what(peers[0], width, int(line)), flush=True)


if __name__ == "__main__":
    threading.stack_size(256 * 1024)
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
    sys.stdout.flush()
