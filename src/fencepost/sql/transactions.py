"""Transactions whose failures are told apart: nothing applied, or unknown.

One function a transaction, over a plain ``Connection``; a sync engine calls it, an async engine
runs the same function through ``run_sync``. It may be called again, so it keeps nothing: the victim
of a deadlock, and whoever was given a connection that had died idle, is tried anew at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fencepost._core.backoff import Backoff
from fencepost.errors import OutcomeUnknown, Unavailable
from fencepost.sql import dialects

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
Work = Callable[[Connection], T]
_TRIES: Final = 4
_AGAIN: Final = Backoff(0.01, 0.2)


def transact(engine: Engine, work: Work[T], *, write: bool) -> T:
    """Run ``work`` in one transaction.

    Args:
        engine: Where.
        work: Called with the connection; once more where its transaction was undone in passing.
        write: Takes the write lock first (SQLite), reads what is committed (PostgreSQL); else one
            consistent snapshot is read.

    Raises:
        Unavailable: Nothing was applied: the database can't be reached, is locked, cancelled it,
            or undid it time and again.
        OutcomeUnknown: COMMIT was sent and its reply was lost.
    """
    tries = 0
    while True:
        try:
            with engine.connect() as connection:
                return _within(connection, work, write)
        except (DBAPIError, PoolTimeout) as error:
            tries += 1
            time.sleep(_pause(error, tries))


async def transact_async(engine: AsyncEngine, work: Work[T], *, write: bool) -> T:
    """The same on an async engine."""
    tries = 0
    while True:
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(_within, work, write)
        except (DBAPIError, PoolTimeout) as error:
            tries += 1
            await asyncio.sleep(_pause(error, tries))


def at_once(engine: Engine, work: Work[T]) -> T:
    """Run ``work``, one statement that commits by itself and may be sent twice.

    Args:
        engine: Where.
        work: Called with the connection; once more where its statement was undone in passing, or
            its connection broke.

    Raises:
        Unavailable: Nothing was applied.
        OutcomeUnknown: It was sent, and its last reply was lost.
    """
    tries = _Tries()
    while True:
        try:
            with engine.connect() as connection:
                tries.sent = True
                return work(connection.execution_options(isolation_level="AUTOCOMMIT"))
        except (DBAPIError, PoolTimeout) as error:
            time.sleep(tries.pause(error))


async def at_once_async(engine: AsyncEngine, work: Work[T]) -> T:
    """The same on an async engine."""
    tries = _Tries()
    while True:
        try:
            async with engine.connect() as connection:
                tries.sent = True
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                return await connection.run_sync(work)
        except (DBAPIError, PoolTimeout) as error:
            await asyncio.sleep(tries.pause(error))


class _Tries:
    """How often one statement was tried, and whether it may have been applied without a word."""

    def __init__(self) -> None:
        self.sent = False
        self._unknown = False
        self._count = 0

    def pause(self, error: DBAPIError | PoolTimeout) -> float:
        """Seconds until the next try; the error, if there is none."""
        self._count += 1
        if self.sent and isinstance(error, DBAPIError):
            # Who was told by the server knows; who was cut off does not.
            self._unknown = self._unknown or not dialects.undone(error)
        self.sent = False
        try:
            return _pause(error, self._count)
        except Unavailable as away:
            if self._unknown:
                raise OutcomeUnknown(
                    f"the reply was lost: it was applied once or not at all: {away}"
                ) from error
            raise


def _within(connection: Connection, work: Work[T], write: bool) -> T:
    connection, commit, rollback = dialects.begin(connection, write=write)
    try:
        result = work(connection)
    except BaseException:
        with contextlib.suppress(DBAPIError):  # the error before it is the one to tell
            rollback()
        raise
    try:
        commit()
    except DBAPIError as error:
        if dialects.undone(error):
            raise
        raise OutcomeUnknown(
            f"the reply to COMMIT was lost: it was applied once or not at all: {error.orig}"
        ) from error
    return result


def _pause(error: DBAPIError | PoolTimeout, tries: int) -> float:
    """Seconds until the next try of a transaction that was undone; the error, if there is none."""
    if isinstance(error, DBAPIError):
        if tries < _TRIES and dialects.passing(error):
            return _AGAIN.delay(tries, random.random())
        if not dialects.out_of_reach(error):
            raise error
    cause = getattr(error, "orig", None) or error
    raise Unavailable(f"the database did not do it, nothing was applied: {cause}") from error
