"""Several locks in one acquire: all or none, in one order, with a fence each."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from fencepost import Client
from fencepost.errors import LeaseLost, LockTimeout, Refused
from support.faces import every_face
from support.lockfaces import LockFace, renewed

OpenFace = Callable[..., LockFace]


@every_face
async def test_all_are_held_with_a_fence_each(face: LockFace, rival: LockFace) -> None:
    leases = await face.call(face.client.lock_all(["b", "a", "c"]).acquire)
    assert list(leases.fences) == ["a", "b", "c"]
    assert leases["b"].fence == leases.fences["b"]
    assert 0 < leases.check(at_least=1) <= 10
    for name in "abc":
        assert await rival.lock(name).try_acquire() is None
    assert await face.call(leases.release)
    assert leases.released
    assert not leases.lost
    assert await face.keys() == set()


@every_face
@pytest.mark.parametrize("wait", [0, 0.01])
async def test_all_or_none(face: LockFace, rival: LockFace, wait: float) -> None:
    async with rival.lock("b", owner="the rival"):
        with pytest.raises(LockTimeout, match="the rival"):
            await face.call(face.client.lock_all(["a", "b", "c"], wait=wait).acquire)
        await face.settled()
        for name in "ac":
            assert await rival.lock(name).locked_by() is None
        assert await face.call(face.client.lock_all(["c", "b"]).try_acquire) is None
    await face.settled()
    assert await face.keys() == set()


@pytest.mark.parametrize("names", [[], "abc", ["a", "a"], ["a", None], ["a", ""]])
def test_what_names_nothing_is_refused(names: Any) -> None:
    with pytest.raises(Refused):
        Client.from_url("redis://localhost").lock_all(names)


async def test_in_any_order_nobody_waits_in_a_ring(open_face: OpenFace) -> None:
    """Everybody takes them in the same order, whatever order they are given in."""
    faces = [open_face("async"), open_face("threads")]
    inside: list[str] = []

    async def one(face: LockFace, *names: str) -> None:
        leases = await face.call(face.client.lock_all(names, wait=math.inf).acquire)
        assert not set(names) & set(inside)
        inside.extend(names)
        await asyncio.sleep(0)
        for name in names:
            inside.remove(name)
        await face.call(leases.release)

    async with asyncio.TaskGroup() as group:
        for turn in range(12):
            names = ("ab", "ba", "bc", "cba", "ca", "b")[turn % 6]
            group.create_task(one(faces[turn % 2], *names))
    assert await faces[0].keys() == set()


@every_face
async def test_a_block_holds_all_and_gives_all_back(face: LockFace) -> None:
    locks = face.client.lock_all(["a", "b"])
    assert len(await face.within(locks, lambda leases: leases.fences)) == 2
    with pytest.raises(KeyError, match="mine"):
        await face.within(locks, lambda leases: {}["mine"])
    assert locks._inside == {}
    assert await face.keys() == set()


async def test_one_that_is_lost_ends_the_body(rival: LockFace) -> None:
    with pytest.raises(LeaseLost, match="'b'"):  # noqa: PT012
        async with rival.client.lock_all(["a", "b"]) as leases:
            await rival.lock("b").force_release()
            await renewed(leases["b"])
            assert leases.lost
            assert leases.remaining() == 0
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await rival.settled()
    assert await rival.keys() == set()


@every_face
async def test_the_bodys_own_error_is_the_one_that_surfaces(face: LockFace) -> None:
    def body(leases: Any) -> None:
        leases["a"].lose("a test says so")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        await face.within(face.client.lock_all(["a", "b"]), body)
    assert "a test says so" in caught.value.__notes__[0]
    await face.settled()
    assert await face.keys() == set()


async def test_one_that_is_lost_while_the_others_are_waited_for(rival: LockFace) -> None:
    """All or none also then: it is not handed out with a lease that is over."""
    async with rival.lock("b") as other:
        task = asyncio.create_task(rival.client.lock_all(["a", "b"], wait=600).acquire())
        await rival.queued("b", 1)
        [first] = [one for one in rival.keeper._held if one.name == "a"]
        await rival.lock("a").force_release()
        await renewed(first)
        await other.release()
        with pytest.raises(LeaseLost, match="'a'"):
            await task
        await rival.settled()
        assert await rival.keys() == set()


async def test_cancelled_while_it_waits_it_holds_none(rival: LockFace) -> None:
    async with rival.lock("b"):
        task = asyncio.create_task(rival.client.lock_all(["a", "b"], wait=600).acquire())
        await rival.queued("b", 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await rival.settled()
        assert await rival.lock("a").locked_by() is None
    assert await rival.keys() == set()
