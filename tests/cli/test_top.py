"""``fencepost top``: what it shows of the hot keys."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from fencepost import Client
from fencepost._core.port import run_sync
from fencepost.cli import main
from fencepost.cli.top import table
from fencepost.hotkeys import HotKeysOptions
from fencepost.hotkeys.meter import Report, Row
from fencepost.hotkeys.protocol import place_of


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


@pytest.fixture
def run(client: Client, server_url: str) -> Any:
    def one(*words: str) -> Result:
        where = ["--url", server_url, "--namespace", client.namespace]
        return CliRunner().invoke(main, ["top", *where, *words])

    return one


def say(client: Client) -> Any:
    rows = (Row("cache:p:[red]x\x1b[2J", 5000, 1000), Row("likes:a:7", 40, 40))
    options = HotKeysOptions(interval=60.0)
    return run_sync(place_of(client.namespace).merge(client.port, "a", Report(3, rows), options, 9))


def test_nobody_counts(run: Any) -> None:
    assert run("--once").output == "no process counts; in each of them: client.hotkeys.start()\n"
    assert json.loads(run("--json").output)["keys"] == []


def test_one_look(client: Client, run: Any) -> None:
    say(client)
    lines = run("--once").output.splitlines()
    assert lines[0].startswith(
        "cache:p:[red]x\ufffd[2J: 5,000 (+3) calls a second, 4,000 reads, 1,000 writes, hot for "
    )
    assert lines[1] == "likes:a:7: 40 (+3) calls a second, 0 reads, 40 writes"
    assert len(run("--once", "-n", "1").output.splitlines()) == 1


def test_one_look_for_machines(client: Client, run: Any) -> None:
    at = say(client).at
    shown = json.loads(run("--once", "--json").output)
    assert shown["processes"] == 1
    assert shown["keys"][0] == {
        "name": "cache:p:[red]x\x1b[2J",
        "estimate": 5000,
        "error": 3,
        "reads": 4000,
        "writes": 1000,
        "since": at,
        "hot": True,
    }
    assert shown["keys"][1]["since"] is None


def test_the_table_shows_names_as_they_are_and_no_control_signs(client: Client) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table(say(client)))
    text = console.export_text()
    assert "1 processes count" in text
    assert "cache:p:[red]x\ufffd[2J" in text
    assert "5,003" in text


def test_a_server_that_is_not_there_is_one_line(run: Any) -> None:
    result = CliRunner().invoke(main, ["top", "--url", "redis://127.0.0.1:1", "--once"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert len(result.output.splitlines()) == 1
