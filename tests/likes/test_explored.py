"""The like cache in every order: exhaustively, where it ends, else up to a bound that the report names.

The scenarios stand in ``scenarios.py``, what must hold in ``explored.py``. Below them, each guard is
taken out alone, and a search must find a schedule in which that goes wrong.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from fencepost._core import commands
from fencepost._core.keys import field_of
from fencepost.likes import durable
from fencepost.likes import flush as flushing
from fencepost.likes.durable import DONE, Wanted, judge
from fencepost.likes.flush import Flush
from fencepost.likes.scripts import Scripts
from fencepost.testing import PlayError, Sandbox, ScratchServer, ServerState, explore, replay
from likes import proof
from likes.explored import SCRIPTS
from likes.mutants import MUTANTS, NO_GUARD, Mutant, branches, cut_by
from likes.scenarios import SCENARIOS
from likes.second_lines import SECOND, Second


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    """A server that explorations may empty."""
    with ScratchServer() as server:
        yield server


# Scenarios that have one load, or none that could be of a pair, are the same either way.
CASES = [(name, kind) for name in SCENARIOS for kind in ("full", "sparse")]
TWINS = ("two_flushers", "several_items", "parts_of_several_items", "opening_lost", "lost_replies")
SLICE = 8_000  # states each: what `make test` can afford
STATES = int(os.environ.get("EXPLORE_STATES", "1000000"))  # each, for `make explore`
WALKS = min(5_000, STATES // 100)

every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
every_second_line = pytest.mark.parametrize("second", SECOND, ids=lambda second: second.name)


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
    scenario = SCENARIOS[name](full=kind == "full")
    report = explore(scenario, server=scratch, limit=STATES, walks=WALKS)
    print(f"\n{name} {kind}: {report}")
    report.check()
    proof.write("scenarios", {f"{name} {kind}": proof.scenario_row(f"{name} {kind}", report)})


# -- each guard taken out


@every_mutant
def test_a_guard_that_is_taken_out_is_missed(mutant: Mutant, scratch: ScratchServer) -> None:
    report = explore(mutant.scenario(), server=scratch, limit=100_000)
    assert report.finding is not None, f"{mutant.name}: {report}"


@pytest.mark.explore
@every_mutant
def test_where_a_mutant_is_found_is_written_down(mutant: Mutant, scratch: ScratchServer) -> None:
    report = explore(mutant.scenario(), server=scratch, limit=100_000)
    assert report.finding is not None, f"{mutant.name}: {report}"
    row = proof.mutant_row(mutant.name, mutant.verb or "the transaction", mutant.where, report)
    proof.write("mutants", {mutant.name: row})


@every_second_line
def test_a_second_line_that_is_taken_out_is_seen_by_one_call(
    second: Second, scratch: ScratchServer
) -> None:
    right, state = one_call(second, SCRIPTS, scratch)
    wrong, other = one_call(second, second.scripts, scratch)
    assert right == second.answer
    assert (right, state) != (wrong, other)
    if second.answer in ("CLOSED", "OTHER", "GONE", "COLD", "DIRTY", "REFUSED", "an error"):
        assert state == state_before(second, scratch)  # who refuses changes nothing


@pytest.mark.explore
def test_what_second_lines_are_for_is_written_down(scratch: ScratchServer) -> None:
    found = {}
    for second in SECOND:
        right, state = one_call(second, SCRIPTS, scratch)
        wrong, other = one_call(second, second.scripts, scratch)
        also = "" if state == other or wrong != right else ", and leaves something else behind"
        found[second.name] = (second.name, second.verb, right, f"{wrong}{also}")
    proof.write("second lines", found)


def one_call(second: Second, scripts: Scripts, scratch: ScratchServer) -> tuple[str, ServerState]:
    """The first word of the reply to a second line's call, and what the server holds then."""
    sandbox = Sandbox(scratch.port)
    reply, state = sandbox.run(state_before(second, scratch), second.call(scripts))
    return "an error" if isinstance(reply, BaseException) else reply[0].decode(), state


def state_before(second: Second, scratch: ScratchServer) -> ServerState:
    """What its call meets."""
    state, sandbox = ServerState(identity=second.identity), Sandbox(scratch.port)
    for words in second.commands:
        _, state = sandbox.run(state, commands.raw(*words))
    return state


def test_every_branch_of_every_script_is_cut_by_somebody_or_is_no_guard() -> None:
    there = set(branches())
    cut = set().union(*(cut_by(one.verb, one.cuts) for one in (*MUTANTS, *SECOND)))
    assert there - cut - NO_GUARD.keys() == set()
    assert NO_GUARD.keys() - there == set()  # nor is anything said of what is not there any more
    assert NO_GUARD.keys() & cut == set()
    assert len(there) > 50


@pytest.mark.parametrize("table", proof.HEADS)
def test_the_page_names_what_the_code_has(table: str) -> None:
    """Else somebody changed one of them and did not run `make explore`, or a part of it."""
    assert list(proof.rows(table)) == list(proof.ORDER[table])


@every_mutant
def test_a_schedule_of_the_page_replays(mutant: Mutant, scratch: ScratchServer) -> None:
    schedule = proof.rows("mutants")[mutant.name][-1]
    assert replay(mutant.scenario(), schedule, server=scratch).wrong
    intact = SCENARIOS[mutant.where.split()[0]](full="sparse" not in mutant.where)
    with contextlib.suppress(PlayError):  # with its guard somebody takes another step there
        assert replay(intact, schedule, server=scratch).wrong == ""


# -- what a commit may not assume


def _assumes_absent_is_committed(shard: Any, one: Wanted, flush: Flush) -> Any:
    verdict = judge(shard, one, flush)
    absent = field_of(one.user) not in dict(flush.journals[one.item].entries)
    return DONE if verdict is not None and absent else verdict


def _takes_any_entry_for_ours(shard: Any, one: Wanted, flush: Flush) -> Any:
    there = field_of(one.user) in dict(flush.journals[one.item].entries)
    return DONE if there and not flush.done.orphans else judge(shard, one, flush)


def _overlooks_what_was_refused(shard: Any, one: Wanted, flush: Flush) -> Any:
    return judge(shard, one, replace(flush, done=replace(flush.done, poison=())))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (_assumes_absent_is_committed, "committed_and_journal_lost"),
        (_takes_any_entry_for_ours, "committed_and_failed_over"),
        (_overlooks_what_was_refused, "committed_beside_a_refused_row"),
        (_overlooks_what_was_refused, "committed_refused_and_failed_over"),
    ],
)
def test_a_commit_that_is_only_assumed_is_missed(
    wrong: Callable[..., Any], name: str, scratch: ScratchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "judge", wrong)
    finding = explore(SCENARIOS[name](), server=scratch, limit=100_000).finding
    assert finding is not None
    assert "is in SQL" in finding.message


def test_a_refused_row_that_the_cache_keeps_is_missed(
    scratch: ScratchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keeps(io: Any, shard: Any, poison: Any) -> None:
        pass

    monkeypatch.setattr(flushing, "drop_poisoned", keeps)
    scenario = SCENARIOS["committed_beside_a_refused_row"]()
    finding = explore(scenario, server=scratch, limit=100_000).finding
    assert finding is not None
    assert "cache" in finding.message
