"""A gate for values that are written behind: compared and raised in the transaction that saves them.

    gate = SqlGate(engine)
    writes = products.behind(save_many, gate=gate)

    def save_many(batch):
        with engine.begin() as connection:
            for one in gate.admit(connection, batch):
                connection.execute(...)

``admit`` raises the fence of the batch's scope, or refuses the batch (``Superseded``): then a newer
flusher has been here, and the transaction must roll back, as it does by the exception. It gives the
entries that are newer than what was saved: a journal that a failover brought back holds some that
are not. Beside the application's tables stand two: ``fencepost_fence``, a row a shard, and
``fencepost_saved``, a row for each key that was ever written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, Column, Connection, Engine, String, Table, select

from fencepost._core.keys import shorten
from fencepost.errors import Superseded
from fencepost.sql import fence
from fencepost.sql.transactions import transact, transact_async

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from fencepost.journal.protocol import Place

_AT_ONCE: Final = 500

saved = Table(
    "fencepost_saved",
    fence.metadata,
    Column("scope", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("version", BigInteger, nullable=False),  # the newest that was saved
)


def admit(connection: Connection, batch: Any) -> list[Any]:
    """What of a batch is to be saved in this transaction; call it first, before anything is read.

    Args:
        connection: Of a transaction that the exception below rolls back. On PostgreSQL it must read
            what is committed (READ COMMITTED, the default).
        batch: As ``save_many`` was given it.

    Returns:
        Its entries without those that were saved already, at their version or a newer one.

    Raises:
        Superseded: A newer flusher has been here, or the server has lost its data since.
    """
    # The fence first: its row is locked from here on, so whoever else saves comes before or after.
    refused = fence.advance(connection, batch.scope, batch.epoch, batch.fence)
    if refused:
        raise Superseded(f"{batch.scope} was saved at a newer {refused}; roll back", by=refused)
    names = {shorten(one.key): one for one in batch.entries}
    known = dict(_versions(connection, batch.scope, list(names)))
    fresh = {name: one for name, one in names.items() if one.version > known.get(name, -1)}
    if fresh:
        rows = [
            {"scope": batch.scope, "key": name, "version": one.version}
            for name, one in fresh.items()
        ]
        connection.execute(fence.upsert(connection, saved, ["scope", "key"], ["version"]), rows)
    return list(fresh.values())


def _versions(connection: Connection, scope: str, names: list[str]) -> Iterable[tuple[str, int]]:
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        query = select(saved.c.key, saved.c.version)
        rows = connection.execute(query.where(saved.c.scope == scope, saved.c.key.in_(some)))
        yield from ((key, version) for key, version in rows)


def _scope(place: Place) -> str:
    return f"{place.scope}/{place.shard}"


def _epoch(connection: Connection, place: Place) -> int:
    fence.agree_on_shards(connection, place.scope, place.shards)
    return fence.epoch_of(connection, _scope(place)) or 0


def _raise_epoch(connection: Connection, place: Place, seen: int, epoch: int) -> bool:
    return fence.raise_epoch(connection, _scope(place), seen, epoch)


class SqlGate:
    """The gate of a database with a sync engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create_tables(self) -> None:
        """Create fencepost's own tables where they are missing."""
        fence.metadata.create_all(self.engine)

    def epoch(self, place: Place) -> int:
        """See ``fencepost.journal.protocol.Epochs``."""
        return transact(self.engine, lambda one: _epoch(one, place), write=True)

    def raise_epoch(self, place: Place, seen: int, epoch: int) -> bool:
        """See ``fencepost.journal.protocol.Epochs``."""
        return transact(self.engine, lambda one: _raise_epoch(one, place, seen, epoch), write=True)

    def admit(self, connection: Connection, batch: Any) -> list[Any]:
        """See ``fencepost.sql.gate.admit``."""
        return admit(connection, batch)


class AsyncSqlGate:
    """The gate of a database with an async engine.

    In a transaction: ``await connection.run_sync(gate.admit, batch)``.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def create_tables(self) -> None:
        """Create fencepost's own tables where they are missing."""
        async with self.engine.begin() as connection:
            await connection.run_sync(fence.metadata.create_all)

    async def epoch(self, place: Place) -> int:
        """See ``fencepost.journal.protocol.Epochs``."""
        return await transact_async(self.engine, lambda one: _epoch(one, place), write=True)

    async def raise_epoch(self, place: Place, seen: int, epoch: int) -> bool:
        """See ``fencepost.journal.protocol.Epochs``."""
        return await transact_async(
            self.engine, lambda one: _raise_epoch(one, place, seen, epoch), write=True
        )

    def admit(self, connection: Connection, batch: Any) -> list[Any]:
        """See ``fencepost.sql.gate.admit``."""
        return admit(connection, batch)
