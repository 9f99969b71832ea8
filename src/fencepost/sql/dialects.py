"""What differs between SQLite and PostgreSQL, and what each error means: all of it stands here.

An error that the server itself reports, before COMMIT or as its answer to COMMIT, undid everything.
A connection that ends during COMMIT says nothing: the row may be there or not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, OperationalError

from fencepost.errors import Refused

_SERIALIZATION: Final = ("40001", "40P01")  # could not serialize; deadlock: this one was the victim
# Of what a server may say to COMMIT these leave it open whether it was done: the connection broke,
# the server shuts down, and "statement completion unknown".
_OPEN: Final = ("08", "57P", "40003", "XX", "58")
# A trigger of the application's (RAISE), a view's CHECK OPTION: about the row, like integrity and data.
_OF_THE_ROW: Final = ("P0001", "44000")


def insert_into(connection: Connection, table: Table) -> Any:
    """``INSERT`` with ``ON CONFLICT`` in the connection's dialect."""
    match connection.dialect.name:
        case "sqlite":
            return sqlite.insert(table)
        case "postgresql":
            return postgresql.insert(table)
        case other:
            raise Refused(f"databases known are SQLite and PostgreSQL, got {other}")


def begin(
    connection: Connection, *, write: bool
) -> tuple[Connection, Callable[[], Any], Callable[[], Any]]:
    """Begin a transaction: one that may write, or one that reads a single snapshot.

    Returns:
        The connection to use, and how to commit and to roll back.
    """
    if connection.dialect.name == "sqlite":
        # The driver's own BEGIN comes late and is deferred: two writers would then meet half-way.
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
        say = connection.exec_driver_sql
        return connection, partial(say, "COMMIT"), partial(say, "ROLLBACK")
    # A writer reads what is committed *now*: it waits for its fence row, and must then see what
    # those before it did. A reader's statements must all see one moment.
    level = "READ COMMITTED" if write else "REPEATABLE READ"
    connection = connection.execution_options(isolation_level=level)
    return connection, connection.commit, connection.rollback


def state_of(error: DBAPIError) -> str:
    """The error's SQLSTATE; '' where the driver gives none."""
    return getattr(error.orig, "sqlstate", None) or ""


def undone(error: DBAPIError) -> bool:
    """Whether this answer to COMMIT says for sure that nothing was applied."""
    if isinstance(error, IntegrityError | DataError):
        return True  # a deferred constraint
    if getattr(error.orig, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
        return True  # the disk took no more before the commit was all there
    state = state_of(error)
    return bool(state) and not state.startswith(_OPEN)


def passing(error: DBAPIError) -> bool:
    """Whether the same transaction may well succeed at once: it was a victim of somebody else's.

    A connection that was lost before COMMIT counts: a pool hands out connections that died idle.
    """
    return error.connection_invalidated or state_of(error) in _SERIALIZATION


def of_the_row(error: DBAPIError) -> bool:
    """Whether a row is what the database objects to, so that other rows may pass."""
    return isinstance(error, IntegrityError | DataError) or state_of(error) in _OF_THE_ROW


def out_of_reach(error: Exception) -> bool:
    """Whether the database was not there, was busy, or gave up: nothing was applied."""
    return isinstance(error, OperationalError | InterfaceError) or (
        isinstance(error, DBAPIError) and (error.connection_invalidated or passing(error))
    )


def check_at_once(connection: Connection) -> None:
    """Let deferred constraints of this transaction object now, and not at COMMIT."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
