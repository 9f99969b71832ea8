"""W-TinyLFU: a newcomer gets in only if it was asked for more often than whoever would go for it.

Einziger, Friedman, Manes: "TinyLFU: A highly efficient cache admission policy" (ACM ToS 2017), and
Einziger, Eytan, Friedman, Manes: "Adaptive software cache management" (Middleware 2018). New keys enter a
*window* in order of use. Who leaves it competes with the next victim of the *main* part for its place, by
the counts of a sketch that also knows keys which are not held. Main is a segmented LRU: who is hit on
*probation* moves up to *protected*, four fifths of it, and down again when that is full.

How large the window should be depends on the workload: 1 % for one of favourites, most of the cache for
one of recent things. A hill climber moves it, looks whether the hit ratio went up, and goes on or turns.

Left out: the doorkeeper; striped buffers (one is enough under the interpreter's lock).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import ClassVar, Final

from fencepost.local.entry import GONE, Entry
from fencepost.local.sketch import Sketch

WINDOW: Final = 1
PROBATION: Final = 2
PROTECTED: Final = 3
_WINDOW_SHARE: Final = 100  # one in so many is the window, at first
_PROTECTED_SHARE: Final = 0.8  # of main
_SAMPLE: Final = 10  # requests between two steps of the climber, times the capacity
_STEP: Final = 0.0625  # of the capacity: its first step
_DECAY: Final = 0.98  # of each next one
_RESTART: Final = 0.05  # a change of the hit ratio by so much begins again with a full step


class WTinyLfu:
    """See the module."""

    saturation: ClassVar[int] = 0

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._sketch = Sketch(min(maxsize, 1 << 20))
        self._lists: dict[int, OrderedDict[Hashable, Entry]] = {
            place: OrderedDict() for place in (WINDOW, PROBATION, PROTECTED)
        }
        self._weights = dict.fromkeys(self._lists, 0)
        self._window_limit = max(1, maxsize // _WINDOW_SHARE)
        self._climber = _Climber(maxsize)

    def admit(self, entry: Entry) -> list[Entry]:
        entry.places = self._sketch.places(entry.key)
        self._sketch.see(entry.places)
        self._climb(0)
        self._enter(WINDOW, entry)
        return self._make_room()

    def reweigh(self, entry: Entry, weight: int) -> list[Entry]:
        self._weights[entry.place] += weight - entry.weight
        entry.weight = weight
        self.touched((entry,))
        return self._make_room()

    def forget(self, entry: Entry) -> None:
        del self._lists[entry.place][entry.key]
        self._weights[entry.place] -= entry.weight
        entry.place = GONE

    def touched(self, entries: Iterable[Entry]) -> None:
        see, protected = self._sketch.see, self._lists[PROTECTED]
        hits = 0
        for entry in entries:
            place = entry.place
            if not place:
                continue
            hits += 1
            see(entry.places)
            if place == PROTECTED:
                protected.move_to_end(entry.key)
            elif place == WINDOW:
                self._lists[WINDOW].move_to_end(entry.key)
            else:
                self.forget(entry)
                self._enter(PROTECTED, entry)
                self._demote()
        if hits:
            self._climb(hits)

    def queues(self) -> dict[str, list[Entry]]:
        names = {WINDOW: "window", PROBATION: "probation", PROTECTED: "protected"}
        return {name: list(self._lists[place].values()) for place, name in names.items()}

    def _enter(self, place: int, entry: Entry) -> None:
        entry.place = place
        self._lists[place][entry.key] = entry
        self._weights[place] += entry.weight

    def _oldest(self, place: int) -> Entry:
        """Take out who was used longest ago."""
        _, entry = self._lists[place].popitem(last=False)
        self._weights[place] -= entry.weight
        entry.place = GONE
        return entry

    def _demote(self) -> None:
        limit = int((self._maxsize - self._window_limit) * _PROTECTED_SHARE)
        while self._weights[PROTECTED] > limit:
            self._enter(PROBATION, self._oldest(PROTECTED))

    def _make_room(self) -> list[Entry]:
        """Move what the window has too much to main, each against a victim if there is no room."""
        gone: list[Entry] = []
        while self._weights[WINDOW] > self._window_limit and len(self._lists[WINDOW]) > 1:
            self._compete(self._oldest(WINDOW), gone)
        while sum(self._weights.values()) > self._maxsize:  # weights, or a cache of one or two
            place = next(one for one in (PROBATION, PROTECTED, WINDOW) if self._lists[one])
            gone.append(self._oldest(place))
        return gone

    def _compete(self, candidate: Entry, gone: list[Entry]) -> None:
        count = self._sketch.count(candidate.places)
        while sum(self._weights.values()) + candidate.weight > self._maxsize:
            place = PROBATION if self._lists[PROBATION] else PROTECTED
            victim = next(iter(self._lists[place].values()), None)
            if victim is None or count <= self._sketch.count(victim.places):
                gone.append(candidate)
                return
            gone.append(self._oldest(place))
        self._enter(PROBATION, candidate)

    def _climb(self, hits: int) -> None:
        step = self._climber.count(hits)
        if step:
            self._window_limit = min(max(self._window_limit + step, 1), max(self._maxsize - 1, 1))
            self._demote()


class _Climber:
    """Counts hits, and says now and then by how much the window should grow (or shrink, below 0)."""

    __slots__ = ("_capacity", "_hits", "_last", "_requests", "_sample", "_step")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sample = _SAMPLE * min(max(capacity, 100), 1 << 16)
        self._step = _STEP * capacity
        self._hits = self._requests = 0
        self._last: float | None = None

    def count(self, hits: int) -> int:
        """So many hits, or with 0 a miss."""
        self._hits += hits
        self._requests += hits or 1
        if self._requests < self._sample:
            return 0
        if self._hits == self._requests:  # nothing to gain; and no reason to go on as before
            self._hits = self._requests = 0
            return 0
        ratio = self._hits / self._requests
        self._hits = self._requests = 0
        before, self._last = self._last, ratio
        if before is None:
            return 0
        change = ratio - before
        step = self._step if change >= 0 else -self._step
        restart = _STEP * self._capacity
        self._step = (
            (restart if step > 0 else -restart) if abs(change) >= _RESTART else step * _DECAY
        )
        return round(step)
