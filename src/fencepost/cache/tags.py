"""The stamps of tags: each in its own slot, read before a load, compared by every read."""

from __future__ import annotations

from fencepost._core import commands
from fencepost._core.port import Port
from fencepost.cache.judge import Candidate
from fencepost.cache.region import Region, new_token


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


async def with_tags_of_load(
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
