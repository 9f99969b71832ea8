"""The like cache in every order: exhaustively, where it ends, else up to a bound that the report names.

The scenarios stand in ``scenarios.py``, what must hold in ``explored.py``. Below them, each guard is
taken out alone, and a search must find a schedule in which that goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost._core.keys import field_of
from fencepost.likes import durable
from fencepost.likes.durable import DONE, Wanted, judge
from fencepost.likes.protocol import Flush
from fencepost.testing import ScratchServer, explore
from likes.mutants import MUTANTS, Mutant
from likes.scenarios import SCENARIOS


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    """A server that explorations may empty."""
    with ScratchServer() as server:
        yield server


# Scenarios that have one load, or none that could be of a pair, are the same either way.
CASES = [(name, kind) for name in SCENARIOS for kind in ("full", "sparse")]
TWINS = ("two_flushers", "several_items", "parts_of_several_items", "opening_lost", "lost_replies")
SLICE = 8_000  # states each: what `make test` can afford


@pytest.mark.parametrize(
    ("name", "kind"),
    [case for case in CASES if case[1] == "full" or case[0] not in TWINS],
    ids=lambda word: word,
)
def test_every_order(name: str, kind: str, scratch: ScratchServer) -> None:
    explore(SCENARIOS[name](full=kind == "full"), server=scratch, limit=SLICE).check()


@pytest.mark.explore
@pytest.mark.parametrize(("name", "kind"), CASES, ids=lambda word: word)
def test_every_order_to_the_end(name: str, kind: str, scratch: ScratchServer) -> None:
    report = explore(
        SCENARIOS[name](full=kind == "full"), server=scratch, limit=4_000_000, walks=5_000
    )
    print(f"\n{name} {kind}: {report}")
    report.check()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_guard_that_is_taken_out_is_missed(mutant: Mutant, scratch: ScratchServer) -> None:
    report = explore(mutant.scenario(), server=scratch, limit=100_000)
    assert report.finding is not None, f"{mutant.name}: {report}"


def _assumes_absent_is_committed(shard: Any, one: Wanted, flush: Flush) -> Any:
    verdict = judge(shard, one, flush)
    absent = field_of(one.user) not in dict(flush.journals[one.item].entries)
    return DONE if verdict is not None and absent else verdict


def _takes_any_entry_for_ours(shard: Any, one: Wanted, flush: Flush) -> Any:
    there = field_of(one.user) in dict(flush.journals[one.item].entries)
    return DONE if there and not flush.done.orphans else judge(shard, one, flush)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (_assumes_absent_is_committed, "committed_and_journal_lost"),
        (_takes_any_entry_for_ours, "committed_and_failed_over"),
    ],
)
def test_a_commit_that_is_only_assumed_is_missed(
    wrong: Callable[..., Any], name: str, scratch: ScratchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "judge", wrong)
    finding = explore(SCENARIOS[name](), server=scratch, limit=100_000).finding
    assert finding is not None
    assert "is in SQL" in finding.message
