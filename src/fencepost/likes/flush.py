"""The flush of likes: claim, commit, acknowledge. Why it is right stands at the head of ``protocol.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from fencepost._core import commands
from fencepost._core.keys import field_of, user_of
from fencepost._core.observe import Flushed, FlushRefused, SetAside
from fencepost._core.port import OtherServer, Port
from fencepost._core.script import Call
from fencepost.journal.protocol import Known, claim, gave_up, look_due, open_shard
from fencepost.journal.scripts import Closed, Journal
from fencepost.likes import scripts as s
from fencepost.likes.options import milliseconds
from fencepost.likes.shard import Shard
from fencepost.likes.store import Change, Committed, ItemBatch, LikeStore, Poisoned

_EVICT_AT_ONCE: Final = 2_000


@dataclass(frozen=True, slots=True)
class FlushReport:
    """What a flush did.

    Args:
        entries: Changes that were read.
        changed: Rows that changed.
        orphans: Items that do not exist any more.
        poison: Changes that the database refused by themselves.
    """

    entries: int = 0
    changed: int = 0
    orphans: int = 0
    poison: int = 0

    def __add__(self, other: FlushReport) -> FlushReport:
        return FlushReport(
            self.entries + other.entries,
            self.changed + other.changed,
            self.orphans + other.orphans,
            self.poison + other.poison,
        )


@dataclass(frozen=True)
class Flush:
    """One claimed batch that was committed: what each item's journal held, and what SQL said."""

    report: FlushReport
    journals: dict[str, Journal]
    done: Committed

    @cached_property
    def versions(self) -> dict[str, dict[str, str]]:
        """Each item's versions by user."""
        return {item: dict(journal.entries) for item, journal in self.journals.items()}


async def flush_items(
    io: Port, shard: Shard, known: Known | None, items: Sequence[str]
) -> tuple[FlushReport, Known | None]:
    """Bring some items' journals into SQL, once each: what comes meanwhile is for the next flush.

    Raises:
        Overloaded: Other flushers and epochs kept coming between.
    """
    flush, known = await flush_batch(io, shard, known, items)
    return flush.report, known


async def flush_batch(
    io: Port,
    shard: Shard,
    known: Known | None,
    items: Sequence[str],
    committed: Callable[[Flush], None] = lambda _: None,
) -> tuple[Flush, Known | None]:
    """The same, told in full. No more changes are read than a transaction may hold, of all items.

    Args:
        io: The port.
        shard: The shard.
        known: What is known of it.
        items: Which items.
        committed: Called when they are in SQL, before they leave the journal.
    """
    keys, options = shard.keys, shard.options
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
            [keys.journal(item) for item in items],
            items,
            milliseconds(options.claim_time),
            options.batch_changes,
        )
        if claimed is None:
            known = None
            continue
        batches = [
            read_batch(shard.store, item, one)
            for item, one in zip(items, claimed.journals, strict=True)
        ]
        done = Committed()
        if any(batch.changes for batch in batches):
            done = await io.call(
                shard.store.commit, shard.place, int(known.epoch), claimed.fence, batches
            )
        if done.refused:
            if shard.hook.listener is not None:
                shard.hook.listener(FlushRefused(shard.name, shard.place.shard, done.refused))
            if done.refused == "epoch":
                known = None
            continue
        orphans = {shard.store.item_key(orphan) for orphan in done.orphans}
        journals = dict(zip(items, claimed.journals, strict=True))
        report = FlushReport(
            sum(len(one.entries) for one in claimed.journals),
            done.changed,
            len(orphans),
            sum(one.kept for one in done.poison),
        )
        flush = Flush(report, journals, done)
        committed(flush)
        # Only now, and only the exact versions that were committed, may leave the journal.
        handled = {
            item: without_kept_back(shard.store, item, one, done.poison)
            for item, one in journals.items()
            if one.whole or one.entries
        }
        try:
            acks = await io.all(
                [
                    acknowledge(shard, known, item, one, claimed.at_ms, item in orphans)
                    for item, one in handled.items()
                ]
            )
            for item, ack in zip(handled, acks, strict=True):
                if isinstance(ack, s.Acked):
                    await evict_over(io, shard, item, ack.fields)
        except OtherServer:
            known = None  # committed all the same; the next flush finds it done
        if done.poison:
            await drop_poisoned(io, shard, done.poison)
        if shard.hook.listener is not None:
            shard.hook.listener(
                Flushed(
                    shard.name,
                    shard.place.shard,
                    len(items),
                    report.entries,
                    report.changed,
                    report.orphans,
                    io.now() - started,
                )
            )
        return flush, known
    raise gave_up(shard, "a flush")


def without_kept_back(
    store: LikeStore, item: str, journal: Journal, poison: Sequence[Poisoned]
) -> Journal:
    """A journal without the changes that SQL refused and had no room to set aside: those stay."""
    stay = {
        field_of(store.user_key(one.user))
        for one in poison
        if not one.kept and store.item_key(one.item) == item
    }
    if not stay:
        return journal
    return Journal(journal.whole, tuple(entry for entry in journal.entries if entry[0] not in stay))


async def drop_poisoned(io: Port, shard: Shard, poison: Sequence[Poisoned]) -> None:
    """Let the cache forget items with changes that never came into SQL: it is loaded as it is there."""
    if shard.hook.listener is not None:
        for one in poison:
            shard.hook.listener(SetAside(shard.name, one.item, one.user, one.reason, one.kept))
    # Where a change stays in the journal, so does what the cache says of it.
    items = sorted({shard.store.item_key(one.item) for one in poison if one.kept})
    await io.all(
        [
            shard.scripts.invalidate((shard.keys.header(item), shard.keys.tokens(item)))
            for item in items
        ]
    )


def read_batch(store: LikeStore, item: str, journal: Journal) -> ItemBatch:
    """A journal as the store takes it."""
    user_id, read = store.user_id, s.read_version
    changes = [Change(user_id(user_of(who)), *read(version)) for who, version in journal.entries]
    return ItemBatch(store.item_id(item), journal.whole, tuple(changes))


def acknowledge(
    shard: Shard, known: Known, item: str, journal: Journal, at_ms: int, orphan: bool
) -> Call[Closed | s.Gone | s.Acked]:
    """The call that removes what was committed of one item."""
    keys, options = shard.keys, shard.options
    return shard.scripts.ack(
        (
            keys.opening,
            keys.header(item),
            keys.journal(item),
            keys.due,
            keys.since,
            keys.tokens(item),
        ),
        (
            known.epoch,
            known.server,
            item,
            "1" if orphan else "0",
            at_ms if journal.whole else "",
            milliseconds(options.flush_delay) if journal.whole else 0,  # the rest is late already
            milliseconds(options.ttl),
            milliseconds(options.max_age),
            milliseconds(options.missing_ttl),
            *(word for entry in journal.entries for word in entry),
        ),
        known.server,
    )


async def flush_due(
    io: Port, shard: Shard, known: Known | None
) -> tuple[FlushReport, float | None, Known | None]:
    """Flush what is due in one shard: a batch at most.

    Returns:
        What was done, seconds until more is due (0: at once; None: nothing waits), and what is known.
    """
    due = await io.run(look_due(shard))
    wait = None if due.wait_ms < 0 else due.wait_ms / 1000
    if not due.items:
        return FlushReport(), wait, known
    report, known = await flush_items(io, shard, known, due.items)
    return report, 0.0 if len(due.items) == shard.options.batch_items else wait, known


async def evict_over(io: Port, shard: Shard, item: str, fields: int) -> None:
    """Keep an item's memory bounded: drop some clean states if it holds too many."""
    if fields <= shard.options.pairs_max:
        return
    # A slice at a time: what is over shrinks with every load and flush, and no call takes long.
    surplus = min(fields - shard.options.pairs_max, _EVICT_AT_ONCE)
    header = shard.keys.header(item)
    some = await io.run(commands.read("HRANDFIELD", header, surplus))
    await io.run(
        shard.scripts.evict(
            (header, shard.keys.journal(item)), [one.decode() for one in some or ()]
        )
    )
