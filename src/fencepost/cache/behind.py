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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from fencepost._core.backoff import Backoff
from fencepost._core.keys import CacheShard
from fencepost._core.observe import FlushRefused, Hook, WriteSetAside, WritesSaved
from fencepost._core.port import OtherServer, Port
from fencepost.cache.entry import (
    NO_REVISION,
    UNSAVED,
    Header,
    Loaded,
    Unreadable,
    decode,
    encode,
)
from fencepost.cache.judge import Candidate, life
from fencepost.cache.options import BehindOptions
from fencepost.cache.region import Ask, Region, new_token, remember_ms
from fencepost.cache.scripts import BEHIND, Aside, BehindScripts, Deferred, Put
from fencepost.cache.tags import stamps_of
from fencepost.errors import FencepostError, OutcomeUnknown, Refused, Superseded, Unavailable
from fencepost.journal.protocol import Epochs, Known, Place, claim, gave_up, open_shard
from fencepost.journal.scripts import Claimed, Closed

T = TypeVar("T")
_AGAIN: Final = Backoff(0.5, 60.0)
_BARREN: Final = 16  # saves that failed one after the other, with none between that did not
_FIELDS: Final = 8  # more than a journal has


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
        """Epoch and fence in one number: a source that has seen a greater one of this scope must
        refuse the batch (raise ``Superseded``)."""
        return self.epoch << 32 | self.fence

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


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What a flush did.

    Args:
        entries: Values that were read from the journal.
        saved: Values that the source has now.
        deferred: Values that could not be saved by themselves, and are tried again.
        aside: Values that were set aside.
    """

    entries: int = 0
    saved: int = 0
    deferred: int = 0
    aside: int = 0

    def __add__(self, other: SaveReport) -> SaveReport:
        return SaveReport(
            self.entries + other.entries,
            self.saved + other.saved,
            self.deferred + other.deferred,
            self.aside + other.aside,
        )


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
    return int(epoch) << 32 | int(seq)


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


# -- flush: claim, save, acknowledge


@dataclass(slots=True)
class _Outcome:
    """What became of a claimed batch: versions by key, as the journal has them."""

    saved: list[Unsaved[Any]] = field(default_factory=list)
    failed: list[tuple[Unsaved[Any], Exception]] = field(default_factory=list)
    refused: str = ""
    error: Exception | None = None


async def flush_keys(
    io: Port, shard: Writes, known: Known | None, names: Sequence[str]
) -> tuple[SaveReport, Known | None]:
    """Bring some keys' values to the source, once each: what comes meanwhile is for the next flush.

    Raises:
        Overloaded: Other flushers and epochs kept coming between.
        Exception: What ``save_many`` raised, if that was about the source and not about a value;
            what was saved before has left the journal.
    """
    region, options = shard.region, shard.options
    for _ in range(options.rounds):
        if known is None:
            known = await open_shard(io, shard)
            continue
        started = io.now()
        claimed = await claim(
            io,
            shard,
            known,
            shard.scripts.claim,
            [region.keys(name).journal for name in names],
            names,
            int(options.claim_time * 1000),
            _FIELDS * len(names),
        )
        if claimed is None:
            known = None
            continue
        journals = {
            name: dict(one.entries) for name, one in zip(names, claimed.journals, strict=True)
        }
        versions = {name: one.get("version", b"").decode() for name, one in journals.items()}
        outcome = await _save(io, shard, int(known.epoch), claimed.fence, journals)
        if outcome.refused:
            if shard.hook.listener is not None:
                shard.hook.listener(FlushRefused(shard.name, shard.place.shard, outcome.refused))
            if outcome.refused == "epoch":
                known = None
            continue
        # Only now, and only the exact versions that were saved, may leave the journal. One without
        # a journal was lost alone, and is due for nothing.
        done = [one.key for one in outcome.saved]
        done += [name for name, version in versions.items() if not version]
        try:
            acks = await io.all([_ack(shard, known, one, versions[one], claimed) for one in done])
            deferred, aside = await _refused_values(io, shard, known, versions, outcome)
            if any(isinstance(ack, Closed) for ack in acks):
                known = None  # saved all the same; the next flush finds it done
        except OtherServer:
            known, deferred, aside = None, 0, 0
        report = SaveReport(len(journals), len(outcome.saved), deferred, aside)
        if shard.hook.listener is not None:
            shard.hook.listener(
                WritesSaved(
                    shard.name,
                    shard.place.shard,
                    report.entries,
                    report.saved,
                    report.deferred,
                    report.aside,
                    io.now() - started,
                )
            )
        if outcome.error is not None:
            raise outcome.error
        return report, known
    raise gave_up(shard, "a flush")


def _ack(shard: Writes, known: Known, key: str, version: str, claimed: Claimed) -> Any:
    keys = shard.region.keys(key)
    return shard.scripts.ack(
        (shard.keys.opening, keys.entry, keys.journal, shard.keys.due, shard.keys.since),
        (
            known.epoch,
            known.server,
            key,
            version,
            claimed.at_ms,
            int(shard.options.flush_delay * 1000),
        ),
        known.server,
    )


async def _save(
    io: Port, shard: Writes, epoch: int, fence: int, journals: dict[str, dict[str, bytes]]
) -> _Outcome:
    """Save what was claimed. A batch that fails is halved until the value is found that it fails by."""
    outcome, entries = _Outcome(), []
    for key, journal in journals.items():
        if "version" not in journal:
            continue
        version = number(journal["version"].decode())
        try:
            stored = decode(journal["entry"], key, shard.region.codec)
        except Unreadable as error:
            reason = Unsaveable(f"it can't be read as a value of this cache: {error}")
            outcome.failed.append((Unsaved(key, None, version), reason))
            continue
        entries.append(Unsaved(key, stored.value, version))
    todo, barren = [tuple(entries)] if entries else [], 0
    while todo:
        part = todo.pop()
        try:
            await io.call(shard.save, Batch(shard.scope, epoch, fence, part))
        except Superseded as error:
            outcome.refused = error.by
            break
        except Exception as error:
            barren += 1
            if of_the_source(error) or (barren >= _BARREN and not outcome.saved):
                outcome.error = error
                break
            if len(part) == 1:
                outcome.failed.append((part[0], error))
            else:
                middle = len(part) // 2
                todo += [part[middle:], part[:middle]]
        else:
            outcome.saved += part
    return outcome


async def _refused_values(
    io: Port, shard: Writes, known: Known, versions: dict[str, str], outcome: _Outcome
) -> tuple[int, int]:
    """Try values that failed alone again later, or set them aside; how many of each."""
    deferred = aside = 0
    for one, error in outcome.failed:
        version, keys = versions[one.key], shard.region.keys(one.key)
        if not isinstance(error, Unsaveable):
            if not outcome.saved and not of_the_value(error):
                outcome.error = error  # nothing was saved: it may as well be the source
                continue
            answer: Any = await io.run(
                shard.scripts.defer(
                    (shard.keys.opening, keys.journal, shard.keys.due),
                    (known.epoch, known.server, one.key, version, _wait_ms(io, shard)),
                    known.server,
                )
            )
            deferred += isinstance(answer, Deferred)
            if not isinstance(answer, Deferred) or answer.tries < shard.options.tries:
                continue
            deferred -= 1
        reason = " ".join(f"{type(error).__name__}: {error}"[:1000].split())  # one line
        answer = await io.run(
            shard.scripts.set_aside(
                (
                    shard.keys.opening,
                    keys.entry,
                    keys.journal,
                    shard.keys.due,
                    shard.keys.since,
                    shard.keys.aside,
                ),
                (known.epoch, known.server, one.key, version, reason, shard.options.max_aside),
                known.server,
            )
        )
        aside += isinstance(answer, Aside)
        if shard.hook.listener is not None and not isinstance(answer, Closed):
            kept = isinstance(answer, Aside)
            shard.hook.listener(WriteSetAside(shard.name, one.key, reason, kept))
    return deferred, aside


def _wait_ms(io: Port, shard: Writes) -> int:
    return int(max(_AGAIN.delay(1, io.chance()), shard.options.flush_delay) * 1000)


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def of_the_source(error: BaseException) -> bool:
    """Whether the source was away, busy or gave up: no value is to blame.

    Errors of database drivers are known by the names that PEP 249 gives them.
    """
    away = (Unavailable, OutcomeUnknown, OSError, TimeoutError)
    return isinstance(error, away) or bool(_names(error) & {"OperationalError", "InterfaceError"})


def of_the_value(error: BaseException) -> bool:
    """Whether the source objects to a value, so that others may pass."""
    return bool(_names(error) & {"IntegrityError", "DataError"})
