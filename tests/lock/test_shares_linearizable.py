"""Real concurrent calls on a semaphore and a read/write lock have an order in which they make sense:
never more than the permits are out, readers or one writer are in, and fences increase in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fencepost.lock.scripts import SHARES, Scripts
from fencepost.testing.linearizability import UNKNOWN, History, Model, check
from support.lock import altered
from support.lockfaces import LockFace

OpenFace = Callable[..., LockFace]
PERMITS = 4
State = tuple[frozenset[tuple[str, int]], int]
"""Who holds how much, and the last fence."""


def share_step(state: State, request: tuple[Any, ...], answer: Any) -> State | None:
    """``take`` answers the fence, or None if it was refused; ``end`` whether it was held till then;
    ``undo`` ends what a call that was cut short may have taken; ``steal`` how many were in."""
    held, last = state
    verb, who, weight = request
    mine = (who, weight)
    room = sum(one for _, one in held) + weight <= PERMITS
    match verb:
        case "take" if answer is UNKNOWN:
            return (held | {mine}, last) if room else None
        case "take" if answer is None:
            return None if room else state
        case "take":
            return (held | {mine}, answer) if room and answer > last else None
        case "end":
            return (held - {mine}, last) if answer == (mine in held) else None
        case "undo":
            return (held - {mine}, last)
        case _:
            return (frozenset(), last) if answer == len(held) else None


MODEL: Model[State] = Model((frozenset(), 0), share_step)


async def use(face: LockFace, history: History, dice: random.Random, me: str, taker: Any) -> None:
    """One client; each of its turns is an attempt of its own. ``taker`` tells how to take a weight."""
    for turn in range(10):
        weight, take, steal = taker(face, dice)
        request = (f"{me}.{turn}", weight)
        if dice.random() < 0.1:
            with history.call("x", ("steal", *request)) as call:
                call.answered(len(await face.call(steal)))
            continue
        lease = None
        with history.call("x", ("take", *request)) as call:
            if face.kind == "async" and dice.random() < 0.25:
                task = asyncio.create_task(take())
                for _ in range(dice.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
                [got] = await asyncio.gather(task, return_exceptions=True)
            else:
                got = await face.call(take)
            if not isinstance(got, BaseException):
                lease = got
                call.answered(lease.fence if lease is not None else None)
        if isinstance(got, BaseException):
            with history.call("x", ("undo", *request)) as call:
                await face.settled()
                call.answered(True)
        if lease is None:
            continue
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
        with history.call("x", ("end", *request)) as call:
            call.answered(await face.call(lease.release))


def of_a_semaphore(scripts: Scripts) -> Callable[..., Any]:
    def taker(face: LockFace, dice: random.Random) -> Any:
        semaphore = face.client.semaphore("x", permits=PERMITS, ttl=600)
        semaphore._place = replace(semaphore._place, scripts=scripts)
        weight = dice.choice((1, 1, 2, 3, 4))

        def take() -> Any:
            return semaphore.try_acquire(weight=weight)

        async def take_async() -> Any:
            return await semaphore.try_acquire(weight=weight)

        return weight, take_async if face.kind == "async" else take, semaphore.force_release

    return taker


def of_a_read_write_lock(scripts: Scripts) -> Callable[..., Any]:
    """A reader is one of ``PERMITS``, which is as many as there are clients at most; a writer all."""

    def taker(face: LockFace, dice: random.Random) -> Any:
        lock = face.client.rwlock("x", ttl=600)
        lock._reading = replace(lock._reading, scripts=scripts)
        lock._writing = replace(lock._writing, scripts=scripts)
        side = dice.choice(("read", "read", "write"))
        weight = 1 if side == "read" else PERMITS
        return weight, getattr(lock, side)().try_acquire, lock.force_release

    return taker


async def record(
    open_face: OpenFace, seed: int, kind: Callable[..., Any], scripts: Scripts = SHARES
) -> History:
    history, dice = History(), random.Random(seed)
    faces = [open_face(face) for face in ("async", "threads", "async", "threads")]
    async with asyncio.TaskGroup() as group:
        for number, face in enumerate(faces):
            mine = random.Random(dice.random())
            group.create_task(use(face, history, mine, str(number), kind(scripts)))
    return history


KINDS = pytest.mark.parametrize(
    "kind", [of_a_semaphore, of_a_read_write_lock], ids=["semaphore", "read/write lock"]
)


@KINDS
@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_calls_on_shares_have_an_order(
    open_face: OpenFace, seed: int, kind: Any
) -> None:
    history = await record(open_face, seed, kind)
    assert len([call for call in history.calls if call.request[0] == "take"]) > 20
    why = check(history.calls, MODEL)
    assert why is None, str(why)


NO_ROOM = altered("acquire", "if used <= room and overtaken", "if overtaken", SHARES)
FALLS = altered("acquire", "tonumber(mark[1] or '0') + 1, now_ms * 1000", "0, 5000", SHARES)


@KINDS
@pytest.mark.parametrize("scripts", [NO_ROOM, FALLS], ids=["without a look at the room", "falling"])
async def test_calls_on_shares_have_none(open_face: OpenFace, kind: Any, scripts: Scripts) -> None:
    history = await record(open_face, 1, kind, scripts)
    assert check(history.calls, MODEL) is not None
