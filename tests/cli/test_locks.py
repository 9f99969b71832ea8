"""``fencepost locks``: what it lists, and what an operator may take away."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencepost import Client
from fencepost.cli import main
from fencepost.lock import protocol
from fencepost.lock.protocol import Ask


@pytest.fixture
def client(server_url: str) -> Iterator[Client]:
    # A namespace with signs that mean something in a pattern.
    with Client.from_url(server_url, namespace=f"t[{secrets.token_hex(4)}]*") as client:
        yield client


@pytest.fixture
def run(client: Client, server_url: str) -> Any:
    def one(*words: str, json: bool = False) -> Result:
        where = ["--url", server_url, "--namespace", client.namespace]
        return CliRunner().invoke(main, ["locks", *where, *(["--json"] if json else []), *words])

    return one


def test_who_holds_what(client: Client, run: Any) -> None:
    assert run().output == "nobody holds a lock\n"
    long = "n" * 500
    leases = [
        client.lock(name, owner=f"owner of {name[:5]}").acquire() for name in ("b", "a{:", long)
    ]
    waiter = Ask("w", "w", 10.0, 5.0)
    client._server.run(client.lock("b")._place.take(waiter))
    rows = json.loads(run(json=True).output)
    assert [row["name"] for row in rows][:2] == ["a{:", "b"]
    assert rows[2]["name"].startswith("nnnn")
    assert [row["fence"] for row in rows] == [leases[n].fence for n in (1, 0, 2)]
    assert [row["waiters"] for row in rows] == [0, 1, 0]
    assert rows[1]["owner"] == "owner of b"
    assert all(0 < row["remaining"] <= 10 and row["held"] >= 0 for row in rows)
    text = run().output
    assert f"b: owner of b, fence {leases[0].fence}, for " in text
    assert "left, 1 wait" in text
    for lease in leases:
        lease.release()


def test_a_lock_is_taken_away(client: Client, run: Any) -> None:
    assert run("release", "x").exit_code == 1
    assert json.loads(run("release", "x", json=True).output) is None
    lease = client.lock("x", owner="me").acquire()
    told = run("release", "x")
    assert (told.exit_code, told.output) == (0, f"x is taken from me (fence {lease.fence})\n")
    assert client.lock("x").locked_by() is None
    assert not lease.release()


def test_who_holds_permits_who_reads_and_who_writes(
    client: Client, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "STAY", 600.0)  # who waits is not forgotten meanwhile
    semaphore = client.semaphore("s", permits=5, owner="exporter")
    three, one = semaphore.acquire(weight=3), semaphore.acquire()
    readers = [client.rwlock("r", owner="reader").read().acquire() for _ in range(2)]
    writer = client.rwlock("w", owner="editor").write().acquire()
    client._server.run(semaphore._of(2).take(Ask("w", "w", 10.0, 5.0)))
    rows = json.loads(run(json=True).output)
    assert sorted((row["kind"], row["name"], row["weight"], row["mode"]) for row in rows) == [
        ("rwlock", "r", 1, "read"),
        ("rwlock", "r", 1, "read"),
        ("rwlock", "w", 1, "write"),
        ("semaphore", "s", 1, ""),
        ("semaphore", "s", 3, ""),
    ]
    by_fence = {row["fence"]: row for row in rows}
    assert by_fence.keys() == {lease.fence for lease in (three, one, *readers, writer)}
    assert by_fence[three.fence]["waiters"] == 1
    text = run().output
    assert f"s: exporter (3 of a semaphore), fence {three.fence}, for " in text
    assert f"r: reader (reads), fence {readers[0].fence}" in text
    assert f"w: editor (writes), fence {writer.fence}" in text
    told = run("release", "s", "--kind", "semaphore", "--fence", str(one.fence))
    assert told.output == f"s is taken from exporter (fence {one.fence})\n"
    assert run("release", "s", "--kind", "semaphore", "--fence", "7").exit_code == 1
    assert run("release", "w", "--fence", "7").exit_code == 2
    told = run("release", "r", "--kind", "rwlock", json=True)
    assert {row["fence"] for row in json.loads(told.output)} == {one.fence for one in readers}
    assert not readers[0].release()
    assert three.release()
    assert writer.release()


def test_what_does_not_work_is_one_line(server_url: str) -> None:
    told = CliRunner().invoke(main, ["locks", "--url", "nonsense://"])
    assert told.exit_code == 1
    assert told.output.startswith("Error: a server URL begins with")
    told = CliRunner().invoke(main, ["locks"], env={"FENCEPOST_URL": ""})
    assert told.exit_code == 2
