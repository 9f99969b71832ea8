"""The like cache in whole schedules from scratch, with a real SQLite and scripts that nobody wraps.

It is the check of the graph, whose database is a model: both must find the same endings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, select
from sqlalchemy.pool import StaticPool

from fencepost._core.keys import like_shard
from fencepost._core.port import run_sync
from fencepost.likes import LikeOptions, SqlLikes, protocol
from fencepost.likes.protocol import Known, Shard
from fencepost.likes.scripts import Done, Scripts
from fencepost.likes.store import Place
from fencepost.testing import Cell, Scenario, ScratchServer, SimPort, View, explore, reexecute
from fencepost.testing.model_likes import ModelLikes
from likes.explored import SCRIPTS, without
from support.likes import TABLES, activities, likes_table, metadata
from support.require import require
from support.servers import find_binary

KEYS = like_shard("t", "n", 0)
SCOPE = "likes:n:000"
UNLIKE, LIKE = False, True
FAR = 4_000_000_000_000  # ms: no header of these runs is old


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer() as server:
        yield server


class Database:
    """A SQLite in memory with one item that user 1 likes, brought back to that as often as it is asked."""

    def __init__(self) -> None:
        self.engine: Engine = create_engine("sqlite://", poolclass=StaticPool)
        metadata.create_all(self.engine)
        self.store = SqlLikes(self.engine, **TABLES)
        self.store.create_tables()
        with self.engine.begin() as connection:
            connection.execute(insert(activities).values(id=1, like_count=1))
            connection.execute(insert(likes_table).values(activity_id=1, user_id="1"))
        self.first = b""

    def keep(self) -> None:
        """What it is now is its beginning."""
        self.first = self._driver.serialize()

    def begin_again(self) -> None:
        self._driver.deserialize(self.first)

    @property
    def _driver(self) -> Any:
        with contextlib.closing(self.engine.raw_connection()) as connection:
            return connection.driver_connection

    def likers(self) -> frozenset[str]:
        with self.engine.connect() as connection:
            rows = frozenset(connection.execute(select(likes_table.c.user_id)).scalars())
            assert connection.execute(select(activities.c.like_count)).scalar_one() == len(rows)
        return rows


class World:
    """One open shard with a warm header, clients, two flushers, and how each run ended.

    Args:
        store: Of the shard.
        known: Its opening record.
        scripts: The scripts, one of them changed perhaps.
    """

    def __init__(self, store: Any, known: Known, scripts: Scripts = SCRIPTS) -> None:
        self.store, self.known = store, known
        options = LikeOptions(shards=1)
        self.shard = Shard("n", KEYS, Place("likes:n", 0, 1), store, options, scripts=scripts)
        self.endings: set[Any] = set()
        self.told = Cell(frozenset({"1"}))  # who likes it, as its users were told

    def likers(self) -> frozenset[str]:
        return frozenset(map(str, self.store.state.item(1).likers))

    def sets(self, user: str, *wanted: bool) -> Any:
        async def work(io: SimPort) -> tuple[bool, ...]:
            changed, knows = [], self.known
            for liked in wanted:
                result, knows = await protocol.set_like(io, self.shard, knows, "1", user, liked)
                changed.append(result.changed)
            return tuple(changed)

        return work

    async def flush(self, io: SimPort) -> int:
        report, _ = await protocol.flush_items(io, self.shard, self.known, ["1"])
        return report.entries

    async def heal(self, io: SimPort) -> None:
        while await protocol.dirty_items(io, self.shard):
            await protocol.flush_items(io, self.shard, self.known, ["1"])

    def _on_set(self, name: str, call: Any, answer: Any) -> None:
        if isinstance(answer, Done):
            user, liked = {call.args[3][1:]}, call.args[4] == "1"
            self.told.state = self.told.state | user if liked else self.told.state - user

    def scenario(self, **actors: Any) -> Scenario:
        def final(view: View) -> None:
            self.endings.add((tuple(view.results.items()), self.likers()))

        def healed(view: View) -> str | None:
            told = self.told.state
            if self.likers() != told:
                return f"SQL has {sorted(self.likers())}, users were told {sorted(told)}"
            count = view.value(KEYS.header("1"), {}).get("#n")
            return None if count == str(len(told)) else f"the cache counts {count}"

        record = ("e", self.known.epoch, "f", 0, "s", 0, "id", self.known.server)
        header = ("#e", self.known.epoch, "#n", 1, "#full", 1, "#born", FAR, "u1", 1)
        return Scenario(
            actors=actors,
            setup=[
                ("HSET", KEYS.opening, *record),
                ("HSET", KEYS.header("1"), *header),
                ("PEXPIRE", KEYS.header("1"), 60_000),
            ],
            final=final,
            cells=[self.told],
            observe={"set": self._on_set},
            heal=self.heal,
            healed=healed,
        )


class Modelled(World):
    """For the graph."""

    def __init__(self, scripts: Scripts = SCRIPTS) -> None:
        super().__init__(ModelLikes({1: (1,)}, {SCOPE: 1}), Known("1", "a0:b0"), scripts)

    def scenario(self, **actors: Any) -> Scenario:
        return replace(super().scenario(**actors), cells=[self.told, self.store])


class Real(World):
    """For re-execution: opened on the server itself, whoever that is."""

    def __init__(self, scratch: ScratchServer, scripts: Scripts = SCRIPTS) -> None:
        self.database = Database()
        super().__init__(self.database.store, Known("", ""), scripts)
        scratch.empty()
        known = None
        while known is None:
            known = run_sync(protocol.open_shard(scratch.port, self.shard))
        self.known = known
        self.database.keep()

    def likers(self) -> frozenset[str]:
        return self.database.likers()

    def scenario(self, **actors: Any) -> Scenario:
        return replace(super().scenario(**actors), reset=self.database.begin_again)


def actors_of(world: World, clients: Sequence[tuple[str, tuple[bool, ...]]], flushers: int) -> Any:
    named = {f"c{number}": world.sets(user, *wants) for number, (user, wants) in enumerate(clients)}
    return {**named, **{f"f{number}": world.flush for number in range(flushers)}}


RACES = {
    "a like and two flushers": ([("2", (LIKE,))], 2),
    "two users and a flusher": ([("1", (UNLIKE,)), ("2", (LIKE,))], 1),
    "back and forth under a flusher": ([("1", (UNLIKE, LIKE, UNLIKE))], 1),
}


@pytest.mark.parametrize("race", RACES)
def test_real_sqlite_in_every_order_ends_as_the_graph_says(
    race: str, scratch: ScratchServer
) -> None:
    clients, flushers = RACES[race]
    real, model = Real(scratch), Modelled()
    whole = reexecute(real.scenario(**actors_of(real, clients, flushers)), server=scratch)
    graph = explore(model.scenario(**actors_of(model, clients, flushers)), server=scratch)
    assert whole.check().complete
    assert graph.check().complete
    assert real.endings == model.endings
    assert len(real.endings) > 1
    real.database.engine.dispose()


@pytest.mark.parametrize("search", [explore, reexecute])
def test_an_ack_that_removes_what_is_newer_is_found_on_real_sqlite_too(
    search: Any, scratch: ScratchServer
) -> None:
    exact = "stands[n] == ARGV[i + 2 * n - 1]"
    scripts = without("ack", (exact, "true"))
    world = Modelled(scripts) if search is explore else Real(scratch, scripts)
    clients, flushers = RACES["back and forth under a flusher"]
    scenario = world.scenario(**actors_of(world, clients, flushers))
    finding = search(scenario, server=scratch).finding
    assert finding is not None
    assert "users were told" in finding.message
