"""What re-execution rests on: beginnings that are foretold, keys that are declared, words of progress."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost._core.script import Script, read_contract
from fencepost.testing import (
    Cell,
    Progress,
    Scenario,
    ScratchServer,
    SimPort,
    UndeclaredKey,
    explore,
    reexecute,
    script_flush,
)
from fencepost.testing.files import load
from fencepost.testing.reexecute import Reexecution
from support.require import require
from support.servers import find_binary

EXAMPLES = load(Path(__file__).parents[2] / "examples" / "explored.py")


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer() as server:
        yield server


def script(text: str) -> Script[Any]:
    return Script(read_contract(text), text, lambda reply: reply)


INCR = script("-- incr: one more\n-- KEYS n\n-- ARGV who\nreturn redis.call('INCR', KEYS[1])")


# -- beginnings that are known go out in one write


def test_a_known_beginning_is_one_write(scratch: ScratchServer) -> None:
    search = Reexecution(EXAMPLES["cache_aside"](), scratch, limit=10_000, reduce=False)
    report = search.search()
    assert report.check().complete
    # Each schedule empties the server, takes up to eleven steps and looks.
    assert search.talk.asked > 9 * report.schedules
    assert search.talk.writes < 4 * report.schedules


def test_words_that_differ_from_run_to_run_are_run_step_by_step(scratch: ScratchServer) -> None:
    """A protocol's request may hold what nobody foretells: the time of its database, say."""
    numbers, source = itertools.count(), Cell(0)
    seen = set()

    async def client(io: SimPort) -> Any:
        await io.call(source.get)
        return await io.run(INCR(("n",), [next(numbers)]))

    def final(view: Any) -> str | None:
        seen.add((view.results["a"], view.results["b"]))
        return None if view.value("n") == "2" else f"n is {view.value('n')}"

    scenario = Scenario(actors={"a": client, "b": client}, cells=[source], final=final)
    search = Reexecution(scenario, scratch, limit=10_000, reduce=False)
    report = search.search()
    assert report.check().complete
    assert report.schedules == 6  # all orders of two times two steps
    assert seen == {(1, 2), (2, 1)}
    assert search.talk.writes > 3 * report.schedules  # nothing was foretold


def test_scripts_are_forgotten_between_any_two_steps(scratch: ScratchServer) -> None:
    """The order matters though no key is touched: somebody must find his script gone."""

    steps: list[str] = []
    orders = set()

    async def client(io: SimPort) -> Any:
        return await io.run(INCR(("n",), [io.name]))

    def note(name: str, call: Any, answer: Any) -> None:
        steps.append(name)

    def final(view: Any) -> str | None:
        orders.add("".join(steps))
        return None if view.value("n") == "2" else f"n is {view.value('n')}"

    scenario = Scenario(
        actors={"a": client, "b": client},
        environment={"x": script_flush()},
        observe={"incr": note, "script_flush": note},
        final=final,
        reset=steps.clear,
    )
    assert reexecute(scenario, server=scratch).check().complete
    assert {"axb", "bxa", "xab", "xba", "ab", "ba"} <= orders


# -- the reduction rests on declared keys


def undeclared_after(key: str) -> Script[Any]:
    return script(f"""-- peeks: too far, but only once somebody has been there
-- KEYS n
-- ARGV who
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('SET', {key}, ARGV[1])
""")


def peeking(key: str) -> Scenario:
    async def peek(io: SimPort) -> Any:
        return await io.run(undeclared_after(key)(("n",), [io.name]))

    async def add(io: SimPort) -> Any:
        return await io.run(INCR(("n",), [io.name]))

    return Scenario(actors={"a": peek, "b": add})


@pytest.mark.parametrize("search", [explore, reexecute])
def test_a_script_that_touches_what_it_did_not_declare_fails(
    search: Callable[..., Any], scratch: ScratchServer
) -> None:
    with pytest.raises(UndeclaredKey, match="peeks used SET other, which it did not declare"):
        search(peeking("'other'"), server=scratch)
    assert search(peeking("KEYS[1]"), server=scratch).check().complete


def test_without_that_the_reduction_would_miss_an_ending(scratch: ScratchServer) -> None:
    """The control: two scripts that meet at a key that neither declares are taken for independent."""
    sneaks = script("""-- sneaks: into a key that it does not declare
-- KEYS own
-- ARGV who
if redis.call('EXISTS', 'other') == 1 then return 'second' end
redis.call('SET', 'other', ARGV[1])
return 'first'
""")

    async def sneak(io: SimPort) -> Any:
        return await io.run(sneaks((io.name,), [io.name]))

    scenario = Scenario(actors={"a": sneak, "b": sneak})

    def endings(reduce: bool) -> int:
        search = Reexecution(scenario, scratch, limit=100, reduce=reduce)
        search.declared.note = lambda state, call: None  # type: ignore[method-assign]
        return len(search.search(endings=True).endings)

    assert (endings(reduce=False), endings(reduce=True)) == (2, 1)
    with pytest.raises(UndeclaredKey):
        reexecute(scenario, server=scratch)


# -- what each search saves

PAGE = Path(__file__).parents[2] / "docs" / "explorer.md"


@pytest.mark.parametrize("name", ["cache_aside", "lock", "counter"])
def test_the_page_says_what_each_search_saves(name: str, scratch: ScratchServer) -> None:
    make = EXAMPLES[name]
    every = reexecute(make(), server=scratch, reduce=False).check()
    reduced = reexecute(make(), server=scratch).check()
    graph = explore(make(), server=scratch).check()
    figures = (every.schedules, reduced.schedules, graph.states, graph.asked)
    (row,) = [line for line in PAGE.read_text("utf-8").splitlines() if f"| `{name}`:" in line]
    assert row.split(" | ")[1:] == [f"{one:,}" for one in figures[:3]] + [f"{figures[3]} |"]


# -- how far it is


def test_a_graph_tells_how_far_it_is(scratch: ScratchServer) -> None:
    told: list[Progress] = []
    report = explore(EXAMPLES["cache_aside"](), server=scratch, limit=1_000, progress=told.append)
    last = told[-1]
    assert (last.search, last.states, last.transitions) == (
        "graph",
        report.states,
        report.transitions,
    )
    assert last.frontier == 0
    assert last.share == report.states / 1_000
    assert f"{report.states} states, {last.share:.0%} of the bound" in str(last)


def test_a_search_that_stops_at_its_bound_tells_what_was_ahead(scratch: ScratchServer) -> None:
    told: list[Progress] = []
    explore(
        EXAMPLES["cache_aside"](), server=scratch, limit=50, walks=30, progress=told.append
    ).check()
    graph, walks = told[-2:]
    assert (graph.share, graph.frontier > 0) == (1.0, True)
    assert (walks.search, walks.schedules, walks.share) == ("walks", 30, 1.0)


def test_re_execution_tells_how_far_it_is(scratch: ScratchServer) -> None:
    told: list[Progress] = []
    report = reexecute(EXAMPLES["lock"](), server=scratch, limit=1_000, progress=told.append)
    assert told[-1].schedules == report.schedules
    assert told[-1].frontier == 0
    assert told[-1].rate > 0
    told.clear()
    reexecute(EXAMPLES["lock"](), server=scratch, limit=10, progress=told.append)
    assert all(one.schedules <= 10 for one in told)


@pytest.mark.parametrize("search", [explore, reexecute])
def test_who_is_told_may_end_it(search: Callable[..., Any], scratch: ScratchServer) -> None:
    class Enough(Exception):
        pass

    def stop(progress: Progress) -> None:
        raise Enough

    with pytest.raises(Enough):
        search(EXAMPLES["counter"](), server=scratch, progress=stop)
    assert search(EXAMPLES["counter"](), server=scratch).check().complete  # nothing was left behind
