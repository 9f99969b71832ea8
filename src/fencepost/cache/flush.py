"""The flush of what was written behind: claim, save, acknowledge; see ``behind`` for what holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost._core.backoff import Backoff
from fencepost._core.observe import FlushRefused, WriteSetAside, WritesSaved
from fencepost._core.port import OtherServer, Port
from fencepost.cache.behind import Batch, Unsaveable, Unsaved, Writes, number
from fencepost.cache.entry import Unreadable, decode
from fencepost.cache.scripts import Aside, Deferred
from fencepost.errors import FenceRefused, OutcomeUnknown, Superseded, Unavailable
from fencepost.journal.protocol import Known, claim, gave_up, open_shard
from fencepost.journal.scripts import Claimed, Closed

_AGAIN: Final = Backoff(0.5, 60.0)
_BARREN: Final = 16  # saves that failed one after the other, with none between that did not
_FIELDS: Final = 8  # more than a journal has


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
        except FenceRefused as error:
            outcome.refused = error.by if isinstance(error, Superseded) else "fence"
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
