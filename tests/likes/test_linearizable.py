"""Real concurrent likes have an order: what callers were told could have happened one after the other.

Several clients click at once on a real server, while keys are lost, a flusher runs and calls are
cancelled; every call is recorded, and the checker looks for an order in which the answers make sense.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fencepost import AsyncClient
from fencepost.likes import LikeOptions, SqlLikes
from fencepost.likes.scripts import SCRIPTS, Scripts
from fencepost.testing.linearizability import UNKNOWN, History, Model, check
from support.likes import TABLES, add_item, altered, open_database

if TYPE_CHECKING:
    from pathlib import Path

Likers = frozenset[str]
USERS = ("u1", "u2", "u3")


def like_step(likers: Likers, request: tuple[Any, ...], answer: Any) -> Likers | None:
    """A set of users: ``set`` answers (changed, count), ``status`` (liked, count)."""
    verb, user, *rest = request
    if verb == "set":
        after = likers | {user} if rest[0] else likers - {user}
        if answer is UNKNOWN or answer == (after != likers, len(after)):
            return after
        return None
    return likers if answer is UNKNOWN or answer == (user in likers, len(likers)) else None


def model(*users: str) -> Model[Likers]:
    return Model(frozenset(users), like_step)


async def click(
    likes: Any, history: History, dice: random.Random, items: tuple[int, ...], times: int
) -> None:
    """One client: sets and reads at random; now and then it is cancelled in the middle."""
    for _ in range(times):
        item, user, liked = dice.choice(items), dice.choice(USERS), dice.random() < 0.5
        with contextlib.suppress(TimeoutError):
            if dice.random() < 0.6:
                with history.call(item, ("set", user, liked)) as call:
                    async with asyncio.timeout(0 if dice.random() < 0.1 else 30):
                        result = await likes.set(item, user, liked=liked)
                    call.answered((result.changed, result.count))
            else:
                with history.call(item, ("status", user)) as call:
                    status = await likes.status(item, user)
                    call.answered((status.liked, status.count))


async def record(
    url: str, namespace: str, path: Path, seed: int, full: bool, scripts: Scripts
) -> History:
    """Four clients on three items, a flusher, and headers that are lost as soon as they may be."""
    engine, dice, history = open_database(path), random.Random(seed), History()
    items = tuple(add_item(engine, number, "u1") for number in (1, 2, 3))
    options = LikeOptions(
        shards=2,
        full_max=100 if full else 0,
        flush_delay=0.001,
        claim_time=0.01,
        ttl=0.001,
        max_age=1,
        rounds=2_000,  # on a busy machine a header of a millisecond is gone before it is read
    )
    store = SqlLikes(engine, **TABLES)
    clients = [AsyncClient.from_url(url, namespace=namespace) for _ in range(4)]
    try:
        likes = [client.likes("l", store=store, options=options) for client in clients]
        for one in likes:
            one._shards[:] = [replace(shard, scripts=scripts) for shard in one._shards]
        async with likes[0].flusher(), asyncio.TaskGroup() as group:
            for one in likes:
                for _ in range(2):
                    group.create_task(click(one, history, random.Random(dice.random()), items, 12))
    finally:
        for client in clients:
            await client.aclose()
        engine.dispose()
    return history


@pytest.mark.parametrize("full", [True, False], ids=["full", "sparse"])
@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_likes_have_an_order(
    seed: int, full: bool, server_url: str, namespace: str, tmp_path: Path
) -> None:
    history = await record(server_url, namespace, tmp_path / "db", seed, full, SCRIPTS)
    assert len(history.calls) == 4 * 2 * 12
    why = check(history.calls, model("u1"))
    assert why is None, str(why)


async def test_likes_that_take_unknown_for_no_have_none(
    server_url: str, namespace: str, tmp_path: Path
) -> None:
    guess = altered(SCRIPTS.set, "known[5] or (known[3] and '0')", "known[5] or '0'")
    engine = open_database(tmp_path / "db")
    item = add_item(engine, 1, "u1", "u2")
    history = History()
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        options = LikeOptions(shards=1, full_max=0)
        likes = client.likes("l", store=SqlLikes(engine, **TABLES), options=options)
        likes._shards[:] = [
            replace(shard, scripts=replace(SCRIPTS, set=guess)) for shard in likes._shards
        ]
        for user, liked in (("u1", True), ("u2", False)):
            with history.call(item, ("set", user, liked)) as call:
                result = await likes.set(item, user, liked=liked)
                call.answered((result.changed, result.count))
    engine.dispose()
    why = check(history.calls, model("u1", "u2"))
    assert why is not None
    assert "('set', 'u2', False) -> (False, 2)" in str(why)
