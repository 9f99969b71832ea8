"""A database for a test: a SQLite file as one would run it, but for the disk's own pace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event


def open_sqlite(path: Path, busy: float = 10.0) -> Engine:
    """An engine on a SQLite file, made if need be.

    Args:
        path: The file.
        busy: Seconds that a transaction waits for another one.
    """
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": busy})

    @event.listens_for(engine, "connect")
    def _set_up(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = OFF")  # the machine loses no power in a test

    return engine
