"""The cache: hits, misses of many at once, many keys, and the two races of a refresh, beside its peers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benches import peers
from benches.runner import (
    Case,
    Load,
    Looped,
    Row,
    Scale,
    Spent,
    Threaded,
    compare,
    duel,
    say,
    server,
)
from fencepost import AsyncClient, Client
from fencepost.testing.lab.peers import adapters

SIZE = 60
VALUE = {"id": 42, "name": "x" * SIZE, "price": 3}
MANY_AIM, ONE_AIM = 10.0, 2.5  # times the hits per second, at 64 and more callers and at one
CROWD = 10_000
KEYS = 1_000
THREADED = ("dogpile.cache", "django-redis")
NO_MANY = ("fastapi-cache2",)
OPTIONS: dict[str, Any] = {"ttl": 3600.0}


class _Peer(peers.Piped):
    """A cache in a process of its own: a peer's in its own venv, or ours (``fencepost``)."""

    def __init__(self, group: str, path: str, op: str, width: int) -> None:
        ours = group == "fencepost"
        python = sys.executable if ours else str(peers.python_of(group))
        used = str(peers.HERE / "ours.py") if ours else str(Path(adapters.__file__))
        worker = str(peers.HERE / "cache_worker.py")
        self._words = [python, worker, used, group, path, op, str(SIZE), str(width)]


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
    threads = group in THREADED
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


def _loads(what: str, group: str, ours: list[float], theirs: list[float]) -> Row:
    return Row(f"{what}: loads", "loads", max(ours), group, max(theirs), max(theirs) / max(ours))


def _miss(group: str, width: int, scale: Scale) -> list[Row]:
    """So many callers ask at once for what is not there; the load takes 50 ms."""
    with (
        server() as path,
        _Peer("fencepost", path, "miss", width) as ours,
        _Peer(group, path, "miss", width) as peer,
    ):
        ours.round(1), peer.round(1)
        turns = [(ours.round(1), peer.round(1)) for _ in range(scale.rounds)]
    mine, theirs = ([one[side] for one in turns] for side in (0, 1))
    what = f"cache miss, {width:,} callers at once, a load of 50 ms"
    return [
        _loads(what, group, [one.calls for one in mine], [one.calls for one in theirs]),
        compare(f"{what}: all answered", "s", _walls(mine), group, _walls(theirs)),
    ]


def _walls(spent: list[Spent]) -> list[float]:
    return [one.wall for one in spent]


def _stampede(group: str, scale: Scale) -> list[Row]:
    """10,000 callers in one process: loads, the 99th percentile of their waits, memory."""
    figures: list[list[float]] = []
    with server() as path:
        for name in ("fencepost", group):
            with _Peer(name, path, "stampede", 0) as one:
                before = [float(word) for word in one.ask(100)]
                after = [float(word) for word in one.ask(CROWD)]
            figures.append([after[0], after[3], after[4] - before[4]])
    ours, theirs = figures
    what = f"cache stampede, {CROWD:,} callers, a load of 50 ms"
    return [
        _loads(what, group, ours[:1], theirs[:1]),
        compare(f"{what}: p99", "s", ours[1:2], group, theirs[1:2]),
        compare(f"{what}: memory", "MB", ours[2:], group, theirs[2:]),
    ]


def _many(group: str, scale: Scale) -> list[Row]:
    """One read of 1,000 keys that are there."""
    with (
        server() as path,
        _Peer("fencepost", path, "many", KEYS) as ours,
        _Peer(group, path, "many", KEYS) as peer,
    ):
        ours.round(1), peer.round(1)
        turns = [(ours.round(1), peer.round(1)) for _ in range(scale.rounds * 5)]
    mine, theirs = ([one[side].wall * 1e3 for one in turns] for side in (0, 1))
    return [compare(f"cache get_many, {KEYS:,} keys that are there", "ms", mine, group, theirs)]


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
                    theirs = peer.ask(1)[0]
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
    found = []
    for group in peers.groups("cache"):
        found += [
            Case(f"cache hit {group} {width}", partial(_hit, group, width))
            for width in (1, 64, 512)
        ]
        found.append(Case(f"cache miss {group}", partial(_miss, group, 100)))
        found.append(Case(f"cache stampede {group}", partial(_stampede, group)))
        if group not in NO_MANY:
            found.append(Case(f"cache get_many {group}", partial(_many, group)))
    found.append(Case("cache races", _races))
    return found
