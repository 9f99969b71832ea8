"""What a caller sees: values, lifetimes, weights, what is told, and bad options refused."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
from typing import Any

import pytest

from fencepost.errors import Refused
from fencepost.local import LocalCache
from support.traces import ALL

policies = pytest.mark.parametrize("policy", ALL)


class Clock:
    """A timer that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@policies
def test_set_get_delete_clear(policy: Any) -> None:
    cache: LocalCache[str, Any] = LocalCache(10, policy=policy)
    assert cache.get("a") is None
    assert cache.get("a", 7) == 7
    cache.set("a", 1)
    cache.set("none", None)
    assert cache.get("a") == 1
    assert cache.get("none", 7) is None  # None is a value
    assert "a" in cache
    assert cache.delete("a")
    assert not cache.delete("a")
    cache.clear()
    assert len(cache) == 0
    assert cache.maxsize == 10
    assert "10" in repr(cache)


@policies
def test_lifetimes(policy: Any) -> None:
    clock = Clock()
    told: list[Any] = []
    cache: LocalCache[str, int] = LocalCache(
        10, policy=policy, ttl=5, timer=clock, on_evict=lambda *one: told.append(one)
    )
    cache.set("cache's", 1)
    cache.set("own", 2, ttl=1)
    cache.set("ever", 3, ttl=None)
    cache.set("inf", 4, ttl=math.inf)
    clock.now += 1
    assert "own" not in cache
    assert cache.get("own") is None  # lazily, by whoever reads it …
    assert told == [("own", 2, "expired")]
    clock.now += 4
    cache.set("other", 5)  # … or by the next change
    assert told[1:] == [("cache's", 1, "expired")]
    clock.now += 10**6
    assert cache.get("ever") == 3
    assert cache.get("inf") == 4
    assert cache.stats().expired == 2


def test_a_renewed_entry_lives_on_and_a_stale_mark_is_nothing() -> None:
    clock = Clock()
    cache: LocalCache[str, int] = LocalCache(10, timer=clock)
    cache.set("a", 1, ttl=1)
    cache.set("a", 2, ttl=10)
    clock.now += 5
    cache.expire()
    assert cache.get("a") == 2
    cache.set("a", 3, ttl=None)
    clock.now += 50
    cache.expire()
    assert cache.get("a") == 3
    assert cache.stats().expired == 0


def test_one_change_takes_only_some_of_the_expired_along() -> None:
    """A million that expire together must not hold up one caller."""
    clock = Clock()
    cache: LocalCache[int, int] = LocalCache(1000, timer=clock)
    for key in range(1000):
        cache.set(key, key, ttl=1)
    clock.now += 2
    cache.set(-1, 0)
    assert 900 < len(cache) < 1000
    cache.expire()
    assert len(cache) == 1


def test_the_expired_go_before_the_living() -> None:
    clock = Clock()
    cache: LocalCache[int, int] = LocalCache(10, timer=clock)
    for key in range(5):
        cache.set(key, key)
    for key in range(5, 10):
        cache.set(key, key, ttl=1)
    clock.now += 2
    cache.set(10, 10)
    assert all(key in cache for key in range(5))
    assert cache.stats().evicted == 0


@policies
def test_weights_bound_the_sum(policy: Any) -> None:
    told: list[Any] = []
    cache: LocalCache[str, str] = LocalCache(
        10,
        policy=policy,
        weigher=lambda _, value: len(value),
        on_evict=lambda *one: told.append(one),
    )
    cache.set("a", "xxxx")
    cache.set("b", "xxxx")
    cache.set("c", "xxxx")
    assert cache.stats().weight == 8
    assert [cause for _, _, cause in told] == ["evicted"]
    cache.set("d", "x" * 10)  # as heavy as may be: alone
    assert cache.get("d") is not None
    assert cache.stats().weight == 10
    cache.set("d", "x" * 11)  # heavier: neither it nor the value before it is kept
    assert "d" not in cache
    assert told[-1] == ("d", "x" * 11, "evicted")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxsize": 0}, "maxsize"),
        ({"maxsize": True}, "maxsize"),
        ({"maxsize": 1.5}, "maxsize"),
        ({"maxsize": 1, "policy": "arc"}, "s3fifo, lru, lfu, wtinylfu"),
        ({"maxsize": 1, "ttl": 0}, "above 0"),
        ({"maxsize": 1, "ttl": float("nan")}, "above 0"),
        ({"maxsize": 1, "ttl": "5"}, "above 0"),
    ],
)
def test_what_cannot_work_is_refused_at_birth(options: Any, words: str) -> None:
    with pytest.raises(Refused, match=words):
        LocalCache(**options)


def test_what_cannot_work_is_refused_at_the_call() -> None:
    cache: LocalCache[Any, Any] = LocalCache(2, weigher=lambda _, value: value)
    with pytest.raises(Refused, match="above 0"):
        cache.set("a", 1, ttl=-1)
    with pytest.raises(Refused, match="weight is an int"):
        cache.set("a", 0)
    with pytest.raises(Refused, match="above 0"):
        cache.cached(ttl=0)
    with pytest.raises(TypeError, match="unhashable"):
        cache.set([], 1)
    assert len(cache) == 0


def test_an_error_in_on_evict_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    cache: LocalCache[int, int] = LocalCache(1, on_evict=fail)
    cache.set(1, 1)
    cache.set(2, 2)
    assert cache.get(2) == 2
    assert "on_evict failed on 1" in caplog.text


def test_on_evict_may_use_the_cache() -> None:
    cache: LocalCache[Any, Any]
    cache = LocalCache(2, on_evict=lambda key, *_: key != "told" and cache.set("told", key))
    for key in range(5):
        cache.set(key, key)
    assert len(cache) == 2


@policies
def test_a_finaliser_that_uses_the_cache_waits_for_the_step_it_is_in(policy: Any) -> None:
    """It runs wherever a last reference goes, or the collector comes by: inside a step, that is."""

    class Loud:
        def __del__(self) -> None:
            cache.set("buried", cache.get("buried", 0) + 1)
            cache.delete("other")
            cache.get_or_load("loaded", lambda: 1)

    cache: LocalCache[Any, Any] = LocalCache(5, policy=policy)
    cache.set("buried", 0)
    for number in range(50):
        cache.set("other", Loud())
        cache.set("other", None)  # the one before ends inside this
        cache.get("buried")
        cycle: list[Any] = [Loud()]
        cycle.append(cycle)
        cache.set(number, cycle)
        del cycle
    gc.collect()
    store = cache._store
    store.catch_up()
    held = [entry for queue in store.policy.queues().values() for entry in queue]
    assert {entry.key: entry for entry in held} == store.table
    assert len(cache) <= 5
    assert not store._later


def test_stats() -> None:
    cache: LocalCache[str, int] = LocalCache(1, count_hits=True)
    assert cache.stats().hit_ratio == 0
    cache.set("a", 1)
    cache.get("a")
    cache.get("b")
    cache.set("b", 1)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_load("c", lambda: 1 // 0)
    cache.get_or_load("c", lambda: 1)
    found = cache.stats()
    assert (found.hits, found.misses, found.loads, found.load_errors) == (1, 3, 1, 1)
    assert (found.entries, found.weight, found.evicted) == (1, 1, 2)
    assert found.hit_ratio == 0.25


@policies
def test_hits_are_counted_where_that_is_asked_for_or_costs_nothing(policy: Any) -> None:
    for asked in (False, True):
        cache: LocalCache[str, int] = LocalCache(10, policy=policy, count_hits=asked)
        cache.set("a", 1)
        cache.get("a")
        counted = asked or policy in ("lru", "wtinylfu")
        assert cache.stats().hits == (1 if counted else None)
        assert cache.stats().hit_ratio == (1.0 if counted else None)


# -- the decorator -----------------------------------------------------------------------------------


def counting() -> tuple[Any, list[Any]]:
    calls: list[Any] = []

    def function(a: int, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
        calls.append((a, b, c))
        return a, b, c

    return function, calls


def test_decorated_calls_are_one_entry_if_their_arguments_are() -> None:
    function, calls = counting()
    cache: LocalCache[Any, Any] = LocalCache(10)
    cached = cache.cached()(function)
    assert [cached(1), cached(a=1), cached(1, 2), cached(1, b=2, c=3)] == [(1, 2, 3)] * 4
    assert len(calls) == 1
    assert cached.key(1) == cached.key(c=3, b=2, a=1) != cached.key(2, 1)
    assert cached(2, 1) == (2, 1, 3)
    assert cached.invalidate(a=1)
    assert not cached.invalidate(1)
    cached(1)
    assert len(calls) == 3
    assert cached.uncached is function
    assert cached.__name__ == "function"
    with pytest.raises(TypeError):
        cached()
    with pytest.raises(TypeError):
        cached(1, d=1)


def test_defaults_are_filled_in_without_keywords_too() -> None:
    cache: LocalCache[Any, Any] = LocalCache(10)
    calls: list[Any] = []

    @cache.cached()
    def plain(a: int, b: int = 2) -> int:
        calls.append((a, b))
        return a + b

    @cache.cached()
    def other(a: int, b: int = 2) -> int:
        return a * b

    @cache.cached()
    def loose(*numbers: int, **more: int) -> int:
        calls.append(numbers)
        return sum(numbers) + sum(more.values())

    assert [plain(1), plain(1, 2), plain(a=1), plain(b=2, a=1)] == [3] * 4
    assert other(1) == 2  # another function in the same cache
    assert [loose(1, x=2, y=3), loose(1, y=3, x=2)] == [6, 6]
    assert loose() == 0
    assert calls == [(1, 2), (1,), ()]
    with pytest.raises(TypeError):
        plain()
    with pytest.raises(TypeError):
        plain(1, 2, 3)


def test_own_keys_and_lifetimes() -> None:
    clock = Clock()
    cache: LocalCache[Any, Any] = LocalCache(10, timer=clock)
    calls: list[int] = []

    @cache.cached(key=lambda rows: len(rows), ttl=1)
    def total(rows: list[int]) -> int:
        calls.append(1)
        return sum(rows)

    @cache.cached(key=len)
    def first(rows: list[int]) -> int:
        return rows[0]

    assert total([1, 2]) == total([2, 1]) == 3
    assert first([7, 8]) == 7
    clock.now += 2
    assert total([4, 4]) == 8
    assert len(calls) == 2


async def test_a_coroutine_function_can_be_cached() -> None:
    cache: LocalCache[Any, Any] = LocalCache(10)
    calls: list[int] = []

    @cache.cached()
    async def double(number: int) -> int:
        calls.append(number)
        return number * 2

    assert [await double(2), await double(number=2)] == [4, 4]
    assert calls == [2]
    double.invalidate(2)
    await double(2)
    assert calls == [2, 2]


def test_importing_it_is_light() -> None:
    """Neither a client nor an event loop's sockets are made; redis and SQLAlchemy are not imported."""
    words = (
        "import sys, fencepost.local; print({'redis', 'sqlalchemy', 'click'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
