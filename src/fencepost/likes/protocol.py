"""The like cache's algorithms.

What is guaranteed: a like that was answered is in the set, in the count and in the journal, or in
none of them; SQL gets each user's newest state once, in order, and ``like_count`` moves by the rows
that really changed; a load never overwrites what is known and never brings back what is not yet in
SQL; "no likes" is a fact that is stored, not a key that is missing.

Why, in five lines. A script changes set, count and journal together, since all keys of a shard
share a slot. Nothing leaves the journal before its COMMIT, and then only the exact version that was
committed. A load holds a token that every flush of the same users withdraws, so what it read before
the flush can't be written after it. A header that is lost while its journal is not empty is flushed
first, then loaded. Fences are drawn where the journal is read, and SQL refuses an older one.

And when the server loses data: a shard is open only while its opening record stands, which is born
from an epoch that SQL raised first. So what is lost is lost together, is noticed, and no flusher of
the time before can write any more.

What is not: with an asynchronous flush, a change that the server forgets before it is in SQL is
lost (at most the last ``flush_delay`` and what the server had not made durable). Writers that go
past fencepost are seen when the item is loaded anew.

Every function takes what the caller knows of the shard (``Known``, or None) and gives back what is
known then: nothing here remembers anything but its locals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from fencepost._core import commands
from fencepost._core.keys import LikeShard, field_of, user_of
from fencepost._core.observe import ColdLoad, DirtyDrain, Flushed, FlushRefused, Hook, SetAside
from fencepost._core.port import OtherServer, Port
from fencepost._core.script import Call
from fencepost.errors import UnknownItem
from fencepost.journal.protocol import (
    Known,
    Place,
    claim,
    dirty_items,
    gave_up,
    look_due,
    open_shard,
    opened,
)
from fencepost.journal.scripts import Closed, Journal
from fencepost.likes import scripts as s
from fencepost.likes.options import LikeOptions, milliseconds
from fencepost.likes.store import (
    Change,
    Committed,
    Id,
    ItemBatch,
    LikeStore,
    Poisoned,
    Snapshot,
)

_EVICT_AT_ONCE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of one like cache: where it is, and how it behaves."""

    name: str
    keys: LikeShard
    place: Place
    store: LikeStore
    options: LikeOptions
    hook: Hook = field(default_factory=Hook, compare=False, repr=False)
    scripts: s.Scripts = field(default=s.SCRIPTS, compare=False, repr=False)
    what: str = field(default="likes", init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LikeResult:
    """The state after a change: ``changed`` is False if it was so before.

    ``version`` is what the journal holds of the user, '' where nothing waits.
    """

    liked: bool
    count: int
    changed: bool
    version: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LikeStatus:
    """One user's state of one item, and how many like it. ``liked`` is False without a user."""

    liked: bool
    count: int


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


def unknown_item(item: str) -> UnknownItem:
    return UnknownItem(f"there is no item {item!r}; nothing was written")


# -- like, unlike


async def set_like(
    io: Port, shard: Shard, known: Known | None, item: str, user: str, liked: bool
) -> tuple[LikeResult, Known]:
    """Like or unlike; absolute, so that a repeated call changes nothing more.

    Raises:
        UnknownItem: There is no such item.
        OutcomeUnknown: The reply was lost; repeat it, or read the status.
        Overloaded: The shard kept changing under the call.
    """
    keys, who, want = shard.keys, field_of(user), "1" if liked else "0"
    delay_ms = milliseconds(shard.options.flush_delay)
    for _ in range(shard.options.rounds):
        if known is None:
            known = await open_shard(io, shard)
            continue
        try:
            answer = await io.run(
                shard.scripts.set(
                    (keys.opening, keys.header(item), keys.journal(item), keys.due, keys.since),
                    (known.epoch, known.server, item, who, want, delay_ms),
                    known.server,
                )
            )
        except OtherServer:
            known = None
            continue
        match answer:
            case s.Done(count, version):
                return LikeResult(liked, count, True, version), known
            case s.Same(count, version):
                return LikeResult(liked, count, False, version), known
            case s.Gone():
                raise unknown_item(item)
            case Closed():
                known = None
            case s.Cold():
                known = await load(io, shard, known, item, user)
    raise gave_up(shard, "a like")


# -- status: unknown is never "no"


async def status(
    io: Port, shard: Shard, known: Known | None, item: str, user: str | None
) -> tuple[LikeStatus, Known]:
    """One user's state and the count, loaded from SQL where they are not known.

    Raises:
        UnknownItem: There is no such item.
        Overloaded: The shard kept changing under the call.
    """
    for _ in range(shard.options.rounds):
        if known is None:
            known = await open_shard(io, shard)
            continue
        try:
            fields = await io.run(peek(shard, known, item, user))
        except OtherServer:
            known = None
            continue
        found = read_header(fields, known, item)
        if found is not None:
            return found, known
        known = await load(io, shard, known, item, user)
    raise gave_up(shard, "a status")


def peek(shard: Shard, known: Known, item: str, user: str | None) -> Call[list[str | None]]:
    """The call that reads one item's header for one user; no script."""
    who = () if user is None else (field_of(user),)
    return commands.hmget(
        shard.keys.header(item), "#e", "#n", "#gone", "#full", *who, only=known.server
    )


def read_header(fields: list[str | None], known: Known, item: str) -> LikeStatus | None:
    """What a header says; None where it does not say.

    Raises:
        UnknownItem: It says that there is no such item.
    """
    epoch, count, gone, full, *state = fields
    if epoch != known.epoch:
        return None
    if gone is not None:
        raise unknown_item(item)
    if count is None:
        return None
    if not state:
        return LikeStatus(False, int(count))
    if state[0] is None and full is None:
        return None
    return LikeStatus(state[0] == "1", int(count))


# -- load: from one SQL snapshot, under a token


async def load(io: Port, shard: Shard, known: Known, item: str, user: str | None) -> Known | None:
    """Bring an item, or one user's state of it, from SQL; what is known by then (None: open again).

    Whether it filled is for the caller to see: it asks again, and its rounds are bounded.

    Raises:
        UnknownItem: There is no such item.
    """
    keys, options = shard.keys, shard.options
    who = "#" if user is None else field_of(user)
    try:
        begun = await io.run(
            shard.scripts.begin(
                (keys.opening, keys.header(item), keys.journal(item), keys.due, keys.tokens(item)),
                (
                    known.epoch,
                    known.server,
                    item,
                    who,
                    io.token(),
                    milliseconds(options.flush_delay),
                    milliseconds(2 * options.load_limit),
                ),
                known.server,
            )
        )
    except OtherServer:
        return None
    match begun:
        case Closed():
            return None
        case s.Gone():
            raise unknown_item(item)
        case s.Dirty():
            return await drain_dirty(io, shard, known, item)
    snapshot: Snapshot = await io.call(
        shard.store.snapshot,
        shard.place,
        shard.store.item_id(item),
        None if user is None else shard.store.user_id(user),
        options.full_max if begun.field == s.HEADER_FIELD else 0,
    )
    count, full, states = what_to_fill(shard.store, snapshot, begun.field, user)
    try:
        filled = await io.run(
            shard.scripts.fill(
                (keys.opening, keys.header(item), keys.journal(item), keys.tokens(item)),
                (
                    str(
                        snapshot.epoch
                    ),  # of the snapshot, not of the caller: an older reading fills nothing
                    known.server,
                    begun.token,
                    begun.field,
                    count,
                    full,
                    milliseconds(options.ttl),
                    milliseconds(options.missing_ttl),
                    *states,
                ),
                known.server,
            )
        )
    except OtherServer:
        return None
    if shard.hook.listener is not None:
        shard.hook.listener(ColdLoad(shard.name, item, type(filled).__name__.lower()))
    match filled:
        case Closed():
            return None
        case s.Gone():
            raise unknown_item(item)
        case s.Dirty():
            return await drain_dirty(io, shard, known, item)
        case s.Filled(fields):
            await evict_over(io, shard, item, fields)
    return known


async def drain_dirty(io: Port, shard: Shard, known: Known, item: str) -> Known | None:
    """Bring to SQL what waits of an item whose header is lost, so that it can be loaded."""
    if shard.hook.listener is not None:
        shard.hook.listener(DirtyDrain(shard.name, item))
    _, after = await flush_items(io, shard, known, (item,))
    return after


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


def what_to_fill(
    store: LikeStore, snapshot: Snapshot, token_field: str, user: str | None
) -> tuple[str, str, list[str]]:
    """Count, full and the known states, as the script takes them."""
    if snapshot.count is None:
        return "", "0", []
    if token_field == s.HEADER_FIELD and snapshot.likers is not None:
        likers = [field_of(store.user_key(liker)) for liker in snapshot.likers]
        # The set is the truth of the count: both come from the same snapshot.
        return str(len(likers)), "1", [word for liker in likers for word in (liker, "1")]
    pair = [] if user is None else [field_of(user), "1" if snapshot.liked else "0"]
    return str(snapshot.count), "0", pair


# -- flush: claim, commit, acknowledge


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


__all__ = [
    "Flush",
    "FlushReport",
    "Id",
    "Known",
    "LikeResult",
    "LikeStatus",
    "Shard",
    "dirty_items",
    "flush_batch",
    "flush_due",
    "flush_items",
    "gave_up",
    "load",
    "look_due",
    "open_shard",
    "opened",
    "set_like",
    "status",
]
