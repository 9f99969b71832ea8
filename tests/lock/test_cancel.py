"""Cancels: a body is cancelled when its lease is lost, and a cancel from outside leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from fencepost.errors import LeaseLost, LockTimeout
from fencepost.lock.api import AsyncLock
from support.lockfaces import LockFace, renewed
from support.loops import on_both_loops
from support.proxy import Proxy
from support.until import until

OpenFace = Callable[..., LockFace]
pytestmark = on_both_loops


@pytest.fixture
def mine(open_face: OpenFace) -> LockFace:
    return open_face()


async def lose(face: LockFace, lease: Any) -> None:
    """The lease is taken away, and the keeper learns of it."""
    await face.lock(lease.name).force_release()
    await renewed(lease)


def cancels() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


# -- the body is cancelled, and nobody else


async def test_a_body_is_cancelled_when_its_lease_is_lost(mine: LockFace, rival: LockFace) -> None:
    seen: list[str] = []
    with pytest.raises(LeaseLost, match="its work was cancelled") as caught:  # noqa: PT012
        async with mine.lock() as lease:
            loser = asyncio.create_task(lose(rival, lease))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
    await loser
    assert seen == ["cancelled"]
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert cancels() == 0  # the task may go on
    await asyncio.sleep(0)


async def test_a_body_that_keeps_the_cancel_to_itself_is_told_at_its_end(
    mine: LockFace, rival: LockFace
) -> None:
    with pytest.raises(LeaseLost, match="before its work had ended"):  # noqa: PT012
        async with mine.lock() as lease:
            loser = asyncio.create_task(lose(rival, lease))
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
    await loser
    assert cancels() == 0


async def test_what_the_body_raises_is_never_masked(mine: LockFace, rival: LockFace) -> None:
    with pytest.raises(KeyError, match="mine") as caught:  # noqa: PT012
        async with mine.lock() as lease:
            loser = asyncio.create_task(lose(rival, lease))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise KeyError("mine") from None
    await loser
    assert "was lost before its work had ended" in caught.value.__notes__[0]
    assert cancels() == 0


async def test_in_a_timeout_a_loss_is_a_loss(mine: LockFace, rival: LockFace) -> None:
    with pytest.raises(LeaseLost):  # noqa: PT012
        async with asyncio.timeout(60), mine.lock() as lease:
            loser = asyncio.create_task(lose(rival, lease))
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
    await loser
    assert cancels() == 0


async def test_in_a_timeout_a_timeout_is_a_timeout(mine: LockFace) -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.05), mine.lock():
            await asyncio.Event().wait()
    assert not isinstance(caught.value, LockTimeout)
    with pytest.raises(TimeoutError):
        async with mine.lock(), asyncio.timeout(0.01):
            await asyncio.Event().wait()
    await mine.settled()
    assert await mine.keys() == set()
    assert cancels() == 0


async def test_a_task_group_in_the_body_ends_with_it(mine: LockFace, rival: LockFace) -> None:
    ended: list[str] = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("child")

    with pytest.raises(LeaseLost):  # noqa: PT012
        async with mine.lock() as lease:
            loser = asyncio.create_task(lose(rival, lease))
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
    await loser
    assert ended == ["child"]
    assert cancels() == 0


async def test_a_task_group_around_the_body_sees_the_loss(mine: LockFace, rival: LockFace) -> None:
    ended: list[str] = []

    async def sibling() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("sibling")

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with asyncio.TaskGroup() as group:
            group.create_task(sibling())
            async with mine.lock() as lease:
                loser = asyncio.create_task(lose(rival, lease))
                await asyncio.Event().wait()
    await loser
    assert [type(one) for one in caught.value.exceptions] == [LeaseLost]
    assert ended == ["sibling"]


async def test_a_child_that_fails_in_the_body_fails_the_body(mine: LockFace) -> None:
    async def child() -> None:
        raise KeyError("mine")

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with mine.lock(), asyncio.TaskGroup() as group:
            group.create_task(child())
            await asyncio.Event().wait()
    assert [type(one) for one in caught.value.exceptions] == [KeyError]
    assert await mine.keys() == set()


async def test_in_anyio(mine: LockFace, rival: LockFace) -> None:
    with pytest.raises(LeaseLost):  # noqa: PT012
        async with mine.lock() as lease:
            loser = asyncio.create_task(lose(rival, lease))
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                await anyio.sleep_forever()
    await loser
    with anyio.move_on_after(0.02) as scope:
        async with mine.lock():
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    with anyio.CancelScope() as scope:
        async with mine.lock():
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    await mine.settled()  # a scope cancels the release too: it is done in the background
    assert await mine.keys() == set()
    assert cancels() == 0


async def test_a_cancel_from_outside_and_a_loss_at_once_is_a_cancel(
    mine: LockFace, rival: LockFace
) -> None:
    began = asyncio.Event()
    leases: list[Any] = []

    async def work() -> None:
        async with mine.lock() as lease:
            leases.append(lease)
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await began.wait()
    leases[0].lose("a test says so")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    task = asyncio.create_task(work())
    began.clear()
    await mine.settled()
    await began.wait()
    leases[1].lose("a test says so")
    leases[1]._watchers.clear()
    await asyncio.sleep(0)  # the guard strikes first
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_body_that_ends_is_not_struck_any_more(mine: LockFace) -> None:
    """A loss that is told while the lock is given back cancels nobody."""
    async with mine.lock() as lease:
        pass
    lease.lose("a test says so")
    for _ in range(3):
        await asyncio.sleep(0)
    assert lease._watchers == []
    assert not lease.lost
    assert cancels() == 0


# -- nothing is left behind


async def test_cancelled_after_the_server_took_it(open_face: OpenFace, proxy: Proxy) -> None:
    """The lock is taken, and nobody is there to hear of it."""
    face, rival = open_face("async", proxy.url), open_face()
    async with face.lock():
        pass  # the server knows the script
    proxy.hold("reply", "EVALSHA")
    task = asyncio.create_task(face.lock().acquire())
    await proxy.seen(lambda: proxy.waiting == 1)
    assert await rival.lock().locked_by() is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.release("reply")
    await face.settled()
    assert await rival.lock().locked_by() is None
    assert await rival.keys() == set()


async def test_cancelled_before_the_server_heard_of_it(open_face: OpenFace, proxy: Proxy) -> None:
    """The request is still on its way when the attempt is ended: it takes the lock for nobody."""
    face, rival = open_face("async", proxy.url), open_face()
    async with face.lock():
        pass
    proxy.hold("request", "EVALSHA")
    task = asyncio.create_task(face.lock().acquire())
    await proxy.seen(lambda: proxy.waiting == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [undone] = face.keeper._endings.values()
    # Another way is quicker: the end comes first, then the request that it ends.
    place, attempt = undone.ending.place, undone.ending.attempt

    await rival.client.port.run(place.end(attempt))
    proxy.release("request")
    await proxy.seen(lambda: proxy.waiting == 0)
    await face.command("PING")  # behind it on the same connection
    assert await rival.lock().locked_by() is None
    await face.settled()
    assert await rival.keys() == set()


async def test_cancelled_while_it_gives_the_lock_back(open_face: OpenFace, proxy: Proxy) -> None:
    face, rival = open_face("async", proxy.url), open_face()
    async with face.lock():
        pass

    async def work() -> None:
        async with face.lock():
            proxy.hold("request", "EVALSHA")

    task = asyncio.create_task(work())
    await proxy.seen(lambda: proxy.waiting == 1)
    assert await rival.lock().locked_by() is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.release("request")
    await face.settled()
    assert await rival.keys() == set()


async def test_a_waiter_that_is_cancelled_waits_no_more(mine: LockFace, rival: LockFace) -> None:
    async with rival.lock():
        task = asyncio.create_task(mine.lock(wait=60).acquire())
        await rival.queued("x", 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await mine.settled()
        assert await rival.keys() == {"l"}


async def cancelled_at_random(face: LockFace, times: int, seed: int) -> int:
    """Tasks that take and release a few locks, cancelled at any await; how many got one."""
    dice, got = random.Random(seed), 0

    async def work(name: str) -> None:
        nonlocal got
        async with face.lock(name, wait=60, ttl=30):
            got += 1
            await asyncio.sleep(0)

    done = 0
    while done < times:
        tasks = [asyncio.create_task(work(f"n{n % 3}")) for n in range(10)]
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        for task in tasks:
            # Some at once, some after a reply or two, some of those that wait.
            if dice.random() < 0.3:
                await face.command("PING")
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            assert result is None or isinstance(result, asyncio.CancelledError), result
        done += len(tasks)
    return got


async def test_a_thousand_random_cancels_leave_nothing_behind(mine: LockFace) -> None:
    got = await cancelled_at_random(mine, 1000, seed=1)
    assert got > 10
    await mine.settled()
    assert await mine.keys() == set()
    assert mine.keeper._held == set()


async def test_and_would_leave_locks_behind_without_the_undoing(
    mine: LockFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AsyncLock, "_give_up", lambda *args: None)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3):  # they soon wait for each other's leftovers
            await cancelled_at_random(mine, 300, seed=1)
    assert await mine.keys() != set()


async def test_the_loop_may_end_at_once(server_url: str, namespace: str) -> None:
    """What must be undone is not left to a loop that is about to close."""
    from fencepost import AsyncClient

    client = AsyncClient.from_url(server_url, namespace=namespace)

    def run() -> None:
        async def main() -> None:
            async with client.lock("x", ttl=300):
                pass
            task = asyncio.create_task(client.lock("x", ttl=300).acquire())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()

        asyncio.run(main())

    await asyncio.to_thread(run)
    keeper = client._lock_hub().keeper
    assert await asyncio.to_thread(keeper.settle, 30)
    assert await client.lock("x").locked_by() is None
    await client.aclose()
    await until(lambda: keeper._thread is None)
