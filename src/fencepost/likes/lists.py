"""Who likes an item, and what a user likes: the newest first, in pages that stay where they are.

SQL is the list; what it does not have yet is laid over it. An item's own journal is read *before*
its rows: a change that is flushed between the two is then seen twice, and counted once; the other
way round it would be seen by neither. What a user likes lies in many shards, so there only a hint
tells what is new, and each row is verified: never a wrong heart, at worst a new like is missing
until its flush.

A cursor names the last row by (time, id), so new rows above it move nothing below it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from fencepost._core import commands
from fencepost._core.keys import user_of
from fencepost._core.port import Port
from fencepost._core.script import Call
from fencepost.errors import Refused
from fencepost.likes.protocol import Shard
from fencepost.likes.scripts import read_version
from fencepost.likes.store import Cursor, Id, Like

T = TypeVar("T")
MAX_PAGE: Final = 1_000
_OVERLAY: Final = (
    2_000  # changes of one item that a page looks at; a flush brings the rest within its delay
)
HINT_MS: Final = 60_000
# What a cursor's time may be: the years 1 to 9999, the same as a column's.
_EARLIEST_US: Final = -62_135_596_800_000_000
_LATEST_US: Final = 253_402_300_800_000_000


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list; ``after`` is the cursor of the next one, None when this is the last."""

    items: list[T]
    after: str | None


def read_cursor(text: str | None, limit: int) -> Cursor | None:
    """A cursor as given to a client, read back.

    Raises:
        Refused: It is none of ours, or the limit is not 1 to 1,000.
    """
    if not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise Refused(f"limit is a whole number from 1 to {MAX_PAGE}, got {limit!r}")
    if text is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
        at_us, what = msgspec.json.decode(raw, type=tuple[int, int | str])
    except (ValueError, AttributeError, binascii.Error, msgspec.MsgspecError):
        raise _foreign(text) from None
    if not _EARLIEST_US <= at_us < _LATEST_US:
        raise _foreign(text)
    return Like(what, at_us)


def _foreign(text: str) -> Refused:
    return Refused(f"the cursor {text!r} is none of this list's; begin without one")


def write_cursor(row: Like) -> str:
    """A cursor for a client: opaque, safe in URLs."""
    return base64.urlsafe_b64encode(msgspec.json.encode((row.at_us, row.id))).rstrip(b"=").decode()


async def likers(io: Port, shard: Shard, item: str, limit: int, after: Cursor | None) -> Page[Id]:
    """Who likes an item. What is not in SQL yet leads the first page, or is taken out of it."""
    pending = await overlay(io, shard, item)  # before the rows: see above
    rows = await io.call(shard.store.likers, shard.store.item_id(item), limit + 1, after)
    more = len(rows) > limit
    page = rows[:limit]
    found = [row.id for row in page if pending.get(row.id, True)]
    if after is None:
        there = {row.id for row in rows}
        found = [user for user, liked in pending.items() if liked and user not in there] + found
    return Page(found, write_cursor(page[-1]) if more else None)


async def overlay(io: Port, shard: Shard, item: str) -> dict[Id, bool]:
    """An item's changes that are not in SQL yet, the newest first."""
    journal = shard.keys.journal(item)
    if await io.run(commands.read("HLEN", journal)) > _OVERLAY:
        return {}
    flat = await io.run(commands.hgetall(journal))
    newest = sorted(flat.items(), key=lambda entry: read_version(entry[1])[1], reverse=True)
    return {shard.store.user_id(user_of(who)): read_version(version)[0] for who, version in newest}


def hint(key: str, item: str, at: float) -> list[Call[Any]]:
    """The calls that note, best effort, that a user has just liked an item."""
    return [commands.raw("ZADD", key, int(at * 1000), item), commands.raw("PEXPIRE", key, HINT_MS)]


async def hinted(io: Port, key: str, limit: int) -> list[str]:
    """What a user liked in the last minute, as far as the hint knows."""
    reply = await io.run(commands.read("ZRANGE", key, 0, limit - 1, "REV"))
    return [one.decode() for one in reply]
