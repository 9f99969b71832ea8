"""Both faces of an election: who leads, how it is told, how a term is held, ended and given back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.election import ElectionOptions, Leader
from fencepost.errors import LeaseLost, LockTimeout, Refused
from support.election import Diary, ElectionFace, Failure, ended, overrun, rob
from support.faces import every_face
from support.until import until

OpenFace = Callable[..., ElectionFace]
LONG = {"ttl": 600.0, "renew_deadline": 400.0, "retry": 100.0}
"""Nothing of it comes true by waiting."""


# -- a block that leads


@every_face
async def test_one_leads_and_the_next_has_a_greater_fence(
    face: ElectionFace, rival: ElectionFace
) -> None:
    first = face.election(identity="first", **LONG)
    fences: list[int] = []

    async def refused() -> None:
        with pytest.raises(LockTimeout, match="'first' leads in the election 'x'") as caught:
            await rival.lead(rival.election(), fences.append, wait=0)
        assert caught.value.owner == "first"
        assert 0 < caught.value.remaining <= 600

    if face.kind == "async":
        async with first.lead() as term:
            fences.append(term.fence)
            assert 0 < term.check(at_least=100) <= 400
            await refused()
    else:
        block = first.lead()
        term = await face.call(block.__enter__)
        fences.append(term.fence)
        assert 0 < term.check(at_least=100) <= 400
        await refused()
        await face.call(block.__exit__, None, None, None)
    assert term.released
    assert not term.lost
    assert term.remaining() == 0
    await rival.lead(rival.election(), lambda term: fences.append(term.fence), wait=0)
    assert fences == sorted(set(fences))
    assert len(fences) == 2
    assert await face.keys() == set()


@every_face
async def test_a_term_ends_before_its_lease(face: ElectionFace) -> None:
    def body(term: Any) -> None:
        assert 0 < term.remaining() <= 10
        assert 14 < term.lease.remaining() <= 15
        assert term.deadline == pytest.approx(term.lease.until - 5, abs=0.2)
        with pytest.raises(LeaseLost, match="s were asked for"):
            term.check(at_least=11)
        overrun(term)
        assert term.lost
        assert not term.lease.lost  # time that is left for the work to stop in
        with pytest.raises(LeaseLost, match="not renewed for 10 s"):
            term.check()
        term.lease.until += 100  # a renewal that was on its way
        assert term.lost  # what was seen to be over stays over
        assert term.remaining() == 0

    with pytest.raises(LeaseLost):
        await face.lead(face.election(), body)
    await face.settled()
    assert await face.holder() is None


@every_face
async def test_a_body_that_was_not_elected_never_runs(
    face: ElectionFace, rival: ElectionFace
) -> None:
    async with rival.election(**LONG).lead():
        with pytest.raises(LockTimeout):
            await face.lead(face.election(), pytest.fail, wait=0.01)


@every_face
async def test_a_block_is_entered_once(face: ElectionFace) -> None:
    block = face.election().lead()
    enter, leave = (
        (block.__aenter__, block.__aexit__)
        if face.kind == "async"
        else (block.__enter__, block.__exit__)
    )
    await face.call(enter)
    with pytest.raises(Refused, match="once"):
        await face.call(enter)
    await face.call(leave, None, None, None)


@every_face
async def test_what_a_block_raises_is_never_masked(face: ElectionFace) -> None:
    def body(term: Any) -> None:
        overrun(term)
        raise Failure("mine")

    with pytest.raises(Failure) as caught:
        await face.lead(face.election(), body)
    assert "was lost" in caught.value.__notes__[0]


async def test_a_block_is_cancelled_when_its_term_is_over(rival: ElectionFace) -> None:
    async def leads() -> None:
        async with rival.election().lead() as term:
            overrun(term)
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost, match="not renewed for 10 s"):
        await leads()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_in_a_timeout_a_timeout_is_a_timeout(rival: ElectionFace) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), rival.election(**LONG).lead():
            await asyncio.Event().wait()
    await rival.settled()  # it may have been cut short before it led
    assert await rival.holder() is None


@every_face
async def test_term_sleep_ends_with_the_term(face: ElectionFace) -> None:
    election, diary = face.election(drain=500, **LONG), Diary(face, slow=True)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work")
    term = diary.terms[-1]
    assert await face.call(term.sleep, 0) is True
    told = face.start(term.sleep, 3600)
    term.tell_stop()
    assert await told is False
    overrun(term)
    with pytest.raises(LeaseLost):
        await face.call(term.sleep, 3600)
    election.stop()
    diary.go.set()
    await campaign


# -- a campaign without an end


@every_face
async def test_callbacks_are_paired_whatever_ends_a_term(face: ElectionFace) -> None:
    """Lost, taken away, resigned, stopped: each time started, work, its end, stopped."""
    diary = Diary(face)
    election = face.election(identity="me", ttl=30, renew_deadline=20, retry=0.01)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work", 1)
    overrun(diary.terms[-1])
    await diary.says("work", 2)
    await rob(face, diary.terms[-1])
    await diary.says("work", 3)
    assert await face.call(election.resign)
    await diary.says("work", 4)
    election.stop()
    await campaign
    assert diary.words == ["new me", "started", "work", "ended", "stopped"] * 4
    fences = [term.fence for term in diary.terms]
    assert fences == sorted(set(fences))
    await face.settled()
    assert await face.holder() is None


@every_face
@pytest.mark.parametrize("where", ["new me", "started", "work", "stopped"])
async def test_what_is_raised_leaves_nobody_leading(
    face: ElectionFace, rival: ElectionFace, where: str
) -> None:
    diary = Diary(face, fails=where)
    election = face.election(identity="me", **LONG)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    if where == "stopped":
        await diary.says("work")
        election.stop()
    assert isinstance(await ended(campaign), Failure)
    assert diary.words.count("started") == diary.words.count("stopped") == (where != "new me")
    assert election._term.released
    await rival.lead(rival.election(), lambda term: term.check(), wait=0)


@every_face
async def test_without_started_each_work_is_paired_with_stopped(face: ElectionFace) -> None:
    diary = Diary(face)
    election = face.election(**LONG)
    campaign = face.start(election.run, diary.work, stopped=lambda term: diary._say("stopped"))
    await diary.says("work")
    election.stop()
    await campaign
    assert diary.words == ["work", "ended", "stopped"]


@every_face
async def test_work_that_returns_steps_down_and_stands_again(face: ElectionFace) -> None:
    fences: list[int] = []
    election = face.election(ttl=30, renew_deadline=20, retry=0.01)

    def work(term: Any) -> None:
        fences.append(term.fence)
        if len(fences) == 3:
            election.stop()

    await face.call(election.run, work)
    assert len(fences) == 3
    assert fences == sorted(set(fences))
    assert await face.holder() is None


@every_face
async def test_a_term_is_given_back_only_when_the_work_has_stopped(
    face: ElectionFace, rival: ElectionFace
) -> None:
    """Whatever the reason; until then the lease is kept, so that nobody else is let in."""
    diary = Diary(face, slow=True)
    election = face.election(drain=500, **LONG)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work")
    resigning = face.start(election.resign)
    await until(lambda: diary.terms[-1].stopping)
    with pytest.raises(LockTimeout):
        await rival.lead(rival.election(), pytest.fail, wait=0)
    assert "ended" not in diary.words
    diary.go.set()
    assert await resigning
    assert diary.words[-2:] == ["ended", "stopped"]
    await rival.lead(rival.election(), lambda term: term.check(), wait=0)
    election.stop()
    await campaign


async def test_work_that_does_not_heed_is_cancelled_after_its_drain(rival: ElectionFace) -> None:
    words: list[str] = []

    async def work(term: Any) -> None:
        words.append("work")
        try:
            await asyncio.Event().wait()
        finally:
            words.append(f"cancelled, stopping={term.stopping}, lost={term.lost}")

    election = rival.election(drain=0.0, **LONG)
    campaign = asyncio.create_task(election.run(work, stopped=lambda term: words.append("stopped")))
    await until(lambda: bool(words))
    election.stop()
    await campaign
    assert words == ["work", "cancelled, stopping=True, lost=False", "stopped"]
    assert await rival.holder() is None


async def test_a_campaign_that_is_cancelled_stops_its_work_first(rival: ElectionFace) -> None:
    diary = Diary(rival, slow=True)
    campaign = asyncio.create_task(rival.election(**LONG).run(diary.work, **diary.callbacks))
    await diary.says("work")
    for _ in range(3):  # and again, and again
        campaign.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
    assert not campaign.done()
    assert await rival.holder() is not None
    diary.go.set()
    with pytest.raises(asyncio.CancelledError):
        await campaign
    assert diary.words[-2:] == ["ended", "stopped"]
    await rival.settled()
    assert await rival.holder() is None


@every_face
async def test_the_work_itself_can_not_wait_for_its_own_end(face: ElectionFace) -> None:
    election = face.election(**LONG)

    async def waits(term: Any) -> None:
        await election.resign()

    def waits_too(term: Any) -> None:
        election.resign()

    with pytest.raises(Refused, match="return"):
        await face.call(election.run, waits if face.kind == "async" else waits_too)
    assert await face.holder() is None
    assert not await face.call(election.resign)


@every_face
async def test_who_waits_to_lead_can_be_told_to_stop(
    face: ElectionFace, rival: ElectionFace
) -> None:
    async with rival.election(**LONG).lead():
        one, two = face.election(**LONG), face.election(**LONG)
        campaign = face.start(one.run, pytest.fail)
        waits = face.start(face.lead, two, pytest.fail) if face.kind == "async" else None
        if face.kind != "async":
            waits = asyncio.create_task(face.lead(two, pytest.fail))
        await until(lambda: len(one._bells) == len(two._bells) == 1)
        one.stop()
        two.stop()
        assert await ended(campaign) is None
        assert waits is not None
        assert isinstance(await ended(waits), LockTimeout)


# -- who leads


@every_face
async def test_observers_are_told_of_each_leader(face: ElectionFace, rival: ElectionFace) -> None:
    """By a word: nobody of them looks by itself for the next 100 seconds."""
    seen: list[Leader | None] = []
    watching = rival.election(ttl=0.5, renew_deadline=0.3, retry=0.2)
    watching.options = ElectionOptions(**LONG)

    async def watch() -> None:
        async for leader in watching.observe():
            seen.append(leader)  # noqa: PERF401  # it never ends

    task = asyncio.create_task(watch())
    await until(lambda: len(seen) == 1)
    for number in range(3):
        election = face.election(identity=f"n{number}", metadata={"port": str(number)}, **LONG)
        diary = Diary(face)
        campaign = face.start(election.run, diary.work)
        await until(lambda: seen[-1] is not None)
        election.stop()
        await campaign
        await until(lambda: seen[-1] is None)
    task.cancel()
    assert await ended(task) is not None
    told = [leader and (leader.identity, dict(leader.metadata), leader.ttl) for leader in seen]
    expected: list[Any] = [None]
    for number in range(3):
        expected += [(f"n{number}", {"port": str(number)}, 600.0), None]
    assert told == expected
    leaders = [leader for leader in seen if leader is not None]
    assert [leader.fence for leader in leaders] == sorted({leader.fence for leader in leaders})
    assert all(0 < leader.remaining <= 600 and leader.since > 1e9 for leader in leaders)


async def test_an_observer_in_a_thread(open_face: OpenFace, rival: ElectionFace) -> None:
    face = open_face("threads")
    watching = iter(face.election(retry=0.05).observe())
    assert await face.call(next, watching) is None
    async with rival.election(identity="me", **LONG).lead() as term:
        seen = await face.call(next, watching)
        assert (seen.identity, seen.fence) == ("me", term.fence)
    assert await face.call(next, watching) is None
    await face.call(watching.close)  # type: ignore[attr-defined]
    assert face.client._lock_hub().listener._channels == {}


@every_face
async def test_a_candidate_is_told_who_leads(face: ElectionFace, rival: ElectionFace) -> None:
    diary = Diary(face)
    election = face.election(identity="me", retry=0.05)
    async with rival.election(identity="other", **LONG).lead():
        campaign = face.start(election.run, diary.work, **diary.callbacks)
        await diary.says("new other")
    await diary.says("work")
    election.stop()
    await campaign
    assert diary.words == ["new other", "new me", "started", "work", "ended", "stopped"]


async def test_somebody_who_holds_the_lock_without_a_card_is_its_owner(rival: ElectionFace) -> None:
    """An operator may keep an election from being won."""
    async with rival.lock("election:x", owner="maintenance") as lease:
        async for leader in rival.election().observe():
            assert leader is not None
            assert (leader.identity, leader.fence, leader.ttl) == ("maintenance", lease.fence, 0)
            break
        with pytest.raises(LockTimeout, match="'maintenance' leads"):
            async with rival.election().lead(wait=0):
                pytest.fail("it does not lead")


# -- what can't work


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ttl": 10, "renew_deadline": 10}, "must step down before its lease ends"),
        ({"ttl": 10, "renew_deadline": 9.95}, "must step down before its lease ends"),
        ({"ttl": 0.01}, "ttl is 0.1"),
        ({"ttl": math.inf}, "ttl is"),
        ({"ttl": "15"}, "in seconds"),
        ({"retry": 10}, "time for a second try"),
        ({"retry": 0}, "retry 0 s"),
        ({"retry": math.nan}, "in seconds"),
        ({"drain": -1}, "drain is"),
        ({"drain": math.inf}, "drain is"),
        ({"identity": ""}, "empty id"),
        ({"metadata": {"a": 1}}, "text by name"),
        ({"metadata": ["a"]}, "text by name"),
        ({"metadata": {"a": "x" * 5000}}, "at most 4096"),
    ],
)
@every_face
async def test_what_can_not_work_is_refused_at_birth(
    face: ElectionFace, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(Refused, match=says):
        face.election(**options)


@every_face
async def test_a_wait_that_is_none_is_refused(face: ElectionFace) -> None:
    with pytest.raises(Refused):
        face.election("")
    with pytest.raises(Refused):
        face.election().lead(wait=-1)


async def test_a_coroutine_function_is_no_work_for_a_thread(open_face: OpenFace) -> None:
    face = open_face("threads")

    async def work(term: Any) -> None: ...

    with pytest.raises(Refused, match="AsyncClient"):
        await face.call(face.election(**LONG).run, work)
    assert await face.holder() is None
