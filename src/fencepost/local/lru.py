"""LRU: whoever was used longest ago goes.

Exact, and here for comparison and for those who need its order. It has no memory of what left, so one
scan through more keys than it holds empties it, and a loop over one key more than it holds hits nothing;
``s3fifo`` and ``wtinylfu`` stand both.

A hit writes down who was hit; the order is brought up to date before anybody has to go. So it is exact
although a hit takes no lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import ClassVar

from fencepost.local.entry import GONE, Entry

_HELD = 1


class Lru:
    """See the module."""

    saturation: ClassVar[int] = 0

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._order: OrderedDict[Hashable, Entry] = OrderedDict()  # the longest unused first
        self._weight = 0

    def admit(self, entry: Entry) -> list[Entry]:
        entry.place = _HELD
        self._order[entry.key] = entry
        self._weight += entry.weight
        return self._make_room()

    def reweigh(self, entry: Entry, weight: int) -> list[Entry]:
        self._order.move_to_end(entry.key)
        self._weight += weight - entry.weight
        entry.weight = weight
        return self._make_room()

    def forget(self, entry: Entry) -> None:
        del self._order[entry.key]
        self._leave(entry)

    def touched(self, entries: Iterable[Entry]) -> None:
        move = self._order.move_to_end
        for entry in entries:
            if entry.place:
                move(entry.key)

    def queues(self) -> dict[str, list[Entry]]:
        return {"all": list(self._order.values())}

    def _make_room(self) -> list[Entry]:
        gone = []
        while self._weight > self._maxsize:
            _, entry = self._order.popitem(last=False)
            self._leave(entry)
            gone.append(entry)
        return gone

    def _leave(self, entry: Entry) -> None:
        entry.place = GONE
        self._weight -= entry.weight
