"""Both faces of a read/write lock: readers or one writer, and a writer that waits goes first."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from fencepost import Client
from fencepost.errors import LockTimeout, Refused
from fencepost.lock.protocol import Ask
from support.faces import every_face
from support.lockfaces import LockFace
from support.loops import on_both_loops

OpenFace = Callable[..., LockFace]


@every_face
async def test_many_read_or_one_writes(face: LockFace, rival: LockFace) -> None:
    mine, other = face.client.rwlock("x"), rival.client.rwlock("x")
    readers = [await face.call(mine.read().acquire), await other.read().acquire()]
    assert await face.call(mine.write().try_acquire) is None
    assert [one.mode for one in await other.holders()] == ["read", "read"]
    for lease in readers:
        await face.call(lease.release)
    writer = await face.call(mine.write().acquire)
    assert writer.fence > max(lease.fence for lease in readers)
    assert writer.weight == 1
    assert await other.read().try_acquire() is None
    assert await other.write().try_acquire() is None
    [holder] = await face.call(mine.holders)
    assert (holder.mode, holder.fence) == ("write", writer.fence)
    await face.call(writer.release)
    assert await face.keys() == set()


@every_face
async def test_a_timeout_of_either_side_names_who_is_in(face: LockFace, rival: LockFace) -> None:
    other = rival.client.rwlock("x", owner="editor")
    async with other.read():
        with pytest.raises(LockTimeout, match="can't be written: it is held by 'editor'"):
            await face.call(face.client.rwlock("x").write().acquire, wait=0)
    async with other.write():
        with pytest.raises(LockTimeout, match="can't be read: it is held by 'editor'"):
            await face.call(face.client.rwlock("x").read().acquire, wait=0)


@pytest.mark.usefixtures("patient")
@every_face
async def test_a_writer_that_waits_keeps_new_readers_out_and_goes_first(
    face: LockFace, rival: LockFace
) -> None:
    mine = face.client.rwlock("x", wait=600, ttl=600)
    other = rival.client.rwlock("x", wait=600, ttl=600)
    reader = await other.read().acquire()
    writing = asyncio.ensure_future(face.call(mine.write().acquire))
    await rival.queued_at(reader.place, 1)
    assert await other.read().try_acquire() is None  # though only a reader is in
    late = asyncio.create_task(other.read().acquire())
    await rival.queued_at(reader.place, 2)
    await reader.release()
    writer = await writing
    assert not late.done()
    await face.call(writer.release)
    assert (await late).fence > writer.fence


@pytest.mark.usefixtures("patient")
async def test_a_writer_goes_before_readers_that_came_earlier(open_face: OpenFace) -> None:
    face = open_face()
    lock = face.client.rwlock("x", wait=600, ttl=600)
    first = await lock.write().acquire()
    served: list[str] = []

    async def one(side: Any, name: str) -> None:
        async with side:
            served.append(name)

    tasks = []
    for number, side in enumerate(("read", "read", "write")):
        tasks.append(asyncio.create_task(one(getattr(lock, side)(), side)))
        await face.queued_at(first.place, number + 1)
    await first.release()
    await asyncio.gather(*tasks)
    assert served == ["write", "read", "read"]


async def test_a_dead_writer_in_the_queue_costs_its_silence(open_face: OpenFace) -> None:
    """Not the ten minutes that its wait or its lease would have lasted."""
    face = open_face()
    lock = face.client.rwlock("x", ttl=600, wait=600)
    reader = await lock.read().acquire()
    dead = Ask("dead", "dead", 600.0, 600.0)
    await face.client.port.run(lock._writing.take(dead))
    other = await lock.read().acquire()
    assert other.fence > reader.fence


@pytest.mark.usefixtures("patient")
async def test_a_writer_that_gives_up_lets_the_readers_in(open_face: OpenFace) -> None:
    face = open_face()
    lock = face.client.rwlock("x", ttl=600, wait=600)
    reader = await lock.read().acquire()
    writing = asyncio.create_task(lock.write().acquire())
    await face.queued_at(reader.place, 1)
    late = [asyncio.create_task(lock.read().acquire()) for _ in range(3)]
    await face.queued_at(reader.place, 4)
    writing.cancel()
    assert len({lease.fence for lease in await asyncio.gather(*late)}) == 3


@every_face
@pytest.mark.parametrize(
    ("outer", "inner", "why"),
    [
        ("read", "write", "a reader can't become the writer"),
        ("write", "read", "a writer may read as it is"),
        ("write", "write", "would wait for itself"),
        ("read", "read", "may not enter again"),
    ],
)
async def test_who_is_in_can_not_enter_again_or_upgrade(
    face: LockFace, outer: str, inner: str, why: str
) -> None:
    lock = face.client.rwlock("x", wait=600)
    if face.kind == "async":
        async with getattr(lock, outer)():
            with pytest.raises(Refused, match=why):
                await getattr(lock, inner)().__aenter__()
    else:

        def nested() -> None:
            with getattr(lock, outer)(), pytest.raises(Refused, match=why):
                getattr(lock, inner)().__enter__()

        await face.call(nested)
    assert await face.keys() == set()


@pytest.mark.parametrize(
    "options",
    [{"ttl": 0}, {"ttl": math.nan}, {"wait": -1}, {"max_hold": 1}, {"owner": ""}],
    ids=str,
)
def test_a_read_write_lock_that_can_not_work_is_refused_at_the_door(
    options: dict[str, Any],
) -> None:
    client = Client.from_url("redis://localhost")
    with pytest.raises(Refused):
        client.rwlock("x", **options)
    with pytest.raises(TypeError):
        client.rwlock("x", fair=True)


@every_face
async def test_a_reader_or_the_writer_is_put_out(face: LockFace, rival: LockFace) -> None:
    mine, other = face.client.rwlock("x", ttl=600), rival.client.rwlock("x")
    readers = [await face.call(mine.read().acquire) for _ in range(2)]
    [taken] = await other.force_release(readers[0].fence)
    assert (taken.fence, taken.mode) == (readers[0].fence, "read")
    assert not await face.call(readers[0].release)
    assert await face.call(readers[1].release)
    await face.call(mine.write().acquire)
    [taken] = await other.force_release()
    assert taken.mode == "write"
    assert await other.holders() == ()


@on_both_loops
async def test_random_cancels_leave_nobody_in_a_read_write_lock(open_face: OpenFace) -> None:
    face, dice = open_face(), random.Random(2)
    inside = {"read": 0, "write": 0}
    got = 0

    async def work(mode: str) -> None:
        nonlocal got
        async with getattr(face.client.rwlock("x", wait=60, ttl=30), mode)():
            inside[mode] += 1
            got += 1
            assert inside["write"] <= 1
            assert not (inside["write"] and inside["read"])
            try:
                await asyncio.sleep(0)
            finally:
                inside[mode] -= 1

    for _ in range(20):
        tasks = [asyncio.create_task(work(dice.choice(("read", "write")))) for _ in range(10)]
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        for task in tasks:
            if dice.random() < 0.3:
                await face.command("PING")
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in results)
    assert got > 3
    await face.settled()
    assert await face.keys() == set()
