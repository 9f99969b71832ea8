"""How an entry is read and refreshed.

What holds, whatever pauses, crashes or loses a reply:

1. A refresh publishes only while its lease stands: the token is compared in the step that writes.
   An expired owner is refused even if nobody came after it; its value is dropped.
2. Whatever makes older reads worthless (invalidate, set, a write) takes the lease away, in the step
   in which it happens. So a load that began before can't publish, and one that began after can.
3. A caller is given a value whose read of the source, or whose proof that nothing newer was
   announced (a publication, an entry that stands), came after the call began: ``Entry.as_of``.
   The exception is a stale value within what the caller allows.
4. A lease is renewed while the load runs, up to ``load_limit``; it is never made anew by renewal.
5. Tags live in other slots. Their stamps are read before the load, stored in the entry, and
   compared by every read: a late publication carries an old stamp, and is a miss at once.

Where it ends: ownership is not freshness. An owner that reads a lagging copy of the source may
publish what it read, unless revisions tell; and a server that loses its last second (a failover)
may let two owners publish, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fencepost._core import commands
from fencepost._core.backoff import Backoff
from fencepost._core.observe import EntryDiscarded
from fencepost._core.port import Port
from fencepost.cache.entry import (
    HEAD_BYTES,
    UNSAVED,
    Entry,
    Status,
    Stored,
    Unreadable,
    decode,
)
from fencepost.cache.judge import (
    EARLY,
    FRESH,
    GONE,
    is_early,
    judge,
    may_be_early,
)
from fencepost.cache.loading import Held, load_and_publish, load_only
from fencepost.cache.region import Ask, Load, Region, new_token
from fencepost.cache.scripts import Value, Wait
from fencepost.errors import (
    Overloaded,
    RefreshRejected,
    ServerError,
    WaitTimeout,
)

WAITING: Final = Backoff(0.005, 0.2)
LISTENS_FROM: Final = 2
"""Looks after which a waiter listens: a load that ends at once is not worth a subscription."""
RECHECK: Final = 1.0
"""Seconds after which a waiter who heard nothing looks by itself: a hint may be lost."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a read found: ``fresh``, ``early``, ``stale`` or ``gone``, and the entry if it can be read."""

    state: str
    stored: Stored[Any] | None


NOTHING: Final = Look(GONE, None)


# -- reading


async def look(io: Port, region: Region, key: str, ask: Ask) -> Look:
    """Read an entry and judge it. One GET; a tagged one reads its stamps too, in the same write
    if the caller names the tags."""
    call = commands.get(region.entry(key))
    stamps: dict[str, str | None] = {}
    try:
        if not ask.tags:
            raw = await io.run(call)
        else:
            calls = [call, *(commands.get(region.stamp(tag)) for tag in ask.tags)]
            raw, *found = await io.all(calls)
            stamps = {
                tag: stamp.decode() if stamp is not None else None
                for tag, stamp in zip(ask.tags, found, strict=True)
            }
    except ServerError as error:
        if error.code != "WRONGTYPE":
            raise
        await _discard(io, region, key, b"", -1, "foreign")
        return NOTHING
    if raw is None:
        return NOTHING
    return await judged(io, region, key, ask, raw, stamps)


async def judged(
    io: Port, region: Region, key: str, ask: Ask, raw: bytes, stamps: dict[str, str | None]
) -> Look:
    """Read what is stored, and judge it; what can't be read is dropped if it is still there."""
    stored = await readable(io, region, key, raw)
    if stored is None:
        return NOTHING
    more = [tag for tag in stored.header.stamps if tag not in stamps]
    if more:
        found = await io.all([commands.get_text(region.stamp(tag)) for tag in more])
        stamps = {**stamps, **dict(zip(more, found, strict=True))}
    return Look(state_of(io, region, stored, ask, stamps), stored)


async def readable(io: Port, region: Region, key: str, raw: bytes) -> Stored[Any] | None:
    """What is stored, decoded; what can't be is dropped if it is still there."""
    try:
        return decode(raw, key, region.codec)
    except Unreadable as error:
        await _discard(io, region, key, raw[:HEAD_BYTES], len(raw), str(error))
        return None


def state_of(
    io: Port, region: Region, stored: Stored[Any], ask: Ask, stamps: dict[str, str | None]
) -> str:
    """``fresh``, ``early``, ``stale`` or ``gone``; ``stamps`` are those of its tags as they are now."""
    if stored.fresh_until == UNSAVED:
        return FRESH  # the source does not have it yet, whatever happened to tags
    carried = stored.header.stamps
    if carried or ask.tags:
        if any(tag not in carried for tag in ask.tags):
            return GONE
        if any(stamps[tag] != stamp for tag, stamp in carried.items()):
            return GONE
    now, beta = io.server_ms(), region.options.beta
    state = judge(stored, now, ask.stale)
    if state is FRESH and may_be_early(stored, now, beta):
        return EARLY if is_early(stored, now, beta, io.chance()) else FRESH
    return state


async def _discard(io: Port, region: Region, key: str, head: bytes, size: int, reason: str) -> None:
    region.told.counts["discarded"] += 1
    region.told.event(EntryDiscarded(region.name, key, reason))
    await io.run(region.scripts.discard((region.entry(key),), (head, size)))


# -- refreshing


async def refresh(
    io: Port,
    region: Region,
    key: str,
    load: Load,
    ask: Ask,
    found: Look = NOTHING,
    held: Held | None = None,
) -> Entry[Any] | None:
    """Get an entry that is newer than what was found: load it, or wait for who does.

    Args:
        io: The port.
        region: The cache.
        key: Its key.
        load: The loader.
        ask: How the caller asks.
        found: What was there, judged stale, early or gone.
        held: Told which lease is held, for who stops this from outside.

    Returns:
        The entry; None if somebody else is loading and nobody waits (``ask.background``).

    Raises:
        WaitTimeout: Somebody else's load took too long, and ``on_timeout`` says so.
        RefreshRejected: Our load was refused, and ``on_rejected`` says so; or the source showed
            an older revision each time.
        Overloaded: The entry changed under our hands ``rounds`` times over.
    """
    options, held = region.options, held or Held()
    keys, lease_ms = region.keys(key), int(options.lease * 1000)
    deadline = io.now() + options.wait
    waits = changes = loads = 0
    refused = ""
    while True:
        # A token for each acquisition: a request that is sent again is the same one, a new one is not.
        held.token = new_token(io)
        sent, seen = io.now(), found.stored
        answer = await io.run(
            region.scripts.claim(
                (keys.entry, keys.lease, keys.intents, keys.journal),
                (held.token, seen.token if seen is not None else "", lease_ms),
            )
        )
        if isinstance(answer, Value):
            held.token = ""
            found = await judged(io, region, key, ask, answer.entry, {})
            there = found.stored
            fresh = there is not None and found.state in (FRESH, EARLY)
            if fresh and there is not None and is_newer(there, ask):
                status: Status = "reread" if refused else "waited" if waits else "hit"
                return there.shown(status, sent)
            changes += 1
            if changes > options.rounds * 10:
                raise Overloaded(f"{key!r} changed {changes} times while it was read")
            continue
        if isinstance(answer, Wait):
            held.token = ""
            if ask.background:
                return None
            if options.coalesce != "fleet":
                owner = answer.owner
                return await load_only(io, region, key, load, ask, seen, "unpublished", owner)
            left = deadline - io.now()
            if left <= 0:
                return await _waited_enough(io, region, key, load, ask, found, answer.owner)
            await pause(io, region, keys.lease, held, waits, left, answer.left_ms / 1000)
            waits += 1
            continue
        loads += 1
        if held.load is not None:
            # What is refused in the last round is its own caller's answer all the same.
            held.load.stoppable = options.on_rejected != "reread" or loads < options.rounds
            held.load.lost = ""
        done = await load_and_publish(io, region, key, load, ask, seen, held)
        if done.published or done.reason == "unreachable":
            return done
        refused = done.reason
        stale = servable(io, found, ask)
        if options.on_rejected == "stale" and stale is not None:
            return stale
        if options.on_rejected == "raise" or options.on_rejected == "stale":
            raise rejected(key, refused)
        if refused == "writing" or loads >= options.rounds:
            # Read after this call began, so right for it; but nobody else's, and not cached.
            if refused == "older":
                raise rejected(key, refused)
            return done
        found = NOTHING  # whatever is there now is judged anew


async def pause(
    io: Port, region: Region, channel: str, held: Held, waits: int, left: float, lease_left: float
) -> None:
    """Wait until somebody's lease ends, as far as that is told; then look again.

    Args:
        io: The port.
        region: The cache.
        channel: Of the lease.
        held: Keeps what listens.
        waits: How often the caller has waited.
        left: Seconds that it may.
        lease_left: Seconds that the lease lasts without a sign of life.
    """
    if region.bell is None or waits < LISTENS_FROM:
        await io.sleep(min(WAITING.delay(waits, io.chance()), left))
        return
    if held.bell is None or held.channel != channel:
        held.hush()
        held.bell, held.channel = region.bell(channel, io.token()), channel
        await io.call(held.bell.listen)
        return  # look before waiting: an end between the last look and this was not heard
    soon = RECHECK * (0.75 + 0.5 * io.chance())
    await io.call(held.bell.hear, max(min(soon, left, lease_left + 0.01), 0.001))


def is_newer(stored: Stored[Any], ask: Ask) -> bool:
    """Whether an entry is as new as is asked for; one that is unsaved is newer than any load."""
    return stored.header.created_ms >= ask.newer_than or stored.fresh_until == UNSAVED


def rejected(key: str, reason: str) -> RefreshRejected:
    return RefreshRejected(
        f"the refresh of {key!r} was refused ({reason}); its value was dropped", reason=reason
    )


def servable(io: Port, found: Look, ask: Ask) -> Entry[Any] | None:
    """What was found, if it may still be served although it is not fresh."""
    seen = found.stored
    if seen is None or found.state is GONE or judge(seen, io.server_ms(), ask.stale) is GONE:
        return None
    return seen.shown("stale", io.now())


async def _waited_enough(
    io: Port, region: Region, key: str, load: Load, ask: Ask, found: Look, owner: str
) -> Entry[Any]:
    options = region.options
    region.told.counts["wait_timeouts"] += 1
    if options.on_timeout == "load":
        return await load_only(io, region, key, load, ask, found.stored, "unpublished", owner)
    stale = servable(io, found, ask) if options.on_timeout == "stale" else None
    if stale is not None:
        return stale
    raise WaitTimeout(
        f"{key!r} was being loaded by somebody else for {options.wait:g} s; "
        "raise wait, or choose on_timeout='load'"
    )
