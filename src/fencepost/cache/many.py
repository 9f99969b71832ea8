"""Many entries at once: one write to read them, one load for all that are missing, one to publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fencepost._core import commands
from fencepost._core.observe import Refresh
from fencepost._core.port import Port
from fencepost.cache.entry import Entry, Missing, Status
from fencepost.cache.judge import EARLY, FRESH, Candidate, candidate
from fencepost.cache.loading import (
    Held,
    Read,
    name_of,
    own,
    pack,
    published_as,
    renew,
    stopped_as,
    told,
)
from fencepost.cache.protocol import (
    NOTHING,
    Look,
    judged,
    look,
    pause,
    readable,
    rejected,
    servable,
    state_of,
)
from fencepost.cache.region import Ask, Load, Region, new_token, remember_ms
from fencepost.cache.scripts import Older, Published, Value, Wait
from fencepost.cache.tags import stamps_of
from fencepost.cache.under_way import Stopped
from fencepost.errors import FencepostError, Refused, ServerError, WaitTimeout

Seen = dict[str, Look]


async def look_many(
    io: Port,
    region: Region,
    keys: Sequence[str],
    ask: Ask,
    read: Mapping[str, bytes | None] | None = None,
) -> dict[str, Look]:
    """Read and judge many: one write (none if they were ``read`` already), and one more if entries
    have tags."""
    try:
        raws: Sequence[bytes | None]
        if read is not None:
            raws = [read[key] for key in keys]
        else:
            raws = await io.all([commands.get(region.entry(key)) for key in keys])
    except ServerError as error:
        if error.code != "WRONGTYPE":
            raise
        return {key: await look(io, region, key, ask) for key in keys}  # which drops it
    stored = {
        key: None if raw is None else await readable(io, region, key, raw)
        for key, raw in zip(keys, raws, strict=True)
    }
    tags = {tag for one in stored.values() if one is not None for tag in one.header.stamps}
    stamps: dict[str, str | None] = {}
    if tags:
        wanted = sorted(tags)
        found = await io.all([commands.get_text(region.stamp(tag)) for tag in wanted])
        stamps = dict(zip(wanted, found, strict=True))
    return {
        key: NOTHING if one is None else Look(state_of(io, region, one, ask, stamps), one)
        for key, one in stored.items()
    }


async def refresh_many(
    io: Port,
    region: Region,
    pending: Seen,
    load_many: Load,
    ask: Ask,
    held: Held | None = None,
) -> dict[str, Entry[Any]]:
    """Load what is pending in one call, and wait for what others are loading.

    Args:
        io: The port.
        region: The cache.
        pending: The keys, each with the entry that was judged stale or gone.
        load_many: Is given the keys that are ours to load; returns a mapping. What it leaves out
            the source does not have.
        ask: How the caller asks; ``background`` leaves to others what they are loading.
        held: Told which leases are held, for who stops this from outside.

    Raises:
        WaitTimeout: Others took too long, and ``on_timeout`` says so.
        RefreshRejected: A load was refused, and ``on_rejected`` says so.
    """
    options, pending, held = region.options, dict(pending), held or Held()
    results: dict[str, Entry[Any]] = {}
    deadline, waits, loads = io.now() + options.wait, 0, 0
    while pending:
        status: Status = "waited" if waits else "hit"
        mine = await _claim_many(io, region, pending, ask, results, status, held)
        if mine:
            loads += 1
            if held.load is not None:
                held.load.stoppable = options.on_rejected != "reread" or loads < options.rounds
                held.load.lost = ""
            seen = {key: name_of(pending[key].stored) for key in mine}
            done = await _load_many(io, region, mine, seen, load_many, ask, held)
            held.many = ()
            for key, entry in done.items():
                again = not entry.published and entry.reason not in ("unreachable", "writing")
                if not again or (loads >= options.rounds and entry.reason != "older"):
                    results[key] = entry
                    del pending[key]
                elif options.on_rejected != "reread" or loads >= options.rounds:
                    stale = servable(io, pending[key], ask)
                    if options.on_rejected != "stale" or stale is None:
                        raise rejected(key, entry.reason)
                    results[key] = stale
                    del pending[key]
                else:
                    pending[key] = NOTHING
            continue
        if not pending or ask.background:
            break
        left = deadline - io.now()
        if left <= 0 or options.coalesce != "fleet":
            results.update(await _without_lease(io, region, pending, load_many, ask))
            break
        first = region.keys(next(iter(pending))).lease  # the others are looked at with it
        await pause(io, region, first, held, waits, left, options.lease)
        waits += 1
    return results


async def _claim_many(
    io: Port,
    region: Region,
    pending: Seen,
    ask: Ask,
    results: dict[str, Entry[Any]],
    status: Status,
    held: Held,
) -> dict[str, str]:
    """Claim all that is pending; the tokens of those that are ours."""
    sent, tokens, lease_ms = io.now(), {}, int(region.options.lease * 1000)
    calls = []
    for key, found in pending.items():
        keys, tokens[key] = region.keys(key), new_token(io)
        seen = found.stored.token if found.stored is not None else ""
        words = (tokens[key], seen, lease_ms)
        calls.append(
            region.scripts.claim((keys.entry, keys.lease, keys.intents, keys.journal), words)
        )
    held.many = tuple((region.keys(key).lease, token) for key, token in tokens.items())
    for key, answer in zip(list(pending), await io.all(calls), strict=True):
        if isinstance(answer, Value):
            del tokens[key]
            found = await judged(io, region, key, ask, answer.entry, {})
            pending[key] = found
            if found.stored is not None and found.state in (FRESH, EARLY):
                results[key] = found.stored.shown(status, sent)
                del pending[key]
        elif isinstance(answer, Wait):
            del tokens[key]
    held.many = tuple((region.keys(key).lease, token) for key, token in tokens.items())
    return tokens


async def _load_many(
    io: Port,
    region: Region,
    mine: dict[str, str],
    seen: dict[str, str],
    load_many: Load,
    ask: Ask,
    held: Held,
) -> dict[str, Entry[Any]]:
    """The owner's part for all of them; no lease is left when this returns or raises."""
    leases = tuple((region.keys(key).lease, token) for key, token in mine.items())
    owned = tuple((key, token, seen[key]) for key, token in mine.items())
    renewal = io.spawn(renew(io, region, owned, held.load)) if region.renews else None
    try:
        try:
            stamps = await stamps_of(io, region, ask.tags)
            reads = await _read_many(io, region, mine, load_many)
            packed = {
                key: pack(io, region, key, mine[key], read, ask, None, _carried(key, read, stamps))
                for key, read in reads.items()
            }
        except Stopped as stopped:
            return {
                key: stopped_as(io, region, key, stopped.reason, token)
                for key, token in mine.items()
            }
        except Exception:
            await release_many(io, region, leases)
            raise
    finally:
        if renewal is not None:
            renewal.cancel()
    sent = io.now()
    calls = [
        region.scripts.publish(
            region.keys(key).all[:3],
            (mine[key], one.revision, one.entry, one.ttl_ms, remember_ms(region), seen[key]),
        )
        for key, one in packed.items()
    ]
    try:
        answers = await io.all(calls)
    except FencepostError:
        return {
            key: told(region, key, read, None, "unreachable", "unreachable", mine[key])
            for key, read in reads.items()
        }
    done: dict[str, Entry[Any]] = {}
    for (key, one), answer in zip(packed.items(), answers, strict=True):
        read = reads[key]
        if isinstance(answer, Published):
            told(region, key, read, None, "published", "", mine[key])
            done[key] = published_as(key, read, None, one, mine[key], sent)
        else:
            reason = "older" if isinstance(answer, Older) else answer.reason
            done[key] = told(region, key, read, None, "rejected", reason, mine[key])
    return done


def _carried(key: str, read: Read, stamps: dict[str, str]) -> dict[str, str]:
    if any(tag not in stamps for tag in read.said.tags):
        raise Refused(
            f"load_many gave {key!r} tags that get_many was not given; give it all of them"
        )
    return {tag: stamp for tag, stamp in stamps.items() if tag}


async def _read_many(
    io: Port, region: Region, keys: Iterable[str], load_many: Load
) -> dict[str, Read]:
    gate, names = region.gate, list(keys)
    if gate is not None:
        await io.call(gate.enter)
    began, began_ms = io.now(), io.server_ms()
    region.told.counts["loads"] += 1
    try:
        answer = await io.call(load_many, names)
    except Stopped:
        raise
    except Exception as error:
        ended = io.server_ms() / 1000
        for key in names:
            region.told.refreshed(
                Refresh(region.name, key, began_ms / 1000, ended, "failed", type(error).__name__)
            )
        raise
    finally:
        if gate is not None:
            gate.leave()
    if not isinstance(answer, Mapping):
        raise Refused(f"load_many returns a mapping of keys to values, got {type(answer).__name__}")
    ended_ms = io.server_ms()
    return {key: Read(_said(answer, key), began, began_ms, ended_ms) for key in names}


def _said(answer: Mapping[str, Any], key: str) -> Candidate:
    one = answer.get(key)
    said = candidate(None if one is Missing or isinstance(one, Missing) else one)
    if said.unchanged:
        raise Refused("get_many is not conditional: NotModified has no meaning there")
    return said


async def release_many(io: Port, region: Region, leases: tuple[tuple[str, str], ...]) -> None:
    """Give leases back; those that can't be end by themselves."""
    try:
        await io.all([region.scripts.release((lease,), (token,)) for lease, token in leases])
    except FencepostError:
        region.told.counts["release_failed"] += 1


async def _without_lease(
    io: Port, region: Region, pending: Seen, load_many: Load, ask: Ask
) -> dict[str, Entry[Any]]:
    """What others are loading for too long, by ``on_timeout``."""
    options = region.options
    if options.coalesce != "fleet" or options.on_timeout == "load":
        return await load_many_only(io, region, list(pending), load_many, "unpublished")
    region.told.counts["wait_timeouts"] += 1
    stale = {key: servable(io, found, ask) for key, found in pending.items()}
    late = [key for key, entry in stale.items() if entry is None or options.on_timeout == "raise"]
    if late:
        raise WaitTimeout(
            f"{len(late)} keys, {late[0]!r} among them, were being loaded by others for "
            f"{options.wait:g} s; raise wait, or choose on_timeout='load'"
        )
    return {key: entry for key, entry in stale.items() if entry is not None}


async def load_many_only(
    io: Port, region: Region, keys: Sequence[str], load_many: Load, reason: str
) -> dict[str, Entry[Any]]:
    """Load without leases: answers for this caller, which nobody else gets."""
    reads = await _read_many(io, region, keys, load_many)
    status = "loaded_unpublished" if reason == "unreachable" else "loaded"
    return {key: own(key, read, None, reason, status) for key, read in reads.items()}


def values(entries: Mapping[str, Entry[Any]], keys: Sequence[str]) -> dict[str, Any]:
    """What there is, in the order of the keys; what the source does not have is left out."""
    return {
        key: entries[key].value for key in keys if key in entries and entries[key].value is not None
    }
