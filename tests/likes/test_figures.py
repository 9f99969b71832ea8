"""What a like cache counts, and tells who listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencepost import AsyncClient
from fencepost._core.observe import DirtyDrain, Event, Flushed, FlushRefused, Hook
from fencepost.likes import LikeOptions, SqlLikes
from fencepost.likes.figures import FLUSH_BUCKETS, Figures
from support.likes import NEVER, TABLES, add_item, open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sqlalchemy import Engine

    from fencepost.likes import AsyncLikes

SLOW = LikeOptions(shards=1, flush_delay=NEVER)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = open_database(tmp_path / "figures.db")
    for item in (1, 2):
        add_item(engine, item, "ann")
    return engine


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def likes(
    server_url: str, namespace: str, engine: Engine, events: list[Event]
) -> AsyncIterator[AsyncLikes]:
    async with AsyncClient.from_url(
        server_url, namespace=namespace, observe=events.append
    ) as client:
        yield client.likes("x", store=SqlLikes(engine, **TABLES), options=SLOW)
    engine.dispose()


async def test_loads_flushes_and_how_long_they_took(likes: AsyncLikes, events: list[Event]) -> None:
    await likes.like(1, "bob")
    await likes.like(1, "cid")
    await likes.status(2, "bob")
    assert likes.stats()["cold_loads"] == 2
    assert likes.stats()["flushes"] == 0
    assert await likes.drain() == 0
    stats = likes.stats()
    (flushed,) = [one for one in events if isinstance(one, Flushed)]
    assert (stats["flushes"], stats["entries"], stats["changed"]) == (1, 2, 2)
    assert stats["flush_seconds"] == flushed.seconds > 0
    assert stats["flush_buckets"][FLUSH_BUCKETS[-1]] == 1


async def test_the_backlog_tells_items_and_changes(likes: AsyncLikes) -> None:
    for user in ("bob", "cid", "dan"):
        await likes.like(1, user)
    await likes.unlike(2, "ann")
    backlog = await likes.backlog()
    assert (backlog.items, backlog.changes) == (2, 4)
    await likes.drain()
    backlog = await likes.backlog()
    assert (backlog.items, backlog.changes, backlog.oldest) == (0, 0, 0.0)


async def test_a_caller_who_flushes_a_dirty_item_is_counted(
    likes: AsyncLikes, events: list[Event]
) -> None:
    await likes.like(1, "bob")
    await likes._client.command("DEL", likes._shards[0].keys.header("1"))
    assert (await likes.status(1, "bob")).count == 2
    assert likes.stats()["dirty_drains"] == 1
    assert [one.item for one in events if isinstance(one, DirtyDrain)] == ["1"]


async def test_a_refused_flush_is_counted(likes: AsyncLikes, events: list[Event]) -> None:
    """Somebody else has flushed with a greater fence meanwhile."""
    await likes.like(1, "bob")
    shard = likes._shards[0]
    epoch = int(likes._known[0].epoch)  # type: ignore[union-attr]
    shard.store.commit(shard.place, epoch, 3, [])  # type: ignore[unused-coroutine]
    assert await likes.drain() == 0
    assert likes.stats()["flush_refused"] == 2  # of its fences 1 and 2
    assert [one.reason for one in events if isinstance(one, FlushRefused)] == ["fence", "fence"]


async def test_differences_of_audits_are_counted(likes: AsyncLikes, engine: Engine) -> None:
    await likes.status(1, "ann")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE activities SET like_count = 7 WHERE id = 1")
    assert len((await likes.audit()).differences) == 1
    assert likes.stats()["differences"] == 1
    await likes.repair()
    assert not (await likes.audit()).differences
    assert likes.stats()["differences"] == 2


def test_a_flush_is_in_every_bucket_that_it_fits() -> None:
    figures = Figures(Hook())
    hook = figures.hook()
    assert hook.listener is not None
    for seconds in (0.0005, 0.001, 0.3, 60.0):
        hook.listener(Flushed("x", 0, 1, 1, 1, 0, seconds))
    told = figures.told()
    assert told["flushes"] == 4
    assert told["flush_seconds"] == pytest.approx(60.3015)
    assert told["flush_buckets"][0.001] == 2
    assert told["flush_buckets"][0.25] == 2
    assert told["flush_buckets"][0.5] == 3
    assert told["flush_buckets"][5.0] == 3
