"""Bringing likes into SQLite: journal to COMMIT to acknowledgement, against a transaction a like."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final

from sqlalchemy import delete, insert, update

from benches.likes import database, warm
from benches.runner import Case, Row, Scale, compare, server
from fencepost import AsyncClient
from fencepost.likes import LikeOptions, SqlLikes

PEER: Final = "a transaction a like"
SINGLES: Final = 20  # transactions a round: what they cost does not depend on the batch


async def flushes(
    path: str, store: SqlLikes, batch: int, spread: bool, scale: Scale
) -> tuple[list[float], list[float]]:
    items = batch if spread else 1
    options = LikeOptions(
        shards=1, flush_delay=3600, batch_items=max(items, 1), batch_changes=max(batch, 1)
    )
    ours, peer = [], []
    async with AsyncClient.from_url(f"unix://{path}") as client:
        likes = client.likes("flush", store=store, options=options)
        await warm(likes, items)
        repeats = max(min(200 // batch, 20), 1)
        for number in range(scale.rounds + 1):
            spent = 0.0
            for repeat in range(repeats):
                liked = (number * repeats + repeat) % 2 == 0
                await asyncio.gather(
                    *(
                        likes.set(one + 1 if spread else 1, f"{one}", liked=liked)
                        for one in range(batch)
                    )
                )
                start = time.perf_counter()
                left = await likes.drain()
                spent += time.perf_counter() - start
                assert left == 0
            if number:  # the first is a rehearsal
                ours.append(batch * repeats / spent)
                peer.append(await asyncio.to_thread(_one_by_one, store, number))
    return ours, peer


def _one_by_one(store: SqlLikes, number: int) -> float:
    """Likes a second where each is a transaction of its own: a row, and the count."""
    likes, item, count = store._likes, store._item, store._count
    start = time.perf_counter()
    for one in range(SINGLES):
        with store.engine.begin() as connection:
            if number % 2:
                connection.execute(insert(likes).values(activity_id=1, user_id=f"p{one}"))
            else:
                connection.execute(
                    delete(likes).where(likes.c.activity_id == 1, likes.c.user_id == f"p{one}")
                )
            moved = count + (1 if number % 2 else -1)
            connection.execute(update(item.table).where(item == 1).values({count.name: moved}))
    return SINGLES / (time.perf_counter() - start)


def _flush(batch: int, spread: bool, scale: Scale) -> list[Row]:
    with server() as path, database(batch) as store:
        ours, peer = asyncio.run(flushes(path, store, batch, spread, scale))
    where = f"{batch} items" if spread else "1 item"
    return [compare(f"flush to SQLite, batch {batch} of {where}", "likes/s", ours, PEER, peer)]


def cases() -> list[Case]:
    plans = [(1, False), (100, False), (1000, False), (100, True), (1000, True)]
    return [
        Case(f"flush {batch} {'spread' if spread else 'hot'}", partial(_flush, batch, spread))
        for batch, spread in plans
    ]
