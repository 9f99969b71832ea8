"""Rows under transactions, as PostgreSQL has them: snapshots to read from, and locks of rows to write.

A database whose whole state is one immutable value, for protocols of one's own that hold a transaction
over several steps: each statement is a step, so the explorer can put another transaction between any
two. A test plays every order of small programs here and on a real PostgreSQL, and compares each answer.

    rows = Rows({"item": 0})

    async def adds(io):
        await io.call(rows.begin, io.name)
        seen = await rows.lock(io, io.name, "item")       # SELECT … FOR UPDATE: waits its turn
        await io.call(rows.write, io.name, "item", seen + 1)
        await io.call(rows.commit, io.name)

    explore(Scenario(actors={"a": adds, "b": adds}, cells=[rows], …))

The rows are there from the beginning and stay: there is no INSERT and no DELETE. Two that wait for
each other wait for ever, which the explorer reports; PostgreSQL would end one of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.testing.simulated import SimPort

READ_COMMITTED: Final = "READ COMMITTED"
REPEATABLE_READ: Final = "REPEATABLE READ"


class RowLocked(FencepostError):
    """Another transaction holds the row (``NOWAIT``): nothing was changed."""


class NotSerializable(FencepostError):
    """The row was changed after this transaction's snapshot: roll back, and begin again."""


class Version(NamedTuple):
    """One row as it was committed: how often it was written, and what is in it."""

    number: int
    value: Hashable


class Transaction(NamedTuple):
    """One that is open.

    Args:
        isolation: What it sees: each statement what is committed then, or all of them one moment.
        snapshot: That moment: everything as it was committed; None before the first statement.
        writes: What it has written.
        locks: Whose rows it holds.
    """

    isolation: str
    snapshot: tuple[tuple[str, Version], ...] | None = None
    writes: tuple[tuple[str, Hashable], ...] = ()
    locks: frozenset[str] = frozenset()


class Database(NamedTuple):
    """Everything: what is committed, and who is at work."""

    committed: tuple[tuple[str, Version], ...]
    open: tuple[tuple[str, Transaction], ...] = ()


class Rows:
    """Some rows, by name.

    Args:
        rows: What is in them at first; hashable values.
    """

    def __init__(self, rows: Mapping[str, Hashable]) -> None:
        self.state = Database(
            tuple(sorted((key, Version(1, value)) for key, value in rows.items()))
        )

    @property
    def values(self) -> dict[str, Any]:
        """What is committed."""
        return {key: version.value for key, version in self.state.committed}

    # -- statements, each a step

    def begin(self, name: str, isolation: str = READ_COMMITTED) -> None:
        """Open a transaction under a name; its moment is that of its first statement."""
        assert name not in dict(self.state.open), f"{name} is in a transaction already"
        self._put(name, Transaction(isolation))

    def read(self, name: str, key: str) -> Any:
        """SELECT: waits for nobody."""
        mine = self._looking(name)
        return dict(mine.writes).get(key, self._seen(mine)[key].value)

    def take(self, name: str, key: str) -> Any:
        """SELECT … FOR UPDATE NOWAIT.

        Returns:
            What is in the row; under ``READ COMMITTED`` as it is committed by now.

        Raises:
            RowLocked: Somebody else holds it.
            NotSerializable: Under ``REPEATABLE READ``: it was written after the snapshot.
        """
        mine = self._looking(name)
        if not self.is_free(name, key):
            raise RowLocked(f"another transaction holds {key}")
        now, seen = dict(self.state.committed)[key], self._seen(mine)[key]
        if now.number != seen.number:
            raise NotSerializable(f"{key} was written after the snapshot of {name}")
        self._put(name, mine._replace(locks=mine.locks | {key}))
        return dict(mine.writes).get(key, now.value)

    def write(self, name: str, key: str, value: Hashable) -> None:
        """UPDATE of a row, taken first if it is not held yet; see ``take``."""
        self.take(name, key)
        mine = dict(self.state.open)[name]
        self._put(name, mine._replace(writes=_sorted({**dict(mine.writes), key: value})))

    def commit(self, name: str) -> None:
        """Everything it wrote is there at once, and its rows are free."""
        committed = dict(self.state.committed)
        for key, value in dict(self.state.open)[name].writes:
            committed[key] = Version(committed[key].number + 1, value)
        self.state = self.state._replace(committed=_sorted(committed))
        self._put(name, None)

    def rollback(self, name: str) -> None:
        """Nothing of it was ever there, and its rows are free."""
        self._put(name, None)

    # -- waiting

    def is_free(self, name: str, key: str) -> bool:
        """Whether nobody else holds a row."""
        return not any(key in other.locks for who, other in self.state.open if who != name)

    async def lock(self, io: SimPort, name: str, key: str) -> Any:
        """SELECT … FOR UPDATE: wait until the row is free, then take it; see ``take``."""
        while True:
            await io.until(lambda view: self.is_free(name, key), "wait")
            try:
                return await io.call(self.take, name, key)
            except RowLocked:
                continue

    # -- inside

    def _looking(self, name: str) -> Transaction:
        """The transaction, its snapshot taken by its first statement, whatever comes of that."""
        mine = dict(self.state.open)[name]
        if mine.isolation == REPEATABLE_READ and mine.snapshot is None:
            mine = mine._replace(snapshot=self.state.committed)
            self._put(name, mine)
        return mine

    def _seen(self, mine: Transaction) -> dict[str, Version]:
        return dict(self.state.committed if mine.snapshot is None else mine.snapshot)

    def _put(self, name: str, transaction: Transaction | None) -> None:
        others = {**dict(self.state.open), name: transaction}
        there = {who: one for who, one in others.items() if one is not None}
        self.state = self.state._replace(open=_sorted(there))


def _sorted(some: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(some.items(), key=lambda one: one[0]))
