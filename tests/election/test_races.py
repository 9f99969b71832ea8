"""Races that elections have had in the field, each by its name: what happened, and what must happen."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fencepost._core import commands
from fencepost._core.aio import clock
from fencepost.election.protocol import campaign, pause
from fencepost.errors import (
    ClientClosed,
    FenceRefused,
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from fencepost.testing import SimPort
from support.election import Diary, ElectionFace, ended, overrun, rob
from support.faces import every_face
from support.lock import Deaf
from support.lockfaces import hurry
from support.proxy import Proxy
from support.until import until

OpenFace = Callable[..., ElectionFace]
LONG = {"ttl": 600.0, "renew_deadline": 400.0, "retry": 100.0}
SHORT = {"ttl": 0.6, "renew_deadline": 0.3, "retry": 0.05}


@pytest.fixture
async def far(kind: str, open_face: OpenFace, proxy: Proxy) -> AsyncIterator[ElectionFace]:
    """A client of the face under test, behind the proxy."""
    face = open_face(kind, proxy.url)
    yield face
    await face.settled()  # while the proxy is there


# -- a leader that can't reach the server


@every_face
async def test_a_leader_that_can_not_reach_the_server_steps_down_before_its_lease_ends(
    far: ElectionFace, rival: ElectionFace, proxy: Proxy
) -> None:
    """Its work was told, and had ended, when the next one got in. The control trusts nothing of it."""
    diary = Diary(far)
    election = far.election(**SHORT)
    campaign = far.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work")
    term = diary.terms[0]
    proxy.hold("request")
    proxy.hold("reply")
    acts, trusting, came = [], [], 0.0
    taking = asyncio.create_task(rival.lock("election:x").acquire(wait=60))
    while not came or len(diary.words) < 4:
        if term.remaining() > 0:
            acts.append(clock())
        if taking.done():
            came = came or clock()
        trusting.append(clock())
        # time itself: the link stays frozen until the lease is over
        await asyncio.sleep(0.001)
    proxy.release("request")
    proxy.release("reply")
    lease = await taking
    assert max(acts) < came
    assert max(trusting) >= came  # the control
    assert diary.words[2:4] == ["work", "ended"]
    assert lease.fence > term.fence
    election.stop()
    await campaign
    assert await lease.release()


@every_face
async def test_the_work_of_a_lost_term_has_the_rest_of_the_lease_to_stop_in(
    face: ElectionFace, rival: ElectionFace
) -> None:
    """The lease is kept while it stops, and prolonged no more: a hard end."""
    diary = Diary(face, slow=True)
    election = face.election(ttl=600, renew_deadline=300, retry=100)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work")
    term = diary.terms[0]
    overrun(term)
    await until(lambda: bool(term.lost))
    assert term.lease.prolonged_by(clock() + 1) == 0
    with pytest.raises(LockTimeout):
        await rival.lead(rival.election(), pytest.fail, wait=0)
    assert "stopped" not in diary.words
    election.stop()
    diary.go.set()
    await campaign
    assert diary.words[-2:] == ["ended", "stopped"]


@every_face
async def test_work_that_never_stops_keeps_its_lease_no_longer_than_its_drain_and_one_ttl(
    face: ElectionFace, rival: ElectionFace
) -> None:
    """Slow hooks at the end ran past the lease, or kept it for ever."""
    diary = Diary(face, slow=True)
    election = face.election(drain=0.05, **SHORT)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work")
    election.stop()
    await rival.lead(rival.election(retry=0.05), lambda term: term.check())
    assert not campaign.done()
    assert diary.terms[0].lost
    diary.go.set()
    await campaign
    assert diary.words[-2:] == ["ended", "stopped"]


# -- a leader that dies


async def dead_leader(face: ElectionFace, **options: Any) -> Any:
    """The lease of a leader that died: nobody prolongs it."""
    lease = await face.call(face.election(identity="dead", **options)._lock().acquire)
    lease._keeper.drop(lease)
    return lease


@every_face
async def test_after_a_crash_another_leads_when_the_lease_has_ended(
    face: ElectionFace, rival: ElectionFace
) -> None:
    """Nobody tells it: the candidate looks by itself when that lease would end."""
    dead = await dead_leader(rival, **SHORT)
    fences: list[int] = []
    await face.lead(face.election(retry=2.0), lambda term: fences.append(term.fence))
    assert fences[0] > dead.fence
    assert dead.lost


@every_face
async def test_candidates_go_by_the_leaders_ttl_and_not_by_their_own(
    face: ElectionFace, rival: ElectionFace
) -> None:
    dead = await dead_leader(rival, **LONG)
    impatient = face.election(ttl=0.2, renew_deadline=0.1, retry=0.001)
    seat_takes, take = 0, impatient._take

    if face.kind == "async":

        async def counted(floor: int) -> Any:
            nonlocal seat_takes
            seat_takes += 1
            return await take(floor)

        impatient._take = counted
    else:

        def counted_too(floor: int) -> Any:
            nonlocal seat_takes
            seat_takes += 1
            return take(floor)

        impatient._take = counted_too
    began = clock()
    campaign = face.start(impatient.run, pytest.fail)
    await until(lambda: seat_takes > 30 and clock() > began + 0.4)  # two of its own ttls
    impatient.stop()
    await campaign
    left = await rival.command("PTTL", dead.place.keys.lock)
    assert left > 500_000
    async for leader in rival.election(ttl=0.2, renew_deadline=0.1, retry=0.05).observe():
        assert leader is not None
        assert (leader.identity, leader.ttl) == ("dead", 600)
        break


def test_who_does_not_lead_looks_when_the_leaders_lease_ends_and_every_retry() -> None:
    for chance in (0.0, 0.999):
        assert 40 < pause(40.0, 100.0, chance) < 40.01
        assert pause(40.0, 2.0, chance) == 2.0
        assert 0 < pause(0.0, 2.0, chance) < 0.01
        assert 0 < pause(-1.0, 2.0, chance) < 0.01  # never a pause of nothing


# -- elected, or not


@every_face
async def test_elected_although_its_time_has_run_out_is_not_elected(face: ElectionFace) -> None:
    """Others' campaigns returned a success whose session had died."""
    election = face.election(ttl=30, renew_deadline=20, retry=0.05)
    won = election._won

    def too_late(*args: Any) -> Any:
        term = won(*args)
        overrun(term)
        return term

    election._won = too_late
    with pytest.raises(LeaseLost):
        await face.lead(election, pytest.fail)
    await face.settled()
    assert await face.holder() is None

    def late_once(*args: Any) -> Any:
        election._won = won
        return too_late(*args)

    election._won = late_once
    diary = Diary(face)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work")
    election.stop()
    await campaign
    assert diary.words.count("started") == 1  # the first time nothing was begun
    assert not diary.terms[0].lost


@every_face
async def test_a_term_that_ends_while_its_leader_is_made_known_begins_no_work(
    face: ElectionFace,
) -> None:
    diary, known = Diary(face), []
    election = face.election(ttl=30, renew_deadline=20, retry=0.05)

    def slow(leader: Any) -> None:
        known.append(leader.fence)
        if len(known) == 1:
            overrun(election._term)

    campaign = face.start(election.run, diary.work, started=diary.started, new_leader=slow)
    await diary.says("work")
    election.stop()
    await campaign
    assert [term.fence for term in diary.terms] == known[1:]


async def test_a_thousand_candidates_that_give_up_leave_nothing_behind(rival: ElectionFace) -> None:
    """Cancelled wherever they stand: trying, elected, working, stopping."""
    dice = random.Random(7)
    words: list[str] = []

    async def candidate(number: int) -> None:
        election = rival.election(identity=f"n{number}", ttl=60, renew_deadline=40, retry=0.01)
        await election.run(
            lambda term: term.sleep(3600),
            started=lambda term: words.append(f"started {number}"),
            stopped=lambda term: words.append(f"stopped {number}"),
        )

    number = 0
    while number < 1000 or len(words) < 60:  # some shall have led
        number += 4
        tasks = [asyncio.create_task(candidate(number + one)) for one in range(4)]
        for _ in range(dice.randrange(90)):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
            for _ in range(dice.randrange(3)):
                await asyncio.sleep(0)
        for task in tasks:
            assert isinstance(await ended(task), asyncio.CancelledError)
    for began, over in zip(words[::2], words[1::2], strict=True):
        assert began.replace("started", "stopped") == over  # one at a time, and strictly paired
    await rival.settled()
    assert await rival.keys() == set()
    assert rival.client._lock_hub().keeper._held == set()


@every_face
async def test_replies_that_are_lost_leave_no_leader_that_nobody_is(
    far: ElectionFace, rival: ElectionFace, proxy: Proxy
) -> None:
    await far.lead(far.election("warm"), lambda term: None)
    for _ in range(2):
        proxy.fault("reply", "EVALSHA", "cut")
    diary = Diary(far)
    election = far.election(ttl=600, renew_deadline=400, retry=0.05)
    campaign = far.start(election.run, diary.work, **diary.callbacks)
    await diary.says("work")
    await far.settled()
    holder = await rival.holder()
    assert holder.fence == diary.terms[0].fence
    election.stop()
    await campaign
    assert await rival.holder() is None


@every_face
async def test_who_never_led_is_not_told_that_it_stopped(
    face: ElectionFace, rival: ElectionFace
) -> None:
    diary = Diary(face)
    election = face.election(identity="me", retry=0.01)
    async with rival.election(identity="other", **LONG).lead():
        campaign = face.start(election.run, diary.work, **diary.callbacks)
        await diary.says("new other")
        election.stop()
        await campaign
    assert diary.words == ["new other"]


@every_face
async def test_told_to_stop_between_its_try_and_its_term_it_stops(face: ElectionFace) -> None:
    """Who tells it finds no term yet, so the term must find that it was told."""
    election, diary = face.election(**LONG), Diary(face)
    won = election._won

    def told_meanwhile(*args: Any) -> Any:
        election.stopping = True
        return won(*args)

    election._won = told_meanwhile
    await face.call(election.run, diary.work, started=diary.started, stopped=diary.stopped)
    assert diary.words == ["started", "work", "ended", "stopped"]
    assert await face.holder() is None


@every_face
async def test_a_candidate_stands_again_after_every_loss(face: ElectionFace) -> None:
    """Others' electors ended for ever after the first."""
    diary = Diary(face)
    election = face.election(ttl=30, renew_deadline=20, retry=0.01)
    campaign = face.start(election.run, diary.work, **diary.callbacks)
    for number in range(10):
        await diary.says("work", number + 1)
        if number % 2:
            await rob(face, diary.terms[-1])
        else:
            overrun(diary.terms[-1])
    await diary.says("work", 11)
    election.stop()
    await campaign
    assert diary.words.count("started") == diary.words.count("stopped") == 11


async def test_a_loss_while_started_is_under_way_is_told_too(rival: ElectionFace) -> None:
    words: list[str] = []
    election = rival.election(ttl=30, renew_deadline=20, retry=0.05)

    async def started(term: Any) -> None:
        words.append("started")
        if len(words) == 1:
            overrun(term)
            try:
                await asyncio.Event().wait()
            finally:
                words.append("told")

    async def work(term: Any) -> None:
        words.append("work")
        election.stop()

    await election.run(work, started=started, stopped=lambda term: words.append("stopped"))
    assert words == ["started", "told", "stopped", "started", "work", "stopped"]


@every_face
async def test_a_link_that_comes_back_elects_nobody(
    far: ElectionFace, rival: ElectionFace, proxy: Proxy
) -> None:
    """Elsewhere to subscribe again was to acquire again, silently."""
    async with rival.election(identity="other", **LONG).lead() as term:
        diary = Diary(far)
        election = far.election(ttl=600, renew_deadline=400, retry=0.05)
        campaign = far.start(election.run, diary.work, **diary.callbacks)
        await diary.says("new other")
        hub = far.client._lock_hub()
        for number in range(3):
            await until(lambda number=number: hub.listener.connections > number)  # type: ignore[misc]
            proxy.cut()
        holder = await rival.holder()
        assert holder.fence == term.fence
        assert diary.words == ["new other"]
        election.stop()
        await campaign


async def test_a_loss_interrupts_nobody_but_the_work(open_face: OpenFace) -> None:
    """Elsewhere the main thread was interrupted, and those who waited there died of it."""
    face = open_face("threads")
    leads, waits = face.election(**LONG), face.election(ttl=30, renew_deadline=20, retry=0.05)
    first, second = Diary(face), Diary(face)
    one = face.start(leads.run, first.work, **first.callbacks)
    await first.says("work")
    two = face.start(waits.run, second.work, **second.callbacks)
    leads.stopping = True  # it stands no more, but its work was not told
    await rob(face, first.terms[0])
    await second.says("work")
    assert threading.main_thread() is threading.current_thread()
    await one
    waits.stop()
    await two
    assert second.words[-4:] == ["started", "work", "ended", "stopped"]


# -- what is not swallowed, and what is outlasted


async def test_a_cancel_is_never_taken_for_a_loss(rival: ElectionFace) -> None:
    diary = Diary(rival)
    campaign = asyncio.create_task(rival.election(**LONG).run(diary.work, **diary.callbacks))
    await diary.says("work")
    overrun(diary.terms[0])
    campaign.cancel()
    with pytest.raises(asyncio.CancelledError):
        await campaign
    assert diary.words.count("stopped") == diary.words.count("started")
    await rival.settled()
    assert await rival.holder() is None


@pytest.mark.parametrize("loss", [LeaseLost("over"), FenceRefused("a newer one", fence=7)])
async def test_a_cancel_of_work_that_answers_with_a_loss_is_a_cancel(
    rival: ElectionFace, loss: Exception
) -> None:
    working = asyncio.Event()

    async def work(term: Any) -> None:
        working.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            overrun(term)
            raise loss from None

    campaign = asyncio.create_task(rival.election(**LONG).run(work))
    await working.wait()
    campaign.cancel()
    assert isinstance(await ended(campaign), asyncio.CancelledError)


@every_face
async def test_a_gate_that_has_seen_a_newer_one_ends_the_term_and_not_the_campaign(
    face: ElectionFace,
) -> None:
    """T6: a server that lost its data, with a clock behind, must be told how far fences had come."""
    fences: list[int] = []
    election = face.election(ttl=30, renew_deadline=20, retry=0.01)

    def work(term: Any) -> None:
        fences.append(term.fence)
        if len(fences) == 1:
            raise FenceRefused("a newer one has been here", fence=term.fence + 10**9)
        election.stop()

    await face.call(election.run, work)
    assert fences[1] > fences[0] + 10**9


class Tries:
    """A seat whose tries are given."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.told, self.stopping = list(answers), 0, False

    async def take(self, floor: int) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def look(self) -> None:
        return None


def drive(work: Any) -> tuple[Any, list[str]]:
    steps: list[str] = []
    try:
        step = work.send(None)
        while True:
            steps.append(step.label)
            step = work.send(None)
    except StopIteration as stop:
        return stop.value, steps


def test_a_candidate_listens_then_tries_again_and_outlasts_what_passes() -> None:
    held = LockTimeout("held", owner="o", fence=5, remaining=3.0)
    seat = Tries(Unavailable("x"), OutcomeUnknown("x"), Overloaded("x"), held, "the term")
    answer, steps = drive(campaign(SimPort(), seat, Deaf(), 2.0))  # type: ignore[arg-type]
    assert answer == "the term"
    assert steps == ["listen", "hear", "hear", "hear"]  # nothing between listening and the next try


@pytest.mark.parametrize("error", [ClientClosed("closed"), ValueError("no answer of ours")])
def test_a_candidate_does_not_outlast(error: Exception) -> None:
    with pytest.raises(type(error)):
        drive(campaign(SimPort(), Tries(error), Deaf(), 2.0))  # type: ignore[arg-type]


@every_face
async def test_words_that_are_never_heard_cost_a_retry(
    face: ElectionFace, rival: ElectionFace
) -> None:
    """A word on the channel is a hint: without it candidates and observers look by themselves."""
    for election in (
        leader := rival.election(identity="first", **LONG),
        candidate := face.election(identity="second", ttl=30, renew_deadline=20, retry=0.05),
    ):
        election._word = lambda: commands.raw("PING")
    seen: list[Any] = []

    async def watch() -> None:
        async for one in rival.election(retry=0.05).observe():
            seen.append(one and one.identity)  # noqa: PERF401  # it never ends

    watching = asyncio.create_task(watch())
    await until(lambda: seen == [None])
    diary = Diary(face)
    async with leader.lead():
        await until(lambda: seen[-1] == "first")
        campaign = face.start(candidate.run, diary.work, **diary.callbacks)
        await diary.says("new first")
    await diary.says("work")
    await until(lambda: seen[-1] == "second")
    candidate.stop()
    await campaign
    watching.cancel()
    await ended(watching)


@every_face
async def test_a_loop_or_thread_that_its_work_holds_up_leads_on(face: ElectionFace) -> None:
    """Renewal is another thread's."""
    turns: list[int] = []
    election = face.election(ttl=600, renew_deadline=400, retry=0.01)

    def work(term: Any) -> None:
        keeper = term.lease._keeper
        before, began = keeper.counts["renewed"], clock()
        while keeper.counts["renewed"] < before + 3:
            hurry(term.lease)
            assert clock() < began + 60
        term.check()
        turns.append(1)
        election.stop()

    await face.call(election.run, work)
    assert turns == [1]
