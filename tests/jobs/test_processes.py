"""Real processes: workers that are killed, paused, stopped, and that their jobs kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost import AsyncClient
from fencepost.jobs import JobFailed
from support.jobs_worker import tasks
from support.until import PATIENCE

TESTS = Path(__file__).parent.parent


class Working:
    """A worker process."""

    def __init__(
        self, url: str, namespace: str, lease: float, concurrency: int, grace: float
    ) -> None:
        words = (url, namespace, str(lease), str(concurrency), str(grace))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.jobs_worker", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "ready"
        self.pid = self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def ends(self) -> dict[str, int]:
        """What it counted, after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> dict[str, int]:
        """What it counted, when it ends."""
        said, _ = self.process.communicate(timeout=PATIENCE * 2)
        assert self.process.returncode == 0
        counts: dict[str, int] = json.loads(said.strip().splitlines()[-1])
        return counts

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Queue:
    """The queue as the test sees it."""

    def __init__(self, client: AsyncClient, lease: float) -> None:
        self.client = client
        made = tasks(client, lease)
        self.mail, self.plain, self.holds = made["mail"], made["plain"], made["holds"]
        self.kills = made["kills"]

    async def noted(self, list: str) -> list[list[int]]:
        lines = await self.client.command("LRANGE", f"{self.client.namespace}:{list}", 0, -1)
        return [[int(word) for word in line.split()] for line in lines]

    async def wait(self, list: str, count: int) -> list[list[int]]:
        found: Any = []

        async def enough() -> bool:
            nonlocal found
            found = await self.noted(list)
            return len(found) >= count

        await _until(enough, lambda: (list, count, found))
        return found

    async def go(self) -> None:
        await self.client.command("SET", f"{self.client.namespace}:go", "1")


async def _until(condition: Callable[[], Any], said: Callable[[], Any]) -> None:
    """``until`` for a condition that asks the server."""
    limit = time.monotonic() + PATIENCE * 3
    while not await condition():
        assert time.monotonic() < limit, f"the condition never came true: {said()}"


@pytest.fixture
def start(server_url: str, namespace: str) -> Iterator[Callable[..., Working]]:
    made: list[Working] = []

    def one(lease: float, concurrency: int = 10, grace: float = 20.0) -> Working:
        made.append(Working(server_url, namespace, lease, concurrency, grace))
        return made[-1]

    yield one
    for worker in made:
        worker.close()


@pytest.fixture
async def queue(server_url: str, namespace: str) -> AsyncIterator[Callable[[float], Queue]]:
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        yield lambda lease: Queue(client, lease)


async def test_a_worker_is_killed_with_a_hundred_jobs_and_none_is_lost(
    queue: Callable[[float], Queue], start: Callable[..., Working]
) -> None:
    """Others lost them for ever, or ran them 61 to 330 s later."""
    mine = queue(4.0)
    first = start(4.0, 100)
    handles = await mine.mail.add_many(mine.holds.message(n) for n in range(100))
    await mine.wait("begun", 100)
    first.signal(signal.SIGKILL)
    second = start(4.0, 100)
    again = (await mine.wait("begun", 200))[100:]
    assert {one[1] for one in again} == {second.pid}
    # No failure of theirs: a crash of their worker's.
    assert {(one[2], one[3]) for one in again} == {(0, 1)}
    await mine.go()
    assert [await one.result(wait=PATIENCE) for one in handles] == [second.pid] * 100
    ended = await mine.noted("ended")
    assert sorted(one[0] for one in ended) == list(range(100))
    assert second.ends()["done"] == 100


async def test_a_worker_that_was_paused_is_refused_and_its_job_is_told(
    queue: Callable[[float], Queue], start: Callable[..., Working]
) -> None:
    """In five libraries of six its late word overwrote what the other had done."""
    mine = queue(3.0)
    first = start(3.0)
    handle = await mine.holds.send(1)
    await mine.wait("begun", 1)
    first.signal(signal.SIGSTOP)
    second = start(3.0)
    await mine.wait("begun", 2)
    await mine.go()
    assert await handle.result(wait=PATIENCE) == second.pid
    await mine.client.command("DEL", f"{mine.client.namespace}:go")
    first.signal(signal.SIGCONT)
    [told] = await mine.wait("told", 1)
    assert told == [1, first.pid, 1]
    counts = first.ends()
    assert (counts["lost"], counts["refused"], counts.get("applied", 0)) == (1, 1, 0)
    assert await handle.result() == second.pid
    assert [one[1] for one in await mine.noted("ended")] == [second.pid]


async def test_a_worker_that_is_frozen_while_it_waits_swallows_no_job(
    queue: Callable[[float], Queue], start: Callable[..., Working]
) -> None:
    """It waits on a token, never on the jobs: others look by themselves."""
    mine = queue(20.0)
    first = start(20.0)
    await (await mine.plain.send(0)).result(wait=PATIENCE)
    first.signal(signal.SIGSTOP)
    second = start(20.0)
    handles = [await mine.plain.send(n) for n in range(1, 20)]
    assert [await one.result(wait=PATIENCE) for one in handles] == [second.pid] * 19


async def test_a_worker_that_is_stopped_drains_first(
    queue: Callable[[float], Queue], start: Callable[..., Working]
) -> None:
    mine = queue(60.0)
    first = start(60.0, concurrency=1, grace=PATIENCE)
    running = await mine.holds.send(1)
    await mine.wait("begun", 1)
    waiting = await mine.plain.send(2)
    first.signal(signal.SIGTERM)
    await mine.go()
    counts = first.ended()
    assert (counts["done"], counts["begun"]) == (1, 1)  # it took no more
    assert await running.result() == first.pid
    assert (await waiting.status()).state == "ready"


async def test_what_does_not_end_in_time_is_handed_back_at_once(
    queue: Callable[[float], Queue], start: Callable[..., Working]
) -> None:
    """The lease is an hour: who waited for its end would wait for ever."""
    mine = queue(3600.0)
    first = start(3600.0, grace=0.1)
    handle = await mine.holds.send(1)
    await mine.wait("begun", 1)
    second = start(3600.0)
    counts = first.ends()
    assert counts["applied"] == 1
    again = (await mine.wait("begun", 2))[1]
    assert again[1:] == [second.pid, 0, 0]  # neither a failure nor a crash
    await mine.go()
    assert await handle.result(wait=PATIENCE) == second.pid


async def test_a_job_that_kills_its_workers_is_given_up_with_its_last_one(
    queue: Callable[[float], Queue], start: Callable[..., Working]
) -> None:
    """It kills them in its first step; that they knew of it had been said before."""
    mine = queue(0.5)
    handle = await mine.kills.send(1)
    for n in range(2):
        worker = start(0.5)
        worker.process.wait(PATIENCE)
        assert worker.process.returncode == -signal.SIGKILL, n
    third = start(0.5)
    other = await mine.plain.send(2)
    assert await other.result(wait=PATIENCE) == third.pid
    with pytest.raises(JobFailed, match="lost by worker"):
        await handle.result(wait=PATIENCE)
    [dead] = await mine.mail.dead.list()
    assert (dead.id, dead.tries, dead.crashes) == (handle.id, 0, 2)
    assert str(worker.pid) in dead.why
    third.ends()
