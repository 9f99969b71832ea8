"""An election on a quorum of real servers: the same candidates, on a majority."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fencepost._core.aio import clock
from fencepost.errors import LeaseLost, LockTimeout, Refused
from support.election import Diary, ElectionFace, ended
from support.lockfaces import QuorumFace
from support.require import require
from support.servers import ServerProcess, find_binary
from support.until import until

every_face = pytest.mark.parametrize("kind", ["async", "threads"])
LONG = {"ttl": 30.0, "renew_deadline": 20.0, "retry": 10.0}


class QuorumElectionFace(QuorumFace, ElectionFace):
    """A quorum of either face, and how to call its elections."""


Open = Callable[..., QuorumElectionFace]


@contextlib.contextmanager
def servers() -> Iterator[list[ServerProcess]]:
    require("valkey", find_binary("valkey") is not None)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ServerProcess("valkey")) for _ in range(3)]


@pytest.fixture(scope="module")
def three() -> Iterator[list[ServerProcess]]:
    """Three servers that no test harms."""
    with servers() as them:
        yield them


@pytest.fixture
def mortal() -> Iterator[list[ServerProcess]]:
    """Three servers that a test may pause."""
    with servers() as them:
        yield them


@pytest.fixture
async def open_quorum(namespace: str) -> AsyncIterator[Open]:
    made: list[QuorumElectionFace] = []

    def one(servers: list[ServerProcess], kind: str = "async") -> QuorumElectionFace:
        made.append(QuorumElectionFace(kind, [server.url for server in servers], namespace))
        return made[-1]

    yield one
    for face in made:
        await face.close()


@every_face
async def test_one_leads_on_a_majority_and_all_are_told(
    three: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    """By a word of the majority: nobody of them looks by itself for the next ten seconds."""
    face, rival = open_quorum(three, kind), open_quorum(three)
    await face.init()
    seen: list[Any] = []

    async def watch() -> None:
        async for leader in rival.election(**LONG).observe():
            seen.append(leader and (leader.identity, dict(leader.metadata), leader.ttl))  # noqa: PERF401

    watching = asyncio.create_task(watch())
    await until(lambda: seen == [None])
    diary = Diary(face)
    election = face.election(identity="first", metadata={"port": "80"}, **LONG)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work")
    await until(lambda: seen[-1] == ("first", {"port": "80"}, 30.0))
    with pytest.raises(LockTimeout, match="'first' leads in the election 'x'"):
        await rival.lead(rival.election(), pytest.fail, wait=0)
    election.stop()
    await campaign
    assert diary.words == ["new first", "started", "work", "ended", "stopped"]
    await until(lambda: seen[-1] is None)
    fences: list[int] = []
    await rival.lead(rival.election(), lambda term: fences.append(term.fence))
    assert fences[0] > diary.terms[0].fence
    watching.cancel()
    await ended(watching)


@every_face
async def test_one_server_less_is_no_loss_and_without_a_majority_it_steps_down(
    mortal: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    face = open_quorum(mortal, kind)
    await face.init()
    election = face.election(ttl=6, renew_deadline=3, retry=0.2)
    diary = Diary(face)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work")
    term = diary.terms[0]
    mortal[0].pause()
    until_then = term.lease.until
    await until(lambda: term.lease.until > until_then + 3)  # two go on prolonging it
    assert not term.lost
    mortal[1].pause()
    await diary.says("ended")
    assert term.lost
    assert term.why.startswith("it was not renewed for 3 s")
    for server in mortal[:2]:
        server.resume()
    await diary.says("work", 2)  # it has stood again, on the same quorum
    assert diary.terms[1].fence > term.fence
    election.stop()
    await campaign
    assert diary.words.count("started") == diary.words.count("stopped") == 2


@every_face
async def test_a_body_on_a_quorum_ends_with_its_term(
    three: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    face = open_quorum(three, kind)
    await face.init()

    def body(term: Any) -> None:
        with term.lease._keeper._changed:
            term.lease.until = clock() + term._options.slack
        term.check()

    with pytest.raises(LeaseLost, match="not renewed for 10 s"):
        await face.lead(face.election(), body)


@every_face
async def test_a_ttl_beyond_that_of_the_quorum_is_refused_at_birth(
    three: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    with pytest.raises(Refused, match="max_ttl"):
        open_quorum(three, kind).election(ttl=60)
