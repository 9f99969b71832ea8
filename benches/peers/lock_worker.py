"""Locks of other libraries beside ours: ``lock_worker.py GROUP SOCKET[,SOCKET…] OP WIDTH``; see ``worker.py``.

Each line of input is a number; each line of output what came of it. ``pair`` and ``permit`` take and
give back a lock, or one of five permits, so often: calls, seconds, CPU, and seconds of as many PINGs
by the same client. ``crowd`` lets WIDTH threads (or coroutines) want the lock for so many milliseconds:
turns, seconds, the most and the least that one of them had. ``wake`` gives a lock back under a waiter
so often: the median of milliseconds until it is in. ``crash`` kills a holder whose lease is 2 s long:
the median of milliseconds until a waiter is in. ``hold`` is that holder.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

CRASH_TTL = 2
PERMITS = 5
Take = Callable[[int], Callable[[], Any]]
"""Takes a lock with a ttl, and gives what gives it back."""


class _Redis:
    """Of the libraries that are given a redis-py client."""

    def __init__(self, where: str, width: int) -> None:
        from redis import Redis

        self.clients = [
            Redis(unix_socket_path=one, max_connections=4 * width + 20) for one in where.split(",")
        ]
        self.client = self.clients[0]

    def ping(self) -> None:
        self.client.ping()


class RedisPy(_Redis):
    def take(self, ttl: int) -> Callable[[], Any]:
        lock = self.client.lock("x", timeout=ttl)
        lock.acquire()
        return lock.release


class PythonRedisLock(_Redis):
    def take(self, ttl: int) -> Callable[[], Any]:
        from redis_lock import Lock

        lock = Lock(self.client, "x", expire=ttl, auto_renewal=ttl != CRASH_TTL)
        lock.acquire()
        return lock.release


class Pottery(_Redis):
    def take(self, ttl: int) -> Callable[[], Any]:
        from pottery import Redlock

        lock = Redlock(key="x", masters=set(self.clients), auto_release_time=ttl)
        lock.acquire()
        return lock.release


class PyRedisSemaphore(_Redis):
    def take(self, ttl: int) -> Callable[[], Any]:
        from redis_semaphore import Mutex

        lock = Mutex(self.client, "x", lock_timeout=ttl)
        lock.acquire()
        return lock.release

    def permit(self) -> Callable[[], Any]:
        from redis_semaphore import Semaphore, SemaphoreConfig

        semaphore = Semaphore(self.client, SemaphoreConfig(name="s", limit=PERMITS))
        semaphore.acquire()
        return semaphore.release


class Portalocker(_Redis):
    def take(self, ttl: int) -> Callable[[], Any]:
        from portalocker import RedisLock

        lock = RedisLock("x", connection=self.client, timeout=60)
        lock.acquire()
        return lock.release


class Ours:
    """Ours, in threads."""

    def __init__(self, where: str, width: int) -> None:
        from fencepost import Client

        self.client = Client.from_url(f"unix://{where}", max_connections=width + 20)
        self.locks = {ttl: self.client.lock("x", ttl=ttl, wait=600) for ttl in (10, CRASH_TTL)}
        self.semaphore = self.client.semaphore("s", permits=PERMITS, wait=600)

    def ping(self) -> None:
        self.client.command("PING")

    def take(self, ttl: int) -> Callable[[], Any]:
        return self.locks[ttl].acquire().release

    def permit(self) -> Callable[[], Any]:
        return self.semaphore.acquire().release


class OursOnSeveral:
    """Ours on several servers, in threads."""

    def __init__(self, where: str, width: int) -> None:
        from fencepost import Client, Quorum

        urls = [f"unix://{one}" for one in where.split(",")]
        self.client = Client.from_url(urls[0])
        self.lock = Quorum.from_urls(urls, max_connections=width + 20).lock("y", wait=600)

    def ping(self) -> None:
        self.client.command("PING")

    def take(self, ttl: int) -> Callable[[], Any]:
        return self.lock.acquire().release


class Fifo:
    """redis-fifo-lock, on a loop."""

    def __init__(self, where: str, width: int) -> None:
        from redis.asyncio import Redis

        self.client = Redis(unix_socket_path=where, max_connections=4 * width + 20)

    async def ping(self) -> None:
        await self.client.ping()

    async def take(self, ttl: int) -> Callable[[], Awaitable[Any]]:
        from redis_fifo_lock import FifoLock

        lock = FifoLock(self.client, "x", lease_ms=ttl * 1000)
        lease = await lock.acquire()
        return lambda: lock.release(lease)


class OursOnALoop:
    """Ours, on a loop."""

    def __init__(self, where: str, width: int) -> None:
        from fencepost import AsyncClient

        self.client = AsyncClient.from_url(f"unix://{where}")
        self.locks = {ttl: self.client.lock("x", ttl=ttl, wait=600) for ttl in (10, CRASH_TTL)}

    async def ping(self) -> None:
        await self.client.command("PING")

    async def take(self, ttl: int) -> Callable[[], Awaitable[Any]]:
        return (await self.locks[ttl].acquire()).release


MADE: dict[str, Callable[[str, int], Any]] = {
    "fencepost": Ours,
    "fencepost-quorum": OursOnSeveral,
    "fencepost-loop": OursOnALoop,
    "redis-py": RedisPy,
    "python-redis-lock": PythonRedisLock,
    "pottery": Pottery,
    "py-redis-semaphore": PyRedisSemaphore,
    "portalocker": Portalocker,
    "redis-fifo-lock": Fifo,
}
ON_A_LOOP = ("fencepost-loop", "redis-fifo-lock")


# -- in threads


def pairs(take: Callable[[], Callable[[], Any]], ping: Callable[[], Any], calls: int) -> str:
    cpu = time.process_time()
    taken = _seconds(lambda: take()(), calls)
    cpu = time.process_time() - cpu
    return f"{calls} {taken} {cpu} {_seconds(ping, calls)}"


def _seconds(work: Callable[[], Any], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - began


def crowd(take: Take, width: int, milliseconds: int) -> str:
    got = [0] * width
    began = time.perf_counter()
    until = began + milliseconds / 1000

    def one(number: int) -> None:
        while time.perf_counter() < until:
            release = take(10)
            got[number] += time.perf_counter() < until
            release()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{sum(got)} {milliseconds / 1000} {max(got)} {min(got)}"


def woken(take: Take, times: int) -> str:
    took = []
    for _ in range(times):
        release = take(10)
        waiter = _Waiter(take, 10)
        time.sleep(0.05)  # it waits by now
        began = time.perf_counter()
        release()
        took.append((waiter.in_at() - began) * 1000)
    return str(statistics.median(took))


class _Waiter(threading.Thread):
    """Takes the lock, notes when, and gives it back."""

    def __init__(self, take: Take, ttl: int) -> None:
        super().__init__(daemon=True)
        self._take, self._ttl, self._at = take, ttl, 0.0
        self.start()

    def run(self) -> None:
        release = self._take(self._ttl)
        self._at = time.perf_counter()
        release()

    def in_at(self) -> float:
        self.join()
        return self._at


def crashed(take: Take, words: list[str], times: int) -> str:
    took = []
    for _ in range(times):
        holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        holder.stdout.readline()
        waiter = _Waiter(take, CRASH_TTL)
        time.sleep(0.05)
        holder.kill()
        began = time.perf_counter()
        took.append((waiter.in_at() - began) * 1000)
        holder.communicate()
    return str(statistics.median(took))


def in_threads(group: str, where: str, op: str, width: int) -> None:
    peer = MADE[group](where, width)
    words = [sys.executable, __file__, group, where, "hold", "1"]
    if op == "hold":
        peer.take(CRASH_TTL)
        print("held", flush=True)
        threading.Event().wait()
    for line in sys.stdin:
        number = int(line)
        match op:
            case "pair":
                said = pairs(lambda: peer.take(10), peer.ping, number)
            case "permit":
                said = pairs(peer.permit, peer.ping, number)
            case "crowd":
                said = crowd(peer.take, width, number)
            case "wake":
                said = woken(peer.take, number)
            case _:
                said = crashed(peer.take, words, number)
        print(said, flush=True)


# -- on a loop


async def on_a_loop(group: str, where: str, op: str, width: int) -> None:
    peer = MADE[group](where, width)
    loop = asyncio.get_running_loop()

    async def pair() -> None:
        await (await peer.take(10))()

    async def seconds(work: Callable[[], Awaitable[Any]], calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            await work()
        return time.perf_counter() - began

    async def waits(ttl: int) -> float:
        release = await peer.take(ttl)
        at = time.perf_counter()
        await release()
        return at

    if op == "hold":
        await peer.take(CRASH_TTL)
        print("held", flush=True)
        await asyncio.Event().wait()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        number = int(line)
        if op == "pair":
            cpu = time.process_time()
            taken = await seconds(pair, number)
            cpu = time.process_time() - cpu
            print(number, taken, cpu, await seconds(peer.ping, number), flush=True)
        elif op == "crowd":
            got, until = [0] * width, time.perf_counter() + number / 1000

            async def one(worker: int, got: list[int] = got, until: float = until) -> None:
                while time.perf_counter() < until:
                    release = await peer.take(10)
                    got[worker] += time.perf_counter() < until
                    await release()

            await asyncio.gather(*(one(worker) for worker in range(width)))
            print(sum(got), number / 1000, max(got), min(got), flush=True)
        else:
            took = []
            for _ in range(number):
                if op == "wake":
                    release = await peer.take(10)
                    waiter = asyncio.create_task(waits(10))
                    await asyncio.sleep(0.05)  # it waits by now
                    began = time.perf_counter()
                    await release()
                else:
                    words = [sys.executable, __file__, group, where, "hold", "1"]
                    holder = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
                    assert holder.stdout is not None
                    await holder.stdout.readline()
                    waiter = asyncio.create_task(waits(CRASH_TTL))
                    await asyncio.sleep(0.05)
                    holder.kill()
                    began = time.perf_counter()
                    await holder.wait()
                took.append((await waiter - began) * 1000)
            print(statistics.median(took), flush=True)


if __name__ == "__main__":
    arguments = (sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    if sys.argv[1] in ON_A_LOOP:
        asyncio.run(on_a_loop(*arguments))
    else:
        in_threads(*arguments)
