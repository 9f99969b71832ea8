"""A cache in the process: bounded, thread-safe, with the eviction policy that you choose.

A hit takes no lock and moves nothing: it finds the entry in a dict and counts. (Policies that need the
order of hits get it from a short list that a hit appends to.) All else is a step of the ``Store``.

Two rules hold against the usual races: a load is kept only if nobody set, deleted or cleared its key
since it began; and who asks after such a change does not join the load of before.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, overload

from fencepost.errors import Refused
from fencepost.local.lfu import Lfu
from fencepost.local.lru import Lru
from fencepost.local.s3fifo import S3Fifo
from fencepost.local.store import Cause, Store
from fencepost.local.wtinylfu import WTinyLfu

if TYPE_CHECKING:
    from fencepost.local.decorator import Cached
    from fencepost.local.entry import Entry, Policy

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")
F = TypeVar("F", bound=Callable[..., Any])
PolicyName = Literal["s3fifo", "lru", "lfu", "wtinylfu"]
POLICIES: Final[dict[str, type[Policy]]] = {
    "s3fifo": S3Fifo,
    "lru": Lru,
    "lfu": Lfu,
    "wtinylfu": WTinyLfu,
}
UNSET: Final[Any] = object()
_BUFFER: Final = 64  # hits that are written down before their order is brought up to date


@dataclass(frozen=True, slots=True)
class LocalStats:
    """What a cache did so far. Hits of threads without a common interpreter lock may be counted short."""

    hits: int | None  # None: they are not counted
    misses: int
    loads: int  # that ended well
    load_errors: int
    unpublished: int  # loads whose key was set, deleted or cleared meanwhile
    evicted: int
    expired: int
    entries: int
    weight: int

    @property
    def hit_ratio(self) -> float | None:
        """Hits of all reads, 0 before the first; None where hits are not counted."""
        if self.hits is None:
            return None
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


class LocalCache(Generic[K, V]):
    """A bounded cache in this process, for any number of threads and event loops.

    Args:
        maxsize: How many entries it holds, or how heavy they are together if there is a ``weigher``.
        policy: Who has to go: ``"s3fifo"`` (most workloads), ``"wtinylfu"`` (the same, slower hits, adapts
            itself), ``"lfu"`` (steady favourites), ``"lru"``. ``fencepost simulate`` tells for a trace.
        ttl: Seconds that an entry lives, unless ``set`` says otherwise; None is for ever.
        weigher: Gives the weight of a key and value, an int of at least 1. Who weighs more than
            ``maxsize`` is not kept.
        on_evict: Called with key, value and ``"evicted"`` or ``"expired"``, in the thread whose call
            caused it, after that call has changed the cache. Errors in it are logged.
        timer: The clock of the lifetimes, in seconds.
        count_hits: Whether ``stats()`` knows them; they cost a fifth of a hit. (``lru`` and ``wtinylfu``
            always do.)

    Raises:
        Refused: An option can't work.
    """

    __slots__ = (
        "__weakref__", "_buffer", "_counts", "_hits", "_misses", "_saturation", "_store", "_table", "_timer", "_ttl",
    )  # fmt: skip

    def __new__(
        cls, maxsize: int = 0, policy: PolicyName = "s3fifo", **options: Any
    ) -> LocalCache[K, V]:
        kind = POLICIES.get(policy)
        if cls is LocalCache and kind is not None and not kind.saturation:
            return super().__new__(_Ordered)
        if cls is LocalCache and options.get("count_hits"):
            return super().__new__(_Counting)
        return super().__new__(cls)

    def __init__(
        self,
        maxsize: int,
        policy: PolicyName = "s3fifo",
        *,
        ttl: float | None = None,
        weigher: Callable[[K, V], int] | None = None,
        on_evict: Callable[[K, V, Cause], None] | None = None,
        timer: Callable[[], float] = time.monotonic,
        count_hits: bool = False,
    ) -> None:
        if not isinstance(maxsize, int) or isinstance(maxsize, bool) or maxsize < 1:
            raise Refused(f"maxsize is an int of at least 1, got {maxsize!r}")
        if policy not in POLICIES:
            raise Refused(f"there is no policy {policy!r}; there are {', '.join(POLICIES)}")
        self._ttl = _checked_ttl(ttl)
        self._store = Store(maxsize, POLICIES[policy](maxsize), weigher, on_evict, timer)
        self._saturation = POLICIES[policy].saturation
        # A hit looks no further than this object.
        self._table, self._buffer, self._timer = self._store.table, self._store.buffer, timer
        self._hits = self._misses = 0
        self._counts = count_hits or not self._saturation

    @property
    def maxsize(self) -> int:
        """How heavy it may become."""
        return self._store.maxsize

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` if it is not there or has expired."""
        try:
            entry = self._table[key]
        except KeyError:
            self._misses += 1
            return default
        # `ends` before `value`: who renews an entry writes them in the other order.
        if entry.ends is not None and entry.ends <= self._timer():
            return self._late(entry, default)
        if entry.freq < self._saturation:
            entry.freq += 1
        return entry.value

    def set(self, key: K, value: V, *, ttl: float | None = UNSET) -> None:
        """Keep a value, instead of the one that is there; loads of this key under way keep nothing.

        Args:
            key: Anything hashable.
            value: Of any kind; it is not copied.
            ttl: Seconds that it lives, None for ever; not given, the cache's.

        Raises:
            Refused: The ttl is not above 0, or the weigher's answer is no weight.
        """
        lasts = self._ttl if ttl is UNSET else _checked_ttl(ttl)
        self._store.set(key, value, lasts)

    def delete(self, key: K) -> bool:
        """Forget a key; loads of it under way keep nothing. Gives whether it was there."""
        return self._store.delete(key)

    def clear(self) -> None:
        """Forget everything; loads under way keep nothing."""
        self._store.clear()

    def expire(self) -> None:
        """Let go of all that has expired. Each change does a little of this by itself."""
        self._store.sweep()

    def get_or_load(self, key: K, load: Callable[[], V], *, ttl: float | None = UNSET) -> V:
        """The value of ``key``; if it is not there, ``load()`` gives it. One thread loads, others wait.

        Args:
            key: Anything hashable.
            load: Gives the value. If it raises, all who wait get that error, and nothing is kept.
            ttl: As for ``set``.

        Raises:
            RuntimeError: The load asks for its own key.
        """
        found: Any = self.get(key, UNSET)
        if found is not UNSET:
            return found  # type: ignore[no-any-return]
        lasts = self._ttl if ttl is UNSET else _checked_ttl(ttl)
        return self._store.flights.fly(key, load, lasts)  # type: ignore[no-any-return]

    async def aget_or_load(
        self, key: K, load: Callable[[], Awaitable[V] | V], *, ttl: float | None = UNSET
    ) -> V:
        """The same, awaited: one task of this event loop loads, and outlives whoever is cancelled.

        Args:
            key: Anything hashable.
            load: Gives the value, or an awaitable of it.
            ttl: As for ``set``.
        """
        found: Any = self.get(key, UNSET)
        if found is not UNSET:
            return found  # type: ignore[no-any-return]
        lasts = self._ttl if ttl is UNSET else _checked_ttl(ttl)
        return await self._store.flights.fly_async(key, load, lasts)  # type: ignore[no-any-return]

    def cached(
        self, *, key: Callable[..., Hashable] | None = None, ttl: float | None = UNSET
    ) -> Callable[[F], Cached[F]]:
        """Keep the results of a function, or of a coroutine function, in this cache.

        Without ``key`` two calls are one entry if their arguments are equal after they are bound to the
        signature: ``f(1)``, ``f(x=1)`` and a default filled in. (Equal as in a dict: 1, 1.0 and True are.)

        Args:
            key: Makes the key from the arguments, where they are not hashable, say.
            ttl: As for ``set``.

        Returns:
            A decorator. What it makes has ``key(*args)``, ``invalidate(*args)`` and ``uncached``.
        """
        from fencepost.local.decorator import decorate

        if ttl is not UNSET:
            _checked_ttl(ttl)
        return lambda fn: decorate(self, fn, key, ttl)

    def stats(self) -> LocalStats:
        """What it did so far, and what it holds."""
        store, flights = self._store, self._store.flights
        return LocalStats(
            hits=self._hits if self._counts else None,
            misses=self._misses,
            loads=flights.loads,
            load_errors=flights.errors,
            unpublished=flights.unpublished,
            evicted=store.evicted,
            expired=store.expired,
            entries=len(self._table),
            weight=store.weight,
        )

    def __contains__(self, key: object) -> bool:
        """Whether it is there and has not expired; not counted as a read."""
        entry = self._table.get(key)
        return entry is not None and self._store.lives(entry)

    def __len__(self) -> int:
        """How many entries it holds, those too that have expired and are not swept yet."""
        return len(self._table)

    def __repr__(self) -> str:
        store = self._store
        return f"LocalCache({type(store.policy).__name__}, {store.weight} of {store.maxsize})"

    def _late(self, entry: Entry, default: Any) -> Any:
        """A reader found an entry that has expired."""
        self._misses += 1
        self._store.bury(entry)
        return default


class _Counting(LocalCache[K, V]):
    """The same, and hits are counted."""

    __slots__ = ()

    def get(self, key: K, default: Any = None) -> Any:
        try:
            entry = self._table[key]
        except KeyError:
            self._misses += 1
            return default
        if entry.ends is not None and entry.ends <= self._timer():
            return self._late(entry, default)
        if entry.freq < self._saturation:
            entry.freq += 1
        self._hits += 1
        return entry.value


class _Ordered(LocalCache[K, V]):
    """With a policy that needs to know in which order entries were hit."""

    __slots__ = ()

    def get(self, key: K, default: Any = None) -> Any:
        try:
            entry = self._table[key]
        except KeyError:
            self._misses += 1
            return default
        if entry.ends is not None and entry.ends <= self._timer():
            return self._late(entry, default)
        self._hits += 1
        buffer = self._buffer
        buffer.append(entry)
        if len(buffer) >= _BUFFER:
            self._store.catch_up()
        return entry.value


def _checked_ttl(ttl: float | None) -> float | None:
    if ttl is None:
        return None
    if not isinstance(ttl, int | float) or isinstance(ttl, bool) or not ttl > 0:
        raise Refused(f"a ttl is a number of seconds above 0, or None for ever; got {ttl!r}")
    return None if ttl == float("inf") else float(ttl)
