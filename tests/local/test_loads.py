"""One load for all who ask at once; what is loaded is kept only while nothing has changed meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fencepost.local import LocalCache
from support.traces import ALL
from support.until import until


def crowd(cache: LocalCache[Any, Any], load: Callable[[], Any], number: int = 8) -> list[Any]:
    """So many threads ask for ``k`` at once; gives their results, or errors."""
    barrier = threading.Barrier(number)

    def ask() -> Any:
        barrier.wait()
        try:
            return cache.get_or_load("k", load)
        except ZeroDivisionError as error:
            return error

    with ThreadPoolExecutor(number) as pool:
        return [one.result() for one in [pool.submit(ask) for _ in range(number)]]


def test_eight_threads_one_load() -> None:
    for _ in range(50):
        cache: LocalCache[str, int] = LocalCache(10)
        loads: list[int] = []

        def load(loads: list[int] = loads) -> int:
            loads.append(1)
            return 7

        assert crowd(cache, load) == [7] * 8
        assert len(loads) == 1


def test_an_error_is_shared_and_not_kept() -> None:
    cache: LocalCache[str, int] = LocalCache(10)
    begun, go = threading.Event(), threading.Event()

    def load() -> int:
        begun.set()
        go.wait()
        return 1 // 0

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get_or_load, "k", load)
        begun.wait()
        joined = threading.Event()

        def ask() -> int:
            joined.set()
            return cache.get_or_load("k", lambda: 5)

        second = pool.submit(ask)
        joined.wait()
        go.set()
        assert isinstance(first.exception(), ZeroDivisionError)
        # Whether it joined in time or came after: the error, or its own load; never a third thing.
        assert isinstance(second.exception(), ZeroDivisionError) or second.result() == 5
    assert cache.get_or_load("k", lambda: 6) in (5, 6)
    assert cache.stats().load_errors == 1


class HeldLoad:
    """A load in a thread that stands until it is let go."""

    def __init__(self, cache: LocalCache[str, Any], value: Any) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.result: Any = None

        def load() -> Any:
            self.begun.set()
            assert self.go.wait(60)
            return value

        def run() -> None:
            self.result = cache.get_or_load("k", load)

        self.thread = threading.Thread(target=run)
        self.thread.start()
        assert self.begun.wait(60)

    def end(self) -> Any:
        self.go.set()
        self.thread.join()
        return self.result


def usual_get_or_load(cache: LocalCache[str, Any], load: Callable[[], Any]) -> Any:
    """What is usually written: look, load, set."""
    found = cache.get("k")
    if found is None:
        found = load()
        cache.set("k", found)
    return found


@pytest.mark.parametrize("change", ["delete", "set", "clear"])
def test_a_load_that_was_overtaken_is_not_kept(change: str) -> None:
    cache: LocalCache[str, Any] = LocalCache(10)
    held = HeldLoad(cache, "old")
    if change == "delete":
        cache.delete("k")
    elif change == "clear":
        cache.clear()
    else:
        cache.set("k", "new")
    assert held.end() == "old"  # it began before the change
    assert cache.get("k") == ("new" if change == "set" else None)
    assert cache.stats().unpublished == 1


def test_the_usual_way_keeps_what_was_overtaken() -> None:
    """The control of the test above: the same order of events, without flights."""
    cache: LocalCache[str, Any] = LocalCache(10)

    def load() -> str:
        cache.delete("k")  # somebody's invalidation comes while it loads
        return "old"

    usual_get_or_load(cache, load)
    assert cache.get("k") == "old"


def test_who_asks_after_a_delete_does_not_join_the_load_of_before() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)
    held = HeldLoad(cache, "old")
    cache.delete("k")
    assert cache.get_or_load("k", lambda: "new") == "new"
    assert held.end() == "old"
    assert cache.get("k") == "new"


def test_an_interrupted_load_leaves_nobody_waiting() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)
    begun, go = threading.Event(), threading.Event()

    def load() -> Any:
        begun.set()
        go.wait()
        raise KeyboardInterrupt

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_load("k", load)

    first = threading.Thread(target=interrupted)
    first.start()
    begun.wait()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(cache.get_or_load, "k", lambda: "second")
        go.set()
        assert second.result() == "second"
    first.join()


def test_a_load_that_asks_for_itself_is_told_so() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)

    def load() -> Any:
        return cache.get_or_load("k", load)

    with pytest.raises(RuntimeError, match="wait for itself"):
        cache.get_or_load("k", load)
    assert cache.get_or_load("k", lambda: cache.get_or_load("other", lambda: 3)) == 3


# -- awaited -----------------------------------------------------------------------------------------


class Awaited:
    """An awaited load that stands until it is let go."""

    def __init__(self, value: Any = 7) -> None:
        self.begun, self.go, self.value, self.loads = asyncio.Event(), asyncio.Event(), value, 0

    async def __call__(self) -> Any:
        self.loads += 1
        self.begun.set()
        await self.go.wait()
        return self.value


async def test_many_tasks_one_load() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)
    load = Awaited()
    tasks = [asyncio.create_task(cache.aget_or_load("k", load)) for _ in range(100)]
    await load.begun.wait()
    load.go.set()
    assert await asyncio.gather(*tasks) == [7] * 100
    assert load.loads == 1
    assert await cache.aget_or_load("k", load) == 7
    assert await cache.aget_or_load("plain", lambda: 3) == 3


async def test_a_load_outlives_its_first_caller() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)
    load = Awaited()
    first = asyncio.create_task(cache.aget_or_load("k", load))
    await load.begun.wait()
    second = asyncio.create_task(cache.aget_or_load("k", load))
    await asyncio.sleep(0)
    first.cancel()
    load.go.set()
    assert await second == 7
    assert first.cancelled() or first.cancelling()
    assert load.loads == 1


async def test_all_callers_gone_the_error_of_the_load_is_nobodys_noise() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)
    begun = asyncio.Event()

    async def load() -> Any:
        begun.set()
        await asyncio.sleep(0)
        raise ZeroDivisionError

    task = asyncio.create_task(cache.aget_or_load("k", load))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: cache.stats().load_errors == 1)


async def test_a_load_that_cancels_itself_leaves_nobody_waiting() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)
    calls = 0

    async def load() -> Any:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 1:
            raise asyncio.CancelledError
        return "second"

    assert (
        await asyncio.gather(*(cache.aget_or_load("k", load) for _ in range(3))) == ["second"] * 3
    )
    assert calls == 2


async def test_an_awaited_load_that_was_overtaken_is_not_kept() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)
    load = Awaited("old")
    task = asyncio.create_task(cache.aget_or_load("k", load))
    await load.begun.wait()
    cache.delete("k")
    later = Awaited("new")
    later.go.set()
    assert await cache.aget_or_load("k", later) == "new"
    load.go.set()
    assert await task == "old"
    assert cache.get("k") == "new"


async def test_an_awaited_load_that_asks_for_itself_is_told_so() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)

    async def load() -> Any:
        return await cache.aget_or_load("k", load)

    with pytest.raises(RuntimeError, match="wait for itself"):
        await cache.aget_or_load("k", load)


async def test_a_thread_never_waits_for_the_loop_it_may_be_running() -> None:
    """A sync call on the loop's own thread while the loop loads the same key: it loads by itself."""
    cache: LocalCache[str, Any] = LocalCache(10)
    load = Awaited("loop's")
    task = asyncio.create_task(cache.aget_or_load("k", load))
    await load.begun.wait()
    assert cache.get_or_load("k", lambda: "thread's") == "thread's"
    load.go.set()
    await task


def test_a_loop_that_ended_leaves_no_flight_behind() -> None:
    cache: LocalCache[str, Any] = LocalCache(10)

    async def begin() -> None:
        load = Awaited()
        task = asyncio.ensure_future(cache.aget_or_load("k", load))
        await load.begun.wait()
        assert not task.done()

    asyncio.run(begin())
    assert cache._store.flights.by_key == {}

    async def again() -> Any:
        return await cache.aget_or_load("k", lambda: 3)

    assert asyncio.run(again()) == 3


# -- threads at random -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ALL)
def test_threads_at_random_leave_it_whole(policy: Any) -> None:
    """Eight threads do everything at once; then table, policy and weights agree, and values are right."""
    cache: LocalCache[int, tuple[int, int]] = LocalCache(
        60, policy=policy, weigher=lambda key, _: 1 + key % 3, on_evict=lambda *_: None
    )
    wrong: list[Any] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for number in range(3000):
            key = dice.randrange(100)
            verb = dice.randrange(10)
            if verb < 5:
                found = cache.get(key)
            elif verb < 7:
                found = cache.get_or_load(key, lambda key=key, number=number: (key, number))
            elif verb == 7:
                cache.set(key, (key, number), ttl=dice.choice([None, 1e-4, 10]))
                continue
            elif verb == 8:
                cache.delete(key)
                continue
            else:
                cache.expire()
                continue
            if found is not None and found[0] != key:
                wrong.append((key, found))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert wrong == []
    store = cache._store
    store.catch_up()
    held = [entry for queue in store.policy.queues().values() for entry in queue]
    assert {entry.key: entry for entry in held} == store.table
    assert store.weight == sum(entry.weight for entry in held) <= 60
    assert store.flights.by_key == {}
