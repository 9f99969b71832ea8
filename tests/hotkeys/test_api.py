"""Hot keys of clients, from the calls of their caches to what is told."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fencepost import AsyncClient, Client
from fencepost._core.observe import KeyCooled, KeyHot
from fencepost.cache import NearOptions
from fencepost.errors import Refused, Unavailable
from fencepost.hotkeys import HotKeysOptions
from fencepost.hotkeys.base import HotKeysBase
from support.servers import ServerProcess
from support.until import until, until_sync

# Thresholds are low and all calls are counted: what is tested is who is hot, not how quick a machine is.
ALL = HotKeysOptions(every=1, interval=0.1, enter=20.0, leave=1.0)
NEVER = HotKeysOptions(every=1, interval=60.0)


@pytest.fixture
def events() -> list[Any]:
    return []


@pytest.fixture
async def client(server_url: str, namespace: str, events: list[Any]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient.from_url(
        server_url, namespace=namespace, observe=events.append
    ) as client:
        yield client


@pytest.fixture
def sync(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


def told(hot: HotKeysBase) -> dict[str, tuple[int, int]]:
    """What was counted since it began."""
    assert hot._meter is not None
    hot._meter._feed()
    counts = hot._meter._sketch.counts
    return {
        key.replace("\0", ":"): (one.sure - one.writes, one.writes) for key, one in counts.items()
    }


async def test_a_key_becomes_hot_and_cools_and_both_are_told(
    client: AsyncClient, events: list[Any]
) -> None:
    cache = client.cache("products")
    hot = client.hotkeys
    await hot.start(ALL)

    while not hot.hot():
        await cache.get("x", lambda: 1)
    assert [one.name for one in hot.hot()] == ["cache:products:x"]
    assert hot.stats()["hot"] == 1
    await until(lambda: not hot.hot())
    seen = [event for event in events if isinstance(event, KeyHot | KeyCooled)]
    assert [type(event) for event in seen] == [KeyHot, KeyCooled]
    assert {event.name for event in seen} == {"cache:products:x"}
    assert seen[0].reads >= 20
    assert seen[1].seconds > 0


def test_threads_count_likewise_and_two_clients_are_added(sync: Client, server_url: str) -> None:
    with Client.from_url(server_url, namespace=sync.namespace) as other:
        for one in (sync, other):
            one.hotkeys.start(ALL)
        caches = [one.cache("products") for one in (sync, other)]

        def both() -> bool:
            for cache in caches:
                for _ in range(20):
                    cache.get("x", lambda: 1)
            hot = sync.hotkeys.top(1)
            return (
                [one.name for one in hot] == ["cache:products:x"]
                and bool(sync.hotkeys.hot() and other.hotkeys.hot())
                and sync.hotkeys.stats()["processes"] == 2
            )

        until_sync(both)


async def test_each_verb_is_a_read_or_a_write_once(client: AsyncClient) -> None:
    cache = client.cache("products")
    await client.hotkeys.start(NEVER)

    async def save(*_: Any) -> None:
        return None

    await cache.get("get", lambda: 1)
    await cache.entry("entry", lambda: 1)
    await cache.refresh("refresh", lambda: 1)
    await cache.peek("peek")
    await cache.get_many(["m1", "m2"], lambda keys: dict.fromkeys(keys, 1))
    await cache.set("set", 1)
    await cache.touch("touch")
    await cache.invalidate("i1", "i2")
    await cache.write_through("through", 1, save)
    await cache.write_around("around", save)
    found = told(client.hotkeys)
    reads = {"get", "entry", "refresh", "peek", "m1", "m2"}
    writes = {"set", "touch", "i1", "i2", "through", "around"}
    assert found == {
        f"cache:products:{key}": (int(key in reads), int(key in writes)) for key in reads | writes
    }


def test_hits_of_a_near_cache_are_counted(sync: Client) -> None:
    cache = sync.cache("products", near=NearOptions(ttl=3600.0))

    def held() -> bool:
        cache.get("x", lambda: 1)
        return cache.stats()["near"]["entries"] == 1

    until_sync(held)
    sync.hotkeys.start(NEVER)
    for _ in range(5):
        cache.get("x", lambda: 1)
    assert told(sync.hotkeys) == {"cache:products:x": (5, 0)}


async def test_caches_made_before_and_after_are_counted_and_none_when_it_stopped(
    client: AsyncClient,
) -> None:
    before = client.cache("before")
    assert before._tap is None
    await client.hotkeys.start(NEVER)
    after = client.cache("after")
    for cache in (before, after):
        await cache.get("k", lambda: 1)
    assert set(told(client.hotkeys)) == {"cache:before:k", "cache:after:k"}
    with pytest.raises(Refused, match="already"):
        await client.hotkeys.start()
    await client.hotkeys.stop()
    assert before._tap is None
    assert after._tap is None
    assert client.hotkeys.stats()["counting"] is False
    await client.hotkeys.start(NEVER)
    await before.get("k", lambda: 1)
    assert set(told(client.hotkeys)) == {"cache:before:k"}


async def test_a_cache_that_nobody_holds_any_more_is_not_kept(client: AsyncClient) -> None:
    client.cache("gone")
    gc.collect()
    assert "cache:gone" not in client.taps._parts.values()


async def test_what_is_no_key_is_refused_and_not_counted(client: AsyncClient) -> None:
    cache: Any = client.cache("products")
    await client.hotkeys.start(NEVER)
    with pytest.raises(Refused):
        await cache.get(b"x", lambda: 1)
    assert told(client.hotkeys) == {}


async def test_a_server_that_is_away_costs_merges_and_nothing_else() -> None:
    with ServerProcess("valkey") as server:
        async with AsyncClient.from_url(server.url, budget=0.3) as client:
            hot = client.hotkeys
            await hot.start(ALL)
            await until(lambda: hot.stats()["merges"] > 0)
            server.kill()
            await until(lambda: hot.stats()["failures"] > 1)
            with pytest.raises(Unavailable):
                await hot.top()
            server.restart()
            merges = hot.stats()["merges"]
            await until(lambda: hot.stats()["merges"] > merges)


def test_a_child_counts_nothing_until_it_begins_anew(sync: Client) -> None:
    cache = sync.cache("products")
    sync.hotkeys.start(NEVER)
    own = sync.hotkeys
    pid = os.fork()
    if pid == 0:
        fine = cache._tap is None and not sync.hotkeys.stats()["counting"]
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sync.hotkeys is own
    assert cache._tap is not None


@pytest.fixture
def lfu() -> Iterator[Callable[..., Client]]:
    with ServerProcess("valkey") as server, Client.from_url(server.url) as client:
        yield lambda: client


def test_the_servers_own_counters(lfu: Callable[[], Client]) -> None:
    client = lfu()
    with pytest.raises(Refused, match="maxmemory-policy is noeviction"):
        client.hotkeys.server_top()
    client.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu", "lfu-log-factor", 0)
    cache = client.cache("products")
    for n in range(30):
        cache.get(f"k{n}", lambda: 1)
    for _ in range(60):
        cache.get("k7", lambda: 1)
    first, second, *_ = client.hotkeys.server_top(5)
    assert ":k7" in first.key
    assert first.counter > second.counter
    assert len(client.hotkeys.server_top(50, look_at=10)) <= 10
    for wrong in ({"n": 0}, {"look_at": 0}):
        with pytest.raises(Refused):
            client.hotkeys.server_top(**wrong)


@pytest.mark.parametrize("n", [0, 1001, True, "5"])
async def test_top_refuses_what_is_no_number(client: AsyncClient, n: Any) -> None:
    with pytest.raises(Refused):
        await client.hotkeys.top(n)
