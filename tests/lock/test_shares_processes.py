"""Semaphores and read/write locks between real processes: one is killed, one is paused, all want in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost import Client

TESTS = Path(__file__).parent.parent


class Process:
    """One that takes shares; see ``support.share_holder``."""

    def __init__(self, url: str, namespace: str, kind: str, permits: int, ttl: float) -> None:
        words = [url, namespace, kind, str(permits), str(ttl)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.share_holder", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
        )

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended"
        return line.split()

    def ask(self, word: str) -> str:
        self.say(word)
        return self.hear()[1]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


Start = Callable[..., Process]


@pytest.fixture
def start(server_url: str, namespace: str) -> Iterator[Start]:
    made: list[Process] = []

    def one(
        kind: str = "semaphore", permits: int = 2, ttl: float = 1.0, wait: bool = True
    ) -> Process:
        made.append(Process(server_url, namespace, kind, permits, ttl))
        assert not wait or made[-1].hear() == ["ready"]
        return made[-1]

    yield one
    for process in made:
        process.close()


def test_a_killed_holders_permit_comes_back(client: Client, start: Start) -> None:
    holder = start()
    fences = [int(holder.ask("take")) for _ in range(2)]
    holder.process.kill()
    with client.semaphore("x", permits=2, wait=60).acquire(weight=2) as lease:
        assert lease.fence > max(fences)


def test_a_holder_paused_beyond_its_ttl_knows_that_its_permits_are_gone(
    client: Client, start: Start
) -> None:
    holder = start()
    holder.ask("take")
    holder.ask("take")
    assert holder.ask("acts") == "2"
    holder.signal(signal.SIGSTOP)
    with client.semaphore("x", permits=2, wait=60).acquire(weight=2) as lease:
        holder.say("acts")
        holder.signal(signal.SIGCONT)
        assert holder.hear() == ["stand", "0"]
        lease.check()
        assert [one.fence for one in client.semaphore("x", permits=2).holders()] == [lease.fence]


@pytest.mark.parametrize("side", ["read", "write"])
def test_a_reader_or_writer_paused_beyond_its_ttl_knows_that_it_is_out(
    client: Client, start: Start, side: str
) -> None:
    holder = start(side)
    holder.ask("take")
    holder.signal(signal.SIGSTOP)
    with client.rwlock("x", wait=60).write() as lease:
        holder.say("acts")
        holder.signal(signal.SIGCONT)
        assert holder.hear() == ["stand", "0"]
        lease.check()


def test_a_killed_writer_and_a_killed_reader_let_the_others_in(
    client: Client, start: Start
) -> None:
    lock = client.rwlock("x", wait=60)
    writer, reader = start("write"), start("read")
    fence = int(writer.ask("take"))
    writer.process.kill()
    with lock.read() as lease:
        assert lease.fence > fence
    fence = int(reader.ask("take"))
    reader.process.kill()
    with lock.write() as lease:
        assert lease.fence > fence


@pytest.mark.parametrize(("permits", "guarded"), [(1, True), (2, False)], ids=["one", "control"])
def test_processes_together_never_exceed_the_permits(
    client: Client, start: Start, permits: int, guarded: bool
) -> None:
    """Two processes, one permit: each counts who is in. With two permits two are in."""
    processes = [start(permits=permits, ttl=60, wait=False) for _ in range(2)]
    for process in processes:
        assert process.hear() == ["ready"]
    most: list[Any] = []
    while not most or (not guarded and max(most) < 2):
        for process in processes:
            process.say("churn 25")
        most += [int(process.hear()[1]) for process in processes]
    assert max(most) <= permits
    assert client.semaphore("x", permits=permits).holders() == ()
