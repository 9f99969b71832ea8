"""Locks: a pair of acquire and release alone and in a crowd, and how soon a waiter wakes up."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from redis.asyncio import Redis

from benches.runner import Case, Load, Looped, Row, Scale, compare, duel, server
from fencepost import AsyncClient

PEER = "redis-py Lock"
PAIR_AIM = 2.5  # PINGs of the same client, at most
WAKE_AIM = 2.0  # ms after a release, at most
CRASH_AIM = 50.0  # ms after the end of a dead holder's lease, at most


@contextlib.asynccontextmanager
async def _ours(path: str) -> AsyncIterator[Load]:
    async with AsyncClient.from_url(f"unix://{path}") as client:
        lock = client.lock("b", wait=600)

        async def work(worker: int, calls: int) -> None:
            for _ in range(calls):
                async with lock:
                    pass

        yield Load(work)


@contextlib.asynccontextmanager
async def _ping(path: str) -> AsyncIterator[Load]:
    async with AsyncClient.from_url(f"unix://{path}") as client:

        async def work(worker: int, calls: int) -> None:
            for _ in range(calls):
                await client.command("PING")

        yield Load(work)


@contextlib.asynccontextmanager
async def _redis_py(path: str) -> AsyncIterator[Load]:
    async with Redis(unix_socket_path=path, max_connections=1000) as client:

        async def work(worker: int, calls: int) -> None:
            for _ in range(calls):
                async with client.lock("peer", timeout=10, sleep=0.01):
                    pass

        yield Load(work)


def _pair(width: int, scale: Scale) -> list[Row]:
    what = f"lock and release, {width} coroutine{'s' if width > 1 else ''}"
    with (
        server() as path,
        Looped(partial(_ours, path), width) as ours,
        Looped(partial(_redis_py, path), width) as peer,
    ):
        result = duel(ours, peer, scale)
    return [result.cpu(what, PEER), result.rate(what, PEER)]


def _in_pings(scale: Scale) -> list[Row]:
    with (
        server() as path,
        Looped(partial(_ours, path), 1) as ours,
        Looped(partial(_ping, path), 1) as pings,
    ):
        result = duel(ours, pings, scale)
    pairs = zip(result.ours, result.peer, strict=True)
    cost = statistics.median(ping.per_second / pair.per_second for pair, ping in pairs)
    what = "lock and release, 1 coroutine"
    return [Row(what, "PINGs", cost, "the aim", PAIR_AIM, PAIR_AIM / cost, 1.0)]


# -- fairness


async def _turns(take: Callable[[], Any], width: int, seconds: float) -> float:
    """The most that one of them got, over the least, in a given time."""
    got = [0] * width
    until = time.perf_counter() + seconds

    async def one(worker: int) -> None:
        while time.perf_counter() < until:
            async with take():
                got[worker] += 1
                await asyncio.sleep(0)

    await asyncio.gather(*(one(worker) for worker in range(width)))
    return max(got) / max(min(got), 1)


def _fairness(width: int, scale: Scale) -> list[Row]:
    async def measure(path: str) -> tuple[float, float, float]:
        seconds = scale.seconds * 8
        async with (
            AsyncClient.from_url(f"unix://{path}") as client,
            Redis(unix_socket_path=path, max_connections=1000) as peer,
        ):
            ours = client.lock("b", wait=600)
            fair = client.lock("f", wait=600, fair=True)
            return (
                await _turns(lambda: ours, width, seconds),
                await _turns(lambda: fair, width, seconds),
                await _turns(lambda: peer.lock("p", timeout=10, sleep=0.01), width, seconds),
            )

    with server() as path:
        ours, fair, theirs = asyncio.run(measure(path))
    what = f"turns of {width} coroutines, most over least"
    return [
        Row(what, "times", ours, PEER, theirs, theirs / ours),
        Row(f"{what}, fair=True", "times", fair, PEER, theirs, theirs / fair),
    ]


# -- waking up


async def _woken(
    acquire: Callable[[], Awaitable[Any]],
    wait: Callable[[], Awaitable[Any]],
    release: Callable[[Any], Awaitable[Any]],
    times: int,
) -> list[float]:
    """Milliseconds from a release to the waiter's return."""
    took = []
    for _ in range(times):
        held = await acquire()
        waiter = asyncio.create_task(_stamped(wait))
        await asyncio.sleep(0.03)  # it waits by now
        began = time.perf_counter()
        await release(held)
        lease, at = await waiter
        took.append((at - began) * 1000)
        await release(lease)
    return took


async def _stamped(wait: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    lease = await wait()
    return lease, time.perf_counter()


def _wake_up(scale: Scale) -> list[Row]:
    async def measure(path: str) -> tuple[list[float], list[float]]:
        async with (
            AsyncClient.from_url(f"unix://{path}") as holder,
            AsyncClient.from_url(f"unix://{path}") as waiter,
            Redis(unix_socket_path=path) as peer,
        ):
            times = scale.rounds * 6

            async def theirs() -> Any:
                lock = peer.lock("p", timeout=10)
                await lock.acquire()
                return lock

            return (
                await _woken(
                    holder.lock("b").acquire,
                    waiter.lock("b").acquire,
                    lambda lease: lease.release(),
                    times,
                ),
                await _woken(theirs, theirs, lambda lock: lock.release(), times),
            )

    with server() as path:
        ours, theirs = asyncio.run(measure(path))
    row = compare("a waiter wakes up after a release", "ms", ours, PEER, theirs)
    aim = Row(row.what, "ms", row.ours, "the aim", WAKE_AIM, WAKE_AIM / row.ours, 1.0)
    return [row, aim]


def _after_a_crash(scale: Scale) -> list[Row]:
    async def measure(path: str) -> list[float]:
        took = []
        async with (
            AsyncClient.from_url(f"unix://{path}") as holder,
            AsyncClient.from_url(f"unix://{path}") as waiter,
        ):
            for _ in range(scale.rounds * 2):
                lease = await holder.lock("c", ttl=0.3).acquire()
                lease._keeper.drop(lease)  # a dead process renews nothing
                waiting = asyncio.create_task(_stamped(waiter.lock("c").acquire))
                left = await holder.command("PTTL", lease.place.keys.lock)
                ends = time.perf_counter() + left / 1000
                got, at = await waiting
                took.append(max(at - ends, 0) * 1000)
                await got.release()
        return took

    with server() as path:
        took = statistics.median(asyncio.run(measure(path)))
    what = "a waiter wakes up after a dead holder's lease"
    return [Row(what, "ms", took, "the aim", CRASH_AIM, CRASH_AIM / max(took, 0.01), 1.0)]


def cases() -> list[Case]:
    return [
        Case("lock pair in PINGs", _in_pings),
        *(Case(f"lock pair, {width}", partial(_pair, width)) for width in (1, 8, 64)),
        *(Case(f"lock fairness, {width}", partial(_fairness, width)) for width in (8, 64)),
        Case("lock wake-up", _wake_up),
        Case("lock wake-up after a crash", _after_a_crash),
    ]
