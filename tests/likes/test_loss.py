"""What users were told and a server lost is reported: how many, and of which items."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from fencepost import AsyncClient, Client
from fencepost._core.observe import Event, LikesLost
from fencepost.likes import LikeOptions, SqlLikes
from support.likes import NEVER, TABLES, activities, open_database
from support.servers import ServerProcess
from support.until import until_sync

SLOW = LikeOptions(flush_delay=NEVER, shards=1)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(tmp_path / "loss.db")
    with engine.begin() as connection:
        connection.execute(activities.insert(), [{"id": n, "like_count": 0} for n in (1, 2, 3)])
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> SqlLikes:
    store = SqlLikes(engine, **TABLES)
    store.create_tables()
    return store


def lost_in(events: list[Event]) -> list[LikesLost]:
    return [event for event in events if isinstance(event, LikesLost)]


async def test_what_flushall_took_is_reported_by_count_and_item(store: SqlLikes) -> None:
    events: list[Event] = []
    with ServerProcess("valkey") as server:
        async with AsyncClient.from_url(server.url, observe=events.append) as client:
            likes = client.likes("activities", store=store, options=SLOW)
            await likes.like(1, "ann")
            await likes.like(1, "bob")
            await likes.like(2, "ann")
            await likes.drain()  # so far it is in SQL, and can't be lost
            await likes.like(1, "cid")
            await likes.unlike(2, "ann")
            await likes.like(3, "ann")
            await client.command("FLUSHALL")
            assert (await likes.status(1, "cid")).count == 2, "SQL is what counts now"
            await asyncio.gather(*likes._reports)
            assert [(one.count, set(one.items)) for one in lost_in(events)] == [
                (3, {"1", "2", "3"})
            ]
            assert likes.stats()["lost"] == 3
            assert (await likes.status(2, "ann")).liked


async def test_what_a_restart_brought_back_is_not_reported(store: SqlLikes) -> None:
    events: list[Event] = []
    with ServerProcess("valkey", aof="always") as server:
        async with AsyncClient.from_url(server.url, observe=events.append) as client:
            likes = client.likes("activities", store=store, options=SLOW)
            await likes.like(1, "ann")
            server.restart()
            assert (await likes.status(1, "ann")).liked, "the journal came back and was flushed"
            await asyncio.gather(*likes._reports)
            assert lost_in(events) == []


async def test_what_is_gone_past_is_not_reported(
    store: SqlLikes, server_url: str, namespace: str
) -> None:
    """Another process took the like back before the loss: SQL has gone past ours."""
    events: list[Event] = []
    async with (
        AsyncClient.from_url(server_url, namespace=namespace, observe=events.append) as client,
        AsyncClient.from_url(server_url, namespace=namespace) as other,
    ):
        likes = client.likes("activities", store=store, options=SLOW)
        theirs = other.likes("activities", store=store, options=SLOW)
        await likes.like(1, "ann")
        await theirs.unlike(1, "ann")
        await theirs.drain()
        await client.command("DEL", likes._shards[0].keys.opening)
        assert not (await likes.status(1, "ann")).liked
        await likes.like(2, "ann")
        await asyncio.gather(*likes._reports)
        assert lost_in(events) == []


def test_threads_report_too(store: SqlLikes) -> None:
    events: list[Event] = []
    with (
        ServerProcess("valkey") as server,
        Client.from_url(server.url, observe=events.append) as client,
    ):
        likes = client.likes("activities", store=store, options=SLOW)
        likes.like(1, "ann")
        client.command("FLUSHALL")
        assert likes.status(1, "ann").count == 0
        until_sync(lambda: bool(lost_in(events)))
        assert [(one.count, one.items) for one in lost_in(events)] == [(1, ("1",))]
