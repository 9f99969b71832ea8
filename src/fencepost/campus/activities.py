"""Activities in SQL: plain, synchronous, called from worker threads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from fencepost.campus.tables import activities, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy import Connection, Engine

ID_MAX = 2**63 - 1
_COLUMNS = [column for column in activities.c if column.name != "like_count"]


@dataclass(frozen=True)
class NewActivity:
    """What a caller gives; checked by ``fencepost.campus.forms``."""

    title: str
    place: str
    starts_at: datetime
    capacity: int


@dataclass(frozen=True)
class Activity(NewActivity):
    """A row, without its like_count: that figure lags, and is asked of the likes instead."""

    id: int
    created_at: datetime


class Activities:
    """The table of activities.

    Args:
        engine: A synchronous engine; each call takes one connection of it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.changed: Callable[[Connection, int], None] = lambda connection, activity_id: None
        """Called in the transaction that changes an activity, when it has."""
        self.removed: Callable[[Connection, int], None] = lambda connection, activity_id: None
        """Called in the transaction that deletes an activity, before it does."""

    @property
    def engine(self) -> Engine:
        """Where the table is, for what shares its transactions."""
        return self._engine

    def add(self, new: NewActivity) -> Activity:
        """Insert one; returns it with its id."""
        created = datetime.now(UTC).replace(microsecond=0)
        with self._engine.begin() as connection:
            result = connection.execute(
                insert(activities).values(**vars(new), created_at=created, like_count=0)
            )
            (new_id,) = result.inserted_primary_key or (None,)
        if new_id is None:
            raise LookupError("the database gave no id for the new activity")
        return Activity(**vars(new), id=int(new_id), created_at=created)

    def get(self, activity_id: int) -> Activity | None:
        """One activity, or None."""
        with self._engine.connect() as connection:
            query = select(*_COLUMNS).where(activities.c.id == activity_id)
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else Activity(**row)

    def some(self, ids: Iterable[int]) -> dict[int, Activity]:
        """Those of these activities that exist."""
        query = select(*_COLUMNS).where(activities.c.id.in_(list(ids)))
        with self._engine.connect() as connection:
            rows = connection.execute(query).mappings()
            return {row["id"]: Activity(**row) for row in rows}

    def page(self, after: int | None, limit: int) -> tuple[list[Activity], int | None]:
        """Newest first: up to ``limit`` activities below id ``after``, and where to go on."""
        query = select(*_COLUMNS).order_by(activities.c.id.desc()).limit(limit + 1)
        if after is not None:
            query = query.where(activities.c.id < after)
        with self._engine.connect() as connection:
            rows = [Activity(**row) for row in connection.execute(query).mappings()]
        return rows[:limit], rows[limit - 1].id if len(rows) > limit else None

    def change(self, activity_id: int, changes: Mapping[str, Any]) -> Activity | None:
        """Change some fields of one, and read it back in the same transaction; None if it is not there."""
        mine = activities.c.id == activity_id
        with self._engine.begin() as connection:
            # the change first: it locks the row, so what is read is what is committed
            connection.execute(update(activities).where(mine).values(**changes))
            self.changed(connection, activity_id)
            row = connection.execute(select(*_COLUMNS).where(mine)).mappings().one_or_none()
        return None if row is None else Activity(**row)

    def remove(self, activity_id: int) -> bool:
        """Delete one; whether it was there. Its likes go with it, by the foreign key."""
        with self._engine.begin() as connection:
            # the activity first, as a flusher locks them: the other way round the two could deadlock
            self.removed(connection, activity_id)
            query = delete(activities).where(activities.c.id == activity_id)
            return connection.execute(query).rowcount > 0

    def ping(self) -> None:
        """Raise if the database does not answer."""
        with self._engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def add_once(self, name: str, new: Iterable[NewActivity]) -> bool:
        """Insert these, once in the life of the database; returns whether this call did it.

        Any number of processes may call this at the same time: the mark and the activities are
        one transaction, and the mark's key lets one of them through.
        """
        created = datetime.now(UTC).replace(microsecond=0)
        rows = [{**vars(each), "created_at": created} for each in new]
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(once).values(name=name))
                connection.execute(insert(activities), rows)
        except IntegrityError:
            return False
        return True
