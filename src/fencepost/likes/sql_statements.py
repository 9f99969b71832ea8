"""The transactions of a like cache over a plain connection."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from fencepost.errors import Refused
from fencepost.journal.protocol import Place
from fencepost.likes import sql_poison
from fencepost.likes.sql_at_once import AtOnce, Claim
from fencepost.likes.sql_ids import IdColumn
from fencepost.likes.sql_postgres import Unnested, versions
from fencepost.likes.store import (
    Change,
    Committed,
    Cursor,
    Id,
    Inspected,
    ItemBatch,
    Like,
    Poisoned,
    Snapshot,
)
from fencepost.sql import fence as fencing

_PAIRS_AT_ONCE: Final = 400  # two parameters a pair; SQLite once allowed 999


class Statements:
    """The transactions over a plain connection, and how ids become text: the same for both engines."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        item: Column[Any],
        count: Column[Any],
        likes: Table,
        like_item: str = "activity_id",
        like_user: str = "user_id",
        liked_at: str | None = "liked_at",
    ) -> None:
        for name in filter(None, (like_item, like_user, liked_at)):
            if name not in likes.c:
                raise Refused(
                    f"the table {likes.name!r} has no column {name!r}; it has {', '.join(likes.c.keys())}"
                )
        self._item, self._count, self._likes = item, count, likes
        self._items: Table = item.table
        self._counted = func.coalesce(count, 0)  # an item whose count was never set does exist
        self._like_item, self._like_user = likes.c[like_item], likes.c[like_user]
        self._liked_at = likes.c[liked_at] if liked_at else None
        self._item_ids = IdColumn(item, dialect, "an item")
        self._user_ids = IdColumn(self._like_user, dialect, "a user")
        columns = (item, count, self._like_item, self._like_user, self._liked_at)
        self._unnested = Unnested(*columns)
        self._at_once = AtOnce(*columns) if dialect.name == "postgresql" else None

    # -- ids

    def item_key(self, item: Any) -> str:
        return self._item_ids.key(item)

    def user_key(self, user: Any) -> str:
        return self._user_ids.key(user)

    def item_id(self, key: str) -> Id:
        return self._item_ids.id(key)

    def user_id(self, key: str) -> Id:
        return self._user_ids.id(key)

    # -- transactions

    def _epoch(self, connection: Connection, place: Place) -> int:
        fencing.agree_on_shards(connection, place.scope, place.shards)
        return fencing.epoch_of(connection, _scope(place)) or 0

    def _raise_epoch(self, connection: Connection, place: Place, seen: int, epoch: int) -> bool:
        return fencing.raise_epoch(connection, _scope(place), seen, epoch)

    def _snapshot(
        self, connection: Connection, place: Place, item: Id, user: Id | None, full_max: int
    ) -> Snapshot:
        epoch = fencing.epoch_of(connection, _scope(place)) or 0
        count = connection.execute(select(self._counted).where(self._item == item)).scalar()
        if count is None:
            return Snapshot(epoch, None, None, False)
        of_item = self._like_item == item
        if count <= full_max:
            rows = (
                connection.execute(select(self._like_user).where(of_item).limit(full_max + 1))
                .scalars()
                .all()
            )
            if len(rows) <= full_max:
                return Snapshot(epoch, count, tuple(rows), user in rows)
        liked = user is not None and (
            connection.execute(
                select(self._like_user).where(of_item, self._like_user == user)
            ).first()
            is not None
        )
        return Snapshot(epoch, count, None, liked)

    def _likers(
        self, connection: Connection, item: Id, limit: int, after: Cursor | None
    ) -> list[Like]:
        if after is not None:
            self.user_key(after.id)  # it came from a caller
        return self._page(connection, self._like_user, self._like_item == item, limit, after)

    def _liked_by(
        self, connection: Connection, user: Id, limit: int, after: Cursor | None
    ) -> list[Like]:
        if after is not None:
            self.item_key(after.id)
        return self._page(connection, self._like_item, self._like_user == user, limit, after)

    def _liked_among(self, connection: Connection, user: Id, items: Sequence[Id]) -> list[Id]:
        found: list[Id] = []
        for start in range(0, len(items), _PAIRS_AT_ONCE):
            some = items[start : start + _PAIRS_AT_ONCE]
            of_user = select(self._like_item).where(self._like_user == user)
            found += connection.execute(of_user.where(self._like_item.in_(some))).scalars()
        return found

    def _page(
        self,
        connection: Connection,
        what: Column[Any],
        where: ColumnElement[bool],
        limit: int,
        after: Cursor | None,
    ) -> list[Like]:
        at = self._liked_at
        order = [what.desc()] if at is None else [at.desc(), what.desc()]
        query = (
            select(what, literal(None) if at is None else at)
            .where(where)
            .order_by(*order)
            .limit(limit)
        )
        if after is not None:
            below = what < after.id
            if at is not None:
                moment = _time(after.at_us, at)
                below = or_(at < moment, and_(at == moment, below))
            query = query.where(below)
        return [Like(one, _micros(moment)) for one, moment in connection.execute(query)]

    def _page_of_items(self, connection: Connection, limit: int, after: Id | None) -> list[Id]:
        query = select(self._item).order_by(self._item).limit(limit)
        if after is not None:
            query = query.where(self._item > after)
        return list(connection.execute(query).scalars())

    def _sample(self, connection: Connection, count: int) -> list[Id]:
        return list(
            connection.execute(select(self._item).order_by(func.random()).limit(count)).scalars()
        )

    def _inspect(
        self,
        connection: Connection,
        place: Place,
        epoch: int,
        fence: int | None,
        item: Id,
        users: Sequence[Id],
        repair: bool,
    ) -> Inspected:
        scope = _scope(place)
        if fence is not None and (refused := fencing.advance(connection, scope, epoch, fence)):
            return Inspected(refused)
        count = connection.execute(
            select(self._counted).where(self._item == item).with_for_update()
        ).scalar()
        if count is None:
            return Inspected()
        of_item = self._like_item == item
        rows = connection.execute(
            select(func.count()).select_from(self._likes).where(of_item)
        ).scalar_one()
        liked: list[Id] = []
        for start in range(0, len(users), _PAIRS_AT_ONCE):
            some = users[start : start + _PAIRS_AT_ONCE]
            liked += connection.execute(
                select(self._like_user).where(of_item, self._like_user.in_(some))
            ).scalars()
        version = self._versions(connection, scope, [item]).get(item, (0, 0))
        if repair and rows != count:
            connection.execute(
                update(self._items).where(self._item == item).values({self._count: rows})
            )
        return Inspected("", count, rows, tuple(liked), version)

    def _remove_item(self, connection: Connection, place: Place, item: Id) -> int:
        # The item's row first, as every flush does: two that wait for each other would be a deadlock.
        connection.execute(select(self._item).where(self._item == item).with_for_update())
        gone = connection.execute(delete(self._likes).where(self._like_item == item)).rowcount
        connection.execute(delete(self._items).where(self._item == item))
        return gone

    def _commit(
        self,
        connection: Connection,
        place: Place,
        epoch: int,
        fence: int,
        batches: Sequence[ItemBatch],
        apart: bool = False,
    ) -> Committed:
        """Commit a batch; ``apart`` finds the rows that the database refuses, and sets them aside."""
        scope = _scope(place)
        # First of all: it decides whether we may, and it makes every other flusher of the shard wait.
        if refused := fencing.advance(connection, scope, epoch, fence):
            return Committed(refused=refused)
        # All lock in one order, so that two of us never deadlock; and before the likes are read, so
        # that each delta is exact.
        batches = sorted(batches, key=lambda batch: batch.item)
        gone_past = self._lock(connection, scope, [batch.item for batch in batches])
        orphans = tuple(batch.item for batch in batches if batch.item not in gone_past)
        batches = [batch for batch in batches if batch.item in gone_past]
        fresh = {
            batch.item: [one for one in batch.changes if one.version > gone_past[batch.item]]
            for batch in batches
        }
        poison: tuple[Poisoned, ...] = ()
        if apart:
            changed, poison = sql_poison.apply_apart(connection, self._apply, fresh)
            poison = sql_poison.set_aside(connection, self, place.scope, poison)
            stay = {one.item for one in poison if not one.kept}
            batches = [batch for batch in batches if batch.item not in stay]
            self._remember(connection, self._newest(scope, batches, gone_past))
        else:
            changed = self._apply(connection, fresh, self._newest(scope, batches, gone_past))
        asked = sum(len(batch.changes) for batch in batches)
        return Committed("", changed, asked - sum(map(len, fresh.values())), orphans, poison)

    def _commit_at_once(
        self,
        connection: Connection,
        statement: AtOnce,
        place: Place,
        epoch: int,
        fence: int,
        batches: Sequence[ItemBatch],
    ) -> Committed | None:
        """The same in one statement, where nobody comes between; else None."""
        batches = sorted(batches, key=lambda batch: batch.item)
        return statement.commit(
            connection,
            Claim(_scope(place), epoch, fence),
            batches,
            [self.item_key(batch.item) for batch in batches],
            _times({batch.item: batch.changes for batch in batches})
            if self._liked_at is not None
            else {},
        )

    def _lock(
        self, connection: Connection, scope: str, items: Sequence[Id]
    ) -> dict[Id, tuple[int, int]]:
        """Lock the rows of items, in order; the last whole commit of each that exists."""
        if connection.dialect.name == "postgresql":
            return self._unnested.lock(connection, scope, items, [*map(self.item_key, items)])
        locked = select(self._item).where(self._item.in_(items)).order_by(self._item)
        there = connection.execute(locked).scalars().all()
        found = self._versions(connection, scope, there)
        return {item: found.get(item, (0, 0)) for item in there}

    def _versions(
        self, connection: Connection, scope: str, items: Iterable[Id]
    ) -> dict[Id, tuple[int, int]]:
        keys = [self.item_key(item) for item in items]
        rows = connection.execute(
            select(versions.c.item, versions.c.epoch, versions.c.seq).where(
                versions.c.scope == scope, versions.c.item.in_(keys)
            )
        )
        return {self.item_id(item): (epoch, seq) for item, epoch, seq in rows}

    def _apply(
        self,
        connection: Connection,
        fresh: dict[Id, list[Change]],
        newest: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Insert and delete rows, move each count by the rows really changed, and note what is new.

        Returns:
            How many rows changed.
        """
        if connection.dialect.name == "postgresql":
            return self._unnested.apply(connection, fresh, _times(fresh), newest)
        changed = self._apply_by_looking(connection, fresh)
        self._remember(connection, newest)
        return changed

    def _apply_by_looking(self, connection: Connection, fresh: dict[Id, list[Change]]) -> int:
        """Right where the transaction has the write lock, as on SQLite: nobody comes between."""
        times = _times(fresh)
        pairs = [(item, one.user) for item, changes in fresh.items() for one in changes]
        there: set[tuple[Id, Id]] = set()
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            some = pairs[start : start + _PAIRS_AT_ONCE]
            found = connection.execute(
                select(self._like_item, self._like_user).where(
                    tuple_(self._like_item, self._like_user).in_(some)
                )
            )
            there.update((item, user) for item, user in found)
        added, removed, moved = [], [], []
        for item, changes in fresh.items():
            delta = 0
            for one in changes:
                if one.liked == ((item, one.user) in there):
                    continue
                delta += 1 if one.liked else -1
                row = {"p_item": item, "p_user": one.user}
                if one.liked:
                    added.append({**row, "p_at": times[one.version]})
                else:
                    removed.append(row)
            if delta:
                moved.append({"p_item": item, "p_delta": delta})
        if added:
            columns: dict[Any, Any] = {
                self._like_item: bindparam("p_item"),
                self._like_user: bindparam("p_user"),
            }
            if self._liked_at is not None:
                columns[self._liked_at] = bindparam("p_at", type_=self._liked_at.type)
            connection.execute(insert(self._likes).values(columns), added)
        if removed:
            which = and_(
                self._like_item == bindparam("p_item"), self._like_user == bindparam("p_user")
            )
            connection.execute(delete(self._likes).where(which), removed)
        if moved:
            count = {self._count: self._counted + bindparam("p_delta")}
            connection.execute(
                update(self._items).where(self._item == bindparam("p_item")).values(count), moved
            )
        return len(added) + len(removed)

    def _newest(
        self, scope: str, batches: Sequence[ItemBatch], gone_past: Mapping[Id, tuple[int, int]]
    ) -> list[dict[str, Any]]:
        """Each item's newest version as a row, but only where the batch was its whole journal."""
        rows = []
        for batch in batches:
            epoch, seq = max((one.version for one in batch.changes), default=(0, 0))
            if batch.whole and (epoch, seq) > gone_past[batch.item]:
                key = self.item_key(batch.item)
                rows.append({"scope": scope, "item": key, "epoch": epoch, "seq": seq})
        return rows

    def _remember(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            connection.execute(
                fencing.upsert(connection, versions, ["scope", "item"], ["epoch", "seq"]), rows
            )


_DAWN: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


def _times(fresh: Mapping[Id, Sequence[Change]]) -> dict[tuple[int, int], datetime.datetime]:
    """The time of each change of a batch: that of the flush, a microsecond apart in their own order."""
    now = datetime.datetime.now(datetime.UTC)
    flushed = sorted(one.version for changes in fresh.values() for one in changes)
    return {version: now + place * _MICROSECOND for place, version in enumerate(flushed)}


def _micros(moment: datetime.datetime | None) -> int:
    """A time as whole microseconds; what a database gives without a zone is UTC."""
    if moment is None:
        return 0
    return (
        (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - _DAWN
    ) // _MICROSECOND


def _time(micros: int, column: Column[Any]) -> datetime.datetime:
    """The inverse, as the column keeps it."""
    moment = _DAWN + datetime.timedelta(microseconds=micros)
    return moment if getattr(column.type, "timezone", False) else moment.replace(tzinfo=None)


def _scope(place: Place) -> str:
    return f"{place.scope}:{place.shard:03d}"
