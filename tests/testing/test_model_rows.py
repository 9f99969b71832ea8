"""Rows under transactions: what the explorer finds over them, and that PostgreSQL does the same."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.testing import Rows, Scenario, ScratchServer, SimPort, explore, reexecute
from fencepost.testing.model_rows import (
    READ_COMMITTED,
    REPEATABLE_READ,
    NotSerializable,
    RowLocked,
)
from support.postgres import PostgresProcess, has_postgres
from support.require import require
from support.servers import find_binary

if TYPE_CHECKING:
    import psycopg

BOTH = (READ_COMMITTED, REPEATABLE_READ)


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer() as server:
        yield server


# -- what is found over it


def adding(locked: bool, isolation: str) -> Scenario:
    """Two that read a number and write it back, one more."""
    rows = Rows({"n": 0})

    async def adds(io: SimPort) -> bool:
        await io.call(rows.begin, io.name, isolation)
        try:
            if locked:
                seen = await rows.lock(io, io.name, "n")
            else:
                seen = await io.call(rows.read, io.name, "n")
                await rows.lock(io, io.name, "n")
            await io.call(rows.write, io.name, "n", seen + 1)
        except NotSerializable:
            await io.call(rows.rollback, io.name)
            return False
        await io.call(rows.commit, io.name)
        return True

    def final(view: Any) -> str | None:
        done = sum(view.results.values())
        return None if rows.values["n"] == done else f"{done} added, n is {rows.values['n']}"

    return Scenario(actors={"a": adds, "b": adds}, cells=[rows], final=final)


@pytest.mark.parametrize("search", [explore, reexecute])
@pytest.mark.parametrize(
    ("locked", "isolation", "right"),
    [
        (False, READ_COMMITTED, False),
        (True, READ_COMMITTED, True),
        (False, REPEATABLE_READ, True),
        (True, REPEATABLE_READ, True),
    ],
)
def test_a_lost_update(
    search: Callable[..., Any], locked: bool, isolation: str, right: bool, scratch: ScratchServer
) -> None:
    report = search(adding(locked, isolation), server=scratch)
    assert (report.finding is None) == right
    assert report.finding is None or report.finding.message == "2 added, n is 1"


def test_two_that_wait_for_each_other(scratch: ScratchServer) -> None:
    rows = Rows({"x": 0, "y": 0})

    def takes(*order: str) -> Any:
        async def work(io: SimPort) -> None:
            await io.call(rows.begin, io.name)
            for key in order:
                await rows.lock(io, io.name, key)
            await io.call(rows.commit, io.name)

        return work

    crossed = Scenario(actors={"a": takes("x", "y"), "b": takes("y", "x")}, cells=[rows])
    finding = explore(crossed, server=scratch).finding
    assert finding is not None
    assert finding.message == "deadlock: nobody can go on, a at wait, b at wait"
    in_order = Scenario(actors={"a": takes("x", "y"), "b": takes("x", "y")}, cells=[rows])
    assert explore(in_order, server=scratch).check().complete


# -- the same on PostgreSQL

Step = tuple[str, ...]
PROGRAMS: dict[str, tuple[Sequence[Step], Sequence[Step]]] = {
    "read, then write": (
        [("read", "x"), ("write", "x", "1"), ("commit",)],
        [("read", "x"), ("write", "x", "2"), ("read", "x"), ("commit",)],
    ),
    "take, then roll back": (
        [("take", "x"), ("write", "x", "1"), ("rollback",)],
        [("read", "y"), ("take", "x"), ("write", "y", "2"), ("commit",)],
    ),
    "two rows, crossed": (
        [("write", "x", "1"), ("take", "y"), ("commit",)],
        [("write", "y", "2"), ("read", "x"), ("take", "x"), ("commit",)],
    ),
}


class Real:
    """The same verbs on a PostgreSQL, a connection each transaction; a statement that fails is undone alone."""

    def __init__(self, connections: dict[str, psycopg.Connection[Any]]) -> None:
        self._connections = connections

    def begin(self, name: str, isolation: str) -> None:
        self._connections[name].execute(f"BEGIN ISOLATION LEVEL {isolation}")

    def read(self, name: str, key: str) -> Any:
        return self._ask(name, "SELECT v FROM rows WHERE k = %s", key)

    def take(self, name: str, key: str) -> Any:
        return self._ask(name, "SELECT v FROM rows WHERE k = %s FOR UPDATE NOWAIT", key)

    def write(self, name: str, key: str, value: str) -> None:
        self.take(name, key)
        self._ask(name, "UPDATE rows SET v = %s WHERE k = %s RETURNING v", value, key)

    def commit(self, name: str) -> None:
        self._connections[name].execute("COMMIT")

    def rollback(self, name: str) -> None:
        self._connections[name].execute("ROLLBACK")

    def _ask(self, name: str, statement: str, *words: str) -> Any:
        import psycopg

        connection = self._connections[name]
        connection.execute("SAVEPOINT s")
        try:
            found = connection.execute(statement, words).fetchone()
        except psycopg.errors.LockNotAvailable as error:
            connection.execute("ROLLBACK TO s")
            raise RowLocked(str(error)) from None
        except psycopg.errors.SerializationFailure as error:
            connection.execute("ROLLBACK TO s")
            raise NotSerializable(str(error)) from None
        connection.execute("RELEASE s")
        assert found is not None
        return found[0]


@pytest.fixture(scope="module")
def connections() -> Iterator[dict[str, Any]]:
    require("postgres", has_postgres())
    import psycopg

    with PostgresProcess() as postgres, contextlib.ExitStack() as stack:
        every = {
            name: stack.enter_context(psycopg.connect(postgres.dsn(), autocommit=True))
            for name in "ab"
        }
        every["a"].execute("CREATE TABLE rows (k text PRIMARY KEY, v text NOT NULL)")
        yield every


def played(world: Any, isolations: Sequence[str], order: Sequence[str], which: str) -> list[Any]:
    """What each statement of two programs answers in this order."""
    left = dict(zip("ab", map(iter, PROGRAMS[which]), strict=True))
    for name, isolation in zip("ab", isolations, strict=True):
        world.begin(name, isolation)
    answers: list[Any] = []
    for name in order:
        verb, *words = next(left[name])
        try:
            answers.append(getattr(world, verb)(name, *words))
        except (RowLocked, NotSerializable) as error:
            answers.append(type(error).__name__)
    return answers


def orders(which: str) -> list[tuple[str, ...]]:
    names = "".join(
        name * len(program) for name, program in zip("ab", PROGRAMS[which], strict=True)
    )
    return sorted(set(itertools.permutations(names)))


def on_postgres(
    connections: dict[str, Any], isolations: Sequence[str], order: Sequence[str], which: str
) -> tuple[list[Any], dict[str, str]]:
    """What it answers, and what its rows are at the end."""
    connections["a"].execute("TRUNCATE rows")
    connections["a"].execute("INSERT INTO rows VALUES ('x', '0'), ('y', '0')")
    answers = played(Real(connections), isolations, order, which)
    return answers, dict(connections["a"].execute("SELECT k, v FROM rows").fetchall())


@pytest.mark.parametrize("which", PROGRAMS)
@pytest.mark.parametrize("isolations", list(itertools.product(BOTH, BOTH)), ids="+".join)
def test_postgres_answers_the_same_in_every_order(
    which: str, isolations: Sequence[str], connections: dict[str, Any]
) -> None:
    seen = set()
    for order in orders(which):
        model = Rows({"x": "0", "y": "0"})
        answers = played(model, isolations, order, which)
        assert on_postgres(connections, isolations, order, which) == (answers, model.values), order
        seen.add(tuple(answers))
    assert len(seen) > 3  # the orders differ in what they answer
    assert any("RowLocked" in answers for answers in seen)


class NoLocks(Rows):
    def is_free(self, name: str, key: str) -> bool:
        return True


class NoSnapshots(Rows):
    def _looking(self, name: str) -> Any:
        return dict(self.state.open)[name]


@pytest.mark.parametrize("wrong", [NoLocks, NoSnapshots])
def test_a_model_without_a_rule_answers_otherwise(
    wrong: type[Rows], connections: dict[str, Any]
) -> None:
    """The control: what is compared can differ."""
    which, isolations = "read, then write", (REPEATABLE_READ, REPEATABLE_READ)
    assert any(
        played(wrong({"x": "0", "y": "0"}), isolations, order, which)
        != on_postgres(connections, isolations, order, which)[0]
        for order in orders(which)
    )
