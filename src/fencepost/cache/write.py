"""How an entry is changed by who knows better than it: set, touch, invalidate, and writes to the source.

A write announces itself before it saves (``write_begin``) and says when it is done (``write_end``).
In between, nothing is published. A writer that was alone publishes what it saved; writers that
overlapped can't know whose save came last, so all of them forget the entry. A writer that dies
between its save and its end leaves an older entry behind for no longer than ``intent``, since that
is what its announcement shortened the entry's life to.

Where it ends: a writer whose save takes longer than ``intent`` *and* that dies before its end
leaves the older value until the entry's own end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fencepost._core import commands
from fencepost._core.port import Port
from fencepost.cache.entry import NO_REVISION, UNSAVED, Entry, Loaded, revision_text
from fencepost.cache.judge import Candidate, candidate, life
from fencepost.cache.loading import UNREACHABLE, Read, pack
from fencepost.cache.protocol import judged
from fencepost.cache.region import PLAIN, Ask, Region, new_token, remember_ms
from fencepost.cache.scripts import Older, Published, Touched
from fencepost.cache.tags import stamps_of
from fencepost.errors import RefreshRejected


@dataclass(frozen=True, slots=True)
class Written:
    """How a write to the source ended; the source has it in any case.

    Args:
        published: Whether the cache holds what was saved. If not, it holds nothing.
        reason: Why not: ``around``, ``overlapped`` with other writes (or outlived its announcement),
            or ``unreachable``: the server did not answer the end of it, and an entry from before
            lives for ``intent`` seconds at most.
        saved: What ``save`` returned.
    """

    published: bool
    reason: str
    saved: Any


async def _now_known(
    io: Port, region: Region, key: str, said: Candidate, ask: Ask, token: str
) -> tuple[Any, Any]:
    """An entry of a value that is right now."""
    tags = tuple(dict.fromkeys((*ask.tags, *said.tags)))
    stamps = {tag: stamp for tag, stamp in (await stamps_of(io, region, tags)).items() if tag}
    now_ms = io.server_ms()
    read = Read(said, io.now(), now_ms, now_ms)
    return pack(io, region, key, token, read, ask, None, stamps), read


async def set_value(io: Port, region: Region, key: str, value: Any, ask: Ask) -> Entry[Any]:
    """Write a value that the caller knows to be the newest; loads that began before are refused.

    Raises:
        RefreshRejected: The source has been seen at a newer revision.
    """
    token = new_token(io)
    said = candidate(value)
    packed, read = await _now_known(io, region, key, said, ask, token)
    answer = await io.run(
        region.scripts.set(
            region.keys(key).all,
            (token, packed.revision, packed.entry, packed.ttl_ms, remember_ms(region)),
        )
    )
    if isinstance(answer, Older):
        raise RefreshRejected(
            f"{key!r} has been seen at revision {int(answer.revision)}; nothing was written",
            reason="older",
        )
    return Entry(
        key,
        said.value,
        "negative" if said.value is None else "hit",
        read.began_ms / 1000,
        packed.fresh_until / 1000,
        said.revision,
        tags=packed.tags,
        token=token,
        as_of=read.began,
    )


async def touch(io: Port, region: Region, key: str, ttl: float | None) -> bool:
    """Let an entry live anew from now, unless it changed meanwhile."""
    raw = await io.run(commands.get(region.entry(key)))
    stored = None if raw is None else (await judged(io, region, key, PLAIN, raw, {})).stored
    if stored is None:
        return False
    if stored.fresh_until == UNSAVED:
        return True  # it lives until it is saved, and anew from then on
    now = io.server_ms()
    one = Candidate(stored.value, stale=stored.header.stale_ms / 1000)
    ends = life(region.options, one, Ask(ttl=ttl), now, now, io.chance())
    answer = await io.run(
        region.scripts.touch(
            (region.entry(key),), (stored.token, f"{ends.fresh_until:013d}", ends.ttl_ms)
        )
    )
    return isinstance(answer, Touched)


async def invalidate(
    io: Port, region: Region, keys: tuple[str, ...], *, hard: bool, revision: int | None
) -> None:
    """Forget entries, and refuse the loads that are under way."""
    floor = revision_text(revision)
    await io.all(
        [
            region.scripts.invalidate(
                (*region.keys(key).all, region.keys(key).journal),
                (floor, remember_ms(region), "0" if hard else "1", new_token(io)),
            )
            for key in keys
        ]
    )


async def invalidate_tags(io: Port, region: Region, tags: tuple[str, ...]) -> None:
    """Make every entry that carries one of the tags a miss, at once and whoever publishes later."""
    # The epoch first: a loader that reads a stamp of after this sees another epoch too.
    await io.run(commands.delete(region.stamp("")))
    await io.all([commands.delete(region.stamp(tag)) for tag in tags])


async def write_through(
    io: Port, region: Region, key: str, value: Any, save: Callable[..., Any], ask: Ask
) -> Written:
    """Save a value to the source, and publish it if no other write overlapped.

    Args:
        io: The port.
        region: The cache.
        key: Its key.
        value: What to save; ``save`` is given it.
        save: Writes the source; a ``Loaded`` that it returns is published instead of the value.
        ask: Tags and ``ttl`` of the entry.
    """
    token = await _begin(io, region, key)
    try:
        saved = await io.call(save, value)
        said = candidate(saved if isinstance(saved, Loaded) else value)
        packed, _ = await _now_known(io, region, key, said, ask, token)
    except Exception:
        await _end(io, region, key, token, NO_REVISION, b"", 1)  # saved or not: nobody knows
        raise
    reason = await _end(io, region, key, token, packed.revision, packed.entry, packed.ttl_ms)
    return Written(not reason, reason, saved)


async def write_around(io: Port, region: Region, key: str, save: Callable[..., Any]) -> Written:
    """Write the source, and forget the entry."""
    token = await _begin(io, region, key)
    try:
        saved = await io.call(save)
    except Exception:
        await _end(io, region, key, token, NO_REVISION, b"", 1)
        raise
    floor = revision_text(saved.revision if isinstance(saved, Loaded) else None)
    reason = await _end(io, region, key, token, floor, b"", 1)
    return Written(False, "unreachable" if reason == "unreachable" else "around", saved)


async def _begin(io: Port, region: Region, key: str) -> str:
    token = new_token(io)
    intent_ms = int(region.options.intent * 1000)
    await io.run(
        region.scripts.write_begin(region.keys(key).all, (token, intent_ms, remember_ms(region)))
    )
    return token


async def _end(
    io: Port, region: Region, key: str, token: str, revision: str, entry: bytes, ttl_ms: int
) -> str:
    """End a write; why it was not published, or ''."""
    try:
        answer = await io.run(
            region.scripts.write_end(
                region.keys(key).all, (token, revision, entry, ttl_ms, remember_ms(region))
            )
        )
    except UNREACHABLE:
        region.told.counts["ends_lost"] += 1
        return "unreachable"
    return "" if isinstance(answer, Published) else "overlapped"
