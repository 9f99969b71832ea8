"""The flush of a like cache on PostgreSQL: one statement for all rows of a batch.

The rows that the statement itself inserted and deleted (RETURNING) move the counts, not a look taken
before it: somebody who writes past fencepost at the same moment can't make a delta wrong.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    String,
    Table,
    Text,
    bindparam,
    column,
    delete,
    func,
    literal,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.types import TypeEngine

from fencepost.likes.store import Change, Id


class Unnested:
    """The statement, made once a store.

    Args:
        item: The item's id column.
        count: Its count.
        like_item: The item's column in the table of likes.
        like_user: The user's there.
        liked_at: The time's there, if it has one.
    """

    def __init__(
        self,
        item: Column[Any],
        count: Column[Any],
        like_item: Column[Any],
        like_user: Column[Any],
        liked_at: Column[Any] | None,
    ) -> None:
        self._zoned = liked_at is None or bool(getattr(liked_at.type, "timezone", False))
        self._timed = liked_at is not None
        likes: Table = like_item.table
        columns: dict[str, TypeEngine[Any]] = {
            "item": _wide(item),
            "member": _wide(like_user),
            "liked": Boolean(),
        }
        if liked_at is not None:
            columns["at"] = liked_at.type
        want = (
            select(
                func.unnest(*(bindparam(f"{name}s", type_=ARRAY(t)) for name, t in columns.items()))
                .table_valued(*(column(name, kind) for name, kind in columns.items()))
                .render_derived(name="given")
            )
        ).cte("want")
        named = [like_item, like_user] + ([liked_at] if liked_at is not None else [])
        given = [want.c.item, want.c.member] + ([want.c.at] if liked_at is not None else [])
        added = (
            insert(likes)
            .from_select(
                named,
                select(*given).where(want.c.liked).order_by(want.c.item, want.c.member),
            )
            .on_conflict_do_nothing(index_elements=[like_item, like_user])
            .returning(like_item.label("item"))
            .cte("added")
        )
        removed = (
            delete(likes)
            .where(like_item == want.c.item, like_user == want.c.member, ~want.c.liked)
            .returning(like_item.label("item"))
            .cte("removed")
        )
        each = union_all(
            select(added.c.item, literal(1).label("by")),
            select(removed.c.item, literal(-1).label("by")),
        ).subquery()
        delta = select(each.c.item, func.sum(each.c.by).label("by")).group_by(each.c.item)
        moved_by = delta.cte("delta")
        moved = (
            update(item.table)
            .where(item == moved_by.c.item, moved_by.c.by != 0)
            .values({count: func.coalesce(count, 0) + moved_by.c.by})
            .returning(item)
            .cte("moved")
        )
        self._statement = select(select(func.count()).select_from(each).scalar_subquery()).add_cte(
            moved
        )

    def apply(
        self,
        connection: Connection,
        fresh: Mapping[Id, Sequence[Change]],
        times: Mapping[tuple[int, int], datetime.datetime],
    ) -> int:
        """Insert and delete rows; move each count by the rows really changed; how many those were."""
        rows = [(item, one) for item, changes in fresh.items() for one in changes]
        if not rows:
            return 0
        given: dict[str, Any] = {
            "items": [item for item, _ in rows],
            "members": [one.user for _, one in rows],
            "likeds": [one.liked for _, one in rows],
        }
        if self._timed:
            moments = (times[one.version] for _, one in rows)
            given["ats"] = [at if self._zoned else at.replace(tzinfo=None) for at in moments]
        changed: int = connection.execute(self._statement, given).scalar_one()
        return changed


def _wide(of: Column[Any]) -> BigInteger | String:
    """The type of an id in an array: as wide as any, so that only the column itself can refuse it."""
    return BigInteger() if of.type.python_type is int else Text()
