"""Made-up traces whose outcome is known, and a cache that plays them."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fencepost.local import LocalCache

ALL = ("s3fifo", "lru", "lfu", "wtinylfu")


def zipf(keys: int, seed: int, exponent: float = 1.0) -> Callable[[], int]:
    """Draws ranks 0, 1, 2 …, the first most often."""
    weights = list(itertools.accumulate(1 / rank**exponent for rank in range(1, keys + 1)))
    dice = random.Random(seed)
    return lambda: bisect.bisect(weights, dice.random() * weights[-1])


def shifting(keys: int, length: int, every: int, seed: int) -> Iterator[int]:
    """Zipf whose favourites are others after each ``every`` requests."""
    draw = zipf(keys, seed)
    for number in range(length):
        yield draw() + number // every * keys


def scanned(hot: int, scan: int, length: int, seed: int) -> Iterator[int]:
    """Favourites, uniformly drawn, between each two of which one key passes that never comes again."""
    dice = random.Random(seed)
    for number in range(length):
        yield dice.randrange(hot)
        for one in range(scan):
            yield 10**9 + number * scan + one


def ratio(cache: LocalCache[Any, Any], trace: Iterable[Any]) -> float:
    """Plays a trace through the cache as a read-through; gives hits of all requests."""
    hits = requests = 0
    for key in trace:
        requests += 1
        if cache.get(key):
            hits += 1
        else:
            cache.set(key, True)
    return hits / requests


class PlainLfu:
    """The usual one, for comparison: a count a key, kept for as long as the key is held."""

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self.counts: dict[Any, int] = {}

    def hit(self, key: Any) -> bool:
        if key in self.counts:
            self.counts[key] += 1
            return True
        if len(self.counts) >= self.maxsize:
            del self.counts[min(self.counts, key=self.counts.__getitem__)]
        self.counts[key] = 1
        return False


def recent(length: int, within: int, seed: int) -> Iterator[int]:
    """Each key comes twice, at most ``within`` new keys apart, and never again: only recency helps."""
    dice = random.Random(seed)
    due: dict[int, list[int]] = {}
    for number in range(length):
        yield number
        due.setdefault(number + dice.randint(1, within), []).append(number)
        yield from due.pop(number, ())
