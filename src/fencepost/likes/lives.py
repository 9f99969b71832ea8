"""The life of items and users beside likes: written by others, deleted, forgotten.

``invalidate`` is for writers that go past fencepost: the cache is dropped, the journal is kept.
``forget_item`` is tombstone, delete, tombstone: the first stops new likes and drops what is owed, so
that nothing brings rows back; the second is needed since the first may have expired meanwhile and
a reader may have loaded the item just before it was deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost._core import commands
from fencepost._core.keys import field_of
from fencepost._core.port import OtherServer, Port
from fencepost.errors import UnknownItem
from fencepost.likes import scripts as s
from fencepost.likes.options import milliseconds
from fencepost.likes.protocol import (
    Known,
    Shard,
    dirty_items,
    flush_items,
    gave_up,
    open_shard,
    set_like,
)


async def invalidate(io: Port, shard: Shard, item: str) -> None:
    """Forget what is cached of an item; what is owed to SQL is kept."""
    await io.run(shard.scripts.invalidate((shard.keys.header(item), shard.keys.tokens(item))))


async def entomb(io: Port, shard: Shard, known: Known | None, item: str) -> Known:
    """Write an item's tombstone, and drop its journal."""
    keys = shard.keys
    for _ in range(shard.options.rounds):
        if known is None:
            known = await open_shard(io, shard)
            continue
        try:
            answer = await io.run(
                shard.scripts.forget(
                    (
                        keys.opening,
                        keys.header(item),
                        keys.journal(item),
                        keys.due,
                        keys.since,
                        keys.tokens(item),
                    ),
                    (known.epoch, known.server, item, milliseconds(shard.options.forget_ttl)),
                    known.server,
                )
            )
        except OtherServer:
            known = None
            continue
        if isinstance(answer, s.Gone):
            return known
        known = None
    raise gave_up(shard, "forgetting an item")


async def forget_item(
    io: Port, shard: Shard, known: Known | None, item: str, remove: Callable[[], Any] | None
) -> Known:
    """Delete an item: its rows in SQL, its cache and what was owed to SQL."""
    known = await entomb(io, shard, known, item)
    if remove is None:
        await io.call(shard.store.remove_item, shard.place, shard.store.item_id(item))
    else:
        await io.call(remove)
    return await entomb(io, shard, known, item)


async def forget_pair(
    io: Port, shard: Shard, known: Known | None, item: str, user: str
) -> tuple[bool, Known | None]:
    """Unlike an item for a user who is leaving, in SQL too, and drop the state; whether it was liked."""
    try:
        result, known = await set_like(io, shard, known, item, user, False)
    except UnknownItem:
        return False, known
    _, known = await flush_items(io, shard, known, (item,))
    await io.run(
        shard.scripts.evict((shard.keys.header(item), shard.keys.journal(item)), (field_of(user),))
    )
    return result.changed, known


async def owed_by(io: Port, shard: Shard, user: str) -> list[str]:
    """Items of a shard for which the user has a change that is not in SQL yet."""
    items = await dirty_items(io, shard)
    found = await io.all(
        [commands.read("HEXISTS", shard.keys.journal(item), field_of(user)) for item in items]
    )
    return [item for item, there in zip(items, found, strict=True) if there]
