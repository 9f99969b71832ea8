"""Ids as a column can hold them: what it can't is refused at the door, before anything is written."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Dialect, Integer, SmallInteger, String
from sqlalchemy.types import TypeDecorator

from fencepost._core.keys import bounded, unescape
from fencepost.errors import Refused
from fencepost.likes.store import Id


class IdColumn:
    """A column of ids: whole numbers or text.

    Args:
        column: The column.
        dialect: The database's: SQLite holds any 64 bits and any text in every column.
        what: For messages, ``an item``.

    Raises:
        Refused: It holds something else.
    """

    def __init__(self, column: Column[Any], dialect: Dialect, what: str) -> None:
        try:
            kind = column.type.python_type
        except NotImplementedError:
            kind = object
        if kind not in (int, str):
            raise Refused(
                f"ids are whole numbers or text; the column {column} holds {kind.__name__}"
            )
        self.kind: type[int] | type[str] = kind
        self._what = what
        self._strict = dialect.name == "postgresql"
        self._bits, self._length = 64, 0
        if self._strict:
            held = column.type.dialect_impl(dialect)
            if isinstance(held, TypeDecorator):
                held = held.impl_instance
            if isinstance(held, SmallInteger):
                self._bits = 16
            elif isinstance(held, Integer) and not isinstance(held, BigInteger):
                self._bits = 32
            elif isinstance(held, String):
                self._length = held.length or 0
        self._above = 2 ** (self._bits - 1)

    def key(self, value: Any) -> str:
        """An id as it stands in keys.

        Raises:
            Refused: The column can't hold it.
        """
        if type(value) is not self.kind:
            raise Refused(
                f"{self._what} of this store is {self.kind.__name__}, got {type(value).__name__} {value!r}"
            )
        if isinstance(value, int):
            if not -self._above <= value < self._above:
                raise Refused(f"{self._what} is a {self._bits}-bit number, got {value!r}")
            return str(value)
        if self._strict and "\0" in value:
            raise Refused(f"{self._what} can't hold a NUL in PostgreSQL, got {value!r}")
        if self._length and len(value) > self._length:
            raise Refused(
                f"{self._what} has at most {self._length} characters, got {len(value)}: {value[:40]!r}…"
            )
        return bounded(value)

    def id(self, key: str) -> Id:
        """The inverse of ``key``."""
        return self.kind(unescape(key))
