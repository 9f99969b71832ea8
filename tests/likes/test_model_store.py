"""The store that explorations use does what the real one does: the same calls, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.pool import StaticPool

from fencepost.likes import SqlLikes
from fencepost.likes.store import Change, Committed, Inspected, ItemBatch, Place, Poisoned
from fencepost.testing.model_likes import ModelLikes
from likes.explored import Objecting

metadata = MetaData()
items_table = Table(
    "things",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("n", Integer, nullable=False),
)
likes_table = Table(
    "things_likes",
    metadata,
    Column("thing", Integer, primary_key=True),
    Column("person", Integer, primary_key=True),
)
PLACES = [Place("likes:l", number, 2) for number in (0, 1)]
FIRST = {1: (1, 2), 2: ()}
NOBODY_IS_3 = """CREATE TRIGGER IF NOT EXISTS nobody_is_3 BEFORE INSERT ON things_likes WHEN NEW.person = 3
BEGIN SELECT RAISE(ABORT, 'no such user'); END"""


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    yield engine
    engine.dispose()


def sql_store(engine: Engine) -> SqlLikes:
    store = SqlLikes(
        engine,
        item=items_table.c.id,
        count=items_table.c.n,
        likes=likes_table,
        like_item="thing",
        like_user="person",
        liked_at=None,
    )
    store.create_tables()
    return store


def begin_again(engine: Engine, store: SqlLikes) -> None:
    """Both tables of the application as they are at first; fencepost's are empty."""
    store.create_tables()
    with engine.begin() as connection:
        for table in (*metadata.sorted_tables, *_own_tables()):
            connection.execute(table.delete())
        for item, users in FIRST.items():
            connection.execute(insert(items_table).values(id=item, n=len(users)))
            for user in users:
                connection.execute(insert(likes_table).values(thing=item, person=user))


def miscount(engine: Engine, model: ModelLikes, item: int, count: int) -> None:
    """Somebody writes another count, past everything."""
    with engine.begin() as connection:
        connection.execute(items_table.update().where(items_table.c.id == item).values(n=count))
    row = model.state.item(item)
    assert row is not None
    model.put_item(item, replace(row, count=count))


def _own_tables() -> list[Table]:
    from fencepost.sql import fence

    return fence.metadata.sorted_tables


VERSIONS = st.tuples(st.integers(1, 2), st.integers(1, 4))
CHANGES = st.builds(Change, st.integers(1, 3), st.booleans(), VERSIONS)
BATCHES = st.builds(
    ItemBatch,
    st.integers(1, 3),  # the third does not exist
    st.booleans(),
    st.lists(CHANGES, min_size=1, max_size=3, unique_by=lambda change: change.user).map(tuple),
)
CALLS = st.one_of(
    st.tuples(st.just("epoch")),
    st.tuples(st.just("raise_epoch"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(
        st.just("snapshot"),
        st.integers(1, 3),
        st.one_of(st.none(), st.integers(1, 3)),
        st.sampled_from([0, 1, 2, 100]),
    ),
    st.tuples(
        st.just("commit"),
        st.integers(1, 2),
        st.integers(1, 3),
        st.lists(BATCHES, min_size=1, max_size=2, unique_by=lambda batch: batch.item),
    ),
    st.tuples(
        st.just("inspect"),
        st.integers(1, 2),
        st.one_of(st.none(), st.integers(1, 3)),
        st.integers(1, 3),
        st.lists(st.integers(1, 3), unique=True, max_size=3),
        st.booleans(),
    ),
    st.tuples(st.just("outside"), st.integers(1, 2), st.integers(0, 3)),
)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=st.lists(st.tuples(st.sampled_from(PLACES), CALLS), max_size=12))
@pytest.mark.parametrize("store", [ModelLikes, Objecting])
def test_the_model_store_is_the_real_one(
    store: type[ModelLikes], calls: list[tuple[Place, Any]], engine: Engine
) -> None:
    real, model = sql_store(engine), store(FIRST)
    begin_again(engine, real)
    if store is Objecting:
        with engine.begin() as connection:
            connection.exec_driver_sql(NOBODY_IS_3)
    for place, (name, *arguments) in calls:
        if name == "outside":
            miscount(engine, model, *arguments)
            continue
        if name == "snapshot":
            # A shard's row exists from its first use; both sides say epoch 0 before that.
            assert real.epoch(place) == model.epoch(place)
        mine = getattr(model, name)(place, *arguments)
        theirs = getattr(real, name)(place, *arguments)
        assert _plain(mine) == _plain(theirs), (name, arguments)
    with engine.connect() as connection:
        rows = {tuple(row) for row in connection.execute(select(likes_table))}
        counts = dict(map(tuple, connection.execute(select(items_table))))
    assert rows == {(item, user) for item, row in model.state.items for user in row.likers}
    assert counts == {item: row.count for item, row in model.state.items}
    set_aside = {(one.item, one.user): _plain(one) for one in real.poison(PLACES[0], 100)}
    assert set_aside == dict(model.state.aside)


def _plain(answer: Any) -> Any:
    """Without what no contract orders."""
    if isinstance(answer, Poisoned):
        return replace(answer, at=0.0)
    if isinstance(answer, Committed):
        poison = sorted(map(_plain, answer.poison), key=lambda one: (one.item, one.user))
        return replace(answer, poison=tuple(poison))
    if isinstance(answer, Inspected):
        return replace(answer, liked=tuple(sorted(answer.liked)))
    likers = getattr(answer, "likers", None)
    return replace(answer, likers=tuple(sorted(likers))) if likers is not None else answer
