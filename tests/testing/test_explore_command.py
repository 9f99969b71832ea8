"""``fencepost explore FILE``: what it finds it can replay, and its exit code says so."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from fencepost.cli import main
from support.require import require
from support.servers import find_binary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCENARIOS = """
from __future__ import annotations

from beside import LIMIT
from fencepost._core import commands
from fencepost.testing import Scenario


async def adds(io):
    seen = await io.run(commands.raw("GET", "n"))
    await io.run(commands.raw("SET", "n", int(seen or 0) + 1))


async def increments(io):
    await io.run(commands.raw("INCR", "n"))


def counter(actor):
    def final(view):
        return None if view.value("n") == "2" else f"n is {view.value('n')}"

    return Scenario(actors={"a": actor, "b": actor}, final=final)


def reads_then_writes() -> Scenario:
    return counter(adds)


one_step = counter(increments)
"""


SPAWNS = """
from __future__ import annotations

from fencepost._core import commands
from fencepost.testing import Scenario


async def child(io):
    await io.run(commands.raw("INCR", "n"))


async def parent(io):
    await io.wait(io.spawn(child(io)))


spawns = Scenario(actors={"a": parent, "b": child})
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    require("valkey", find_binary("valkey") is not None)
    (tmp_path / "beside.py").write_text("LIMIT = 1\n")
    (tmp_path / "counters.py").write_text(SCENARIOS)

    def start(*options: str) -> Result:
        return CliRunner().invoke(main, ["explore", str(tmp_path / "counters.py"), *options])

    return start


def test_a_finding_is_replayed_from_its_report(run: Callable[..., Result]) -> None:
    told = run()
    assert told.exit_code == 1
    assert "✓ one_step" in told.output
    assert "✗ reads_then_writes" in told.output
    schedule = re.search('--only reads_then_writes --replay "(.*)"', told.output)
    assert schedule
    again = run("--only", "reads_then_writes", "--replay", schedule[1])
    assert again.exit_code == 1
    assert "n is 1" in again.output
    right = run("--only", "reads_then_writes", "--replay", "a.get a.set b.get b.set")
    assert right.exit_code == 0
    assert "nothing is wrong" in right.output


def test_a_clean_file_ends_with_0(run: Callable[..., Result]) -> None:
    told = run("--only", "one_step", "--json")
    assert told.exit_code == 0
    report = json.loads(told.output)
    assert (report["wrong"], report["bounded_by"]) == ("", "")
    assert report["states"] > 3


def test_schedules_from_scratch_find_it_too_and_replay_so(run: Callable[..., Result]) -> None:
    told = run("--only", "reads_then_writes", "--search", "re-execution")
    assert told.exit_code == 1
    again = re.search('--only reads_then_writes --search re-execution --replay "(.*)"', told.output)
    assert again
    live = run("--only", "reads_then_writes", "--search", "re-execution", "--replay", again[1])
    assert live.exit_code == 1
    assert "n is 1" in live.output
    every = run("--only", "one_step", "--search", "every-schedule", "--json")
    assert json.loads(every.output)["schedules"] == 2


def test_what_only_re_execution_can_follow_is_said(tmp_path: Path) -> None:
    require("valkey", find_binary("valkey") is not None)
    (tmp_path / "spawns.py").write_text(SPAWNS)
    told = CliRunner().invoke(main, ["explore", str(tmp_path / "spawns.py")])
    assert told.exit_code == 1
    assert "spawns: a spawned a protocol" in told.output
    assert "--search re-execution" in told.output
    whole = ["explore", str(tmp_path / "spawns.py"), "--search", "re-execution"]
    assert CliRunner().invoke(main, whole).exit_code == 0


def test_it_says_how_far_it_is_beside_the_report(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.cli.explore._LINE_EVERY", 0.0)
    told = run("--only", "one_step", "--limit", "500")
    assert re.search(
        r"one_step: graph, \d+ states, \d% of the bound, [\d,]+ transitions/s", told.stderr
    )
    assert "of the bound" not in told.stdout
    assert run("--only", "one_step", "--json").stderr == ""


def test_scenarios_are_listed(run: Callable[..., Result]) -> None:
    assert run("--list").output.split() == ["reads_then_writes", "one_step"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--only", "x"), "it has reads_then_writes, one_step"),
        (("--replay", "a.get"), "choose with --only"),
        (("--only", "one_step", "--replay", "a.get"), "a.get does not fit"),
    ],
)
def test_what_does_not_fit_is_said(
    run: Callable[..., Result], options: tuple[str, ...], complaint: str
) -> None:
    told = run(*options)
    assert told.exit_code in (1, 2)
    assert complaint in told.output


def test_a_file_without_scenarios_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("x = 1\n")
    told = CliRunner().invoke(main, ["explore", str(tmp_path / "nothing.py")])
    assert told.exit_code == 1
    assert "holds no scenario" in told.output
