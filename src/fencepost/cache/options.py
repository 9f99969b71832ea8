"""How a cache behaves; checked at birth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fencepost.cache.hot import HotOptions
from fencepost.cache.near import NearOptions
from fencepost.errors import Refused

OnTimeout = Literal["raise", "stale", "load"]
OnRejected = Literal["reread", "stale", "raise"]
Coalesce = Literal["fleet", "process", "none"]
OnDown = Literal["load", "raise"]
Consistency = Literal["near", "server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Options of a cache; keyword-only and frozen.

    Args:
        ttl: Seconds that an entry is fresh.
        stale: Seconds beyond ``ttl`` that it may be served while it is refreshed, or when that
            fails. Then it is gone: nothing moves that deadline.
        negative_ttl: Seconds that "there is none" is fresh; None does not cache it.
        jitter: Fraction of ``ttl`` by which entries' lives differ, so that they don't end at once.
        beta: How eagerly an entry is refreshed before its end, in units of its load time (XFetch;
            Vattani, Chierichetti, Lowenstein, "Optimal Probabilistic Cache Stampede Prevention",
            VLDB 2015). 0 never does.
        lease: Seconds that a loader's right lasts without a sign of life; it is renewed while it runs.
        load_limit: Seconds after which a load is given up: a coroutine is cancelled, what a thread
            brings is dropped when it comes.
        soft_limit: Seconds that a caller with a stale value at hand gives the refresh, before it
            takes that value while the load goes on; 0 waits for nothing.
        error_ttl: Seconds after a failed load in which callers of this process get the same error
            without another try; 0 tries each time. With a stale value at hand they take that, and
            it is refreshed no sooner than after a second.
        wait: Seconds that a caller waits for somebody else's load.
        on_timeout: Then: ``raise`` ``WaitTimeout``, take a ``stale`` value (or raise), or ``load``
            without a lease, under ``max_loads``.
        on_rejected: What the owner of a refused load does: ``reread`` (and load again, ``rounds``
            times at most), take a ``stale`` value, or ``raise`` ``RefreshRejected``.
        on_down: What a caller does when the server can't be reached: ``load`` under ``max_loads``
            (nothing is cached then), or ``raise``.
        max_loads: Loads of this cache that one process runs at once (one event loop, where a process
            has several); others wait their turn, ``load_limit`` seconds at most. A thread that takes
            too long keeps its place until it returns.
        max_loads_total: Loads of this cache that all processes together run at once: each takes a
            permit of a semaphore, and waits for it within ``load_limit``. A process that dies gives
            its permits back within ``lease``. None: ``max_loads`` a process alone. While the server
            can't be reached it is that, too, unless ``on_down`` is ``raise``.
        max_queue: Loads that wait their turn; one more gets ``Overloaded``.
        coalesce: Who shares a load: the whole ``fleet``, one ``process``, or ``none``.
        remember: Seconds that an invalidation is remembered: the longest that a replica of the
            source lags, and longer than any load.
        intent: Seconds that an announced write may take (``write_through``, ``write_around``). Until
            then nothing is published but by its end; a writer that dies leaves no older value
            behind for longer.
        rounds: How often a call may be refused before it gives up.
        shards: 0: each entry has a slot of its own. More: entries share so many slots, so that what
            is not saved yet can stand beside them; ``behind`` needs it, and then that is the only way to
            write. It must be the same in every process, and can't be changed later.
        near: Hold what is read in this process too, kept right by what the server says of changes: see
            ``NearOptions``. None holds nothing.
        hot: What is done about keys that are hot, while ``client.hotkeys`` counts: see ``HotOptions``.
            None does nothing.

    Raises:
        Refused: A value that can't work, and what to do.
    """

    ttl: float = 60.0
    stale: float = 0.0
    negative_ttl: float | None = 5.0
    jitter: float = 0.0
    beta: float = 1.0
    lease: float = 5.0
    load_limit: float = 30.0
    soft_limit: float = 0.0
    error_ttl: float = 0.0
    wait: float = 10.0
    on_timeout: OnTimeout = "raise"
    on_rejected: OnRejected = "reread"
    on_down: OnDown = "load"
    max_loads: int = 64
    max_loads_total: int | None = None
    max_queue: int = 10_000
    coalesce: Coalesce = "fleet"
    remember: float = 60.0
    intent: float = 10.0
    rounds: int = 3
    shards: int = 0
    near: NearOptions | None = None
    hot: HotOptions | None = None

    def __post_init__(self) -> None:
        for name in ("ttl", "lease", "load_limit", "remember", "intent"):
            seconds(name, getattr(self, name), least=0.001)
        for name in ("stale", "wait", "soft_limit", "error_ttl"):
            seconds(name, getattr(self, name), least=0)
        if self.negative_ttl is not None:
            seconds("negative_ttl", self.negative_ttl, least=0.001)
        if not _number(self.jitter) or not 0 <= self.jitter <= 1:
            raise Refused(f"jitter is a fraction of ttl, 0 to 1, got {self.jitter!r}")
        if not _number(self.beta) or not 0 <= self.beta <= 100:
            raise Refused(f"beta is 0 (never early) to 100, got {self.beta!r}")
        for name, allowed in (
            ("on_timeout", ("raise", "stale", "load")),
            ("on_rejected", ("reread", "stale", "raise")),
            ("coalesce", ("fleet", "process", "none")),
            ("on_down", ("load", "raise")),
        ):
            if getattr(self, name) not in allowed:
                raise Refused(f"{name} is one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("max_loads", "max_loads_total", "max_queue", "rounds"):
            value = getattr(self, name)
            if name == "max_loads_total" and value is None:
                continue
            if type(value) is not int or not 1 <= value <= 100_000:
                raise Refused(f"{name} is a whole number from 1 to 100,000, got {value!r}")
        if type(self.shards) is not int or not 0 <= self.shards <= 999:
            raise Refused(f"shards is a whole number from 0 to 999, got {self.shards!r}")
        if self.shards and self.on_down != "raise":
            raise Refused(
                "a cache with shards holds what the source does not have yet: without the server a "
                "loader would bring older values back; give on_down='raise'"
            )
        if self.near is not None and not isinstance(self.near, NearOptions):
            raise Refused(f"near is a NearOptions or None, got {self.near!r}")
        if self.hot is not None and not isinstance(self.hot, HotOptions):
            raise Refused(f"hot is a HotOptions or None, got {self.hot!r}")
        if self.hot is not None and self.near is not None:
            raise Refused("near holds every key, hot the hot ones alone: give one of them")
        if self.lease > self.load_limit:
            raise Refused(
                f"lease {self.lease:g} s is longer than load_limit {self.load_limit:g} s: a loader that "
                "died would be waited for longer than one that works; lower lease"
            )
        if self.remember < self.load_limit:
            raise Refused(
                f"remember {self.remember:g} s is shorter than load_limit {self.load_limit:g} s: a load "
                "could outlive the memory of what stopped it; raise remember"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BehindOptions:
    """How values are written behind; keyword-only and frozen.

    Args:
        flush_delay: Seconds from a write to its flush; what comes between is coalesced.
        claim_time: Seconds after which another flusher takes over from one that died: longer than
            ``save_many`` takes, or two save the same (which is harmless, and work for nothing).
        batch_items: Values a ``save_many``, at most.
        max_age_dirty: Seconds that a value may wait for the source. From half of it on values are
            flushed eagerly, from three quarters writers wait for their own flush, and at it writes
            are refused.
        max_dirty: Values that may wait for the source; likewise.
        tries: How often a value that fails by itself is tried before it is set aside.
        max_aside: Values that a shard keeps set aside; more stay in the journal.
        rounds: How often a call may meet a closed shard before it gives up with ``Overloaded``.

    Raises:
        Refused: A value that can't work, and what to do.
    """

    flush_delay: float = 0.25
    claim_time: float = 10.0
    batch_items: int = 100
    max_age_dirty: float = 300.0
    max_dirty: int = 100_000
    tries: int = 5
    max_aside: int = 1_000
    rounds: int = 16

    def __post_init__(self) -> None:
        seconds("flush_delay", self.flush_delay, least=0)
        for name in ("claim_time", "max_age_dirty"):
            seconds(name, getattr(self, name), least=0.001)
        for name, least, most in (
            ("batch_items", 1, 1_000),
            ("max_dirty", 1, 100_000_000),
            ("tries", 1, 1_000),
            ("max_aside", 0, 100_000),
            ("rounds", 4, 10_000),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise Refused(f"{name} is a whole number from {least} to {most:,}, got {value!r}")

    @property
    def batch_changes(self) -> int:
        """A key has one value."""
        return self.batch_items


def seconds(name: str, value: object, *, least: float) -> None:
    """Refuse what is no number of seconds.

    Raises:
        Refused: It is no number, infinite, below ``least`` or above a year.
    """
    if not _number(value) or not least <= value <= 366 * 86_400:  # type: ignore[operator]
        raise Refused(f"{name} is in seconds, {least:g} to a year, got {value!r}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
