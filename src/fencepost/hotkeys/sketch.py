"""Space-Saving: which of a stream's keys come most often, in bounded memory, with a bound of the error.

Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data Streams", ICDT
2005. A key that is not counted takes the place of one with the least count, and begins with that count, which
is its ``error``. With *m* counters and *n* events:

- ``count - error`` <= the true number <= ``count``;
- who is not counted came at most ``floor`` times, the least count, and that is at most *n / m*;
- so every key that came more often than *n / m* times is counted.

Here ``count - error`` is what is shown (``sure``): reads and writes that were seen since the key was counted.
It is too low by ``floor`` at most, and sums of such counts over processes are too low by the sum of the floors
at most (Agarwal, Cormode, Huang, Phillips, Wei, Yi: "Mergeable Summaries", PODS 2012).

Keys with the same count stand in one bucket, so that the least is found without a search; left out is the
paper's list of buckets: the next one is found by counting up, an amortised step an event.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Count:
    """What is known of one key."""

    count: int
    error: int
    writes: int

    @property
    def sure(self) -> int:
        """The calls that were seen, reads and writes."""
        return self.count - self.error


class SpaceSaving:
    """Counts at most ``size`` keys; an event is O(1) in the mean. For one thread at a time.

    Args:
        size: Counters.
    """

    __slots__ = ("_buckets", "_least", "counts", "events", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.events = 0
        self.counts: dict[str, Count] = {}
        self._buckets: dict[int, dict[str, None]] = {}
        self._least = 0

    def add(self, key: str, write: bool = False, times: int = 1) -> None:
        """An event of a key, or several alike."""
        self.events += times
        known = self.counts.get(key)
        if known is None:
            error = 0
            if len(self.counts) >= self.size:
                error = self._least
                self._drop_least()
            known = self.counts[key] = Count(error, error, 0)
            if not error:
                self._least = 1  # the least there can be
        else:
            self._leave(key, known.count)
        known.count += times
        known.writes += times * write
        self._buckets.setdefault(known.count, {})[key] = None
        while self._least not in self._buckets:
            self._least += 1  # in all no more steps than there were events

    @property
    def floor(self) -> int:
        """The most that a key came which is not counted."""
        return self._least if len(self.counts) >= self.size else 0

    def top(self, n: int) -> tuple[list[tuple[str, Count]], int]:
        """The ``n`` keys that came most often for sure, and the most that any other key came."""
        ranked = sorted(self.counts.items(), key=lambda one: (-one[1].sure, one[0]))
        rest = max((one.count for _, one in ranked[n:]), default=0)
        # A key that is shown may have come more often than is sure, by its own error.
        inside = max((one.error for _, one in ranked[:n]), default=0)
        return ranked[:n], max(rest, inside, self.floor)

    def _leave(self, key: str, count: int) -> None:
        bucket = self._buckets[count]
        del bucket[key]
        if not bucket:
            del self._buckets[count]

    def _drop_least(self) -> None:
        key = next(iter(self._buckets[self._least]))  # of the least, who came last the longest ago
        self._leave(key, self._least)
        del self.counts[key]
