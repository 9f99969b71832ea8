"""The near cache: what a hit costs beside redis-py's, and how soon a change elsewhere is heard of."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from redis import Redis
from redis.cache import CacheConfig

from benches.runner import Case, Load, Looped, Row, Scale, Threaded, duel, server
from fencepost import AsyncClient, Client
from fencepost.cache import NearOptions

PEER = "redis-py client-side"
HIT_AIM = 20.0  # times redis-py's; 80 ns beside its 37 µs on a quick machine
WRITES = 500
KEYS = [f"key:{number}" for number in range(100)]


def _hits(values: Any, scale: Scale) -> list[Row]:
    """A hit of ours and of redis-py's synchronous client, whose values are bytes."""
    near = NearOptions(ttl=3600.0, values=values)
    with (
        server() as path,
        Client.from_url(f"unix://{path}") as client,
        Redis(unix_socket_path=path, protocol=3, cache_config=CacheConfig(max_size=1000)) as redis,
    ):
        cache = client.cache("products", ttl=3600.0, near=near)
        while cache.stats().get("near", {})["entries"] < len(KEYS):
            for key in KEYS:
                cache.get(key, lambda: b"x" * 100)
        for key in KEYS:
            redis.set(key, b"x" * 100)

        def ours(_worker: int, calls: int) -> None:
            for _ in range(max(calls // len(KEYS), 1)):
                for key in KEYS:
                    cache.get(key, bytes)

        def peer(_worker: int, calls: int) -> None:
            for _ in range(max(calls // len(KEYS), 1)):
                for key in KEYS:
                    redis.get(key)

        with Threaded(ours, 1) as a, Threaded(peer, 1) as b:
            result = duel(a, b, scale)
    aim = HIT_AIM if values == "shared" else None
    return [result.cpu(f"near hit, {values}", PEER, aim)]


def _awaited(scale: Scale) -> list[Row]:
    """An awaited hit, beside the same cache without a near one."""

    @contextlib.asynccontextmanager
    async def held(path: str, near: NearOptions | None) -> AsyncIterator[Load]:
        async with AsyncClient.from_url(f"unix://{path}") as client:
            cache: Any = client.cache("products", ttl=3600.0, near=near)

            async def load() -> bytes:
                return b"x" * 100

            while near is not None and cache.stats()["near"]["entries"] < len(KEYS):
                for key in KEYS:
                    await cache.get(key, load)

            async def work(_worker: int, calls: int) -> None:
                for _ in range(max(calls // len(KEYS), 1)):
                    for key in KEYS:
                        await cache.get(key, load)

            yield Load(work)

    near = NearOptions(ttl=3600.0, values="shared")
    with (
        server() as path,
        Looped(partial(held, path, near), 1) as ours,
        Looped(partial(held, path, None), 1) as peer,
    ):
        result = duel(ours, peer, scale)
    return [result.cpu("near hit, shared, awaited", "ours without near")]


def _heard(scale: Scale) -> list[Row]:
    """Milliseconds from the beginning of a write elsewhere until it is gone here."""
    seen: list[float] = []
    with (
        server() as path,
        Client.from_url(f"unix://{path}") as mine,
        Client.from_url(f"unix://{path}") as other,
    ):
        near = NearOptions(ttl=3600.0, values="shared")
        cache, writer = mine.cache("products", near=near), other.cache("products")
        held: Any = cache._near
        writes = WRITES if scale.name != "quick" else 100
        while len(seen) < writes:
            while "k" not in held.held:
                cache.get("k", lambda: 0)
            began = time.perf_counter()
            writer.set("k", len(seen))
            while "k" in held.held:
                time.sleep(0)
            seen.append((time.perf_counter() - began) * 1e3)
    cuts = statistics.quantiles(seen, n=100)
    return [
        Row("near: a change elsewhere is heard of, p50", "ms", cuts[49]),
        Row(
            "near: a change elsewhere is heard of, p99",
            "ms",
            cuts[98],
            "2 ms",
            2.0,
            2 / cuts[98],
            1.0,
        ),
    ]


def cases() -> list[Case]:
    return [
        Case("near hit shared", partial(_hits, "shared")),
        Case("near hit copied", partial(_hits, "copied")),
        Case("near hit awaited", _awaited),
        Case("near heard", _heard),
    ]
