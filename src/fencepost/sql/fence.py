"""The fence table: the newest fence of each scope, compared in the transaction that it guards.

A writer draws a fence where it reads what it will write, and raises the table's to it in the same
transaction as the write. A writer that was paused meanwhile finds a greater one and writes nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    select,
    update,
)

from fencepost.errors import ConfigMismatch
from fencepost.sql.dialects import insert_into

metadata = MetaData()

fences = Table(
    "fencepost_fence",
    metadata,
    Column("scope", String(255), primary_key=True),
    Column("epoch", BigInteger, nullable=False),  # raised when the server's data was lost
    Column("fence", BigInteger, nullable=False),  # the newest writer of this epoch
    Column("shards", Integer, nullable=False),
)


def insert_ignoring(connection: Connection, table: Table) -> Any:
    """``INSERT … ON CONFLICT DO NOTHING`` in the connection's dialect."""
    return insert_into(connection, table).on_conflict_do_nothing()


def upsert(connection: Connection, table: Table, keys: list[str], values: list[str]) -> Any:
    """``INSERT … ON CONFLICT (keys) DO UPDATE`` of some columns."""
    statement = insert_into(connection, table)
    return statement.on_conflict_do_update(
        index_elements=keys, set_={name: statement.excluded[name] for name in values}
    )


def epoch_of(connection: Connection, scope: str) -> int | None:
    """A scope's epoch; None if it was never opened."""
    return connection.execute(select(fences.c.epoch).where(fences.c.scope == scope)).scalar()


def agree_on_shards(connection: Connection, scope: str, shards: int) -> None:
    """Write how many shards a scope has, once.

    Raises:
        ConfigMismatch: It has another number.
    """
    read = select(fences.c.shards).where(fences.c.scope == scope)
    found = connection.execute(read).scalar()
    if found is None:
        row = {"scope": scope, "epoch": 0, "fence": 0, "shards": shards}
        connection.execute(insert_ignoring(connection, fences).values(row))
        found = connection.execute(read).scalar()
    if found != shards:
        raise ConfigMismatch(
            f"{scope} was set up with {found} shards, this process has {shards}: an item would have two truths. "
            f"Set shards={found}"
        )


def raise_epoch(connection: Connection, scope: str, seen: int, epoch: int) -> bool:
    """Set a scope's epoch and start its fences anew, if its epoch still is ``seen`` (0: never opened)."""
    row = {"scope": scope, "epoch": 0, "fence": 0, "shards": 0}
    connection.execute(insert_ignoring(connection, fences).values(row))
    raised = connection.execute(
        update(fences)
        .where(fences.c.scope == scope, fences.c.epoch == seen)
        .values(epoch=epoch, fence=0)
    )
    return raised.rowcount == 1


def advance(connection: Connection, scope: str, epoch: int, fence: int) -> str:
    """Raise a scope's fence; '' if that was allowed, else what stands higher: ``epoch`` or ``fence``."""
    moved = connection.execute(
        update(fences)
        # Not '<': a COMMIT whose reply was lost is repeated with the same fence.
        .where(fences.c.scope == scope, fences.c.epoch == epoch, fences.c.fence <= fence)
        .values(fence=fence)
    )
    if moved.rowcount == 1:
        return ""
    return "fence" if epoch_of(connection, scope) == epoch else "epoch"
