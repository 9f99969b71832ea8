"""Both faces of a semaphore: permits are leases, weighted, served in order, and come back."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from fencepost import AsyncClient, Client
from fencepost._core.port import run_sync
from fencepost.errors import (
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    Overloaded,
    Refused,
    Unavailable,
)
from fencepost.lock import AsyncLease, Lease
from fencepost.lock.protocol import Ask
from fencepost.lock.scripts import Renewed
from support.faces import every_face
from support.lockfaces import LockFace, renewed
from support.loops import on_both_loops
from support.proxy import Proxy
from support.require import require
from support.servers import ServerProcess, find_binary

OpenFace = Callable[..., LockFace]


@every_face
async def test_so_many_hold_permits_and_no_more(face: LockFace, rival: LockFace) -> None:
    mine, other = face.client.semaphore("x", permits=3), rival.client.semaphore("x", permits=3)
    leases = [await face.call(mine.acquire) for _ in range(2)] + [await other.acquire()]
    assert all(isinstance(lease, AsyncLease | Lease) for lease in leases)
    fences = [lease.fence for lease in leases]
    assert fences == sorted(set(fences))
    assert await other.try_acquire() is None
    assert await face.call(mine.try_acquire) is None
    assert await face.call(leases[0].release)
    last = await other.try_acquire()
    assert last is not None
    assert last.fence > max(fences)
    for lease in (*leases[1:], last):
        await face.call(lease.release)
    assert await face.keys() == set()


@every_face
async def test_permits_have_a_weight_and_come_all_or_not_at_all(
    face: LockFace, rival: LockFace
) -> None:
    mine, other = face.client.semaphore("x", permits=10), rival.client.semaphore("x", permits=10)
    six = await face.call(mine.acquire, weight=6)
    assert six.weight == 6
    assert await other.try_acquire(weight=5) is None
    four = await other.acquire(weight=4)
    assert await other.try_acquire() is None
    holders = await face.call(mine.holders)
    assert sorted((one.weight, one.fence) for one in holders) == [(4, four.fence), (6, six.fence)]
    await face.call(six.release)
    assert [one.weight for one in await other.holders()] == [4]
    async with await other.acquire(weight=6):
        assert await face.call(mine.try_acquire) is None
    await four.release()
    assert await face.keys() == set()


@pytest.mark.parametrize("make", [AsyncClient.from_url, Client.from_url])
@pytest.mark.parametrize(
    "options",
    [
        *({"permits": bad} for bad in (0, -1, 1.5, math.nan, math.inf, True, "3", None, 10**9)),
        *({"permits": 3, "ttl": bad} for bad in (0, -1, math.nan, None)),
        *({"permits": 3, "wait": bad} for bad in (-1, math.nan, True)),
        *({"permits": 3, **bad} for bad in ({"fair": 1}, {"owner": ""}, {"max_hold": 1})),
    ],
    ids=str,
)
def test_permits_that_can_not_work_are_refused_at_the_door(
    make: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(Refused):
        make("redis://localhost").semaphore("x", **options)


@pytest.mark.parametrize("weight", [0, -1, 4, 1.0, math.nan, True, None, "1"], ids=str)
def test_a_weight_that_can_not_be_had_is_refused_at_the_door(weight: Any) -> None:
    semaphore = Client.from_url("redis://localhost").semaphore("x", permits=3)
    with pytest.raises(Refused, match="weight is a whole number from 1 to 3"):
        semaphore.acquire(weight=weight)
    with pytest.raises(TypeError):
        Client.from_url("redis://localhost").semaphore("x", permits=3, reentrant=True)


@every_face
async def test_processes_that_differ_keep_to_the_least_of_those_who_hold(
    face: LockFace, rival: LockFace
) -> None:
    """Whoever holds may count on its own number; a grant must fit for all who are in."""
    few, many = face.client.semaphore("x", permits=2), rival.client.semaphore("x", permits=4)
    first = await many.acquire(weight=2)
    assert await face.call(few.try_acquire) is None  # full, as it sees it
    third = await many.acquire()
    await first.release()
    held = await face.call(few.acquire)  # two are out now, and from now on no more than two
    assert await many.try_acquire() is None
    await third.release()
    other = await many.acquire()
    assert await many.try_acquire() is None
    await face.call(held.release)
    more = [await many.acquire() for _ in range(3)]  # nobody is in who counts on two
    assert await many.try_acquire() is None
    for lease in (other, *more):
        await lease.release()


@every_face
async def test_a_timeout_of_a_semaphore_says_whose_permits_end_first(
    face: LockFace, rival: LockFace
) -> None:
    other = rival.client.semaphore("x", permits=2, owner="nightly@db1", ttl=30)
    lease = await other.acquire(weight=2)
    with pytest.raises(LockTimeout, match=r"no room for 1 of 2.*nightly@db1") as caught:
        await face.call(face.client.semaphore("x", permits=2).acquire, wait=0)
    assert (caught.value.owner, caught.value.fence) == ("nightly@db1", lease.fence)
    assert 0 < caught.value.remaining <= 30
    with pytest.raises(LockTimeout, match=r"waited for 0\.01 s"):
        await face.call(face.client.semaphore("x", permits=2).acquire, wait=0.01)
    await face.settled()
    assert await face.keys() == {"l", "e"}  # nobody waits any more
    await lease.release()


@every_face
async def test_a_permit_is_prolonged_taken_away_and_missed(face: LockFace, rival: LockFace) -> None:
    mine = face.client.semaphore("x", permits=3, ttl=600)
    leases = [await face.call(mine.acquire) for _ in range(3)]
    await renewed(leases[0], 2)
    assert not leases[0].lost
    [taken] = await rival.client.semaphore("x", permits=3).force_release(leases[1].fence)
    assert taken.fence == leases[1].fence
    await renewed(leases[1])
    assert leases[1].lost
    with pytest.raises(LeaseLost):
        leases[1].check()
    assert not await face.call(leases[1].release)
    both = await rival.client.semaphore("x", permits=3).force_release()
    assert {one.fence for one in both} == {leases[0].fence, leases[2].fence}
    assert await face.call(mine.holders) == ()
    for lease in leases:
        await face.call(lease.release)
    await face.settled()
    assert await face.keys() == set()


@every_face
async def test_a_permit_whose_holder_died_comes_back_with_its_lease(
    face: LockFace, rival: LockFace
) -> None:
    mine = face.client.semaphore("x", permits=2, ttl=0.5)
    dead = await face.call(mine.acquire)
    dead._keeper.drop(dead)  # nobody prolongs it
    alive = await rival.client.semaphore("x", permits=2, ttl=600).acquire()
    next_one = await rival.client.semaphore("x", permits=2, wait=60).acquire()
    assert next_one.fence > alive.fence > dead.fence
    assert dead.lost
    assert {one.fence for one in await rival.client.semaphore("x", permits=2).holders()} == {
        alive.fence,
        next_one.fence,
    }


@pytest.mark.usefixtures("patient")
@every_face
async def test_whoever_waits_is_called_one_after_another_while_there_is_room(
    face: LockFace, rival: LockFace
) -> None:
    """A release of three lets three in, though it calls only the first."""
    options = {"permits": 3, "fair": True, "wait": 600, "ttl": 600}
    held = await rival.client.semaphore("x", **options).acquire(weight=3)
    mine = face.client.semaphore("x", **options)
    waiting = [asyncio.ensure_future(face.call(mine.acquire)) for _ in range(3)]
    await rival.queued_at(held.place, 3)
    await held.release()
    leases = await asyncio.gather(*waiting)
    assert len({lease.fence for lease in leases}) == 3
    for lease in leases:
        await face.call(lease.release)
    assert await face.keys() == set()


@pytest.mark.usefixtures("patient")
async def test_fair_permits_come_in_the_order_of_coming(open_face: OpenFace) -> None:
    face = open_face()
    semaphore = face.client.semaphore("x", permits=2, fair=True, wait=600, ttl=600)
    held = await semaphore.acquire(weight=2)
    served: list[int] = []

    async def one(number: int, weight: int) -> None:
        async with await semaphore.acquire(weight=weight):
            served.append(number)

    tasks = []
    for number, weight in enumerate((2, 1, 2, 1)):
        tasks.append(asyncio.create_task(one(number, weight)))
        await face.queued_at(held.place, number + 1)
    await held.release()
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3]


async def test_who_asks_for_many_is_not_passed_for_ever(open_face: OpenFace) -> None:
    """Newcomers that need little are quicker, sixteen times in a row and no more."""
    face = open_face()
    semaphore = face.client.semaphore("x", permits=2)
    held = await semaphore.acquire()
    heavy = Ask("heavy", "heavy", 600.0, 60.0)
    place = semaphore._of(2)
    call = place.take(heavy)
    call.args = (*call.args[:5], 600_000, *call.args[6:])  # it stays, and never asks again
    await face.client.port.run(call)
    for _ in range(16):
        lease = await semaphore.try_acquire()
        assert lease is not None
        await lease.release()
    assert await semaphore.try_acquire() is None
    await held.release()
    assert await semaphore.try_acquire() is None  # kept free for who waits longer
    await face.client.port.run(place.end("heavy"))
    assert await semaphore.try_acquire() is not None


async def test_a_dead_waiter_for_permits_costs_its_silence(open_face: OpenFace) -> None:
    """Not a lease of ten minutes."""
    face = open_face()
    semaphore = face.client.semaphore("x", permits=2, fair=True, ttl=600, wait=600)
    held = await semaphore.acquire(weight=2)
    dead = Ask("dead", "dead", 600.0, 60.0, 0)
    await face.client.port.run(held.place.take(dead))
    waiting = asyncio.create_task(semaphore.acquire())
    await face.queued_at(held.place, 2)
    await held.release()
    assert (await waiting).fence > held.fence


@every_face
async def test_blocks_take_a_permit_each_and_who_would_wait_for_itself_is_refused(
    face: LockFace,
) -> None:
    semaphore = face.client.semaphore("x", permits=2, wait=60)
    if face.kind == "async":
        async with semaphore as outer, semaphore as inner:
            assert inner.fence > outer.fence
            with pytest.raises(Refused, match="would wait for itself"):
                await semaphore.__aenter__()
    else:

        def nested() -> None:
            with semaphore as outer, semaphore as inner:
                assert inner.fence > outer.fence
                with pytest.raises(Refused, match="would wait for itself"):
                    semaphore.__enter__()

        await face.call(nested)
    assert await face.keys() == set()


async def test_a_decorated_function_holds_a_permit(open_face: OpenFace) -> None:
    face = open_face()
    inside = most = 0

    @face.client.semaphore("x", permits=3, wait=60)  # type: ignore[untyped-decorator]
    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    await asyncio.gather(*(work() for _ in range(20)))
    assert most <= 3
    assert await face.keys() == set()


@every_face
async def test_a_permit_for_a_load_is_not_waited_for_while_the_server_is_away(
    kind: str, open_face: OpenFace, proxy: Proxy
) -> None:
    """``acquire`` would try on for all of its ten minutes."""
    face = open_face(kind, proxy.url, budget=0.6)
    semaphore = face.client.semaphore("x", permits=1)
    await face.command("PING")
    proxy.hold("request")
    with pytest.raises((OutcomeUnknown, Unavailable)):
        await face.call(semaphore._admit, 600)
    proxy.release("request")
    await face.settled()
    assert await face.call(semaphore.holders) == ()


def test_without_memory_no_permit_is_had_and_all_are_kept_and_given_back(namespace: str) -> None:
    require("valkey", find_binary("valkey") is not None)
    with (
        ServerProcess("valkey", "--maxmemory-policy", "noeviction") as server,
        Client.from_url(server.url, namespace=namespace) as client,
    ):
        semaphore = client.semaphore("x", permits=3, ttl=600)
        for lease in [semaphore.acquire() for _ in range(2)]:
            lease.release()  # the server knows the scripts
        first, second = semaphore.acquire(), semaphore.acquire()
        client.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Overloaded):
            semaphore.acquire(wait=0)
        place = semaphore._place
        assert run_sync(client.port.run(place.prolong(first.token, 700.0))) == Renewed()
        assert first.release()
        assert [one.fence for one in semaphore.holders()] == [second.fence]
        run_sync(client.port.run(place.end("never")))
        assert [one.fence for one in semaphore.force_release()] == [second.fence]
        assert semaphore.holders() == ()


@on_both_loops
async def test_two_hundred_random_cancels_leave_no_permit_behind(open_face: OpenFace) -> None:
    face, dice, got = open_face(), random.Random(1), 0

    async def work(weight: int) -> None:
        nonlocal got
        semaphore = face.client.semaphore("x", permits=4, wait=60, ttl=30)
        async with await semaphore.acquire(weight=weight):
            got += 1
            await asyncio.sleep(0)

    for _ in range(20):
        tasks = [asyncio.create_task(work(dice.randint(1, 4))) for _ in range(10)]
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        for task in tasks:
            if dice.random() < 0.3:
                await face.command("PING")
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in results)
    assert got > 3
    await face.settled()
    assert await face.keys() == set()
