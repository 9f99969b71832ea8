"""Rows that are written behind, in a database with a gate."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Engine, MetaData, String, Table, delete, select

from fencepost.sql.fence import upsert
from fencepost.sql.gate import SqlGate

OPTIONS: dict[str, Any] = {"shards": 1, "on_down": "raise"}
metadata = MetaData()
rows = Table(
    "rows",
    metadata,
    Column("id", String(50), primary_key=True),
    Column("value", String(50), nullable=False),
)


def save_rows(engine: Engine, gate: SqlGate, batch: Any) -> None:
    """What an application would write."""
    with engine.begin() as connection:
        save_in(connection, gate.admit(connection, batch))


def save_in(connection: Any, entries: list[Any]) -> None:
    for one in entries:
        if one.value is None:
            connection.execute(delete(rows).where(rows.c.id == one.key))
        else:
            statement = upsert(connection, rows, ["id"], ["value"])
            connection.execute(statement, {"id": one.key, "value": one.value})


def rows_of(engine: Engine) -> dict[str, str]:
    with engine.connect() as connection:
        return {row.id: row.value for row in connection.execute(select(rows))}
