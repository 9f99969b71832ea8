"""When entries expire: a heap of ends, in which those that were renewed leave stale marks."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from fencepost.local.entry import Entry

_SLACK: Final = 64


class Expiry:
    """See the module."""

    __slots__ = ("_turn", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Entry]] = []
        self._turn = count()

    def add(self, entry: Entry, ends: float, held: int) -> None:
        """Note the end of an entry; ``held`` is how many entries there are.

        Marks of ends that were moved stay until they are due, or until they outnumber the entries.
        """
        heappush(self.heap, (ends, next(self._turn), entry))
        if len(self.heap) > 2 * held + _SLACK:
            live = {id(mark[2]): mark for mark in self.heap if _stands(mark)}  # one an entry
            self.heap = list(live.values())
            heapify(self.heap)

    def due(self, now: float, most: int | None) -> Iterator[Entry]:
        """Take out those that have expired, at most so many; None is all."""
        heap = self.heap
        while heap and heap[0][0] <= now and (most is None or most > 0):
            mark = heappop(heap)
            if _stands(mark):
                most = None if most is None else most - 1
                yield mark[2]

    def clear(self) -> None:
        self.heap.clear()


def _stands(mark: tuple[float, int, Entry]) -> bool:
    ends, _, entry = mark
    return bool(entry.place) and entry.ends == ends
