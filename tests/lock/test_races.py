"""Races that locks have had in the field, each by its name: what happened, and what must happen."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fencepost._core import aio
from fencepost._core.aio import clock
from fencepost.errors import LeaseLost, LockTimeout, OutcomeUnknown
from fencepost.lock import LeaseEnded, RenewalLate, protocol
from fencepost.lock.protocol import STAY, Ask, Grant, Tried, drift, pause
from fencepost.lock.scripts import Held, Taken
from fencepost.testing import SimPort
from fencepost.wire.listener import Listener
from support.faces import every_face
from support.lock import Deaf, altered, make_place
from support.lockfaces import LockFace, hurry, renewed, renewed_sync
from support.proxy import Proxy
from support.require import require
from support.servers import ServerProcess, find_binary
from support.until import until

OpenFace = Callable[..., LockFace]


@pytest.fixture
async def far(kind: str, open_face: OpenFace, proxy: Proxy) -> AsyncIterator[LockFace]:
    """A client of the face under test, behind the proxy."""
    face = open_face(kind, proxy.url)
    yield face
    await face.settled()  # while the proxy is there


async def warm(face: LockFace) -> None:
    """The server knows the scripts, so that each act is one EVALSHA."""
    lease = await face.call(face.lock("warm").acquire)
    await renewed(lease)
    await face.call(lease.release)


# -- replies that are lost


@every_face
async def test_reply_lost_after_the_server_took_it(far: LockFace, proxy: Proxy) -> None:
    """Others were locked out by their own key; the same attempt is a success."""
    await warm(far)
    proxy.fault("reply", "EVALSHA", "cut")
    lease = await far.call(far.lock(wait=0).acquire)
    assert lease._tried.doubt  # a duplicate may still be on its way
    assert await far.call(lease.release)
    await far.settled()
    assert await far.keys() == set()
    marks = await far.command("KEYS", f"*{far.client.namespace}:lock:x}}:x:*")
    assert len(marks) == 1  # and would find that its attempt has ended


@every_face
async def test_request_lost_before_the_server_had_it(far: LockFace, proxy: Proxy) -> None:
    await warm(far)
    proxy.fault("request", "EVALSHA", "cut")
    lease = await far.call(far.lock(wait=0).acquire)
    assert await far.call(lease.release)


@every_face
async def test_replies_lost_twice_are_unknown_and_leave_nothing(
    far: LockFace, rival: LockFace, proxy: Proxy
) -> None:
    await warm(far)
    for _ in range(2):
        proxy.fault("reply", "EVALSHA", "cut")
    with pytest.raises(OutcomeUnknown):
        await far.call(far.lock(wait=0).acquire)
    await far.settled()
    assert await rival.keys() == set()


@every_face
async def test_release_whose_reply_is_lost_is_no_loss(far: LockFace, proxy: Proxy) -> None:
    """The second request finds that the lock is not ours any more: the first one did that."""
    await warm(far)

    def body(lease: Any) -> None:
        proxy.fault("reply", "EVALSHA", "cut")

    await far.within(far.lock(), body)
    assert await far.keys() == set()


@every_face
async def test_release_that_fails_is_done_in_the_background(
    far: LockFace, rival: LockFace, proxy: Proxy
) -> None:
    """The owner is forgotten only when the server has confirmed."""
    await warm(far)
    lease = await far.call(far.lock(ttl=600).acquire)
    for _ in range(2):
        proxy.fault("request", "EVALSHA", "cut")
    with pytest.raises(OutcomeUnknown):
        await far.call(lease.release)
    await far.settled()
    assert await rival.lock().locked_by() is None
    assert lease.released
    assert not lease.lost


@every_face
async def test_renewal_goes_on_after_errors(far: LockFace, proxy: Proxy) -> None:
    """Others' watchdogs died at the first connection error, for the next holder too."""
    await warm(far)
    lease = await far.call(far.lock(ttl=600).acquire)
    for _ in range(3):
        failed = far.keeper.counts["failed"]
        proxy.cut()
        proxy.fault("reply", "EVALSHA", "cut")
        await renewed(lease)
        assert far.keeper.counts["failed"] >= failed
    assert not lease.lost
    other = await far.call(far.lock("other", ttl=600).acquire)
    await renewed(other, 2)
    for one in (lease, other):
        assert await far.call(one.release)


# -- time


@every_face
async def test_link_frozen_for_four_ttls(
    far: LockFace, rival: LockFace, proxy: Proxy, kind: str
) -> None:
    """Others acted thousands of times beside the next holder; a deadline of one's own acts never.

    The control is the same lease without that deadline.
    """
    ttl = 0.5
    lease = await far.call(far.lock(ttl=ttl).acquire)
    proxy.hold("request")
    proxy.hold("reply")
    began = clock()
    taking = asyncio.create_task(rival.lock(wait=60).acquire())
    acts: list[float] = []
    trusting: list[float] = []
    came = 0.0
    while clock() < began + 4 * ttl or not taking.done():
        if lease.remaining() > 0:
            acts.append(clock())
        trusting.append(clock())
        if not came and taking.done():
            came = clock()
        # time itself: the link stays frozen for four leases
        await asyncio.sleep(0.001)
    assert max(acts, default=0.0) < came
    assert lease.until < came  # the holder knew before the next one came
    assert max(trusting) > came
    assert lease.lost
    proxy.release("request")
    proxy.release("reply")
    hurry(lease)
    await far.settled()
    assert lease.lost  # nothing takes it anew
    with pytest.raises(LeaseLost):
        lease.check()
    assert (await taking).fence > lease.fence
    assert await taking.result().release()


class Slow:
    """A clock that a reply takes some time on."""

    def __init__(self, *takes: float) -> None:
        self.at, self.takes = 1000.0, list(takes)

    def __call__(self) -> float:
        return self.at

    def reply(self) -> None:
        self.at += self.takes.pop(0)


def drive(work: Any, answers: list[Any], each: Callable[[], None] = lambda: None) -> Any:
    """Run a protocol over a simulated port; returns its result and the steps it took."""
    steps = []
    try:
        step = work.send(None)
        while True:
            steps.append(step)
            each() if step.kind == "run" else None
            answer = answers.pop(0) if step.kind == "run" else None
            step = work.throw(answer) if isinstance(answer, Exception) else work.send(answer)
    except StopIteration as stop:
        return stop.value, steps


def asked(**more: Any) -> Ask:
    return Ask("a", "me", **{"ttl": 10.0, "wait": 5.0, **more})


def test_validity_counts_from_before_the_request() -> None:
    """The time that a reply takes is not added to the lease, and drift is taken off."""
    slow = Slow(3.0)
    io = SimPort("a", clock=slow)
    grant, _ = drive(
        protocol.acquire(io, make_place(), asked(), Deaf(), Tried()), [Taken(7)], slow.reply
    )
    assert grant == Grant(7, 1000.0, 1010.0 - drift(10.0))
    assert 0 < drift(10.0) < 0.2
    assert slow.at == 1003.0


def test_a_lock_is_never_handed_out_expired() -> None:
    """The clock of each try is its own: one that took too long is asked for anew."""
    slow = Slow(9.95, 0.5)
    io = SimPort("a", clock=slow)
    grant, steps = drive(
        protocol.acquire(io, make_place(), asked(wait=60.0), Deaf(), Tried()),
        [Taken(7), Taken(7)],
        slow.reply,
    )
    assert [step.label for step in steps] == ["acquire", "acquire"]
    assert grant.sent == 1009.95
    assert grant.until > slow.at
    slow = Slow(20.0, 20.0)
    tried = Tried()
    with pytest.raises(LockTimeout, match="raise ttl"):
        drive(
            protocol.acquire(
                SimPort("a", clock=slow), make_place(), asked(wait=0.0), Deaf(), tried
            ),
            [Taken(7), Taken(7)],
            slow.reply,
        )
    assert tried.open  # and is given back


def test_the_clock_goes_on_while_the_machine_sleeps() -> None:
    expected = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    assert expected == aio._CLOCK


@every_face
async def test_ttl_ran_out_and_the_local_state_is_free(face: LockFace, rival: LockFace) -> None:
    """Others kept a local mutex, or said nothing at the release."""
    lock = face.lock(ttl=0.2)

    def body(lease: Any) -> None:
        lease._keeper.drop(lease)  # a process that is paused renews nothing
        while not lease.lost:
            # time itself: a lease runs out
            time.sleep(0.01)

    with pytest.raises(LeaseLost, match=r"before its work had ended|was cancelled"):
        await face.within(lock, body)
    assert lock._inside == {}
    await face.settled()
    await face.within(lock, lambda lease: None)
    assert await rival.keys() == set()


@every_face
async def test_body_raises_and_the_ttl_is_overrun(face: LockFace) -> None:
    """The body's own error is the one that surfaces."""

    def body(lease: Any) -> None:
        lease.lose("a test says so")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        await face.within(face.lock(), body)
    assert "a test says so" in caught.value.__notes__[0]


async def test_a_loop_that_its_tasks_hold_up_renews_all_the_same(open_face: OpenFace) -> None:
    """Renewal in the loop of the body was late with everything: here it is a thread's work."""
    face = open_face()
    async with face.lock(ttl=600) as lease:
        until_then = lease.until
        renewed_sync(lease, 3)  # nothing of this loop runs meanwhile
        assert lease.until > until_then


@every_face
async def test_how_late_renewals_are_is_measured(face: LockFace) -> None:
    told: list[Any] = []
    face.client.observe(told.append)
    lease = await face.call(face.lock(ttl=600).acquire)
    before = lease._keeper.counts["renewed"]
    lease.due = clock() - 100
    lease._keeper.keep(lease)
    await until(lambda: lease._keeper.counts["renewed"] > before)
    assert lease._keeper.lateness >= 100
    [late] = [one for one in told if isinstance(one, RenewalLate)]
    assert (late.lock, late.fence, late.late >= 100, late.left > 100) == (
        "x",
        lease.fence,
        True,
        True,
    )
    await face.call(lease.release)


@every_face
async def test_a_loss_is_told_once_however_it_came(face: LockFace, rival: LockFace) -> None:
    told: list[Any] = []
    face.client.observe(told.append)

    def ends() -> list[Any]:
        return [(one.lock, one.fence) for one in told if isinstance(one, LeaseEnded)]

    taken = await face.call(face.lock("taken", ttl=600).acquire)
    await rival.lock("taken").force_release()
    await renewed(taken)
    await until(lambda: len(ends()) == 1)
    late = await face.call(face.lock("late", ttl=600).acquire)
    late.until = clock()  # nothing prolonged it in time
    hurry(late)
    await until(lambda: len(ends()) == 2)
    kept = await face.call(face.lock("kept", ttl=600).acquire)
    await face.call(kept.release)
    assert ends() == [("taken", taken.fence), ("late", late.fence)]
    assert "not prolonged" in [one.reason for one in told if isinstance(one, LeaseEnded)][1]
    for lease in (taken, late):
        assert not await face.call(lease.release)


@every_face
async def test_one_thread_renews_all_leases_in_one_write(far: LockFace, proxy: Proxy) -> None:
    await warm(far)
    leases = [await far.call(far.lock(f"n{n}", ttl=600).acquire) for n in range(20)]
    before = proxy.count("EVALSHA")
    with leases[0]._keeper._changed:  # all at once
        for lease in leases:
            hurry(lease)
    await until(lambda: proxy.count("EVALSHA") >= before + 20)
    [thread] = {one._keeper._thread for one in leases}
    assert thread.name == "fencepost-keeper"
    for lease in leases:
        await far.call(lease.release)


# -- waiting


def test_listen_then_try_again() -> None:
    """A release between the first try and the listening would never be heard."""
    held = Held(5000, "b", 5, 0)
    _, steps = drive(
        protocol.acquire(SimPort("a"), make_place(), asked(), Deaf(), Tried()),
        [held, held, Taken(7)],
    )
    assert [step.label for step in steps] == ["acquire", "listen", "acquire", "hear", "acquire"]


@pytest.mark.parametrize("left_ms", [-2, -1, 0, 1, 200, 10_000])
@pytest.mark.parametrize("ahead", [0, 1, 500])
def test_a_waiter_never_sleeps_beyond_the_holders_lease(left_ms: int, ahead: int) -> None:
    """Calls may be lost; others then slept for 30 s, or for their whole time-out."""
    seconds = pause(Held(left_ms, "b", 5, ahead), left=60.0)
    assert seconds <= max(left_ms, 0) / 1000 + 0.11
    assert seconds <= STAY / 3  # and shows itself in time
    assert seconds >= 0.001  # but never spins
    assert pause(Held(left_ms, "b", 5, ahead), left=0.002) <= 0.002


@every_face
async def test_calls_that_are_never_heard(
    face: LockFace, rival: LockFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing rests on them: a waiter looks by itself."""
    monkeypatch.setattr(Listener, "add", lambda *args: None)
    held = await rival.lock().acquire()
    waiting = asyncio.create_task(face.call(face.lock(wait=60).acquire))
    await rival.queued("x", 1)
    await held.release()
    await face.call((await waiting).release)
    assert await rival.keys() == set()


@every_face
async def test_the_holder_died(face: LockFace, rival: LockFace) -> None:
    """It has a TTL, and nobody says a word when it ends."""
    held = await rival.lock(ttl=0.3).acquire()
    rival.keeper.drop(held)
    lease = await face.call(face.lock(wait=60).acquire)
    assert lease.fence > held.fence
    assert held.lost
    await face.call(lease.release)


@every_face
async def test_ears_that_are_cut_off_hear_again(face: LockFace, rival: LockFace) -> None:
    """A new subscription acquires nothing, and who listens is called since it may have missed a call."""
    held = await rival.lock(ttl=600).acquire()
    waiting = asyncio.create_task(face.call(face.lock(wait=600).acquire))
    await rival.queued("x", 1)
    listener = face.client._lock_hub().listener
    await until(lambda: bool(listener._confirmed))
    for times in (2, 3):
        await rival.command("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda times=times: listener.connections >= times and listener._confirmed)  # type: ignore[misc]
    assert not waiting.done()
    assert not held.lost
    await held.release()
    await face.call((await waiting).release)


async def test_one_subscription_a_lock_however_many_wait(
    open_face: OpenFace, proxy: Proxy, rival: LockFace
) -> None:
    """And none when nobody waits any more: nothing is stored, so nothing grows."""
    face = open_face("async", proxy.url)
    held = await rival.lock().acquire()
    tasks = [asyncio.create_task(face.lock(wait=600).acquire()) for _ in range(10)]
    await rival.queued("x", 10)
    listener = face.client._lock_hub().listener
    await until(lambda: bool(listener._confirmed))
    assert proxy.count("SUBSCRIBE") == 1
    await held.release()
    for _ in tasks:
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        await done.pop().result().release()
        tasks = list(waiting)
    assert listener._channels == {}
    await proxy.seen(lambda: proxy.count("UNSUBSCRIBE") == 1)
    assert await rival.keys() == set()
    assert listener.connections == 1


async def test_a_fair_lock_serves_in_the_order_of_coming(open_face: OpenFace) -> None:
    faces = [open_face("async"), open_face("threads"), open_face("async")]
    held = await faces[0].lock(fair=True).acquire()
    served: list[int] = []

    async def one(number: int) -> None:
        face = faces[number % 3]
        lease = await face.call(face.lock(fair=True, wait=600).acquire)
        served.append(number)
        await face.call(lease.release)

    tasks = []
    for number in range(9):
        tasks.append(asyncio.create_task(one(number)))
        await faces[0].queued("x", number + 1)
    await held.release()
    await asyncio.gather(*tasks)
    assert served == list(range(9))
    assert await faces[0].keys() == set()


async def test_a_dead_waiter_in_a_fair_queue(open_face: OpenFace, rival: LockFace) -> None:
    """It costs those behind it its silence, not a lease of ten minutes."""
    face = open_face()
    held = await rival.lock(fair=True, ttl=600).acquire()
    place, dead = rival.lock()._place, Ask("dead", "dead", 600.0, 60.0, 0)
    await rival.client.port.run(place.take(dead))
    waiting = asyncio.create_task(face.lock(fair=True, ttl=600, wait=600).acquire())
    await rival.queued("x", 2)
    await held.release()
    lease = await waiting
    assert lease.fence > held.fence
    await lease.release()


# -- the server


async def test_server_restarts_empty(namespace: str, open_face: OpenFace) -> None:
    """Others' fences began at 1 again. Ours are greater, and who held it learns."""
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey") as server:
        face, rival = open_face("async", server.url), open_face("threads", server.url)
        first = await face.lock(ttl=600).acquire()
        server.restart(empty=True)
        second = await rival.call(rival.lock(wait=60).acquire)
        assert second.fence > first.fence
        assert not first.lost  # by its own clock: this is what only a gate closes
        await renewed(first)
        assert first.lost
        assert "does not know it" in first.why
        assert not await first.release()
        assert await rival.call(rival.lock().locked_by) is not None
        await rival.call(second.release)
        await face.close()
        await rival.close()


@every_face
async def test_script_flush(face: LockFace, rival: LockFace) -> None:
    lease = await face.call(face.lock().acquire)
    for step in (
        lambda: renewed(lease),
        lambda: face.call(face.lock("other").acquire),
        lambda: face.call(face.lock().locked_by),
        lambda: face.call(lease.release),
    ):
        await rival.command("SCRIPT", "FLUSH")
        await step()
    assert not lease.lost
    assert lease.released


async def test_two_leases_at_a_server_and_only_the_lost_one_is_told(open_face: OpenFace) -> None:
    """State is a lease's own: what one lost, another keeps."""
    face = open_face()
    one, two = [await face.lock(name, ttl=600).acquire() for name in ("one", "two")]
    await face.lock("one").force_release()
    with face.keeper._changed:
        hurry(one)
        hurry(two)
    await until(lambda: one.lost)
    await renewed(two)
    assert not two.lost
    assert await two.release()


@every_face
async def test_an_error_of_one_lease_ends_no_other(
    face: LockFace, rival: LockFace, caplog: pytest.LogCaptureFixture
) -> None:
    """What the server objects to is found, and the others are prolonged all the same."""
    leases = [await face.call(face.lock(name, ttl=600).acquire) for name in ("one", "two", "bad")]
    bad, right = leases[2], leases[2].place
    refused = altered("renew", "if not whole(ttl_ms)", "if true")  # the server objects, whatever
    bad.place = dataclasses.replace(right, scripts=refused)
    before = face.keeper.counts["renewed"]
    with face.keeper._changed:
        for lease in leases:
            hurry(lease)
    await until(lambda: face.keeper.counts["renewed"] >= before + 2)
    await until(lambda: face.keeper.counts["failed"] >= 1)
    assert "positive whole number" in caplog.text
    assert not any(lease.lost for lease in leases)
    bad.place = right
    for lease in leases:
        assert await face.call(lease.release)


@every_face
async def test_an_acl_that_forbids_the_channel_keeps_no_lock(
    kind: str, namespace: str, open_face: OpenFace
) -> None:
    """To call who waits is a courtesy; to give the lock back is not."""
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey") as server:
        admin = open_face("async", server.url)
        await admin.command("ACL", "SETUSER", "mute", "on", ">p", "~*", "+@all", "resetchannels")
        face = open_face(kind, server.url.replace("unix://", "unix://mute:p@"))
        held = await face.call(face.lock(ttl=600).acquire)
        waiting = asyncio.create_task(face.call(face.lock(wait=600).acquire))
        await admin.queued("x", 1)
        assert await face.call(held.release)
        lease = await waiting  # it could not even listen
        await face.call(lease.release)
        await face.settled()
        assert await admin.keys() == set()
        await face.close()
        await admin.close()


async def test_a_block_that_is_left_by_another_task(rival: LockFace) -> None:
    lock = rival.lock()
    lease = await asyncio.create_task(lock.__aenter__())
    with pytest.raises(RuntimeError, match="entered in another task"):
        await lock.__aexit__(None, None, None)
    await lease.release()
