"""Write-behind: a value is in the cache and in a journal at once, and at the source a moment later.

What holds, whatever pauses, crashes or loses a reply:

1. Who reads after a ``put`` was answered is given its value or a newer one, never what the source
   has meanwhile: the entry has no end while its value is unsaved, no load is granted beside a
   journal (``claim``), and a load from before has lost its lease.
2. The source gets each key's newest value, in order. Fences are drawn where the journal is read and
   compared where it is saved; a flusher that was paused meanwhile is refused (``Superseded``).
3. Only the exact version that was saved leaves the journal; what came meanwhile is for the next flush.
4. A flusher owns nothing: it may die, pause or be doubled at any point.
5. A value that the source refuses by itself is set aside with the reason, and stops nobody else.

Where it ends. The source must compare: a ``gate`` in its own transaction, or whatever ``save_many``
does with ``Batch.order`` and ``Unsaved.version``; without that a paused flusher may write an older
value over a newer one. And what the server loses before it is saved is lost: ``flush_delay`` and the
server's own durability bound it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fencepost._core.keys import CacheShard
from fencepost._core.observe import Hook
from fencepost._core.port import OtherServer, Port
from fencepost.cache.entry import (
    NO_REVISION,
    UNSAVED,
    Header,
    Loaded,
    encode,
)
from fencepost.cache.judge import Candidate, life
from fencepost.cache.options import BehindOptions
from fencepost.cache.region import Ask, Region, new_token, remember_ms
from fencepost.cache.scripts import BEHIND, BehindScripts, Put
from fencepost.cache.tags import stamps_of
from fencepost.errors import FencepostError, Refused
from fencepost.journal.protocol import Epochs, Known, Place, gave_up, open_shard

T = TypeVar("T")


class Unsaveable(FencepostError):
    """Raised by a ``save_many``: a value of its batch can never be saved; alone, it is set aside."""


@dataclass(frozen=True, slots=True)
class Unsaved(Generic[T]):
    """A value that the source does not have yet.

    Args:
        key: Its key.
        value: The value; None for "there is none": delete it.
        version: Grows with every write of the key, and is never used again.
    """

    key: str
    value: T | None
    version: int


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """What one ``save_many`` is given; iterate over it for its entries.

    Args:
        scope: Names the journal's shard at the source.
        epoch: Raised when the server lost its data.
        fence: Greater for each later reading of the shard's journal, in one epoch.
        entries: Different keys, one newest value each.
    """

    scope: str
    epoch: int
    fence: int
    entries: tuple[Unsaved[T], ...]

    @property
    def order(self) -> int:
        """Epoch and fence in one number (see ``in_order``): a source that has seen a greater one of this scope must
        refuse the batch (raise ``Superseded``)."""
        return in_order(self.epoch, self.fence)

    def __iter__(self) -> Iterator[Unsaved[T]]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class NoGate:
    """The source holds no epoch: they come from the server's clock."""

    def epoch(self, place: Place) -> int | None:
        return None

    def raise_epoch(self, place: Place, seen: int, epoch: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Writes:
    """One shard of the writes of a cache: where it is, and how it behaves."""

    region: Region
    keys: CacheShard
    place: Place
    store: Epochs
    save: Callable[[Batch[Any]], Any]
    options: BehindOptions
    hook: Hook = field(default_factory=Hook, compare=False, repr=False)
    scripts: BehindScripts = field(default=BEHIND, compare=False, repr=False)
    what: str = field(default="writes", init=False)

    @property
    def name(self) -> str:
        return self.region.name

    @property
    def scope(self) -> str:
        return f"{self.place.scope}/{self.place.shard}"


# -- write


async def put(
    io: Port, shard: Writes, known: Known | None, key: str, value: Any, ask: Ask
) -> tuple[int, Known]:
    """Write a value; its version.

    Raises:
        OutcomeUnknown: The reply was lost. It is never repeated: that could undo a newer one.
        Overloaded: The shard kept being opened anew.
    """
    region, keys, options = shard.region, shard.region.keys(key), shard.options
    entry, fresh_ms, ttl_ms = await _packed(io, region, key, value, ask)
    for _ in range(options.rounds):
        if known is None:
            known = await open_shard(io, shard)
            continue
        try:
            answer = await io.run(
                shard.scripts.put(
                    (
                        shard.keys.opening,
                        *keys.all,
                        keys.journal,
                        shard.keys.due,
                        shard.keys.since,
                        shard.keys.aside,
                    ),
                    (
                        known.epoch,
                        known.server,
                        key,
                        entry,
                        fresh_ms,
                        ttl_ms,
                        int(options.flush_delay * 1000),
                        remember_ms(region),
                    ),
                    known.server,
                )
            )
        except OtherServer:
            known = None
            continue
        if isinstance(answer, Put):
            return number(answer.version), known
        known = None
    raise gave_up(shard, "a write")


def number(version: str) -> int:
    """A version as one number."""
    epoch, _, seq = version.partition(".")
    return in_order(int(epoch), int(seq))


def in_order(epoch: int, count: int) -> int:
    """One number that grows with both: a trillion counts an epoch. With a gate, whose epochs begin at
    1, it fits into 64 bits; born from a clock it is longer."""
    return (epoch << 40) + count


async def _packed(
    io: Port, region: Region, key: str, value: Any, ask: Ask
) -> tuple[bytes, int, int]:
    """The entry of an unsaved value, and for how long it is fresh and lives once it is saved."""
    if isinstance(value, Loaded):
        raise Refused(
            "a value that is written behind has no revision; give ttl and tags to the call"
        )
    stamps = {tag: stamp for tag, stamp in (await stamps_of(io, region, ask.tags)).items() if tag}
    now_ms = io.server_ms()
    ends = life(region.options, Candidate(value), ask, now_ms, now_ms, io.chance())
    negative = value is None
    letter, payload = ("-", b"") if negative else region.codec.encode(value)
    header = Header(key, int(now_ms), 0, ends.stale_ms, negative, letter, stamps)
    entry = encode(new_token(io), NO_REVISION, UNSAVED, header, payload)
    return entry, max(int(ends.fresh_until - now_ms), 0), ends.ttl_ms
