"""Real concurrent calls on a lock have an order: at most one holds it, and fences increase in it.

Several clients take, try, give back, steal and are cancelled at once on a real server; every call is
recorded, and the checker looks for an order in which the answers make sense.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.lock.protocol import Place
from fencepost.lock.scripts import SCRIPTS, Scripts
from fencepost.testing.linearizability import UNKNOWN, History, Model, check
from support.lock import altered
from support.lockfaces import LockFace

OpenFace = Callable[..., LockFace]
State = tuple[str, int]
"""Who holds the lock, and the last fence."""


def lock_step(state: State, request: tuple[Any, ...], answer: Any) -> State | None:
    """``take`` answers the fence, or None if it was refused; ``end`` whether it was held till then;
    ``undo`` ends what a call that was cut short may have taken; ``steal`` whether it was held."""
    holder, last = state
    verb, who = request
    match verb:
        case "take" if answer is UNKNOWN:
            return (who, last) if not holder else None
        case "take" if answer is None:
            return state if holder else None
        case "take":
            return (who, answer) if not holder and answer > last else None
        case "end":
            return (("" if holder == who else holder), last) if answer == (holder == who) else None
        case "undo":
            return ("" if holder == who else holder), last
        case _:
            return ("", last) if answer == bool(holder) else None


MODEL: Model[State] = Model(("", 0), lock_step)


async def use(face: LockFace, history: History, dice: random.Random, me: str, times: int) -> None:
    """One client; each of its turns is an attempt of its own."""
    lock = face.lock(ttl=600)
    lock._place = getattr(face, "place", lock._place)
    for turn in range(times):
        who = f"{me}.{turn}"
        if dice.random() < 0.15:
            with history.call("x", ("steal", who)) as call:
                call.answered(await face.call(lock.force_release) is not None)
            continue
        lease = None
        if face.kind == "async" and dice.random() < 0.25:
            with history.call("x", ("take", who)) as call:
                task = asyncio.create_task(lock.try_acquire())
                for _ in range(dice.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
                [got] = await asyncio.gather(task, return_exceptions=True)
                if not isinstance(got, BaseException):
                    lease = got
                    call.answered(lease.fence if lease is not None else None)
            if isinstance(got, BaseException):
                with history.call("x", ("undo", who)) as call:
                    await face.settled()
                    call.answered(True)
                continue
        else:
            with history.call("x", ("take", who)) as call:
                lease = await face.call(lock.try_acquire)
                call.answered(lease.fence if lease is not None else None)
        if lease is None:
            continue
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
        with history.call("x", ("end", who)) as call:
            call.answered(await face.call(lease.release))


async def record(open_face: OpenFace, seed: int, scripts: Scripts = SCRIPTS) -> History:
    history, dice = History(), random.Random(seed)
    faces = [open_face(kind) for kind in ("async", "threads", "async")]
    async with asyncio.TaskGroup() as group:
        for number, face in enumerate(faces):
            lock = face.lock()
            face.place = Place("x", lock._place.keys, scripts)  # type: ignore[attr-defined]
            for twin in range(2):
                mine = random.Random(dice.random())
                group.create_task(use(face, history, mine, f"{number}{twin}", 12))
    return history


@pytest.mark.parametrize("seed", range(4))
async def test_concurrent_calls_on_a_lock_have_an_order(open_face: OpenFace, seed: int) -> None:
    history = await record(open_face, seed)
    assert len([call for call in history.calls if call.request[0] == "take"]) > 20
    why = check(history.calls, MODEL)
    assert why is None, str(why)


LOOKS_AWAY = altered("acquire", "if not held[1] and overtaken", "if overtaken")
FALLS = altered("acquire", "tonumber(mark[1] or '0') + 1, near_us or now_ms * 1000", "0, 5000")


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param(LOOKS_AWAY, id="that takes what is held"),
        pytest.param(FALLS, id="whose fences do not increase"),
    ],
)
async def test_calls_on_a_lock_have_none(open_face: OpenFace, scripts: Scripts) -> None:
    history = await record(open_face, 1, scripts)
    assert check(history.calls, MODEL) is not None
