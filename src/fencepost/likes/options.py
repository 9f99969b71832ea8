"""How a like cache behaves; checked at birth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fencepost.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeOptions:
    """Options of a like cache. Every process that shares one must use the same ``shards``.

    Args:
        shards: Over how many keys' slots the items are spread; fixed at first use.
        ttl: Seconds that a clean item stays in the cache after its load or last flush.
        max_age: Seconds after which a clean item is loaded anew, however busy it is.
        full_max: Up to how many likers an item is loaded whole; above it pair by pair.
        pairs_max: How many users' states one item may hold in the cache; above it clean ones are evicted.
        flush_delay: Seconds from a change to its flush; what comes between is coalesced.
        claim_time: Seconds after which another flusher takes over from one that died.
        batch_items: Items a transaction, at most.
        batch_changes: Changes a transaction, at most.
        load_limit: Seconds that a load from SQL may take.
        missing_ttl: Seconds that "no such item" is remembered.
        forget_ttl: Seconds that a deleted item's tombstone stands, while its rows are being deleted.
        hints: Note each new like under its user for a minute, so that ``liked_by`` shows it before its
            flush; costs one more write a like.
        replicas: How many replicas must have a like that is ``replicated``.
        replicated: ``memory``: they have received it; ``aof``: it is on their disks and on the
            primary's (``replicas=0``: on the primary's only).
        replicated_wait: Seconds that may take; then the outcome is unknown.
        max_age_dirty: Seconds that a change may wait for SQL. From half of it on it is flushed
            eagerly, from three quarters callers wait for their commits, and at it likes are refused.
        max_dirty: Items that may wait for SQL; likewise.
        commit_wait: Seconds that a like which is ``committed`` waits for its COMMIT; likewise.
        rounds: How often a call may meet a closed shard, a lost header or a withdrawn token before
            it gives up with ``Overloaded``.

    Raises:
        Refused: A value that can't work, and what to do.
    """

    shards: int = 16
    ttl: float = 3600.0
    max_age: float = 86_400.0
    full_max: int = 5_000
    pairs_max: int = 20_000
    flush_delay: float = 0.25
    claim_time: float = 2.0
    batch_items: int = 64
    batch_changes: int = 1000
    load_limit: float = 10.0
    missing_ttl: float = 5.0
    forget_ttl: float = 60.0
    hints: bool = False
    replicas: int = 1
    replicated: Literal["memory", "aof"] = "memory"
    replicated_wait: float = 1.0
    max_age_dirty: float = 300.0
    max_dirty: int = 500_000
    commit_wait: float = 10.0
    rounds: int = 16

    def __post_init__(self) -> None:
        # Fewer than four rounds can't work: open, find the header lost, load it, then the call itself.
        for name, least in (("shards", 1), ("batch_items", 1), ("batch_changes", 1), ("rounds", 4)):
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= 10_000:
                raise Refused(f"{name} is a whole number from {least} to 10,000, got {value!r}")
        if self.replicated not in ("memory", "aof"):
            raise Refused(f"replicated is 'memory' or 'aof', got {self.replicated!r}")
        least = 1 if self.replicated == "memory" else 0
        if not isinstance(self.replicas, int) or not least <= self.replicas <= 100:
            raise Refused(
                f"replicas is a whole number from {least} to 100 in {self.replicated}, got {self.replicas!r}"
            )
        if not isinstance(self.full_max, int) or not 0 <= self.full_max <= 1_000_000:
            raise Refused(f"full_max is a whole number up to 1,000,000, got {self.full_max!r}")
        for name in (
            "ttl",
            "max_age",
            "claim_time",
            "load_limit",
            "missing_ttl",
            "forget_ttl",
            "replicated_wait",
            "commit_wait",
            "max_age_dirty",
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0.001 <= value <= 366 * 86_400:
                raise Refused(f"{name} is in seconds, 0.001 to a year, got {value!r}")
        if not isinstance(self.flush_delay, int | float) or not 0 <= self.flush_delay <= 3600:
            raise Refused(f"flush_delay is in seconds, 0 to 3600, got {self.flush_delay!r}")
        if not isinstance(self.pairs_max, int) or self.pairs_max < self.full_max + 100:
            raise Refused(
                f"pairs_max {self.pairs_max!r} leaves no room beside full_max {self.full_max}: "
                "an item that was just loaded would be evicted; raise pairs_max"
            )
        if not isinstance(self.max_dirty, int) or self.max_dirty < 1:
            raise Refused(f"max_dirty is a whole number of items, got {self.max_dirty!r}")
        if self.max_age < self.ttl:
            raise Refused(
                f"max_age {self.max_age} s is shorter than ttl {self.ttl} s; raise max_age"
            )


@lru_cache(maxsize=64)
def milliseconds(seconds: float) -> int:
    """A time as the server counts it, never 0 for what is not 0."""
    return max(1, round(seconds * 1000)) if seconds else 0
