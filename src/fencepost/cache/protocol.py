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

from dataclasses import dataclass, replace
from typing import Any, Final

from fencepost._core import commands
from fencepost._core.backoff import Backoff
from fencepost._core.observe import EntryDiscarded, Refresh
from fencepost._core.port import Port
from fencepost.cache.entry import (
    HEAD_BYTES,
    NO_REVISION,
    TOKEN_CHARS,
    Entry,
    Header,
    Missing,
    Status,
    Stored,
    Unreadable,
    decode,
    encode,
    revision_text,
)
from fencepost.cache.judge import (
    EARLY,
    FRESH,
    GONE,
    Candidate,
    candidate,
    is_early,
    judge,
    life,
    may_be_early,
)
from fencepost.cache.region import Ask, Load, Region
from fencepost.cache.scripts import Lost, Older, Published, Value, Wait
from fencepost.errors import (
    FencepostError,
    OutcomeUnknown,
    Overloaded,
    RefreshRejected,
    Refused,
    ServerError,
    Unavailable,
    WaitTimeout,
)

WAITING: Final = Backoff(0.005, 0.2)
UNREACHABLE: Final = (Unavailable, OutcomeUnknown)


@dataclass(frozen=True, slots=True)
class Look:
    """What a read found: ``fresh``, ``early``, ``stale`` or ``gone``, and the entry if it can be read."""

    state: str
    stored: Stored[Any] | None


NOTHING: Final = Look(GONE, None)


@dataclass(slots=True)
class Held:
    """The leases that a refresh may hold: whoever stops it in the middle gives them back."""

    token: str = ""
    lease: str = ""
    many: tuple[tuple[str, str], ...] = ()


def new_token(io: Port) -> str:
    """A token as it stands in an entry; a simulated port's are shorter."""
    return io.token().ljust(TOKEN_CHARS, "_")


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
                (keys.entry, keys.lease, keys.intents),
                (held.token, seen.token if seen is not None else "", lease_ms),
            )
        )
        if isinstance(answer, Value):
            held.token = ""
            found = await judged(io, region, key, ask, answer.entry, {})
            there = found.stored
            fresh = there is not None and found.state in (FRESH, EARLY)
            if fresh and there is not None and there.header.created_ms >= ask.newer_than:
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
                return await load_only(io, region, key, load, ask, seen, "unpublished")
            left = deadline - io.now()
            if left <= 0:
                return await _waited_enough(io, region, key, load, ask, found)
            await io.sleep(min(WAITING.delay(waits, io.chance()), left))
            waits += 1
            continue
        loads += 1
        done = await _load_and_publish(io, region, key, load, ask, seen, held)
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
    io: Port, region: Region, key: str, load: Load, ask: Ask, found: Look
) -> Entry[Any]:
    options = region.options
    region.told.counts["wait_timeouts"] += 1
    if options.on_timeout == "load":
        return await load_only(io, region, key, load, ask, found.stored, "unpublished")
    stale = servable(io, found, ask) if options.on_timeout == "stale" else None
    if stale is not None:
        return stale
    raise WaitTimeout(
        f"{key!r} was being loaded by somebody else for {options.wait:g} s; "
        "raise wait, or choose on_timeout='load'"
    )


# -- loading


@dataclass(frozen=True, slots=True)
class Read:
    """A load that ended: what it said, and when, by both clocks."""

    said: Candidate
    began: float
    began_ms: float
    ended_ms: float


async def _read(
    io: Port, region: Region, key: str, load: Load, ask: Ask, seen: Stored[Any] | None, owner: str
) -> Read:
    gate = region.gate
    if gate is not None:
        await io.call(gate.enter)
    began, began_ms = io.now(), io.server_ms()
    shown = (seen.shown("stale") if seen is not None else None,) if ask.conditional else ()
    region.told.counts["loads"] += 1
    try:
        said = candidate(await io.call(load, *shown))
    except Missing:
        said = Candidate(None)
    except Exception as error:
        region.told.refreshed(
            Refresh(
                region.name,
                key,
                began_ms / 1000,
                io.server_ms() / 1000,
                "failed",
                type(error).__name__,
                owner=owner,
            )
        )
        raise
    finally:
        if gate is not None:
            gate.leave()
    if said.unchanged and seen is None:
        raise Refused(f"the loader of {key!r} said NotModified, but there was nothing to keep")
    return Read(said, began, began_ms, io.server_ms())


async def load_only(
    io: Port,
    region: Region,
    key: str,
    load: Load,
    ask: Ask,
    seen: Stored[Any] | None,
    reason: str,
) -> Entry[Any]:
    """Load without a lease: an answer for this caller, which nobody else gets."""
    read = await _read(io, region, key, load, ask, seen, "")
    said = read.said
    region.told.refreshed(
        Refresh(
            region.name,
            key,
            read.began_ms / 1000,
            read.ended_ms / 1000,
            reason,
            revision=said.revision,
        )
    )
    status = "loaded_unpublished" if reason == "unreachable" else "loaded"
    return own(key, read, seen, reason, status)


def own(key: str, read: Read, seen: Stored[Any] | None, reason: str, status: Any) -> Entry[Any]:
    said = read.said
    value = seen.value if said.unchanged and seen is not None else said.value
    return Entry(
        key,
        value,
        "negative" if value is None else status,
        read.began_ms / 1000,
        revision=said.revision,
        published=False,
        reason=reason,
        tags=said.tags,
        as_of=read.began,
    )


async def _load_and_publish(
    io: Port,
    region: Region,
    key: str,
    load: Load,
    ask: Ask,
    seen: Stored[Any] | None,
    held: Held,
) -> Entry[Any]:
    """The owner's part. The lease is gone when this returns or raises."""
    keys, token = region.keys(key), held.token
    renewal = io.spawn(renew(io, region, ((keys.lease, token),))) if region.renews else None
    try:
        try:
            tags = dict.fromkeys((*ask.tags, *(seen.header.stamps if seen is not None else ())))
            stamps = await stamps_of(io, region, tuple(tags))
            read = await _read(io, region, key, load, ask, seen, token)
            checked = await _with_tags_of_load(io, region, read.said, tuple(ask.tags), stamps)
            if checked is None:  # tags that nobody knew of: the read may be older than their stamps
                stamps = await stamps_of(io, region, (*tags, *read.said.tags))
                read = await _read(io, region, key, load, ask, seen, token)
                checked = await _with_tags_of_load(io, region, read.said, tuple(ask.tags), stamps)
            packed = pack(io, region, key, token, read, ask, seen, checked or {})
        except Exception:
            await release(io, region, keys.lease, held)
            raise
    finally:
        if renewal is not None:
            renewal.cancel()
    if checked is None:
        await release(io, region, keys.lease, held)
        return told(region, key, read, seen, "rejected", "invalidated", token)
    return await _publish(io, region, key, read, seen, held, packed)


async def _publish(
    io: Port,
    region: Region,
    key: str,
    read: Read,
    seen: Stored[Any] | None,
    held: Held,
    packed: Packed,
) -> Entry[Any]:
    token, sent = held.token, io.now()
    try:
        answer = await io.run(
            region.scripts.publish(
                region.keys(key).all[:3],
                (token, packed.revision, packed.entry, packed.ttl_ms, remember_ms(region)),
            )
        )
    except FencepostError as error:
        if isinstance(error, UNREACHABLE):
            held.token = ""  # what it would cost to give it back, everybody would wait for
        else:
            await release(io, region, region.keys(key).lease, held)
        return told(region, key, read, seen, "unreachable", "unreachable", token)
    held.token = ""
    if isinstance(answer, Published):
        told(region, key, read, seen, "published", "", token)
        return published_as(key, read, seen, packed, token, sent)
    reason = "older" if isinstance(answer, Older) else answer.reason
    return told(region, key, read, seen, "rejected", reason, token)


def published_as(
    key: str, read: Read, seen: Stored[Any] | None, packed: Packed, token: str, sent: float
) -> Entry[Any]:
    """The entry of a publication: proven right when it was sent."""
    value = seen.value if read.said.unchanged and seen is not None else read.said.value
    revision = packed.revision
    return Entry(
        key,
        value,
        "negative" if value is None else "loaded",
        read.began_ms / 1000,
        packed.fresh_until / 1000,
        None if revision == NO_REVISION else int(revision),
        tags=packed.tags,
        token=token,
        as_of=sent,
    )


def told(
    region: Region,
    key: str,
    read: Read,
    seen: Stored[Any] | None,
    verdict: str,
    reason: str,
    token: str,
) -> Entry[Any]:
    region.told.refreshed(
        Refresh(
            region.name,
            key,
            read.began_ms / 1000,
            read.ended_ms / 1000,
            verdict,
            reason if verdict == "rejected" else "",
            read.said.revision,
            token,
        )
    )
    return own(
        key, read, seen, reason, "loaded_unpublished" if reason == "unreachable" else "loaded"
    )


async def release(io: Port, region: Region, lease: str, held: Held) -> None:
    token, held.token = held.token, ""
    try:
        await io.run(region.scripts.release((lease,), (token,)))
    except FencepostError:
        region.told.counts["release_failed"] += 1  # it ends by itself


async def renew(io: Port, region: Region, leases: tuple[tuple[str, str], ...]) -> None:
    """Prolong leases while their load runs, until its hard limit. A lost one is left alone."""
    options = region.options
    until, lease_ms = io.now() + options.load_limit, int(options.lease * 1000)
    while leases and io.now() < until:
        await io.sleep(options.lease / 3)
        calls = [region.scripts.renew((lease,), (token, lease_ms)) for lease, token in leases]
        try:
            answers = await io.all(calls)
        except FencepostError:
            continue  # perhaps the next one arrives in time
        kept = zip(leases, answers, strict=True)
        leases = tuple(one for one, answer in kept if not isinstance(answer, Lost))


# -- what is published


@dataclass(frozen=True, slots=True)
class Packed:
    """An entry as it goes to the server."""

    entry: bytes
    revision: str
    fresh_until: int
    ttl_ms: int
    tags: tuple[str, ...]


def remember_ms(region: Region) -> int:
    """How long an invalidation is remembered."""
    return int(region.options.remember * 1000)


def pack(
    io: Port,
    region: Region,
    key: str,
    token: str,
    read: Read,
    ask: Ask,
    seen: Stored[Any] | None,
    stamps: dict[str, str],
) -> Packed:
    """Put an entry together."""
    said = read.said
    if said.unchanged and seen is not None:
        header = seen.header
        negative, letter = header.negative, header.format
        payload = seen.raw[60 + int(seen.raw[56:60], 16) :]
        revision = seen.raw[24:43].decode()
        said = replace(said, value=seen.value, unchanged=not negative)
    else:
        negative, revision = said.value is None, revision_text(said.revision)
        letter, payload = ("-", b"") if negative else region.codec.encode(said.value)
    ends = life(region.options, said, ask, read.began_ms, io.server_ms(), io.chance())
    cost = max(int(read.ended_ms - read.began_ms), 0)
    header = Header(key, int(read.began_ms), cost, ends.stale_ms, negative, letter, stamps)
    entry = encode(token, revision, ends.fresh_until, header, payload)
    return Packed(entry, revision, ends.fresh_until, ends.ttl_ms, tuple(stamps))


# -- tags


async def stamps_of(io: Port, region: Region, tags: tuple[str, ...]) -> dict[str, str]:
    """The stamps of tags, made where there are none: before the load, so that a tag that is
    invalidated while it runs has another one by then."""
    return await _stamps(io, region, (*tags, "") if region.tagging[0] else tags)


async def _stamps(io: Port, region: Region, tags: tuple[str, ...]) -> dict[str, str]:
    if not tags:
        return {}
    options = region.options
    life_ms = int(max((options.ttl + options.stale) * 2, options.remember, 3600) * 1000)
    calls = [region.scripts.stamp((region.stamp(tag),), (new_token(io), life_ms)) for tag in tags]
    return dict(zip(tags, await io.all(calls), strict=True))


async def _with_tags_of_load(
    io: Port, region: Region, said: Candidate, given: tuple[str, ...], stamps: dict[str, str]
) -> dict[str, str] | None:
    """The stamps that an entry carries; None if those of tags that the load named can't be trusted.

    A stamp that is read after the load may be that of a later invalidation. It is as good as one
    from before if no tag of the whole cache was invalidated in between: the epoch tells.
    """
    more = tuple(tag for tag in said.tags if tag not in stamps)
    tags = (*given, *(tag for tag in said.tags if tag not in given))
    if said.unchanged:
        tags = tuple(tag for tag in stamps if tag)
    if not more:
        return {tag: stamps[tag] for tag in tags}
    if "" not in stamps:
        region.tagging[0] = True
        return None
    late = await _stamps(io, region, more)
    if (
        await io.run(commands.get_text(region.stamp(""))) != stamps[""]
    ):  # after the stamps were read
        return None
    return {tag: stamps.get(tag) or late[tag] for tag in tags}
