"""What a cache and its policy share of a key, and the queue that most policies are made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, ClassVar, Final, Protocol

GONE: Final = 0
"""The place of an entry that no queue holds."""


class Entry:
    """A key and its value: the table finds it, the policy ranks it."""

    __slots__ = ("count", "ends", "freq", "key", "place", "places", "rank", "value", "weight")

    def __init__(self, key: Hashable, value: Any = None, weight: int = 1) -> None:
        self.key = key
        self.value = value
        self.weight = weight
        self.ends: float | None = None  # of its life, on the cache's timer
        self.freq = 0  # hits since its policy last looked, up to the policy's `saturation`
        self.count = self.rank = 0  # the policy's own
        self.places: tuple[int, int, int, int]  # of its counters in a sketch, where there is one
        self.place = GONE  # which queue holds it


class Policy(Protocol):
    """Who stays and who goes. Every call is made under the cache's lock.

    A hit needs no lock, and comes in two kinds. A policy with a ``saturation`` only counts: the cache
    raises ``entry.freq`` up to it. One with saturation 0 is told in order who was hit (``touched``)
    before it next decides anything.
    """

    saturation: ClassVar[int]

    def __init__(self, maxsize: int) -> None: ...

    def admit(self, entry: Entry) -> list[Entry]:
        """Take in a key that is not held, at most ``maxsize`` heavy; gives who has to go for it."""

    def reweigh(self, entry: Entry, weight: int) -> list[Entry]:
        """A held key has a new value, of this weight; gives who has to go (it itself, maybe)."""

    def forget(self, entry: Entry) -> None:
        """A held key goes: deleted, or expired."""

    def touched(self, entries: Iterable[Entry]) -> None:
        """These were hit, in this order; some of them may be gone by now."""

    def queues(self) -> dict[str, list[Entry]]:
        """What is held, by queue and in its order. For tests and for the curious."""


class Fifo:
    """A queue by age whose members may leave from its middle: a gap stays there until its turn.

    ``deque.remove`` would search for them, and a dict finds its first key behind all those that were
    deleted before it. Gaps are swept when they are half of the queue.
    """

    __slots__ = ("_gaps", "_queue", "place", "weight")

    def __init__(self, place: int) -> None:
        self.place = place
        self.weight = 0
        self._queue: deque[Entry] = deque()
        self._gaps = 0

    def push(self, entry: Entry) -> None:
        entry.place = self.place
        self.weight += entry.weight
        self._queue.append(entry)

    def pop(self) -> Entry:
        """Take out the oldest; the queue must not be empty."""
        while True:
            entry = self._queue.popleft()
            if entry.place == self.place:
                entry.place = GONE
                self.weight -= entry.weight
                return entry
            self._gaps -= 1

    def leave(self, entry: Entry) -> None:
        """A member goes from wherever it stands."""
        entry.place = GONE
        self.weight -= entry.weight
        self._gaps += 1
        if self._gaps * 2 > len(self._queue):
            self._queue = deque(self)
            self._gaps = 0

    def __len__(self) -> int:
        return len(self._queue) - self._gaps

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entry in self._queue if entry.place == self.place)
