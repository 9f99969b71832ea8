"""The flush of a like cache on PostgreSQL: one statement for all rows of a batch.

The rows that the statement itself inserted and deleted (RETURNING) move the counts, not a look taken
before it: somebody who writes past fencepost at the same moment can't make a delta wrong.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    Column,
    Connection,
    String,
    Table,
    Text,
    and_,
    bindparam,
    cast,
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
from fencepost.sql.fence import metadata

versions = Table(
    "fencepost_like_version",
    metadata,
    Column("scope", String(255), primary_key=True),
    Column("item", String(255), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
)


class Unnested:
    """The statements, made once a store.

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
        columns: dict[str, TypeEngine[Any]] = {
            "item": wide(item),
            "member": wide(like_user),
            "liked": Boolean(),
        }
        if liked_at is not None:
            columns["at"] = liked_at.type
        want = (
            select(
                func.unnest(*(array(f"{name}s", kind) for name, kind in columns.items()))
                .table_valued(*(column(name, kind) for name, kind in columns.items()))
                .render_derived(name="given")
            )
        ).cte("want")
        each, moved = written(want, item, count, like_item, like_user, liked_at)
        counted = select(func.count()).select_from(each).scalar_subquery()
        self._statement = select(counted).add_cte(moved)
        self._with_versions = self._statement.add_cte(_remembered())
        self._locking = _locking(item)

    def lock(
        self, connection: Connection, scope: str, items: Sequence[Id], keys: Sequence[str]
    ) -> dict[Id, tuple[int, int]]:
        """Lock the rows of items, in order; the last whole commit of each that exists.

        To be called under the fence: only who holds it writes versions, so they can't change while
        this statement waits for a row.
        """
        rows = connection.execute(
            self._locking, {"of_scope": scope, "ids": as_text(items), "keys": as_text(keys)}
        )
        return {item: (epoch or 0, seq or 0) for item, epoch, seq in rows}

    def apply(
        self,
        connection: Connection,
        fresh: Mapping[Id, Sequence[Change]],
        times: Mapping[tuple[int, int], datetime.datetime],
        newest: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Insert and delete rows, move each count by the rows really changed, and note what is new.

        Args:
            connection: In a transaction that locked the items.
            fresh: Changes by item.
            times: When each was made.
            newest: Rows for the table of versions.

        Returns:
            How many rows changed.
        """
        rows = [(item, one) for item, changes in fresh.items() for one in changes]
        if not rows:
            return 0
        given = {
            "items": as_text([item for item, _ in rows]),
            "members": as_text([one.user for _, one in rows]),
            "likeds": as_text([int(one.liked) for _, one in rows]),
        }
        if self._timed:
            moments = (times[one.version] for _, one in rows)
            given["ats"] = as_text(
                [str(at if self._zoned else at.replace(tzinfo=None)) for at in moments]
            )
        statement = self._statement
        if newest:
            statement = self._with_versions
            given |= {f"v_{name}s": as_text([row[name] for row in newest]) for name in newest[0]}
        changed: int = connection.execute(statement, given).scalar_one()
        return changed


def written(
    want: CTE,
    item: Column[Any],
    count: Column[Any],
    like_item: Column[Any],
    like_user: Column[Any],
    liked_at: Column[Any] | None,
) -> tuple[Any, CTE]:
    """The writes of a batch, as parts of a statement.

    Args:
        want: Rows of ``item, member, liked`` and, where likes have a time, ``at``.
        item: The columns, as those of ``Unnested``.
        count: Likewise.
        like_item: Likewise.
        like_user: Likewise.
        liked_at: Likewise.

    Returns:
        A row for each row of likes that was really changed, and the part that moves the counts.
    """
    likes: Table = like_item.table
    named, values = [like_item, like_user], [want.c.item, want.c.member]
    if liked_at is not None:
        named, values = [*named, liked_at], [*values, want.c.at]
    added = (
        insert(likes)
        .from_select(
            named, select(*values).where(want.c.liked).order_by(want.c.item, want.c.member)
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
    return each, moved


def _locking(item: Column[Any]) -> Any:
    """Which of some items there are, their rows locked, and their versions."""
    given = (
        func.unnest(array("ids", wide(item)), array("keys", Text()))
        .table_valued(column("id", wide(item)), column("key", Text()))
        .render_derived(name="given")
    )
    version = and_(versions.c.scope == bindparam("of_scope"), versions.c.item == given.c.key)
    return (
        select(item, versions.c.epoch, versions.c.seq)
        .select_from(given.join(item.table, item == given.c.id).outerjoin(versions, version))
        .order_by(item)
        # Not FOR UPDATE: rows of others that refer to the item may come and go.
        .with_for_update(of=item.table, key_share=True)
    )


def _remembered() -> Any:
    """The upsert of versions, as a part of a greater statement."""
    kinds: dict[str, TypeEngine[Any]] = {
        "scope": Text(),
        "item": Text(),
        "epoch": BigInteger(),
        "seq": BigInteger(),
    }
    rows = (
        func.unnest(*(array(f"v_{name}s", kind) for name, kind in kinds.items()))
        .table_valued(*(column(name, kind) for name, kind in kinds.items()))
        .render_derived(name="newer")
    )
    new = insert(versions).from_select(list(kinds), select(*(rows.c[name] for name in kinds)))
    return (
        new.on_conflict_do_update(
            index_elements=["scope", "item"],
            set_={"epoch": new.excluded.epoch, "seq": new.excluded.seq},
        )
        .returning(versions.c.item)
        .cte("remembered")
    )


def wide(of: Column[Any]) -> BigInteger | String:
    """The type of an id in an array: as wide as any, so that only the column itself can refuse it."""
    return BigInteger() if of.type.python_type is int else Text()


def array(name: str, kind: TypeEngine[Any]) -> Any:
    """A parameter that is an array, given as ``as_text``: drivers take five times as long over a list."""
    return cast(bindparam(name, type_=Text()), ARRAY(kind))


def as_text(values: Sequence[int | str]) -> str:
    """An array as PostgreSQL reads it; all numbers, or all text."""
    if not values or isinstance(values[0], int):
        return "{" + ",".join(map(str, values)) + "}"
    text = '","'.join(values)  # type: ignore[arg-type]  # all of one kind
    if "\\" in text or text.count('"') != 2 * (len(values) - 1):  # seldom
        text = '","'.join([str(one).replace("\\", "\\\\").replace('"', '\\"') for one in values])
    return f'{{"{text}"}}'
