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

from dataclasses import dataclass, field

from fencepost._core import commands
from fencepost._core.keys import field_of
from fencepost._core.observe import ColdLoad, DirtyDrain
from fencepost._core.port import OtherServer, Port
from fencepost._core.script import Call
from fencepost.errors import UnknownItem
from fencepost.journal.protocol import Known, dirty_items, gave_up, look_due, open_shard, opened
from fencepost.journal.scripts import Closed
from fencepost.likes import scripts as s
from fencepost.likes.flush import (
    Flush,
    FlushReport,
    evict_over,
    flush_batch,
    flush_due,
    flush_items,
)
from fencepost.likes.options import milliseconds
from fencepost.likes.shard import Shard
from fencepost.likes.store import Id, LikeStore, Snapshot


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
