"""Changes that the database refuses by themselves: found, and set aside in a table of their own.

A user that does not exist, a name that is too long, a trigger that objects: such a row must not stop
the batch it is in, and it must not be lost either. It leaves the journal in the transaction that
keeps it here. The table is bounded, so that a mistake that touches every row (a column that nobody
fills) ends as a journal that grows, and is seen, and not as a table that swallows all likes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Connection, String, Table, func, select
from sqlalchemy.exc import DBAPIError

from fencepost.likes.store import Change, Id, Ids, Poisoned
from fencepost.sql import dialects
from fencepost.sql import fence as fencing

KEPT_MAX: Final = 10_000
"""Rows a like cache; above it a refused change stays in the journal."""

poisoned = Table(
    "fencepost_like_poison",
    fencing.metadata,
    Column("scope", String(255), primary_key=True),
    Column("item", String(255), primary_key=True),
    Column("member", String(255), primary_key=True),
    Column("liked", Boolean, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("reason", String(300), nullable=False),
    Column("at_us", BigInteger, nullable=False),
)
_KEYS: Final = ["scope", "item", "member"]
_VALUES: Final = ["liked", "epoch", "seq", "reason", "at_us"]

Fresh = dict[Id, list[Change]]
Apply = Callable[[Connection, Fresh], int]


def apply_apart(
    connection: Connection, apply: Apply, fresh: Fresh
) -> tuple[int, tuple[Poisoned, ...]]:
    """Apply a batch in which the database refuses some row: in halves, until those stand alone.

    Returns:
        Rows that changed, and what was refused.
    """
    if not any(fresh.values()):
        return 0, ()
    try:
        with connection.begin_nested():
            dialects.check_at_once(connection)
            return apply(connection, fresh), ()
    except DBAPIError as error:
        if not dialects.of_the_row(error):
            raise
        halves = _halves(fresh)
        if not halves:
            ((item, (one,)),) = fresh.items()
            reason = " ".join(str(error.orig).replace("\0", "").split())[:300]
            return 0, (Poisoned(item, one.user, one.liked, one.version, reason),)
    changed = 0
    poison: tuple[Poisoned, ...] = ()
    for half in halves:
        more, refused = apply_apart(connection, apply, half)
        changed, poison = changed + more, poison + refused
    return changed, poison


def _halves(fresh: Fresh) -> list[Fresh]:
    """A batch in two: by items, or the changes of its one item; nothing of a single change."""
    fresh = {item: changes for item, changes in fresh.items() if changes}
    if len(fresh) > 1:
        items = list(fresh)
        middle = len(items) // 2
        return [{item: fresh[item] for item in half} for half in (items[:middle], items[middle:])]
    ((item, changes),) = fresh.items()
    middle = len(changes) // 2
    return [{item: changes[:middle]}, {item: changes[middle:]}] if middle else []


def set_aside(
    connection: Connection, ids: Ids, scope: str, poison: Sequence[Poisoned]
) -> tuple[Poisoned, ...]:
    """Keep what was refused, as far as there is room: the newest of each user and item."""
    if not poison:
        return ()
    of_cache = select(func.count()).where(poisoned.c.scope == scope)
    room = max(KEPT_MAX - connection.execute(of_cache).scalar_one(), 0)
    at = time.time()
    rows = [
        {
            "scope": scope,
            "item": ids.item_key(one.item),
            "member": ids.user_key(one.user),
            "liked": one.liked,
            "epoch": one.version[0],
            "seq": one.version[1],
            "reason": one.reason,
            "at_us": int(at * 1e6),
        }
        for one in poison[:room]
    ]
    if rows:
        connection.execute(fencing.upsert(connection, poisoned, _KEYS, _VALUES), rows)
    return tuple(replace(one, kept=place < room, at=at) for place, one in enumerate(poison))


def read(
    connection: Connection, ids: Ids, scope: str, limit: int, pair: tuple[Id, Id] | None
) -> list[Poisoned]:
    """What was set aside, the newest first; of one item and user, if asked."""
    c = poisoned.c
    query = (
        select(c.item, c.member, c.liked, c.epoch, c.seq, c.reason, c.at_us)
        .where(c.scope == scope)
        .order_by(c.at_us.desc(), c.item, c.member)
        .limit(limit)
    )
    if pair is not None:
        query = query.where(c.item == ids.item_key(pair[0]), c.member == ids.user_key(pair[1]))
    rows = connection.execute(query)
    return [
        Poisoned(
            ids.item_id(item),
            ids.user_id(user),
            liked,
            (epoch, seq),
            reason,
            at=at_us / 1e6,
        )
        for item, user, liked, epoch, seq, reason, at_us in rows
    ]
