"""Space-Saving: its bounds on any stream, and how much of the true top it finds."""

from __future__ import annotations

import random
from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.hotkeys.sketch import SpaceSaving


def faults(sketch: SpaceSaving, events: list[tuple[str, bool]]) -> list[str]:
    """Which of the paper's bounds do not hold."""
    true = Counter(key for key, _ in events)
    writes = Counter(key for key, write in events if write)
    found = []
    for key, one in sketch.counts.items():
        if not one.sure <= true[key] <= one.count:
            found.append(f"{key}: {true[key]} is not in {one.sure}…{one.count}")
        if not 0 <= one.writes <= min(writes[key], one.sure):
            found.append(f"{key}: {one.writes} writes of {writes[key]}")
        if one.error > sketch.floor:
            found.append(f"{key}: its error {one.error} is above the floor {sketch.floor}")
    for key, times in true.items():
        if key not in sketch.counts and times > sketch.floor:
            found.append(f"{key} came {times} times, above the floor {sketch.floor}")
    if sketch.floor * sketch.size > len(events) or len(sketch.counts) > sketch.size:
        found.append("the floor is above n / m, or too many are counted")
    return found


EVENTS = st.lists(st.tuples(st.sampled_from("abcdefghij"), st.booleans()), max_size=200)


@given(EVENTS, st.integers(1, 8))
def test_the_bounds_hold_after_every_event(events: list[tuple[str, bool]], size: int) -> None:
    sketch = SpaceSaving(size)
    for n, (key, write) in enumerate(events):
        sketch.add(key, write)
        assert faults(sketch, events[: n + 1]) == []


@given(EVENTS, st.integers(1, 8), st.integers(1, 9))
def test_the_bounds_hold_for_events_in_batches(
    events: list[tuple[str, bool]], size: int, batch: int
) -> None:
    sketch = SpaceSaving(size)
    for n in range(0, len(events), batch):
        for (key, write), times in Counter(events[n : n + batch]).items():
            sketch.add(key, write, times)
        assert faults(sketch, events[: n + batch]) == []


@given(EVENTS, st.integers(1, 8), st.integers(1, 8))
def test_what_is_told_bounds_what_is_not(
    events: list[tuple[str, bool]], size: int, rows: int
) -> None:
    sketch = SpaceSaving(size)
    for key, write in events:
        sketch.add(key, write)
    true = Counter(key for key, _ in events)
    told, floor = sketch.top(rows)
    sure = {key: one.sure for key, one in told}
    assert all(sure.get(key, 0) <= times <= sure.get(key, 0) + floor for key, times in true.items())


def test_the_bounds_object_to_what_was_inherited_and_is_taken_for_seen() -> None:
    """The control."""

    class Trusts(SpaceSaving):
        __slots__ = ()

        def add(self, key: str, write: bool = False) -> None:
            super().add(key, write)
            self.counts[key].error = 0

    events = [(key, False) for key in "aabbccab"]
    right, wrong = SpaceSaving(2), Trusts(2)
    for key, write in events:
        right.add(key, write)
        wrong.add(key, write)
    assert faults(right, events) == []
    assert faults(wrong, events) != []


def zipf(calls: int, keys: int, skew: float, seed: int) -> list[str]:
    dice = random.Random(seed)
    weights = list(accumulate(1 / (rank + 1) ** skew for rank in range(keys)))
    return [f"k{n}" for n in dice.choices(range(keys), cum_weights=weights, k=calls)]


@pytest.mark.parametrize("skew", [0.9, 1.0, 1.2])
def test_of_the_true_top_20_at_least_19_are_found(skew: float) -> None:
    found = 0
    for seed in range(3):
        calls = zipf(40_000, 5_000, skew, seed)
        sketch = SpaceSaving(512)
        for key in calls:
            sketch.add(key)
        true = Counter(calls)
        least = sorted(true.values(), reverse=True)[19]
        told = [key for key, _ in sketch.top(20)[0]]
        found += sum(true[key] >= least for key in told)
    assert found >= 0.95 * 60


def test_few_counters_find_less() -> None:
    """The control: what finds the top is the counters, not the ease of the stream."""
    calls = zipf(60_000, 5_000, 0.9, 1)
    sketch = SpaceSaving(24)
    for key in calls:
        sketch.add(key)
    best = {key for key, _ in Counter(calls).most_common(20)}
    assert len(best.intersection(key for key, _ in sketch.top(20)[0])) < 19
