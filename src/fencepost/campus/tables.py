"""The tables of the application, and the engine they live in.

``like_count`` is kept by the flusher of the likes; nothing here reads it for display.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    func,
    make_url,
)
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.types import TypeDecorator

from fencepost.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine.interfaces import Dialect

    from fencepost.campus.settings import Settings

USER_MAX = 64
TEXT_MAX = 200
_CREATE_TRIES = 5


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: aware in Python, UTC in the database, also where that has no zones (SQLite)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up INTEGER keys only

metadata = MetaData()

activities = Table(
    "activities",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("title", String(TEXT_MAX), nullable=False),
    Column("place", String(TEXT_MAX), nullable=False),
    Column("starts_at", UtcDateTime, nullable=False),
    Column("capacity", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("like_count", Integer, nullable=False, server_default="0"),
    # an id is never used again: the journal may still hold likes of one that was deleted
    sqlite_autoincrement=True,
)

activities_likes = Table(
    "activities_likes",
    metadata,
    Column("activity_id", ForeignKey(activities.c.id, ondelete="CASCADE"), primary_key=True),
    Column("user_id", String(USER_MAX), primary_key=True, index=True),
    Column("liked_at", UtcDateTime, nullable=False, server_default=func.now()),
)

# What the leader has done, once for each period; written in the transaction that passes its gate.
runs = Table(
    "campus_runs",
    metadata,
    Column("duty", String(40), primary_key=True),
    Column("period", UtcDateTime, primary_key=True),  # when it began
    Column("fence", BigInteger, nullable=False),
    Column("leader", String(200), nullable=False),
    Column("made_at", UtcDateTime, nullable=False),
    Column("result", Text, nullable=False),  # JSON
)

# A row counts against the capacity as long as it is there.
seats = Table(
    "campus_seats",
    metadata,
    Column("activity_id", ForeignKey(activities.c.id, ondelete="CASCADE"), primary_key=True),
    Column("user_id", String(USER_MAX), primary_key=True),
    Column("state", String(8), nullable=False),
    Column("hold", String(16), nullable=False),  # which hold: what its job compares
    Column("until", UtcDateTime),
)

# When those who have a seat are reminded: days before, at a time of the clock in a zone.
reminders = Table(
    "campus_reminders",
    metadata,
    Column("activity_id", ForeignKey(activities.c.id, ondelete="CASCADE"), primary_key=True),
    Column("zone", String(64), nullable=False),
    Column("days", Integer, nullable=False),
    Column("at", String(5), nullable=False),
)

# Who was reminded: once for each time that the activity starts at.
notices = Table(
    "campus_notices",
    metadata,
    Column("activity_id", ForeignKey(activities.c.id, ondelete="CASCADE"), primary_key=True),
    Column("user_id", String(USER_MAX), primary_key=True, index=True),
    Column("starts_at", UtcDateTime, primary_key=True),
    Column("sent_at", UtcDateTime, nullable=False),
)

# What happened once in the life of this database, whatever the number of processes.
once = Table("campus_once", metadata, Column("name", String(40), primary_key=True))


def open_engine(settings: Settings) -> Engine:
    """The engine for these settings; connects lazily.

    A caller that finds every connection busy waits 5 s, then gets an error: a slow database must
    not pile up threads.

    Raises:
        Refused: The URL is none, keeps nothing, or its driver is not installed.
    """
    url = settings.database or f"sqlite:///{settings.sqlite_path.absolute()}"
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
            raise Refused("a database in memory forgets everything: name a file")
        engine = create_engine(
            parsed, pool_size=8, max_overflow=8, pool_timeout=5, pool_pre_ping=True
        )
    except (ArgumentError, ImportError) as error:
        raise Refused(f"the database URL does not work: {error}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 5000")
    cursor.execute("PRAGMA journal_mode = WAL")
    # FULL: once COMMIT returns, the journal forgets the like; a power cut must not undo it
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def create_tables(engine: Engine, *more: Callable[[], object]) -> None:
    """Create what is missing, also when several processes do so at the same time.

    Args:
        engine: Where.
        *more: Further idempotent steps, such as the side tables of a part.
    """
    for step in (lambda: metadata.create_all(engine), *more):
        for attempt in range(_CREATE_TRIES):
            try:
                step()
            except DBAPIError:  # somebody created the table between our look and our CREATE
                if attempt == _CREATE_TRIES - 1:
                    raise
            else:
                break
