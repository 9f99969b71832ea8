"""The cache: hits, misses of many at once, many keys, and the two races of a refresh, beside its peers."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Self

from benches import peers
from benches.runner import Case, Load, Looped, Row, Scale, Spent, Threaded, duel, say, server
from fencepost import AsyncClient, Client

SIZE = 60
VALUE = {"id": 42, "name": "x" * SIZE, "price": 3}
MANY_AIM, ONE_AIM = 10.0, 2.5  # times the hits per second, at 64 and more callers and at one
OPTIONS: dict[str, Any] = {"ttl": 3600.0}


class _Peer(peers.Piped):
    """A peer's cache in its own venv."""

    def __init__(self, group: str, path: str, op: str, width: int) -> None:
        super().__init__(group, path, op, SIZE, width)
        self._words[1] = str(peers.HERE / "cache_worker.py")

    def verdict(self) -> str:
        """What the cache holds after a race."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("1\n")
        return (self._process.stdout.readline().split() or ["?"])[0]


async def _load() -> Any:
    return VALUE


@contextlib.asynccontextmanager
async def _hits(path: str) -> AsyncIterator[Load]:
    async with AsyncClient.from_url(f"unix://{path}") as client:
        products = client.cache("products", **OPTIONS)

        async def work(_worker: int, calls: int) -> None:
            for _ in range(calls):
                await products.get("42", _load)

        yield Load(work)


@contextlib.contextmanager
def _thread_hits(path: str, width: int) -> Iterator[Threaded]:
    with Client.from_url(f"unix://{path}") as client:
        products = client.cache("products", **OPTIONS)

        def work(_worker: int, calls: int) -> None:
            for _ in range(calls):
                products.get("42", lambda: VALUE)

        with Threaded(work, width) as ours:
            yield ours


def _hit(group: str, width: int, scale: Scale) -> list[Row]:
    threads = group == "dogpile.cache"
    many = f"{width} {'thread' if threads else 'coroutine'}{'s' if width > 1 else ''}"
    aim = MANY_AIM if width >= 64 else ONE_AIM
    with server() as path, _Peer(group, path, "hit", width) as peer:
        if threads:
            with _thread_hits(path, width) as ours:
                result = duel(ours, peer, scale)
        else:
            with Looped(partial(_hits, path), width) as ours_looped:
                result = duel(ours_looped, peer, scale)
    what = f"cache hit, {many}"
    return [result.rate(what, group, aim), result.cpu(what, group)]


class _Misses:
    """So many callers ask at once for what is not there; the load takes 50 ms."""

    def __init__(self, path: str, width: int) -> None:
        self._path, self._width = path, width
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._client = AsyncClient.from_url(f"unix://{self._path}")
        self._cache = self._client.cache("products", **OPTIONS)
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def round(self, calls: int) -> Spent:
        return self._runner.run(self._spend())

    async def _spend(self) -> Spent:
        loads = 0

        async def load() -> Any:
            nonlocal loads
            loads += 1
            await asyncio.sleep(0.05)
            return VALUE

        await self._cache.invalidate("m")
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(self._cache.get("m", load) for _ in range(self._width)))
        return Spent(loads, time.perf_counter() - wall, time.process_time() - cpu)


def _miss(group: str, width: int, scale: Scale) -> list[Row]:
    with (
        server() as path,
        _Misses(path, width) as ours,
        _Peer(group, path, "miss", width) as peer,
    ):
        mine = [ours.round(1) for _ in range(scale.rounds)]
        theirs = [peer.round(1) for _ in range(scale.rounds)]
    what = f"cache miss, {width:,} callers at once, a load of 50 ms"
    return [
        Row(
            f"{what}: loads",
            "loads",
            max(s.calls for s in mine),
            group,
            max(s.calls for s in theirs),
        ),
        _slowest(what, mine, group, theirs),
    ]


def _slowest(what: str, mine: list[Spent], group: str, theirs: list[Spent]) -> Row:
    ours, peer = (
        sorted(s.wall for s in mine)[len(mine) // 2],
        sorted(s.wall for s in theirs)[len(theirs) // 2],
    )
    return Row(f"{what}: all answered", "s", ours, group, peer, peer / ours)


def _stampede(scale: Scale) -> list[Row]:
    """10,000 callers in one process: loads, the slowest, and what it takes of memory."""
    with server() as path, _Misses(path, 10_000) as ours:
        ours.round(1)
        before = _resident()
        spent = ours.round(1)
        grown = max(_resident() - before, 0.0)
    what = "cache stampede, 10,000 callers"
    return [
        Row(f"{what}: loads", "loads", spent.calls),
        Row(f"{what}: all answered", "s", spent.wall),
        Row(f"{what}: memory above the first time", "MB", grown),
    ]


def _resident() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 if sys.platform != "darwin" else 1024 * 1024)


def _many(scale: Scale) -> list[Row]:
    """get_many of 1,000 keys that are there, and of 1,000 that are not."""

    async def measure(path: str) -> tuple[float, float]:
        async with AsyncClient.from_url(f"unix://{path}") as client:
            products = client.cache("products", **OPTIONS)
            keys = [str(n) for n in range(1_000)]
            hits, misses = [], []
            for _ in range(scale.rounds):
                await products.invalidate(*keys)
                start = time.perf_counter()
                await products.get_many(keys, lambda missing: dict.fromkeys(missing, VALUE))
                misses.append(time.perf_counter() - start)
                start = time.perf_counter()
                await products.get_many(keys, lambda missing: dict.fromkeys(missing, VALUE))
                hits.append(time.perf_counter() - start)
        return sorted(hits)[len(hits) // 2], sorted(misses)[len(misses) // 2]

    with server() as path:
        hits, misses = asyncio.run(measure(path))
    return [
        Row("cache get_many, 1,000 keys that are there", "ms", hits * 1e3),
        Row("cache get_many, 1,000 keys that are not: one load", "ms", misses * 1e3),
    ]


def _writes(scale: Scale) -> list[Row]:
    """What a write costs beside its save, which takes no time here."""

    async def save(value: Any = None) -> None:
        return None

    def load(strategy: str) -> Callable[[str], Any]:
        @contextlib.asynccontextmanager
        async def opened(path: str) -> AsyncIterator[Load]:
            async with AsyncClient.from_url(f"unix://{path}") as client:
                products = client.cache("products", **OPTIONS)

                async def work(worker: int, calls: int) -> None:
                    for _ in range(calls):
                        if strategy == "through":
                            await products.write_through(str(worker), VALUE, save)
                        elif strategy == "around":
                            await products.write_around(str(worker), save)
                        else:
                            await save()
                            await products.invalidate(str(worker))

                yield Load(work)

        return opened

    rows = []
    for strategy in ("through", "around"):
        with (
            server() as path,
            Looped(partial(load(strategy), path), 64) as ours,
            Looped(partial(load("invalidate"), path), 64) as plain,
        ):
            result = duel(ours, plain, scale)
        rows.append(result.cpu(f"cache write_{strategy}, 64 writers", "save, then invalidate"))
    return rows


def _races(scale: Scale) -> list[Row]:
    """The two races: 1 means that the cache holds the old value in the end."""
    rows = []
    for op, what in (
        ("paused", "a paused loader resumes after another one published"),
        ("invalidated", "an invalidation comes while a load runs"),
    ):
        ours = asyncio.run(_our_race(op))
        for group in peers.groups("cache"):
            try:
                with server() as path, _Peer(group, path, op, 1) as peer:
                    theirs = peer.verdict()
            except peers.NotHere as error:
                say(f"  left out: {error}")
                continue
            say(f"  {what}: ours holds {ours}, {group} holds {theirs}")
            rows.append(
                Row(
                    f"race, {what}: old value held", "0 or 1", ours == "old", group, theirs == "old"
                )
            )
    return rows


async def _our_race(op: str) -> str:
    began, go = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        if began.is_set():  # refused, and asked again
            return "new"
        began.set()
        await go.wait()
        return "old"

    async def quick() -> str:
        return "new"

    with server() as path:
        url = f"unix://{path}"
        async with AsyncClient.from_url(url) as one, AsyncClient.from_url(url) as two:
            old, current = one.cache("products", **OPTIONS), two.cache("products", **OPTIONS)
            reading = asyncio.ensure_future(old.get("r", slow))
            await began.wait()
            if op == "paused":
                await two.command("DEL", current._region.keys("r").lease)  # it has run out
                await current.get("r", quick)
            else:
                await current.invalidate("r")
            go.set()
            await reading
            held = await current.peek("r")
            return "nothing" if held is None else str(held.value)


def cases() -> list[Case]:
    found = [
        Case("cache stampede", _stampede),
        Case("cache get_many", _many),
        Case("cache writes", _writes),
    ]
    for group in peers.groups("cache"):
        found += [
            Case(f"cache hit {group} {width}", partial(_hit, group, width)) for width in (1, 64)
        ]
        if group != "dogpile.cache":
            found.append(Case(f"cache hit {group} 512", partial(_hit, group, 512), full=True))
        found.append(Case(f"cache miss {group}", partial(_miss, group, 100)))
    found.append(Case("cache races", _races))
    return found
