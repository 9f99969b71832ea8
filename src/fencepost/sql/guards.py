"""What makes a fence worth having in SQL: conditions and gates in your own transaction, and done-once.

connection.execute(
    update(invoices)
    .where(invoices.c.id == 42, fence_guard(invoices.c.fence, lease))
    .values({invoices.c.state: "sent", **fence_values(invoices.c.fence, lease)})
)                                            # 0 rows: somebody newer has been here

pass_gate(connection, "nightly", lease)      # or raise FenceRefused; any statements may follow

if (done := once(connection, "charge:42")).first:
    ...                                      # the effect, in the same transaction
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    MetaData,
    String,
    Table,
    Text,
    and_,
    delete,
    func,
    or_,
    select,
    update,
)

from fencepost._core.fenced import Fenced, refusal
from fencepost.errors import Refused
from fencepost.sql.dialects import insert_into
from fencepost.sql.fence import insert_ignoring

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.orm import InstrumentedAttribute

    ColumnOf = Column[Any] | ColumnElement[Any] | InstrumentedAttribute[Any]

metadata: Final = MetaData()

gates: Final = Table(
    "fencepost_gate",
    metadata,
    Column("scope", String(255), primary_key=True),
    Column("fence", BigInteger, nullable=False),
    Column("token", String(64), nullable=False),
)

done: Final = Table(
    "fencepost_done",
    metadata,
    Column("key", String(255), primary_key=True),
    Column("result", Text),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now(), index=True),
)


def create_tables(engine: Engine) -> None:
    """Create the tables of ``pass_gate`` and ``once`` where they are missing."""
    metadata.create_all(engine)


async def create_tables_async(engine: AsyncEngine) -> None:
    """The same on an async engine."""
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)


# -- a condition for a row that knows its last fence


def fence_guard(
    column: ColumnOf, lease: Fenced, token: ColumnOf | None = None
) -> ColumnElement[bool]:
    """A condition for ``WHERE``: nobody newer has written this row.

    Args:
        column: Where the row keeps the fence of who wrote it last; NULL is nobody.
        lease: Who writes.
        token: Where it keeps who drew that fence. Without it equal fences pass: they differ for
            two holders unless the server lost its data while its clock was behind.

    Returns:
        The condition; a statement with it changes no row if somebody newer was there. Write the
        fence in the same statement: ``fence_values``.
    """
    if token is None:
        return or_(column.is_(None), column <= lease.fence)
    same = and_(column == lease.fence, token == lease.token)
    return or_(column.is_(None), column < lease.fence, same)


def fence_values(column: ColumnOf, lease: Fenced, token: ColumnOf | None = None) -> dict[Any, Any]:
    """What a guarded statement writes beside its own values."""
    values: dict[Any, Any] = {column: lease.fence}
    if token is not None:
        values[token] = lease.token
    return values


# -- a gate before anything


def pass_gate(connection: Connection, scope: str, lease: Fenced) -> None:
    """Let a holder pass if nobody newer has, in the caller's transaction; call it first.

    Whoever comes later waits for this transaction's end; whoever is older is refused from then on.

    Args:
        connection: Within the transaction whose statements it guards.
        scope: Which gate: one a resource, as a rule the lock's name.
        lease: Who passes.

    Raises:
        FenceRefused: Somebody newer has passed; roll back.
        Refused: The scope has no name, or one of more than 255 characters.
    """
    _check_key("scope", scope)
    statement = insert_into(connection, gates).values(
        scope=scope, fence=lease.fence, token=lease.token
    )
    mine = statement.excluded
    passed = connection.execute(
        statement.on_conflict_do_update(
            index_elements=["scope"],
            set_={"fence": mine.fence, "token": mine.token},
            # Equal only for who drew it: a server that lost its data may draw one twice.
            where=or_(
                gates.c.fence < mine.fence,
                and_(gates.c.fence == mine.fence, gates.c.token == mine.token),
            ),
        ).returning(gates.c.scope)
    ).first()
    if passed is None:
        newer = connection.execute(select(gates.c.fence).where(gates.c.scope == scope)).scalar_one()
        raise refusal(f"{scope!r}", newer)


# -- done once


@dataclass(frozen=True, slots=True)
class Once:
    """What ``once`` found.

    Args:
        first: Nobody has done it: do it now, in this transaction.
        result: What who did it has left, if anything.
    """

    first: bool
    result: str | None = None


def once(connection: Connection, key: str) -> Once:
    """Claim a key of idempotency in the caller's transaction: it is done if that commits, else not.

    Of several that come at once, the others wait for the first one's end (PostgreSQL) or its lock
    (SQLite), and then see what became of it.

    Args:
        connection: Within the transaction that has the effect.
        key: What is done: of a request, a message, an occurrence.

    Raises:
        Refused: The key is empty, or longer than 255 characters.
    """
    _check_key("key", key)
    claimed = connection.execute(
        insert_ignoring(connection, done).values(key=key).returning(done.c.key)
    ).first()
    if claimed is not None:
        return Once(first=True)
    result = connection.execute(select(done.c.result).where(done.c.key == key)).scalar_one_or_none()
    return Once(first=False, result=result)


def keep_result(connection: Connection, key: str, result: str) -> None:
    """Leave a result for who asks again, in the transaction that claimed the key."""
    connection.execute(update(done).where(done.c.key == key).values(result=result))


def forget_done(connection: Connection, before: datetime) -> int:
    """Forget keys that were done before a time; from then on they could be done again."""
    return int(connection.execute(delete(done).where(done.c.at < before)).rowcount)


def _check_key(name: str, key: object) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= 255:
        raise Refused(f"a {name} is text of 1 to 255 characters, got {key!r}")
