"""Real concurrent campaigns have an order: at most one valid term, and fences increase in it.

Candidates of both faces stand, resign, are robbed, and die at once on a real server; each is recorded,
and the checker looks for an order in which the answers make sense.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.errors import LockTimeout
from fencepost.lock.protocol import Place
from fencepost.lock.scripts import SCRIPTS, Scripts
from fencepost.testing.linearizability import History, Model, check
from support.election import ElectionFace
from support.lock import altered

OpenFace = Callable[..., ElectionFace]
State = tuple[str, int]
"""Who leads, and the last fence."""


def step(state: State, request: tuple[Any, ...], answer: Any) -> State | None:
    """``elect`` answers the fence, or None if somebody else leads; ``resign`` whether it led till then;
    ``rob`` whether anybody led."""
    leader, last = state
    verb, who = request
    match verb:
        case "elect" if answer is None:
            return state if leader else None
        case "elect":
            return (who, answer) if not leader and answer > last else None
        case "resign":
            led = leader == who
            return (("" if led else leader), last) if answer == led else None
        case _:
            return ("", last) if answer == bool(leader) else None


MODEL: Model[State] = Model(("", 0), step)


async def stand(face: ElectionFace, history: History, dice: random.Random, me: str) -> None:
    """One candidate; each of its turns is a term of its own, or none."""
    election = face.election(identity=me, ttl=600, renew_deadline=400, retry=100)
    make, scripts = election._lock, face.scripts  # type: ignore[attr-defined]

    def lock() -> Any:
        made = make()
        made._place = Place(made.name, made._place.keys, scripts)
        return made

    election._lock = lock
    for turn in range(10):
        who = f"{me}.{turn}"
        if dice.random() < 0.15:
            with history.call("x", ("rob", who)) as call:
                call.answered(await face.call(lock().force_release) is not None)
            continue
        term = None
        with history.call("x", ("elect", who)) as call:
            try:
                term = await face.call(_take(election))
            except LockTimeout:
                call.answered(None)
            else:
                call.answered(term.fence)
        if term is None:
            continue
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)
        with history.call("x", ("resign", who)) as call:
            await face.call(election._give_back, term)
            call.answered(term.released)


def _take(election: Any) -> Callable[[], Any]:
    """One try: what ``lead`` and ``run`` do for each."""
    if asyncio.iscoroutinefunction(election._take):

        async def one() -> Any:
            return await election._take(0)

        return one
    return lambda: election._take(0)


async def record(open_face: OpenFace, seed: int, scripts: Scripts = SCRIPTS) -> History:
    history, dice = History(), random.Random(seed)
    faces = [open_face(kind) for kind in ("async", "threads", "async")]
    async with asyncio.TaskGroup() as group:
        for number, face in enumerate(faces):
            face.scripts = scripts  # type: ignore[attr-defined]
            for twin in range(2):
                mine = random.Random(dice.random())
                group.create_task(stand(face, history, mine, f"{number}{twin}"))
    return history


@pytest.mark.parametrize("seed", range(4))
async def test_concurrent_campaigns_have_an_order(open_face: OpenFace, seed: int) -> None:
    history = await record(open_face, seed)
    assert len([call for call in history.calls if call.request[0] == "elect"]) > 20
    why = check(history.calls, MODEL)
    assert why is None, str(why)


LOOKS_AWAY = altered("acquire", "if not held[1] and overtaken", "if overtaken")
FALLS = altered("acquire", "tonumber(mark[1] or '0') + 1, near_us or now_ms * 1000", "0, 5000")


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param(LOOKS_AWAY, id="that elect beside a leader"),
        pytest.param(FALLS, id="whose fences do not increase"),
    ],
)
async def test_campaigns_have_none(open_face: OpenFace, scripts: Scripts) -> None:
    history = await record(open_face, 1, scripts)
    assert check(history.calls, MODEL) is not None
