"""What each policy does on workloads whose outcome is known, and what holds after every step of it."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.local import LocalCache
from fencepost.local.cache import POLICIES, Cause
from fencepost.local.entry import GONE, Fifo
from fencepost.local.sketch import Sketch
from support.traces import ALL, PlainLfu, ratio, recent, scanned, shifting, zipf

YIELD_WITHIN = 16  # times the cache's size: requests until today's favourites are held


def test_yesterdays_favourites_yield_to_todays() -> None:
    """The trap of LFU: counts of yesterday that nothing of today can reach."""
    size = 100
    cache: LocalCache[str, bool] = LocalCache(size, policy="lfu")
    plain = PlainLfu(size)
    for _ in range(1000):
        for number in range(size):
            assert cache.get(f"old{number}", False) or cache.set(f"old{number}", True) is None
            plain.hit(f"old{number}")
    dice = random.Random(7)
    today = [f"new{dice.randrange(size // 2)}" for _ in range(YIELD_WITHIN * size)]
    for key in today:
        if not cache.get(key):
            cache.set(key, True)
        plain.hit(key)
    held = {f"new{number}" for number in range(size // 2)}
    assert {key for key in held if key in cache} == held
    # The usual LFU still holds yesterday, and today's keys push each other out.
    assert len(held & plain.counts.keys()) <= 1


@pytest.mark.parametrize("policy", ["s3fifo", "lfu", "wtinylfu"])
def test_a_fresh_key_about_to_be_hot_is_not_taken_for_stale(policy: Any) -> None:
    """A full cache of settled favourites: a key that is now asked for each tenth time gets to stay."""
    cache: LocalCache[str, bool] = LocalCache(100, policy=policy)
    favourites = [f"f{number}" for number in range(90)]
    for key in favourites * 50:
        if not cache.get(key):
            cache.set(key, True)
    misses = 0
    for number in range(3000):
        key = "rising" if number % 10 == 0 else f"f{number % 90}"
        if number % 7 == 0:
            cache.set(f"once{number}", True)
        if not cache.get(key):
            misses += key == "rising"
            cache.set(key, True)
    assert misses <= 3


@pytest.mark.parametrize(("policy", "least"), [("s3fifo", 0.17), ("lfu", 0.15), ("wtinylfu", 0.17)])
def test_a_scan_does_not_empty_the_cache(policy: Any, least: float) -> None:
    """50 favourites in a cache of 100, and between any two of their turns four keys that pass once."""
    # At most one request of five can hit.
    hot, size = 50, 100
    assert ratio(LocalCache(size, policy="lru"), scanned(hot, 4, 6000, 1)) < 0.09
    assert ratio(LocalCache(size, policy=policy), scanned(hot, 4, 6000, 1)) > least


@pytest.mark.parametrize(("policy", "least"), [("s3fifo", 0.4), ("wtinylfu", 0.6)])
def test_a_loop_that_is_longer_than_the_cache(policy: Any, least: float) -> None:
    """125 keys in turn through a cache of 100: least recently used is always the next one to be asked."""
    loop = list(range(125)) * 200
    assert ratio(LocalCache(100, policy="lru"), loop) == 0
    assert ratio(LocalCache(100, policy=policy), loop) > least


@pytest.mark.parametrize("policy", ALL)
def test_zipf_is_served_like_the_best_that_could_be_chosen_beforehand(policy: Any) -> None:
    draw = zipf(10_000, seed=3)
    trace = [draw() for _ in range(30_000)]
    best = sum(key < 500 for key in trace) / len(trace)  # the 500 most popular, held for ever
    reached = ratio(LocalCache(500, policy=policy), trace)
    assert (0.75 if policy == "lru" else 0.86) * best < reached < best


@pytest.mark.parametrize("policy", ALL)
def test_favourites_that_change_are_followed(policy: Any) -> None:
    steady = ratio(LocalCache(200, policy=policy), shifting(2000, 30_000, 30_000, 5))
    moving = ratio(LocalCache(200, policy=policy), shifting(2000, 30_000, 5_000, 5))
    assert moving > 0.85 * steady


def test_plain_lfu_does_not_follow_them() -> None:
    """What the line above would be without decay."""

    def plain(every: int) -> float:
        held = PlainLfu(200)
        return sum(map(held.hit, shifting(2000, 30_000, every, 5))) / 30_000

    assert plain(5_000) < 0.75 * plain(30_000)


def test_wtinylfu_makes_its_window_as_large_as_the_workload_wants() -> None:
    trace = list(recent(30_000, within=50, seed=1))
    cache: LocalCache[int, bool] = LocalCache(100, policy="wtinylfu")
    assert ratio(cache, trace[:5000]) < 0.1
    ratio(cache, trace[5000:40_000])
    assert ratio(cache, trace[40_000:]) > 0.48  # of the 0.5 that there is


# -- after every step --------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 25), st.integers(1, 9)),
        st.tuples(st.just("get"), st.integers(0, 25)),
        st.tuples(st.just("delete"), st.integers(0, 25)),
        st.tuples(st.just("ttl"), st.integers(0, 25), st.integers(1, 5)),
        st.tuples(st.just("later"), st.integers(1, 3)),
        st.tuples(st.just("expire")),
        st.tuples(st.just("clear")),
    ),
    max_size=120,
)


def check(cache: LocalCache[Any, Any]) -> None:
    """Table, policy, weights and marks agree, and nothing is over its bound."""
    store = cache._store
    store.catch_up()
    queues = store.policy.queues()
    held = [entry for queue in queues.values() for entry in queue]
    assert len(held) == len({id(entry) for entry in held})
    assert {entry.key: entry for entry in held} == store.table
    assert len(held) == len(store.table)
    assert store.weight == sum(entry.weight for entry in held) <= store.maxsize
    for entry in held:
        assert entry.place != GONE
        assert 0 <= entry.freq <= store.policy.saturation
    for name in vars(store.policy).values():
        if isinstance(name, Fifo):
            assert name.weight == sum(entry.weight for entry in name)
            assert len(list(name)) == len(name)
    marks = {id(entry): ends for ends, _, entry in store.expiry.heap}
    assert all(id(one) in marks for one in held if one.ends is not None)


@pytest.mark.parametrize("policy", ALL)
@given(steps=STEPS, maxsize=st.integers(1, 30), weighed=st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_holds_after_every_step(
    policy: Any, steps: list[tuple[Any, ...]], maxsize: int, weighed: bool
) -> None:
    now = 0.0
    left: list[tuple[Any, Any, Cause]] = []
    cache: LocalCache[int, int] = LocalCache(
        maxsize,
        policy=policy,
        weigher=(lambda _, value: value) if weighed else None,
        on_evict=lambda *one: left.append(one),
        timer=lambda: now,
    )
    model: dict[int, tuple[int, float]] = {}  # what was set last, and when it ends
    for step in steps:
        left.clear()
        before = dict(model)
        match step:
            case ("set", key, value):
                cache.set(key, value)
                model[key] = (value, float("inf"))
            case ("ttl", key, ttl):
                cache.set(key, 1, ttl=ttl)
                model[key] = (1, now + ttl)
            case ("get", key):
                found = cache.get(key)
                if found is not None:
                    assert found == model[key][0]
                    assert now < model[key][1]
            case ("delete", key):
                live = key in cache
                assert cache.delete(key) == live
                assert key not in cache
                model.pop(key, None)
            case ("later", seconds):
                now += seconds
            case ("expire",):
                cache.expire()
                assert all(cache._store.lives(one) for one in cache._store.table.values())
            case ("clear",):
                cache.clear()
                assert len(cache) == 0
                model.clear()
        for key, value, cause in left:
            was = [one[key] for one in (before, model) if key in one]
            assert value in [one for one, _ in was]
            if cause == "expired":
                assert any(ends <= now for _, ends in was)
        check(cache)


@given(
    steps=st.lists(st.tuples(st.sampled_from(["set", "get", "delete"]), st.integers(0, 12))),
    maxsize=st.integers(1, 8),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_lru_is_exact_although_a_hit_takes_no_lock(
    steps: list[tuple[str, int]], maxsize: int
) -> None:
    cache: LocalCache[int, int] = LocalCache(maxsize, policy="lru")
    model: OrderedDict[int, int] = OrderedDict()
    for number, (verb, key) in enumerate(steps):
        if verb == "set":
            cache.set(key, number)
            model[key] = number
            model.move_to_end(key)
            if len(model) > maxsize:
                model.popitem(last=False)
        elif verb == "get":
            assert cache.get(key) == model.get(key)
            if key in model:
                model.move_to_end(key)
        else:
            assert cache.delete(key) == (model.pop(key, None) is not None)
        cache._store.catch_up()
        assert [one.key for one in cache._store.policy.queues()["all"]] == list(model)


def test_a_key_that_was_pushed_out_of_small_comes_back_to_main() -> None:
    cache: LocalCache[int, int] = LocalCache(20, policy="s3fifo")
    for key in range(30):
        cache.set(key, key)
    assert 0 not in cache
    cache.set(0, 0)
    queues = cache._store.policy.queues()
    assert [entry.key for entry in queues["main"]] == [0]


def test_ghosts_are_bounded_and_hold_no_keys() -> None:
    cache: LocalCache[int, int] = LocalCache(100, policy="s3fifo")
    for key in range(10_000):
        cache.set(key, key)
    ghosts: Any = cache._store.policy._ghosts  # type: ignore[attr-defined]
    assert len(ghosts._stamps) <= 90
    assert len(ghosts._order) <= 90


def test_queues_do_not_grow_with_what_was_deleted() -> None:
    for policy in ALL:
        cache: LocalCache[int, int] = LocalCache(1000, policy=policy)
        cache.set(-1, 0)
        for number in range(5000):
            cache.set(number, 0, ttl=1000)
            cache.delete(number)
        queues = [one for one in vars(cache._store.policy).values() if isinstance(one, Fifo)]
        assert all(len(one._queue) <= 3 for one in queues)
        assert len(cache._store.expiry.heap) < 200


def test_the_sketch_counts_and_forgets() -> None:
    sketch = Sketch(100)
    hot = sketch.places("hot")
    for _ in range(12):
        sketch.see(hot)
    assert sketch.count(hot) == 12
    for number in range(1000):
        sketch.see(sketch.places(number))
    assert 6 <= sketch.count(hot) < 12
    assert sketch.count(sketch.places("never")) <= 1


def test_policies_are_those_that_are_named() -> None:
    assert tuple(POLICIES) == ALL
