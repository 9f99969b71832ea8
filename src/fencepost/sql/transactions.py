"""Transactions whose failures are told apart: nothing applied, or unknown.

One function a transaction, over a plain ``Connection``; a sync engine calls it, an async engine
runs the same function through ``run_sync``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from fencepost.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")
Work = Callable[[Connection], T]


def transact(engine: Engine, work: Work[T], *, write: bool) -> T:
    """Run ``work`` in one transaction.

    Args:
        engine: Where.
        work: Called once with the connection.
        write: Takes the write lock first (SQLite); else one consistent snapshot is read.

    Raises:
        Unavailable: Nothing was applied: the database can't be reached, or is locked.
        OutcomeUnknown: COMMIT was sent and its reply was lost.
    """
    try:
        with engine.connect() as connection:
            return _within(connection, work, write)
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise _nothing_applied(error) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise _nothing_applied(error) from error
        raise


async def transact_async(engine: AsyncEngine, work: Work[T], *, write: bool) -> T:
    """The same on an async engine."""
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(_within, work, write)
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise _nothing_applied(error) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise _nothing_applied(error) from error
        raise


def _within(connection: Connection, work: Work[T], write: bool) -> T:
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    if connection.dialect.name == "sqlite":
        # The driver's own BEGIN comes late and is deferred: two writers would then meet half-way.
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
        commit = partial(connection.exec_driver_sql, "COMMIT")
        rollback = partial(connection.exec_driver_sql, "ROLLBACK")
    else:
        level = "READ COMMITTED" if write else "REPEATABLE READ"
        connection = connection.execution_options(isolation_level=level)
        commit, rollback = connection.commit, connection.rollback
    try:
        result = work(connection)
    except BaseException:
        rollback()
        raise
    try:
        commit()
    except DBAPIError as error:
        raise OutcomeUnknown(
            f"the reply to COMMIT was lost: it was applied once or not at all: {error.orig}"
        ) from error
    return result


def _nothing_applied(error: Exception) -> Unavailable:
    cause = getattr(error, "orig", None) or error
    return Unavailable(f"the database did not do it, nothing was applied: {cause}")
