"""Why a read of a key is a hit or a miss, and what its refreshes met."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from fencepost._core import commands
from fencepost._core.observe import Refresh
from fencepost._core.port import Port
from fencepost.cache.behind import number
from fencepost.cache.judge import EARLY, FRESH, GONE
from fencepost.cache.protocol import judged
from fencepost.cache.region import PLAIN, Region


@dataclass(frozen=True, slots=True)
class Explained:
    """What is known of a key.

    Args:
        key: The key.
        state: ``fresh``, ``stale``, or ``gone`` (not there, unreadable, or a tag was invalidated).
        fresh_for: Seconds until it is stale; below 0 it is.
        ends_in: Seconds until it is gone whatever happens; None if there is none.
        revision: Of the entry.
        revision_floor: Below it nothing is published; remembered for a while.
        tags: Of the entry, each with whether it still holds.
        lease: The token of who is loading now, '' if nobody is.
        lease_left: Seconds that this lease lasts without a sign of life.
        writers: How many writes are under way (``write_through``, ``write_around``).
        unsaved: The version of a value that was written behind and is not saved yet; None if it is.
        load_p50: Seconds, of the loads of this cache in this process.
        load_p99: Likewise.
        refreshes: The last 16 of this key in this process, oldest first.
        advice: What the refusals mean, and what to do.
    """

    key: str
    state: str
    fresh_for: float | None
    ends_in: float | None
    revision: int | None
    revision_floor: int | None
    tags: dict[str, bool]
    lease: str
    lease_left: float
    writers: int
    unsaved: int | None
    load_p50: float
    load_p99: float
    refreshes: tuple[Refresh, ...]
    advice: tuple[str, ...]


async def explain(io: Port, region: Region, key: str) -> Explained:
    """Look at everything that is stored for a key; changes nothing that can be read."""
    keys = region.keys(key)
    calls: list[Any] = [
        commands.get(keys.entry),
        commands.read("PTTL", keys.entry),
        commands.get_text(keys.lease),
        commands.read("PTTL", keys.lease),
        commands.hgetall(keys.marks),
        commands.read("HLEN", keys.intents),
        commands.read("HGET", keys.journal, "version"),
    ]
    raw, ends_ms, lease, lease_ms, marks, writers, version = await io.all(calls)
    stored, state, tags = None, GONE, {}
    if raw is not None:
        found = await judged(io, region, key, PLAIN, raw, {})
        stored, state = found.stored, FRESH if found.state is EARLY else found.state
    if stored is not None and stored.header.stamps:
        carried = stored.header.stamps
        now = await io.all([commands.get_text(region.stamp(tag)) for tag in carried])
        tags = {
            tag: stamp == there for (tag, stamp), there in zip(carried.items(), now, strict=True)
        }
    told = region.told
    refreshes = told.timeline(key)
    floor = marks.get("revision", "")
    return Explained(
        key=key,
        state=state,
        fresh_for=None if stored is None else (stored.fresh_until - io.server_ms()) / 1000,
        ends_in=ends_ms / 1000 if ends_ms >= 0 else None,
        revision=None if stored is None else stored.revision,
        revision_floor=int(floor) if floor.isdigit() else None,
        tags=tags,
        lease=lease or "",
        lease_left=max(lease_ms, 0) / 1000,
        writers=writers,
        unsaved=None if version is None else number(version.decode()),
        load_p50=told.cost(0.5),
        load_p99=told.cost(0.99),
        refreshes=refreshes,
        advice=tuple(_advice(region, refreshes)),
    )


_MEANING = {
    "expired": "leases ran out with nobody after them: the process paused, or its renewal did not "
    "get through; raise lease if pauses of this length are normal",
    "successor": "leases ran out and others took over: the process pauses for longer than lease",
    "invalidated": "the key was invalidated or set while it was loaded: writers and readers meet "
    "here; a shorter load, or write_through, helps",
    "writing": "loads met an announced write: the writer publishes at its end",
    "older": "the source gave an older revision than was seen: loads read a replica that lags",
}


def _advice(region: Region, refreshes: tuple[Refresh, ...]) -> list[str]:
    reasons = Counter(one.reason for one in refreshes if one.verdict == "rejected")
    lines = [f"{count} × {reason}: {_MEANING[reason]}" for reason, count in reasons.most_common()]
    p99, options = region.told.cost(0.99), region.options
    if p99 > options.load_limit / 2:
        lines.append(
            f"the slowest loads take {p99:.3g} s of a load_limit of {options.load_limit:g} s"
        )
    if p99 > options.ttl:
        lines.append(
            f"loads take longer ({p99:.3g} s) than their values are fresh ({options.ttl:g} s)"
        )
    return lines
