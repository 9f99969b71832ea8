"""Everything of a cache that changes: one step at a time, under one lock, whole.

What leaves is let go of, and told to ``on_evict``, after the lock. A step that begins inside another one
of the same thread (a finaliser or a signal handler that uses the cache) waits for its end, instead of
meeting a half-changed cache, or itself at the lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final, Literal

from fencepost.errors import Refused
from fencepost.local.entry import Entry
from fencepost.local.expiry import Expiry
from fencepost.local.flights import Flight, Flights

if TYPE_CHECKING:
    from fencepost.local.entry import Policy

Cause = Literal["evicted", "expired"]
Left = list[tuple[Entry, Cause]]
Scope = asyncio.AbstractEventLoop | None
_SWEEP: Final = 8  # expired entries that one step takes along
_log = logging.getLogger("fencepost")


class Store:
    """The table, the policy that bounds it, the ends of its entries and the loads under way."""

    __slots__ = (
        "_holder", "_later", "_lock", "_on_evict", "_weigher", "buffer", "evicted", "expired", "expiry",
        "flights", "maxsize", "policy", "table", "timer", "weight",
    )  # fmt: skip

    def __init__(
        self,
        maxsize: int,
        policy: Policy,
        weigher: Callable[[Any, Any], int] | None,
        on_evict: Callable[[Any, Any, Cause], None] | None,
        timer: Callable[[], float],
    ) -> None:
        self.maxsize, self.policy, self.timer = maxsize, policy, timer
        self._weigher, self._on_evict = weigher, on_evict
        self.table: dict[Hashable, Entry] = {}
        self.buffer: deque[Entry] = deque()  # who was hit, for policies that need to know the order
        self.expiry = Expiry()
        self.flights = Flights(self)
        self.weight = self.evicted = self.expired = 0
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._later: deque[tuple[Callable[..., Left], tuple[Any, ...]]] = deque()

    # -- what others ask for --

    def set(self, key: Hashable, value: Any, lasts: float | None) -> None:
        """Keep a value; loads of its key under way keep nothing."""
        weight = 1 if self._weigher is None else self._weigh(key, value)
        self._step(self._set, key, value, lasts, weight)

    def delete(self, key: Hashable) -> bool:
        """Forget a key; gives whether it was there."""
        there: list[bool] = []
        self._step(self._delete, key, there)
        return bool(there)

    def clear(self) -> None:
        """Forget everything."""
        self._step(self._clear)

    def sweep(self) -> None:
        """Let go of all that has expired."""
        self._step(self._sweep, None)

    def bury(self, entry: Entry) -> None:
        """A reader found that this entry has expired."""
        self._step(self._bury, entry)

    def catch_up(self) -> None:
        """Tell the policy who was hit."""
        self._step(list)

    def lives(self, entry: Entry) -> bool:
        return entry.ends is None or entry.ends > self.timer()

    # -- what flights need (`flights.Home`) --

    def joined(self, key: Hashable, scope: Scope) -> Entry | tuple[Flight, bool] | None:
        """See ``flights.Home``."""
        if self._holder == threading.get_ident():
            return None  # inside a step: a flight that is made after it would be nobody's
        found: list[Entry | tuple[Flight, bool]] = []
        self._step(self._join, key, scope, found)
        return found[0]

    def keep(self, flight: Flight, value: Any, lasts: float | None) -> None:
        """See ``flights.Home``."""
        self._step(self._publish, flight, value, lasts, self._weigh(flight.key, value))

    def drop(self, flight: Flight) -> None:
        """See ``flights.Home``."""
        self._step(self._land, flight)

    # -- steps --

    def _step(self, change: Callable[..., Left], *args: Any) -> None:
        """Make a change whole, then tell of what left. Inside another step: after that."""
        me = threading.get_ident()
        if self._holder == me:
            self._later.append((change, args))
            return
        with self._lock:
            self._holder = me  # nothing may run between the two that could call us
            try:
                if self.buffer:
                    self._drain()
                left = change(*args)
                while self._later:
                    change, args = self._later.popleft()
                    left = left + change(*args)
            finally:
                self._holder = None
        if self._on_evict is not None:
            for entry, cause in left:
                try:
                    self._on_evict(entry.key, entry.value, cause)
                except Exception:
                    _log.exception("on_evict failed on %r", entry.key)

    def _set(self, key: Hashable, value: Any, lasts: float | None, weight: int) -> Left:
        if self.flights.by_key:
            self.flights.detach(key)
        return self._put(key, value, lasts, weight)

    def _put(self, key: Hashable, value: Any, lasts: float | None, weight: int) -> Left:
        left: Left = self._sweep(_SWEEP) if self.expiry.heap else []
        entry = self.table.get(key)
        if weight > self.maxsize:  # not even alone
            if entry is not None:
                self._remove(entry)
            self.evicted += 1
            return [*left, (Entry(key, value, weight), "evicted")]
        ends = None if lasts is None else self.timer() + lasts
        if entry is None:
            entry = Entry(key, value, weight)
            entry.ends = ends
            gone = self.policy.admit(entry)
            self.table[key] = entry  # with its end: from now on it may be read
            self.weight += weight
        else:
            self.weight += weight - entry.weight
            # `value` before `ends`: between the two a reader sees the new value with the old end, which
            # is a miss at worst; the other way round it would take an expired value for a live one.
            entry.value = value
            entry.ends = ends
            gone = self.policy.reweigh(entry, weight)
        if ends is not None:
            self.expiry.add(entry, ends, len(self.table))
        for one in gone:
            left.append(self._evict(one))
        return left

    def _evict(self, entry: Entry) -> tuple[Entry, Cause]:
        """A policy let it go."""
        del self.table[entry.key]
        self.weight -= entry.weight
        self.evicted += 1
        return entry, "evicted"

    def _remove(self, entry: Entry) -> None:
        del self.table[entry.key]
        self.weight -= entry.weight
        self.policy.forget(entry)

    def _delete(self, key: Hashable, there: list[bool]) -> Left:
        self.flights.detach(key)
        entry = self.table.get(key)
        if entry is not None:
            if entry.ends is None or entry.ends > self.timer():
                there.append(True)
            self._remove(entry)
        return []

    def _clear(self) -> Left:
        self.flights.detach_all()
        for entry in list(self.table.values()):
            self._remove(entry)
        self.expiry.clear()
        return []

    def _publish(self, flight: Flight, value: Any, lasts: float | None, weight: int) -> Left:
        # The comparison and the write are one step: a delete falls before both or after both.
        if not self.flights.land(flight):
            self.flights.unpublished += 1
            return []
        return self._put(flight.key, value, lasts, weight)

    def _join(self, key: Hashable, scope: Scope, found: list[Entry | tuple[Flight, bool]]) -> Left:
        entry = self.table.get(key)
        if entry is not None and (entry.ends is None or entry.ends > self.timer()):
            found.append(entry)  # a load that was under way at our miss has ended
        else:
            found.append(self.flights.join(key, scope))
        return []

    def _land(self, flight: Flight) -> Left:
        self.flights.land(flight)
        return []

    def _sweep(self, most: int | None) -> Left:
        left: Left = []
        for entry in self.expiry.due(self.timer(), most):
            self._remove(entry)
            self.expired += 1
            left.append((entry, "expired"))
        return left

    def _bury(self, entry: Entry) -> Left:
        # It may have gone, or have been renewed, since the reader looked.
        if not entry.place or entry.ends is None or entry.ends > self.timer():
            return []
        self._remove(entry)
        self.expired += 1
        return [(entry, "expired")]

    def _drain(self) -> None:
        """Tell the policy who was hit: only those before now, others go on appending."""
        buffer = self.buffer
        self.policy.touched([buffer.popleft() for _ in range(len(buffer))])

    def _weigh(self, key: Any, value: Any) -> int:
        if self._weigher is None:
            return 1
        weight = self._weigher(key, value)
        if not isinstance(weight, int) or weight < 1:
            raise Refused(
                f"the weigher gave {weight!r} for {key!r}; a weight is an int of at least 1"
            )
        return weight
