"""The database side of a like cache, on tables that the application owns.

Beside them stand three tables of fencepost's: ``fencepost_fence``, ``fencepost_like_version`` (the
last whole commit of each item, so that an old journal that comes back never undoes it) and
``fencepost_like_poison`` (changes that the database refused: a user that does not exist, a name that
is too long). Its rows are for people: mend the cause, read them, delete them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Engine,
)
from sqlalchemy.exc import DBAPIError

from fencepost.journal.protocol import Place
from fencepost.likes import sql_poison
from fencepost.likes.sql_statements import Statements
from fencepost.likes.store import (
    Committed,
    Cursor,
    Id,
    Inspected,
    ItemBatch,
    Like,
    Poisoned,
    Snapshot,
)
from fencepost.sql import dialects
from fencepost.sql import fence as fencing
from fencepost.sql.transactions import at_once, at_once_async, transact, transact_async

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # not at run time: it brings the ORM


class SqlLikes(Statements):
    """A like store on a SQLAlchemy ``Engine``; for both faces (the async one runs it in threads).

    Args:
        engine: SQLite or PostgreSQL.
        item: The item's id column, ``activities.c.id``: whole numbers or text.
        count: The column that holds how many like it, ``activities.c.like_count``.
        likes: The table with a row a like; its primary key is (item, user).
        like_item: Its column of the item.
        like_user: Its column of the user: whole numbers or text.
        liked_at: Its column of the time, set when the row is flushed; None if it has none.

    Raises:
        Refused: A column does not exist, or is neither of whole numbers nor of text.
    """

    def __init__(self, engine: Engine, **tables: Any) -> None:
        super().__init__(engine.dialect, **tables)
        self.engine = engine

    def create_tables(self) -> None:
        """Create fencepost's own tables where they are missing; the application's stay as they are."""
        fencing.metadata.create_all(self.engine)

    def epoch(self, place: Place) -> int:
        return transact(self.engine, lambda c: self._epoch(c, place), write=True)

    def raise_epoch(self, place: Place, seen: int, epoch: int) -> bool:
        return transact(self.engine, lambda c: self._raise_epoch(c, place, seen, epoch), write=True)

    def snapshot(self, place: Place, item: Id, user: Id | None, full_max: int) -> Snapshot:
        return transact(
            self.engine, lambda c: self._snapshot(c, place, item, user, full_max), write=False
        )

    def likers(self, item: Id, limit: int, after: Cursor | None) -> list[Like]:
        return transact(self.engine, lambda c: self._likers(c, item, limit, after), write=False)

    def liked_by(self, user: Id, limit: int, after: Cursor | None) -> list[Like]:
        return transact(self.engine, lambda c: self._liked_by(c, user, limit, after), write=False)

    def liked_among(self, user: Id, items: Sequence[Id]) -> list[Id]:
        return transact(self.engine, lambda c: self._liked_among(c, user, items), write=False)

    def items(self, limit: int, after: Id | None) -> list[Id]:
        return transact(self.engine, lambda c: self._page_of_items(c, limit, after), write=False)

    def sample(self, count: int) -> list[Id]:
        return transact(self.engine, lambda c: self._sample(c, count), write=False)

    def inspect(
        self,
        place: Place,
        epoch: int,
        fence: int | None,
        item: Id,
        users: Sequence[Id],
        repair: bool,
    ) -> Inspected:
        return transact(
            self.engine,
            lambda c: self._inspect(c, place, epoch, fence, item, users, repair),
            write=True,
        )

    def remove_item(self, place: Place, item: Id) -> int:
        return transact(self.engine, lambda c: self._remove_item(c, place, item), write=True)

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        def work(connection: Connection, apart: bool = False) -> Committed:
            return self._commit(connection, place, epoch, fence, batches, apart)

        try:
            if statement := self._at_once:
                done = at_once(
                    self.engine,
                    lambda c: self._commit_at_once(c, statement, place, epoch, fence, batches),
                )
                if done is not None:
                    return done
            return transact(self.engine, work, write=True)
        except DBAPIError as error:
            if not dialects.of_the_row(error):
                raise
            return transact(self.engine, lambda c: work(c, apart=True), write=True)

    def poison(self, place: Place, limit: int, pair: tuple[Id, Id] | None = None) -> list[Poisoned]:
        return transact(
            self.engine, lambda c: sql_poison.read(c, self, place.scope, limit, pair), write=False
        )


class AsyncSqlLikes(Statements):
    """The same on an ``AsyncEngine``, for the async face. See ``SqlLikes``."""

    def __init__(self, engine: AsyncEngine, **tables: Any) -> None:
        super().__init__(engine.dialect, **tables)
        self.engine = engine

    async def create_tables(self) -> None:
        """Create fencepost's own tables where they are missing; the application's stay as they are."""
        async with self.engine.begin() as connection:
            await connection.run_sync(fencing.metadata.create_all)

    async def epoch(self, place: Place) -> int:
        return await transact_async(self.engine, lambda c: self._epoch(c, place), write=True)

    async def raise_epoch(self, place: Place, seen: int, epoch: int) -> bool:
        return await transact_async(
            self.engine, lambda c: self._raise_epoch(c, place, seen, epoch), write=True
        )

    async def snapshot(self, place: Place, item: Id, user: Id | None, full_max: int) -> Snapshot:
        return await transact_async(
            self.engine, lambda c: self._snapshot(c, place, item, user, full_max), write=False
        )

    async def likers(self, item: Id, limit: int, after: Cursor | None) -> list[Like]:
        return await transact_async(
            self.engine, lambda c: self._likers(c, item, limit, after), write=False
        )

    async def liked_by(self, user: Id, limit: int, after: Cursor | None) -> list[Like]:
        return await transact_async(
            self.engine, lambda c: self._liked_by(c, user, limit, after), write=False
        )

    async def liked_among(self, user: Id, items: Sequence[Id]) -> list[Id]:
        return await transact_async(
            self.engine, lambda c: self._liked_among(c, user, items), write=False
        )

    async def items(self, limit: int, after: Id | None) -> list[Id]:
        return await transact_async(
            self.engine, lambda c: self._page_of_items(c, limit, after), write=False
        )

    async def sample(self, count: int) -> list[Id]:
        return await transact_async(self.engine, lambda c: self._sample(c, count), write=False)

    async def inspect(
        self,
        place: Place,
        epoch: int,
        fence: int | None,
        item: Id,
        users: Sequence[Id],
        repair: bool,
    ) -> Inspected:
        return await transact_async(
            self.engine,
            lambda c: self._inspect(c, place, epoch, fence, item, users, repair),
            write=True,
        )

    async def remove_item(self, place: Place, item: Id) -> int:
        return await transact_async(
            self.engine, lambda c: self._remove_item(c, place, item), write=True
        )

    async def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        def work(connection: Connection, apart: bool = False) -> Committed:
            return self._commit(connection, place, epoch, fence, batches, apart)

        try:
            if statement := self._at_once:
                done = await at_once_async(
                    self.engine,
                    lambda c: self._commit_at_once(c, statement, place, epoch, fence, batches),
                )
                if done is not None:
                    return done
            return await transact_async(self.engine, work, write=True)
        except DBAPIError as error:
            if not dialects.of_the_row(error):
                raise
            return await transact_async(self.engine, lambda c: work(c, apart=True), write=True)

    async def poison(
        self, place: Place, limit: int, pair: tuple[Id, Id] | None = None
    ) -> list[Poisoned]:
        return await transact_async(
            self.engine, lambda c: sql_poison.read(c, self, place.scope, limit, pair), write=False
        )
