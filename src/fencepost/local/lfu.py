"""LFU with decay: whoever was used least goes, and old fame fades.

Plain LFU has a trap: what was hot yesterday has counts that nothing new can reach, so today's keys push
each other out while yesterday's stay for ever. Two things prevent it.

*Decay* is the dynamic aging of Arlitt, Cherkasova, Dilley, Friedrich, Jin: "Evaluating content management
techniques for Web proxy caches" (1999, LFU-DA). A rank is a count plus the age of the cache, and the age is
the rank of whoever left last. So a newcomer of today outranks what was not used since long ago, without
halving counters. Counts end at ``CEILING``: the most famous key yields when the cache has aged by that
much, and each newcomer that leaves unused ages it by one or finds another one to go.

*A window* of a twentieth takes in what is new, in order of age: a key that is about to be hot gathers its hits
there before it has to compete.

Ranks are brought up to date lazily: a hit only counts, and who stands at the end of the lowest rank is
looked at once more before it goes. Left out: the paper's sizes and costs as ranks (GDSF), and counts of
keys that are not held (``wtinylfu`` has those).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from fencepost.local.entry import Entry, Fifo

WINDOW: Final = 1
RANKED: Final = 2
CEILING: Final = 16
_SHARE: Final = 20  # one in so many belongs to the window


class Lfu:
    """See the module."""

    saturation: ClassVar[int] = CEILING

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._share = max(1, maxsize // _SHARE)
        self._window = Fifo(WINDOW)
        self._ranks: dict[int, Fifo] = {}
        self._weight = 0  # of all ranks
        self._age = 0

    def admit(self, entry: Entry) -> list[Entry]:
        gone = self._make_room(entry.weight)
        self._window.push(entry)
        while self._window.weight > self._share and len(self._window) > 1:
            self._rank(self._window.pop(), 1)
        return gone

    def reweigh(self, entry: Entry, weight: int) -> list[Entry]:
        if entry.freq < self.saturation:
            entry.freq += 1
        more = weight - entry.weight
        entry.weight = weight
        if entry.place == WINDOW:
            self._window.weight += more
        else:
            self._ranks[entry.rank].weight += more
            self._weight += more
        return self._make_room(0)

    def forget(self, entry: Entry) -> None:
        if entry.place == WINDOW:
            self._window.leave(entry)
            return
        rank = self._ranks[entry.rank]
        rank.leave(entry)
        self._weight -= entry.weight
        if not len(rank):
            del self._ranks[entry.rank]

    def touched(self, entries: Iterable[Entry]) -> None:
        """Hits are counted where they happen."""

    def queues(self) -> dict[str, list[Entry]]:
        ranked = {str(rank): list(self._ranks[rank]) for rank in sorted(self._ranks)}
        return {"window": list(self._window), **ranked}

    def _rank(self, entry: Entry, more: int) -> None:
        entry.count = min(entry.count + more + entry.freq, CEILING)
        entry.freq = 0
        entry.rank = self._age + entry.count
        rank = self._ranks.get(entry.rank)
        if rank is None:
            rank = self._ranks[entry.rank] = Fifo(RANKED)
        rank.push(entry)
        self._weight += entry.weight

    def _make_room(self, weight: int) -> list[Entry]:
        gone: list[Entry] = []
        while self._window.weight + self._weight + weight > self._maxsize:
            if not self._ranks:
                self._rank(self._window.pop(), 1)
            entry = self._lowest()
            if entry.freq:  # hit since it was ranked: it belongs higher up
                self._rank(entry, 0)
            else:
                gone.append(entry)
        return gone

    def _lowest(self) -> Entry:
        while self._age not in self._ranks:  # ranks lie at most CEILING above the age
            self._age += 1
        rank = self._ranks[self._age]
        entry = rank.pop()
        self._weight -= entry.weight
        if not len(rank):
            del self._ranks[self._age]
        return entry
