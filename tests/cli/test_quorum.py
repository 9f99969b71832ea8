"""``fencepost quorum``: who votes, and an operator's word that all may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencepost import Quorum
from fencepost.cli import main
from support.require import require
from support.servers import ServerProcess, find_binary


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ServerProcess]]:
    require("valkey", find_binary("valkey") is not None)
    with ExitStack() as stack:
        yield [stack.enter_context(ServerProcess("valkey")) for _ in range(3)]


@pytest.fixture
def run(servers: list[ServerProcess], namespace: str) -> Any:
    def one(verb: str, *options: str, answer: str | None = None, urls: int = 3) -> Result:
        where = [server.url for server in servers[:urls]]
        words = ["quorum", verb, *where, "--namespace", namespace, *options]
        return CliRunner().invoke(main, words, input=answer)

    return one


def test_who_votes_is_told_and_init_lets_them(
    run: Any, servers: list[ServerProcess], namespace: str
) -> None:
    told = run("status")
    assert told.exit_code == 1
    assert told.output.count("no vote: came back and may have forgotten votes, for ") == 3
    asked = run("init", answer="n\n")
    assert asked.exit_code == 1
    assert run("status").exit_code == 1  # nothing was changed
    told = run("init", answer="y\n")
    assert told.exit_code == 0, told.output
    assert told.output.count(": votes, fence 1") == 3
    rows = json.loads(run("status", "--json").output)
    assert [row["votes"] for row in rows] == [True] * 3
    with Quorum.from_urls([one.url for one in servers], namespace=namespace) as quorum:
        assert quorum.lock("x").acquire(wait=0).release()


def test_another_longest_lease_is_told_and_changed_only_on_demand(run: Any) -> None:
    assert run("init", "--yes").exit_code == 0
    told = run("init", "--yes", "--max-ttl", "60")
    assert told.exit_code == 1
    assert told.output.count("no vote: was born with max_ttl 30 s") == 3
    assert run("init", "--yes", "--max-ttl", "60", "--anew").exit_code == 0
    assert run("status", "--max-ttl", "60").exit_code == 0


def test_one_server_is_for_locks_that_wait(run: Any) -> None:
    assert run("init", "--yes", urls=1).exit_code == 0


def test_what_does_not_work_is_one_line(run: Any, servers: list[ServerProcess]) -> None:
    told = CliRunner().invoke(main, ["quorum", "status", "nonsense://"])
    assert told.exit_code == 1
    assert told.output.startswith("Error: a server URL begins with")
    twice = CliRunner().invoke(main, ["quorum", "status", *[servers[0].url] * 3])
    assert "the URLs 1 and 2 lead to one server" in twice.output
