"""S3-FIFO: three queues, and a hit that only counts.

Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction" (SOSP 2023). Most keys
of most workloads are asked for once. So a new key enters a *small* queue, a tenth of the cache; at its
end it goes on to the *main* queue if it was hit at least twice, and else leaves, remembered for a while
by a *ghost* queue of keys without values. A key that comes back while it is remembered enters main at
once. Main is a queue with second chances: whoever was hit goes round again, with one hit less.

Nothing moves at a hit, so a hit needs no lock: a counter that saturates at 3.

Left out: the lock-free ring buffers of the paper, since a miss takes the cache's lock anyway. Added:
weights. Room is made *before* an entry is taken in, so that a heavy one is not its own first victim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import ClassVar, Final

from fencepost.local.entry import Entry, Fifo

SMALL: Final = 1
MAIN: Final = 2
_SHARE: Final = 10  # one in so many belongs to the small queue
_PROMOTED: Final = 2  # hits that take an entry from small to main


class S3Fifo:
    """See the module."""

    saturation: ClassVar[int] = 3

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._share = max(1, maxsize // _SHARE)
        self._small, self._main = Fifo(SMALL), Fifo(MAIN)
        self._ghosts = _Ghosts(max(1, maxsize - self._share))

    def admit(self, entry: Entry) -> list[Entry]:
        remembered = self._ghosts.recall(entry.key)  # before room is made: that pushes ghosts out
        gone = self._make_room(entry.weight)
        (self._main if remembered else self._small).push(entry)
        return gone

    def reweigh(self, entry: Entry, weight: int) -> list[Entry]:
        if entry.freq < self.saturation:
            entry.freq += 1
        self._queue(entry).weight += weight - entry.weight
        entry.weight = weight
        return self._make_room(0)

    def forget(self, entry: Entry) -> None:
        self._queue(entry).leave(entry)

    def touched(self, entries: Iterable[Entry]) -> None:
        """Hits are counted where they happen."""

    def queues(self) -> dict[str, list[Entry]]:
        return {"small": list(self._small), "main": list(self._main)}

    def _queue(self, entry: Entry) -> Fifo:
        return self._small if entry.place == SMALL else self._main

    def _make_room(self, weight: int) -> list[Entry]:
        small, main = self._small, self._main
        gone: list[Entry] = []
        while small.weight + main.weight + weight > self._maxsize:
            # Each turn lets somebody go, or takes a hit or a member of small away: it ends.
            if small.weight >= self._share or not len(main):
                entry = small.pop()
                if entry.freq >= _PROMOTED:
                    entry.freq = 0
                    main.push(entry)
                    continue
                self._ghosts.remember(entry)
            else:
                entry = main.pop()
                if entry.freq:
                    entry.freq -= 1
                    main.push(entry)
                    continue
            gone.append(entry)
        return gone


class _Ghosts:
    """Hashes of keys that left small, as heavy together as main; two keys of one hash do no harm."""

    __slots__ = ("_limit", "_order", "_stamps", "_turn", "_weight")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: deque[tuple[int, int, int]] = deque()  # hash, stamp, weight
        self._stamps: dict[int, int] = {}
        self._turn = 0
        self._weight = 0  # of all in `_order`, those that were recalled too

    def remember(self, entry: Entry) -> None:
        digest = hash(entry.key)
        self._turn += 1
        self._stamps[digest] = self._turn
        self._order.append((digest, self._turn, entry.weight))
        self._weight += entry.weight
        while self._weight > self._limit:
            oldest, stamp, weight = self._order.popleft()
            self._weight -= weight
            if self._stamps.get(oldest) == stamp:
                del self._stamps[oldest]

    def recall(self, key: object) -> bool:
        return self._stamps.pop(hash(key), None) is not None
