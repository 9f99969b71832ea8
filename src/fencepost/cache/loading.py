"""The owner's part of a refresh: load, renew meanwhile, publish, or give the lease back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from fencepost._core import commands
from fencepost._core.observe import Refresh
from fencepost._core.port import Port
from fencepost.cache.entry import (
    NO_REVISION,
    TOKEN_CHARS,
    Entry,
    Header,
    Missing,
    Stored,
    encode,
    revision_text,
)
from fencepost.cache.judge import Candidate, candidate, life
from fencepost.cache.region import Ask, Bell, Load, Region, remember_ms
from fencepost.cache.scripts import Lost, Older, Published
from fencepost.cache.tags import stamps_of, with_tags_of_load
from fencepost.cache.under_way import Stopped, UnderWay
from fencepost.errors import FencepostError, OutcomeUnknown, Refused, Unavailable

UNREACHABLE: Final = (Unavailable, OutcomeUnknown)


@dataclass(slots=True)
class Held:
    """The leases that a refresh may hold: whoever stops it in the middle gives them back.

    ``load`` is what its loader knows of itself; a lost lease stops it. ``bell`` hears on ``channel``.
    """

    token: str = ""
    lease: str = ""
    many: tuple[tuple[str, str], ...] = ()
    load: UnderWay | None = None
    bell: Bell | None = None
    channel: str = ""

    def hush(self) -> None:
        """Hear no more; called when the refresh has ended, however that was."""
        bell, self.bell = self.bell, None
        if bell is not None:
            bell.close()


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
    except Stopped:
        raise
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
    owner: str = "",
) -> Entry[Any]:
    """Load without a lease: an answer for this caller, and for who joined it in this process.

    Args:
        io: The port.
        region: The cache.
        key: Its key.
        load: The loader.
        ask: How the caller asks.
        seen: What was there.
        reason: Why without.
        owner: Whose lease stood before the load began. If that still stands afterwards, or its entry
            does, then nothing was invalidated meanwhile, and the answer is as good for those who
            came while it was loaded.
    """
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
    entry = own(key, read, seen, reason, status)
    if not owner:
        return entry
    sent, keys = io.now(), region.keys(key)
    try:
        stands = await io.all(
            [commands.get_text(keys.lease), commands.read("GETRANGE", keys.entry, 2, 23)]
        )
    except FencepostError:
        return entry
    lease, token = stands[0] or "", stands[1].decode(errors="replace")
    return replace(entry, as_of=sent) if owner in (lease[:TOKEN_CHARS], token) else entry


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


async def load_and_publish(
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
    renewal = (
        io.spawn(renew(io, region, ((key, token, name_of(seen)),), held.load))
        if region.renews
        else None
    )
    try:
        try:
            tags = dict.fromkeys((*ask.tags, *(seen.header.stamps if seen is not None else ())))
            stamps = await stamps_of(io, region, tuple(tags))
            read = await _read(io, region, key, load, ask, seen, token)
            checked = await with_tags_of_load(io, region, read.said, tuple(ask.tags), stamps)
            if checked is None:  # tags that nobody knew of: the read may be older than their stamps
                stamps = await stamps_of(io, region, (*tags, *read.said.tags))
                read = await _read(io, region, key, load, ask, seen, token)
                checked = await with_tags_of_load(io, region, read.said, tuple(ask.tags), stamps)
            packed = pack(io, region, key, token, read, ask, seen, checked or {})
        except Stopped as stopped:
            held.token = ""
            return stopped_as(io, region, key, stopped.reason, token)
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


def name_of(seen: Stored[Any] | None) -> str:
    """Which entry was seen."""
    return seen.token if seen is not None else ""


def stopped_as(io: Port, region: Region, key: str, reason: str, token: str) -> Entry[Any]:
    """The answer of a load that was stopped: none."""
    now_ms = io.server_ms()
    region.told.refreshed(
        Refresh(region.name, key, now_ms / 1000, 0.0, "rejected", reason, owner=token)
    )
    return Entry(key, None, "loaded", published=False, reason=reason)


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
                (
                    token,
                    packed.revision,
                    packed.entry,
                    packed.ttl_ms,
                    remember_ms(region),
                    name_of(seen),
                ),
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


async def renew(
    io: Port, region: Region, leases: tuple[tuple[str, str, str], ...], load: UnderWay | None
) -> None:
    """Prolong leases while their load runs, until its hard limit. A lost one is left alone; when all
    are lost, the load is for nothing, and is stopped if it can be.

    Args:
        io: The port.
        region: The cache.
        leases: Keys, each with its token and the name of the entry that was seen.
        load: What is stopped.
    """
    options = region.options
    # A load may wait for its admission as long as it may run.
    until, lease_ms = io.now() + 2 * options.load_limit, int(options.lease * 1000)
    while io.now() < until and not (load is not None and load.over):
        await io.sleep(options.lease / 3)
        calls = [
            region.scripts.renew(
                (region.keys(key).entry, region.keys(key).lease, region.keys(key).marks),
                (token, lease_ms, seen),
            )
            for key, token, seen in leases
        ]
        try:
            answers = await io.all(calls)
        except FencepostError:
            continue  # perhaps the next one arrives in time
        lost = [answer.reason for answer in answers if isinstance(answer, Lost)]
        kept = zip(leases, answers, strict=True)
        leases = tuple(one for one, answer in kept if not isinstance(answer, Lost))
        if not leases:
            if load is not None:
                load.lose(lost[0])
            return


# -- what is published


@dataclass(frozen=True, slots=True)
class Packed:
    """An entry as it goes to the server."""

    entry: bytes
    revision: str
    fresh_until: int
    ttl_ms: int
    tags: tuple[str, ...]


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
