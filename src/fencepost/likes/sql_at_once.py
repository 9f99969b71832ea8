"""A whole flush in one statement of PostgreSQL: one round trip, COMMIT included.

What makes several statements safe is that each sees what was committed before it, so the rows are
read after the fence and the items were locked. One statement sees one moment, that of its beginning;
where it had to wait for a lock, others have committed since, and it must not go on with what it saw.
So it looks whether it waited: the fence that it raises must be the one it saw, and each item's row
that it locks must be the version that it saw. Where not, it applies nothing (a raised fence aside,
which is harmless), says so, and the caller takes the several statements instead.

It is sent again where its connection breaks: what it says is absolute, and its fence and the items'
versions make a second time a no-op.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Text,
    and_,
    bindparam,
    column,
    exists,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.expression import ColumnClause
from sqlalchemy.types import TypeEngine

from fencepost.likes.sql_postgres import array, as_text, versions, wide, written
from fencepost.likes.store import Committed, Id, ItemBatch
from fencepost.sql.fence import fences


@dataclass(frozen=True, slots=True)
class Claim:
    """What may be written, and under which fence."""

    scope: str
    epoch: int
    fence: int


class AtOnce:
    """The statement, made once a store; the columns are those of ``Unnested``."""

    def __init__(
        self,
        item: Column[Any],
        count: Column[Any],
        like_item: Column[Any],
        like_user: Column[Any],
        liked_at: Column[Any] | None,
    ) -> None:
        self._timed = liked_at is not None
        self._zoned = liked_at is None or bool(getattr(liked_at.type, "timezone", False))
        items = item.table
        before, seen = fences.alias("before"), items.alias("seen")

        saw = select(before.c.fence).where(before.c.scope == bindparam("of_scope"))
        held = (
            update(fences)
            .where(
                fences.c.scope == bindparam("of_scope"),
                fences.c.epoch == bindparam("of_epoch"),
                fences.c.fence <= bindparam("of_fence"),
                fences.c.fence == saw.scalar_subquery(),  # nobody came between
            )
            .values(fence=bindparam("of_fence"))
            .returning(fences.c.scope)
            .cte("held")
        )
        asked = _unnested(
            "asked",
            {"id": wide(item), "key": Text(), "epoch": BigInteger(), "seq": BigInteger()},
        )
        version = and_(versions.c.scope == bindparam("of_scope"), versions.c.item == asked.c.key)
        # Joined with the fence, so that the fence is taken first, as every flush does.
        there = (
            held.join(asked, true())
            .join(items, item == asked.c.id)
            .join(seen, seen.c[item.key] == asked.c.id)
            .outerjoin(versions, version)
        )
        locked = (
            select(
                item.label("id"),
                asked.c.key,
                asked.c.epoch,
                asked.c.seq,
                func.coalesce(versions.c.epoch, 0).label("past_epoch"),
                func.coalesce(versions.c.seq, 0).label("past_seq"),
                (_written_by(items) == _written_by(seen)).label("same"),
            )
            .select_from(there)
            .order_by(item)
            .with_for_update(of=items, key_share=True)
            .cte("locked")
        )
        calm = ~exists(select(locked.c.id).where(~locked.c.same))

        kinds: dict[str, TypeEngine[Any]] = {
            "item": wide(item),
            "member": wide(like_user),
            "liked": Boolean(),
            "epoch": BigInteger(),
            "seq": BigInteger(),
        }
        if liked_at is not None:
            kinds["at"] = liked_at.type
        given = _unnested("given", kinds)
        want = (
            select(*given.c)
            .select_from(given.join(locked, locked.c.id == given.c.item))
            .where(calm, _newer(given.c, locked.c))
            .cte("want")
        )
        each, moved = written(want, item, count, like_item, like_user, liked_at)
        newest = select(bindparam("of_scope", type_=Text()), *(locked.c[n] for n in _VERSION))
        new = insert(versions).from_select(
            ["scope", "item", "epoch", "seq"],
            newest.where(calm, locked.c.epoch > 0, _newer(locked.c, locked.c)),
        )
        remembered = (
            new.on_conflict_do_update(
                index_elements=["scope", "item"],
                set_={"epoch": new.excluded.epoch, "seq": new.excluded.seq},
            )
            .returning(versions.c.item)
            .cte("remembered")
        )
        self._statement = select(
            select(func.count()).select_from(held).scalar_subquery(),
            select(calm).scalar_subquery(),
            select(func.array_agg(locked.c.id)).scalar_subquery(),
            select(func.count()).select_from(each).scalar_subquery(),
            select(func.count()).select_from(want).scalar_subquery(),
        ).add_cte(moved, remembered)

    def commit(
        self,
        connection: Connection,
        claim: Claim,
        batches: Sequence[ItemBatch],
        keys: Sequence[str],
        times: Mapping[tuple[int, int], datetime.datetime],
    ) -> Committed | None:
        """Commit a batch, items in their order; None where that is for the several statements.

        Args:
            connection: One that commits by itself.
            claim: Under which fence.
            batches: An item each.
            keys: The items' keys.
            times: When each change was made.
        """
        newest = [
            max((one.version for one in batch.changes), default=(0, 0)) if batch.whole else (0, 0)
            for batch in batches
        ]
        rows = [one for batch in batches for one in batch.changes]
        members, liked, given_versions = zip(*rows, strict=True) if rows else ((), (), ())
        given: dict[str, Any] = {
            "of_scope": claim.scope,
            "of_epoch": claim.epoch,
            "of_fence": claim.fence,
            "asked_id": as_text([batch.item for batch in batches]),
            "asked_key": as_text(keys),
            "asked_epoch": as_text([epoch for epoch, _ in newest]),
            "asked_seq": as_text([seq for _, seq in newest]),
            "given_item": as_text([batch.item for batch in batches for _ in batch.changes]),
            "given_member": as_text(members),
            "given_liked": as_text([*map(int, liked)]),
            "given_epoch": as_text([epoch for epoch, _ in given_versions]),
            "given_seq": as_text([seq for _, seq in given_versions]),
        }
        if self._timed:
            moments = map(times.__getitem__, given_versions)
            given["given_at"] = as_text(
                [str(at if self._zoned else at.replace(tzinfo=None)) for at in moments]
            )
        held, calm, found, changed, wanted = connection.execute(self._statement, given).one()
        if not held or not calm:
            return None
        there: set[Id] = set(found or ())
        orphans = tuple(batch.item for batch in batches if batch.item not in there)
        asked = sum(len(batch.changes) for batch in batches if batch.item in there)
        return Committed("", changed, asked - wanted, orphans)


_VERSION = ("key", "epoch", "seq")


def _unnested(name: str, kinds: Mapping[str, TypeEngine[Any]]) -> Any:
    """Parameters that are arrays, as a table."""
    return (
        func.unnest(*(array(f"{name}_{part}", kind) for part, kind in kinds.items()))
        .table_valued(*(column(part, kind) for part, kind in kinds.items()))
        .render_derived(name=name)
    )


def _written_by(table: Any) -> ColumnClause[Any]:
    """Which transaction wrote a row's version: what every row has."""
    return ColumnClause("xmin", _selectable=table)


def _newer(one: Any, past: Any) -> Any:
    """Whether a version is newer than what SQL has gone past."""
    return or_(
        one.epoch > past.past_epoch,
        and_(one.epoch == past.past_epoch, one.seq > past.past_seq),
    )
