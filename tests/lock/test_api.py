"""Both faces of a lock: what they give, what they refuse, how a lease is held and given back."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fencepost import AsyncClient, Client
from fencepost._core.aio import clock
from fencepost.errors import ClientClosed, LeaseLost, LockTimeout, Refused, WaitTimeout
from fencepost.lock import Holder
from support.faces import every_face
from support.lockfaces import LockFace, renewed
from support.proxy import Proxy

OpenFace = Callable[..., LockFace]


@every_face
async def test_one_holds_it_and_the_next_gets_a_greater_fence(
    face: LockFace, rival: LockFace
) -> None:
    first = await face.call(face.lock().acquire)
    assert first.name == "x"
    assert 0 < first.remaining() <= 10
    assert await rival.lock().try_acquire() is None
    assert await face.call(first.release)
    second = await rival.lock().try_acquire()
    assert second is not None
    assert second.fence > first.fence
    assert second.token != first.token
    assert await second.release()
    assert await face.keys() == set()


@every_face
async def test_a_timeout_names_the_holder_and_what_is_left(face: LockFace, rival: LockFace) -> None:
    async with rival.lock(owner="nightly@db1", ttl=30) as lease:
        with pytest.raises(LockTimeout, match="nightly@db1") as caught:
            await face.call(face.lock().acquire, wait=0)
        assert isinstance(caught.value, WaitTimeout)
        assert (caught.value.owner, caught.value.fence) == ("nightly@db1", lease.fence)
        assert 0 < caught.value.remaining <= 30
        with pytest.raises(LockTimeout, match=r"waited for 0\.01 s"):
            await face.call(face.lock(wait=0.01).acquire)
    await face.settled()
    assert await face.keys() == set()  # nobody waits any more


@every_face
async def test_wait_zero_asks_once(kind: str, open_face: OpenFace, proxy: Proxy) -> None:
    face, rival = open_face(kind, proxy.url), open_face()
    await face.command("PING")
    async with rival.lock():
        for _ in range(2):  # the first one may have to send the script's text
            before = proxy.count("EVALSHA")
            assert await face.call(face.lock().try_acquire) is None
        assert proxy.count("EVALSHA") == before + 1


@pytest.mark.parametrize("make", [AsyncClient.from_url, Client.from_url])
@pytest.mark.parametrize(
    "options",
    [
        *({"ttl": bad} for bad in (0, -1, 0.0004, math.nan, math.inf, -math.inf, 1e9, "10", None)),
        *({"wait": bad} for bad in (-0.1, math.nan, -math.inf, "10", None, True)),
        *({"max_hold": bad} for bad in (0, 5, math.nan, -1, None)),
        *({"fair": 1}, {"reentrant": None}, {"owner": ""}),
    ],
    ids=str,
)
def test_what_can_not_work_is_refused_at_the_door(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make("redis://localhost").lock("x", **options)


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_lock_has_a_name(name: Any) -> None:
    with pytest.raises(Refused):
        Client.from_url("redis://localhost").lock(name)


def test_what_can_not_work_is_refused_at_a_call_too() -> None:
    lock = Client.from_url("redis://localhost").lock("x")
    for bad in ({"wait": -1}, {"wait": math.nan}, {"floor": -1}, {"floor": 1.5}, {"floor": 2**60}):
        with pytest.raises(Refused):
            lock.acquire(**bad)


@every_face
async def test_fractions_of_a_second_are_meant(face: LockFace, rival: LockFace) -> None:
    """``wait=0.5`` is no 0, and a ttl of 0.25 s is no "no TTL" and no whole second."""
    lease = await face.call(face.lock(ttl=0.25).acquire)
    left = await face.command("PTTL", lease.place.keys.lock)
    assert left == -2 or 0 < left <= 250
    await face.call(lease.release)
    async with rival.lock(ttl=30) as held:
        waits = asyncio.ensure_future(face.call(face.lock(wait=20.5).acquire))
        await rival.queued(held.name, 1)
    await face.call((await waits).release)


@every_face
async def test_a_block_gives_back_whatever_its_body_does(face: LockFace) -> None:
    assert await face.within(face.lock(), lambda lease: lease.fence) > 0

    def fails(lease: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await face.within(face.lock(), fails)
    assert await face.keys() == set()


async def test_a_body_that_did_not_get_the_lock_never_runs(rival: LockFace) -> None:
    async with rival.lock():
        with pytest.raises(LockTimeout):
            async with rival.lock(wait=0):
                pytest.fail("it ran")


async def test_decorated_functions_hold_the_lock(open_face: OpenFace) -> None:
    face, threads = open_face(), open_face("threads")

    @face.lock("job")
    async def job(n: int, *, more: int = 0) -> Any:
        """Works."""
        return n + more, await face.lock("job").locked_by()

    @threads.lock("other")
    def other(n: int) -> Any:
        return n, threads.lock("other").locked_by()

    assert job.__doc__ == "Works."
    total, holder = await job(1, more=2)
    assert total == 3
    assert isinstance(holder, Holder)
    result, holder = await asyncio.to_thread(other, 5)
    assert result == 5
    assert isinstance(holder, Holder)
    assert await face.keys() == set()
    with pytest.raises(Refused, match="no coroutine function"):
        face.lock("job")(lambda: None)
    with pytest.raises(Refused, match="is a coroutine function"):
        threads.lock("job")(job)


@every_face
async def test_a_lease_is_prolonged(face: LockFace) -> None:
    lease = await face.call(face.lock(ttl=60).acquire)
    key, until = lease.place.keys.lock, lease.until
    await face.command("PEXPIRE", key, 20_000)
    await renewed(lease, 3)
    assert await face.command("PTTL", key) > 50_000
    assert lease.until > until
    assert not lease.lost
    await face.call(lease.release)


@every_face
async def test_a_renewal_never_shortens(face: LockFace) -> None:
    lease = await face.call(face.lock(ttl=10).acquire)
    await face.command("PEXPIRE", lease.place.keys.lock, 60_000)
    await renewed(lease)
    assert await face.command("PTTL", lease.place.keys.lock) > 50_000
    await face.call(lease.release)


@every_face
async def test_held_for_longer_than_max_hold_it_runs_out(face: LockFace) -> None:
    """A holder that hangs is not prolonged for ever."""
    lease = await face.call(face.lock(ttl=0.2, max_hold=0.5).acquire)
    began = lease.until
    assert await face.call(lease.wait_lost)
    assert lease.until < began + 0.5
    assert lease.why == "max_hold is reached" or "not prolonged in time" in lease.why
    assert not await face.call(lease.release)


async def test_max_hold_is_reached_by_renewals_that_grow_shorter() -> None:
    """Nothing is prolonged beyond it, and nothing is ever asked to end sooner than it would."""
    from fencepost.lock.lease import Held
    from fencepost.lock.protocol import Grant, Tried, drift
    from support.lock import make_place

    class Keeps:
        def keep(self, lease: Any) -> None: ...

    now = clock()
    until = now + 10 - drift(10)
    lease = Held(
        Keeps(),
        None,
        make_place(),
        "a",
        "me",
        10.0,
        25.0,
        Grant(1, now, until),
        Tried(),  # type: ignore[arg-type]
    )
    spans, at = [], now + 10 / 3
    assert lease.prolonged_by(now) == 0  # nothing to win
    while span := lease.prolonged_by(at):
        before = lease.until
        lease.renewed(at, span)
        assert lease.until > before
        spans.append(span)
        at += 10 / 3
    assert spans[:4] == [pytest.approx(10)] * 4
    assert lease.until == pytest.approx(now + 25 - drift(10))
    assert lease.prolonged_by(lease.until) == 0


@every_face
async def test_a_lease_that_was_taken_away_is_lost_at_its_next_renewal(
    face: LockFace, rival: LockFace
) -> None:
    lease = await face.call(face.lock().acquire)
    waiting = asyncio.ensure_future(face.call(lease.wait_lost))
    found = await rival.lock().force_release()
    assert found is not None
    assert found.fence == lease.fence
    assert await rival.lock().force_release() is None
    await renewed(lease)
    assert await waiting
    assert lease.lost
    assert not lease.released
    with pytest.raises(LeaseLost, match="does not know it"):
        lease.check()
    assert lease.remaining() == 0
    assert not await face.call(lease.release)


@every_face
async def test_check_asks_the_clock_and_nobody_else(
    kind: str, open_face: OpenFace, proxy: Proxy
) -> None:
    face = open_face(kind, proxy.url)
    lease = await face.call(face.lock(ttl=30).acquire)
    asked = len(proxy.requests)
    assert 29 > lease.check(at_least=20) - 1 > 20
    with pytest.raises(LeaseLost, match="60 s were asked for"):
        lease.check(at_least=60)
    assert not lease.lost
    assert len(proxy.requests) == asked
    await face.call(lease.release)
    with pytest.raises(LeaseLost, match="released"):
        lease.check()
    assert not lease.lost  # it was given back


@every_face
async def test_wait_lost_ends_with_the_lease(face: LockFace) -> None:
    lease = await face.call(face.lock().acquire)
    assert not await face.call(lease.wait_lost, within=0.01)
    waiting = asyncio.ensure_future(face.call(lease.wait_lost))
    await asyncio.sleep(0)
    await face.call(lease.release)
    assert await waiting is False


@every_face
async def test_who_holds_a_lock_is_told_whoever_asks(face: LockFace, rival: LockFace) -> None:
    assert await face.call(face.lock().locked_by) is None
    async with rival.lock(owner="me") as lease:
        found = await face.call(face.lock().locked_by)
        assert (found.owner, found.fence, found.waiters) == ("me", lease.fence, 0)
        assert 0 < found.remaining <= 10
        assert abs(found.since * 1e6 - lease.fence) < 1e6


@every_face
async def test_released_twice_is_released(face: LockFace, rival: LockFace) -> None:
    lease = await face.call(face.lock().acquire)
    assert await face.call(lease.release)
    async with rival.lock():
        assert await face.call(lease.release)
        assert await rival.lock().locked_by() is not None


async def test_released_in_another_thread(open_face: OpenFace) -> None:
    threads = open_face("threads")
    lease = await asyncio.to_thread(threads.lock().acquire)
    done: list[bool] = []
    other = threading.Thread(target=lambda: done.append(lease.release()))
    other.start()
    await asyncio.to_thread(other.join)
    assert done == [True]
    face = open_face()
    lease = await face.lock().acquire()
    assert await asyncio.create_task(lease.release())
    assert await face.keys() == set()


async def test_a_lease_guards_one_body_at_a_time(rival: LockFace) -> None:
    lease = await rival.lock().acquire()
    async with lease:
        with pytest.raises(Refused, match="guards a body"):
            await lease.__aenter__()
    with pytest.raises(LeaseLost):
        await lease.__aenter__()


async def test_who_holds_it_would_wait_for_itself(open_face: OpenFace) -> None:
    face, threads = open_face(), open_face("threads")
    lock = face.lock(wait=math.inf)
    async with lock:
        with pytest.raises(Refused, match="wait for itself"):
            async with lock:
                pytest.fail("it ran")

        async def other() -> bool:
            return await lock.try_acquire() is None

        assert await asyncio.create_task(other())

    def block() -> None:
        mine = threads.lock(wait=math.inf)
        with mine, pytest.raises(Refused, match="wait for itself"), mine:
            pytest.fail("it ran")

    await threads.call(block)
    assert await face.keys() == set()


async def test_entered_again_only_where_that_was_asked_for(open_face: OpenFace) -> None:
    face, threads = open_face(), open_face("threads")
    lock = face.lock(reentrant=True)
    async with lock as outer:
        async with lock as inner:
            assert inner is outer
        assert not outer.released  # the inner block gave nothing back

        async def other() -> bool:
            return await lock.try_acquire() is None

        assert await asyncio.create_task(other())  # another task is another holder
    assert outer.released

    def block() -> bool:
        mine = threads.lock(reentrant=True)
        with mine as first:
            with mine as second:
                assert first is second
            assert not first.released
        return first.released

    assert await threads.call(block)
    assert await face.keys() == set()


async def test_one_lock_object_serves_many_tasks(open_face: OpenFace) -> None:
    face = open_face()
    lock, inside, fences = face.lock(wait=60), [0], []

    async def one() -> None:
        async with lock as lease:
            inside[0] += 1
            assert inside[0] == 1
            fences.append(lease.fence)
            await asyncio.sleep(0)
            inside[0] -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(one())
    assert fences == sorted(set(fences))
    assert lock._inside == {}
    assert await face.keys() == set()


async def test_one_lock_object_serves_many_threads(open_face: OpenFace) -> None:
    face = open_face("threads")
    lock, inside, fences = face.lock(wait=60), [0], []

    def one() -> None:
        with lock as lease:
            inside[0] += 1
            assert inside[0] == 1
            fences.append(lease.fence)
            inside[0] -= 1

    await asyncio.gather(*(face.call(one) for _ in range(16)))
    assert fences == sorted(set(fences))
    assert lock._inside == {}
    assert await face.keys() == set()


@every_face
async def test_a_closed_client_locks_nothing(face: LockFace) -> None:
    lock = face.lock()
    lease = await face.call(lock.acquire)
    await face.call(lease.release)
    await face.call(face.client.aclose if face.kind == "async" else face.client.close)
    with pytest.raises(ClientClosed):
        await face.call(lock.acquire)


async def test_names_that_look_alike_are_different_locks(rival: LockFace) -> None:
    names = ["a", "a:l", "{a}", "a}", "a%7D", "ä", "a" * 500, "a" * 501]
    leases = [await rival.lock(name).try_acquire() for name in names]
    assert all(leases)
    tags = {key.rpartition("}")[0] for key in (lease.place.keys.lock for lease in leases)}
    assert len(tags) == len(names)
    for lease in leases:
        await lease.release()
