"""Real processes that stand in one election: told to end, killed, and paused beyond their term."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost import Client
from support.process import Told, bytecode
from support.until import until_sync

TESTS = Path(__file__).parent.parent
Start = Callable[..., "Candidate"]


class Candidate(Told):
    """A process of ``support.election_worker``."""

    def tell(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def leads(self) -> int:
        """Wait until it leads; its fence."""
        while True:
            word, *rest = self.says().split()
            assert word in ("ready", "leads", "refused", "ended", "lost"), word
            if word == "leads":
                return int(rest[0])

    def rest(self) -> list[str]:
        """All that it says until its end."""
        assert self.process.stdout is not None
        return self.process.stdout.read().split("\n")[:-1]


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


@pytest.fixture
def start(server_url: str, namespace: str) -> Iterator[Start]:
    made: list[Candidate] = []

    def one(identity: str, ttl: float, kind: str = "async") -> Candidate:
        made.append(Candidate("election_worker", server_url, namespace, identity, str(ttl), kind))
        return made[-1]

    yield one
    for candidate in made:
        candidate.close()


def one_leads(client: Client, one: Candidate, two: Candidate) -> tuple[Candidate, Candidate, int]:
    """Who leads, who waits, and the leader's fence, once both are there."""
    for each in (one, two):
        assert each.says() == "ready"
    until_sync(lambda: client.lock("election:x").locked_by() is not None)
    holder = client.lock("election:x").locked_by()
    assert holder is not None
    first, second = (one, two) if '"first"' in holder.owner else (two, one)
    return first, second, first.leads()


def acts(client: Client) -> list[int]:
    return [int(one) for one in client.command("LRANGE", f"{client.namespace}:acts", 0, -1)]


def written(client: Client) -> int:
    return int(client.command("GET", f"{client.namespace}:doc") or 0)


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_told_to_end_it_drains_stops_and_resigns_and_another_leads(
    client: Client, start: Start, kind: str
) -> None:
    """By its lease nobody else would lead for ten minutes."""
    first, second = start("first", 600, kind), start("second", 600, kind)
    first, second, fence = one_leads(client, first, second)
    first.tell(signal.SIGTERM)
    assert second.leads() > fence
    assert first.rest() == ["draining", "ended", "stopped", "over"]
    assert first.process.wait() == 0
    until_sync(lambda: acts(client)[-1] > fence)
    done = acts(client)
    assert done == sorted(done)  # one after the other


def test_killed_and_another_leads_when_its_lease_has_ended(client: Client, start: Start) -> None:
    first, second, fence = one_leads(client, start("first", 1.0), start("second", 1.0))
    until_sync(lambda: fence in acts(client))
    first.tell(signal.SIGKILL)
    assert second.leads() > fence
    until_sync(lambda: acts(client)[-1] > fence)
    done = acts(client)
    assert done == sorted(done)


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_paused_beyond_its_term_it_acts_no_more_and_stands_again(
    client: Client, start: Start, kind: str
) -> None:
    first, second, fence = one_leads(client, start("first", 1.0, kind), start("second", 1.0, kind))
    until_sync(lambda: fence in acts(client))
    first.tell(signal.SIGSTOP)
    newer = second.leads()
    until_sync(lambda: written(client) == newer)  # from now on the gate knows
    first.tell(signal.SIGCONT)
    said = [first.says(), first.says()]
    # What it did between its check and the pause comes too late: the gate has refused that, if anything.
    assert said in (["ended", "lost"], ["refused", "ended"])
    second.tell(signal.SIGKILL)
    assert first.leads() > newer  # it has stood again
    late = [one for one in acts(client)[acts(client).index(newer) :] if one == fence]
    assert len(late) <= 1  # the push that stood between its check and the pause
    assert written(client) >= newer


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param(True, id="with its gate"),
        pytest.param(False, id="without", marks=pytest.mark.slow),
    ],
)
def test_the_example_shows_it(server_url: str, gate: bool) -> None:
    """Two processes start one batch; the one that was paused is refused. Without a gate it pays again."""
    told = subprocess.run(
        [
            sys.executable,
            TESTS.parent / "examples" / "nightly_batch.py",
            server_url,
            *([] if gate else ["--without-gate"]),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, **bytecode(), "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout
    assert "second: leads, has looked (paid: False)" in told
    assert "second: has paid" in told
    refused = "first : is refused: a newer leader has been here, and nothing was changed"
    assert (refused if gate else "first : has paid") in told
    cents = 105 if gate else 110
    assert told.splitlines()[-1] == f"cents on each account: {cents} {cents} {cents}"
