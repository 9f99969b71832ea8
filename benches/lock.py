"""Locks: a pair of acquire and release alone and in a crowd, and how soon a waiter wakes up."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from redis.asyncio import Redis

from benches.runner import Case, Load, Looped, Row, Scale, Threaded, compare, duel, server
from fencepost import AsyncClient, Client
from fencepost._core.aio import token
from fencepost.lock.protocol import Ask
from fencepost.lock.scripts import SCRIPTS

PEER = "redis-py Lock"
PAIR_AIM = 2.5  # PINGs of the same client, at most
WAKE_AIM = 2.0  # ms after a release, at most
CRASH_AIM = 50.0  # ms after the end of a dead holder's lease, at most


def _taken_of(client: Any, kind: str) -> Any:
    """What is taken and given back."""
    match kind:
        case "permit":
            return client.semaphore("b", permits=5, wait=600)
        case "read":
            return client.rwlock("b", wait=600).read()
        case _:
            return client.lock("b", wait=600)


@contextlib.asynccontextmanager
async def _ours(path: str, kind: str = "lock") -> AsyncIterator[Load]:
    async with AsyncClient.from_url(f"unix://{path}") as client:
        taken = _taken_of(client, kind)

        async def work(worker: int, calls: int) -> None:
            for _ in range(calls):
                async with taken:
                    pass

        yield Load(work)


@contextlib.contextmanager
def _in_a_thread(path: str, kind: str) -> Iterator[Threaded]:
    with Client.from_url(f"unix://{path}") as client:
        taken = _taken_of(client, kind)
        nothing = _Nothing(client, taken)

        def work(worker: int, calls: int) -> None:
            match kind:
                case "ping":
                    for _ in range(calls):
                        client.command("PING")
                case "nothing":
                    for _ in range(calls):
                        for call in nothing.pair():
                            client._server.run(call)
                case _:
                    for _ in range(calls):
                        with taken:
                            pass

        with Threaded(work, 1) as contestant:
            yield contestant


class _Nothing:
    """The calls of a lock's pair, with all they say, to scripts that do nothing: no pair costs less."""

    def __init__(self, client: Any, lock: Any) -> None:
        self._place = getattr(lock, "_place", None)
        self._scripts = [
            getattr(SCRIPTS, verb).with_text(f"return {{{answer}}}")
            for verb, answer in (("acquire", "'TAKEN', '1'"), ("release", "'RELEASED'"))
        ]

    def pair(self) -> Iterator[Any]:
        attempt = token()
        for script, call in zip(
            self._scripts,
            (self._place.take(Ask(attempt, "host:1", 10.0, 10.0)), self._place.give_back(attempt)),
            strict=True,
        ):
            yield script(call.keys, call.args)


@contextlib.asynccontextmanager
async def _nothing(path: str) -> AsyncIterator[Load]:
    async with AsyncClient.from_url(f"unix://{path}") as client:
        nothing = _Nothing(client, client.lock("b"))

        async def work(worker: int, calls: int) -> None:
            for _ in range(calls):
                for call in nothing.pair():
                    await client.port.run(call)

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


def _in_pings(kind: str, scale: Scale) -> list[Row]:
    """What a pair costs in PINGs of the same client; a pair of scripts that do nothing is its floor."""
    rows = []
    for face in ("coroutine", "thread"):
        with server() as path, contextlib.ExitStack() as both:
            if face == "thread":
                ours: Any = both.enter_context(_in_a_thread(path, kind))
                pings: Any = both.enter_context(_in_a_thread(path, "ping"))
            else:
                opened = (
                    partial(_nothing, path) if kind == "nothing" else partial(_ours, path, kind)
                )
                ours = both.enter_context(Looped(opened, 1))
                pings = both.enter_context(Looped(partial(_ping, path), 1))
            result = duel(ours, pings, scale)
        pairs = zip(result.ours, result.peer, strict=True)
        cost = statistics.median(ping.per_second / pair.per_second for pair, ping in pairs)
        if kind == "lock":
            what = f"lock and release, 1 {face}"
            rows.append(Row(what, "PINGs", cost, "the aim", PAIR_AIM, PAIR_AIM / cost, 1.0))
        else:
            words = {
                "nothing": "the same calls to scripts that do nothing",
                "permit": "a permit of a semaphore and back",
                "read": "the reading of a read/write lock and back",
            }
            rows.append(Row(f"{words[kind]}, 1 {face}", "PINGs", cost))
    return rows


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
        *(
            Case(f"{kind} pair in PINGs", partial(_in_pings, kind))
            for kind in ("lock", "nothing", "permit", "read")
        ),
        *(Case(f"lock pair, {width}", partial(_pair, width)) for width in (1, 8, 64)),
        *(Case(f"lock fairness, {width}", partial(_fairness, width)) for width in (8, 64)),
        Case("lock wake-up", _wake_up),
        Case("lock wake-up after a crash", _after_a_crash),
    ]
