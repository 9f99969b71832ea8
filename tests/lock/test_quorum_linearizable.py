"""Real concurrent calls on a quorum have an order: at most one holds the lock, and fences increase in it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fencepost.errors import Unavailable
from fencepost.lock.quorum.scripts import VOTE_SCRIPTS, VoteScripts
from fencepost.testing.linearizability import UNKNOWN, History, Model, check
from support.lockfaces import QuorumFace
from support.quorum import altered
from support.require import require
from support.servers import ServerProcess, find_binary

State = tuple[str, int]
"""Who holds the lock, and the last fence."""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ServerProcess]]:
    require("valkey", find_binary("valkey") is not None)
    with ExitStack() as stack:
        yield [stack.enter_context(ServerProcess("valkey")) for _ in range(3)]


def step(state: State, request: tuple[str, str], answer: object) -> State | None:
    """``take`` answers the fence, or None: on a quorum one may be refused though nobody gets it.

    ``end`` is done when the call returns; ``undo`` ends what a call that was cut short may have taken.
    """
    holder, last = state
    verb, who = request
    if verb == "take":
        if answer is None:
            return state
        if answer is UNKNOWN:
            return state if holder else (who, last)
        assert isinstance(answer, int)
        return (who, answer) if not holder and answer > last else None
    return ("" if holder == who else holder), last


MODEL: Model[State] = Model(("", 0), step)


async def use(face: QuorumFace, history: History, dice: random.Random, me: str, times: int) -> None:
    lock = face.lock(ttl=20)
    lock._place = face.place  # type: ignore[attr-defined]
    for turn in range(times):
        who, lease = f"{me}.{turn}", None
        cut = face.kind == "async" and dice.random() < 0.25
        with history.call("x", ("take", who)) as call:
            task = asyncio.create_task(face.call(lock.try_acquire))
            if cut:
                for _ in range(dice.randrange(6)):
                    await asyncio.sleep(0)
                task.cancel()
            [got] = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(got, BaseException):
                lease = got
                call.answered(None if lease is None else lease.fence)
            elif isinstance(got, Unavailable):
                call.answered(None)
        if lease is None:
            if isinstance(got, BaseException):
                with history.call("x", ("undo", who)) as call:
                    await face.settled()
                    call.answered(True)
            continue
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
        with history.call("x", ("end", who)) as call:
            call.answered(await face.call(lease.release))


async def record(
    servers: list[ServerProcess], namespace: str, seed: int, scripts: VoteScripts = VOTE_SCRIPTS
) -> History:
    history, dice = History(), random.Random(seed)
    urls = [server.url for server in servers]
    faces = [QuorumFace(kind, urls, namespace) for kind in ("async", "threads", "async")]
    try:
        await faces[0].init()
        async with asyncio.TaskGroup() as group:
            for number, face in enumerate(faces):
                place = face.lock()._place
                polls = dataclasses.replace(place.polls, scripts=scripts)
                face.place = dataclasses.replace(place, polls=polls)  # type: ignore[attr-defined]
                for twin in range(2):
                    mine = random.Random(dice.random())
                    group.create_task(use(face, history, mine, f"{number}{twin}", 10))
    finally:
        for face in faces:
            await face.close()
    return history


@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_calls_on_a_quorum_have_an_order(
    servers: list[ServerProcess], namespace: str, seed: int
) -> None:
    history = await record(servers, namespace, seed)
    taken = [call for call in history.calls if call.request[0] == "take"]
    assert len([call for call in taken if isinstance(call.answer, int)]) > 5
    why = check(history.calls, MODEL)
    assert why is None, str(why)


LOOKS_AWAY = altered("vote", "if not held[1] and overtaken", "if overtaken")


async def test_calls_on_a_quorum_that_takes_what_is_held_have_none(
    servers: list[ServerProcess], namespace: str
) -> None:
    history = await record(servers, namespace, 1, LOOKS_AWAY)
    assert check(history.calls, MODEL) is not None
