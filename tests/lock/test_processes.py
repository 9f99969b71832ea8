"""Real processes: one that is paused beyond its lease, one that forks, one that is killed."""

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
from support.until import until_sync

TESTS = Path(__file__).parent.parent


class Holder:
    """A process that holds the lock ``x``."""

    def __init__(self, url: str, namespace: str, ttl: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.lock_holder", url, namespace, "x", str(ttl)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
        )
        word, fence = self.hear().split()
        assert word == "held"
        self.fence = int(fence)

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the holder ended"
        return line.strip()

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def ask(self, word: str) -> str:
        self.say(word)
        return self.hear()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


@pytest.fixture
def hold(server_url: str, namespace: str) -> Iterator[Callable[..., Holder]]:
    made: list[Holder] = []

    def one(ttl: float) -> Holder:
        made.append(Holder(server_url, namespace, ttl))
        return made[-1]

    yield one
    for holder in made:
        holder.close()


def test_holder_paused_beyond_its_ttl_never_acts_again(
    client: Client, hold: Callable[..., Holder]
) -> None:
    """Others acted about every millisecond after they went on, and never learned."""
    holder = hold(1.0)
    os.kill(holder.process.pid, signal.SIGSTOP)
    with client.lock("x", wait=60) as lease:
        assert lease.fence > holder.fence
        for _ in range(20):
            holder.say("act")
        os.kill(holder.process.pid, signal.SIGCONT)
        assert {holder.hear() for _ in range(20)} == {"lost"}
        acts = client.command("LRANGE", f"{client.namespace}:acts", 0, -1)
        assert acts == []
        assert holder.ask("end") == "exit lost here"
        assert not lease.lost


def test_holder_paused_between_its_check_and_its_act_is_refused_by_the_gate(
    client: Client, hold: Callable[..., Holder]
) -> None:
    """``blind`` is an act whose check lies before the pause: no lock can stop it, its resource can."""
    holder = hold(1.0)
    assert holder.ask("blind") == "done"
    os.kill(holder.process.pid, signal.SIGSTOP)
    with client.lock("x", wait=60) as lease:
        client.fenced_set(f"{client.namespace}:doc", "newer", lease)
        holder.say("blind")
        os.kill(holder.process.pid, signal.SIGCONT)
        assert holder.hear() == f"refused {lease.fence}"
        assert client.command("GET", f"{client.namespace}:doc") == b"newer"


def test_fork_leaves_the_block_and_the_parent_keeps_its_lock(
    client: Client, hold: Callable[..., Holder]
) -> None:
    """Others' children released their parent's lock."""
    holder = hold(60.0)
    assert holder.ask("fork") == "exit lost fork"  # what the child says
    assert holder.hear() == "parent 0"
    found: Any = client.lock("x").locked_by()
    assert found.fence == holder.fence
    assert holder.ask("act") == "done"
    assert holder.ask("end") == "exit well"
    until_sync(lambda: client.lock("x").locked_by() is None)


def test_holder_is_killed_and_the_next_one_waits_no_longer_than_its_ttl(
    client: Client, hold: Callable[..., Holder]
) -> None:
    holder = hold(1.0)
    holder.process.kill()
    with client.lock("x", wait=60) as lease:
        assert lease.fence > holder.fence


GIVES_UP_AND_ENDS = """
import sys
from fencepost import Client
client = Client.from_url(sys.argv[1], namespace=sys.argv[2])
leases = [client.lock(name, ttl=600).acquire() for name in "xyz"]
for lease in leases:
    lease._abandon()
"""


def test_a_process_that_ends_ends_first_what_it_gave_up(client: Client, server_url: str) -> None:
    """Its thread is a daemon, and nobody has closed the client."""
    subprocess.run(
        [sys.executable, "-c", GIVES_UP_AND_ENDS, server_url, client.namespace],
        check=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert [client.lock(name).locked_by() for name in "xyz"] == [None] * 3


def test_the_example_shows_it(server_url: str) -> None:
    told = subprocess.run(
        [sys.executable, TESTS.parent / "examples" / "paused_holder.py", server_url],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout
    assert "first : goes on, and has written the plain document" in told
    assert "first : goes on, and is refused" in told
    assert "the plain document is by the first" in told
    assert "the fenced document is by the second" in told
