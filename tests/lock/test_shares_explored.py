"""Semaphores and read/write locks in every order: holders of any weight, expiry, lost replies, cancels.

What must hold: the weight that is out never exceeds the permits of anybody who is in; readers and a
writer are never in together; what is counted is what stands; fences increase; when all have ended,
nothing of them is left. Each guard is taken out once, and must be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost._core import commands
from fencepost._core.port import Cancelled, run_sync
from fencepost.lock.protocol import Ask
from fencepost.lock.scripts import SHARES, Scripts
from fencepost.testing import (
    Faults,
    Move,
    Report,
    Scenario,
    ScratchServer,
    SimPort,
    expiry,
    explore,
    tick,
)
from support.lock import empty_restart_a_moment_later, take_step
from support.require import require
from support.servers import find_binary
from support.shares import ShareWorld, without

TTL_ENDS = tick(11_000)
"""The server's clock goes beyond every lease that was taken before."""


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


Run = Callable[..., Report]
SIDES = {"a": "read", "b": "write", "c": "read"}


@pytest.fixture
def run(scratch: ScratchServer) -> Run:
    def one(
        world: ShareWorld,
        actors: dict[str, Any],
        environment: dict[str, Move] | None = None,
        **more: Any,
    ) -> Report:
        limit = more.pop("limit", 300_000)
        scenario = Scenario(
            actors=actors,
            environment=environment or {},
            cells=world.cells,
            invariant=more.pop("invariant", world.invariant),
            final=more.pop("final", world.nothing_left),
            observe=more.pop("observe", world.observe),
            **more,
        )
        return explore(scenario, server=scratch, limit=limit)

    return one


def clean(report: Report) -> Report:
    report.check()
    assert not report.bounded_by, report
    return report


def found(report: Report, *words: str) -> None:
    assert report.finding is not None, "the guard is not missed"
    assert any(word in report.finding.message for word in words), report.finding.message


# -- never more than the permits, readers or one writer


def test_permits_of_any_weight_are_never_exceeded(run: Run) -> None:
    world = ShareWorld(permits=3)
    clean(run(world, world.actors(a=1, b=2, c=3)))


def test_readers_and_writers_are_never_in_together(run: Run) -> None:
    world = ShareWorld()
    clean(run(world, world.actors(a="read", b="read", c="write")))


def test_two_writers_and_a_reader_that_wait(run: Run) -> None:
    world = ShareWorld()
    actors = {
        name: world.taking(name, side, wait=5.0)
        for name, side in (("a", "write"), ("b", "write"), ("c", "read"))
    }
    clean(run(world, actors))


def test_who_counts_on_fewer_permits_is_not_outnumbered(run: Run) -> None:
    world = ShareWorld(permits=3)
    clean(run(world, world.actors(a=(1, 1), b=(1, 3), c=(2, 3))))


NO_ROOM = without("acquire", "if used <= room and overtaken", "if overtaken")
ONLY_MINE = without("acquire", "do room = math.min(room, tonumber(asked)) end", "do end")
TWICE = without("acquire", "if held[1] then", "if false then")


@pytest.mark.parametrize(
    ("scripts", "asked"),
    [
        pytest.param(NO_ROOM, {"a": 2, "b": 2}, id="the look at the room"),
        pytest.param(NO_ROOM, {"a": "read", "b": "write"}, id="the look of a writer"),
        pytest.param(ONLY_MINE, {"a": (1, 1), "b": (1, 3)}, id="the least of those who are in"),
    ],
)
def test_granting_needs(run: Run, scripts: Scripts, asked: dict[str, Any]) -> None:
    permits = 3 if asked["a"] != "read" else None
    world = ShareWorld(scripts, permits=permits)
    found(run(world, world.actors(**asked)), "entered beside", "are out beside")


# -- leases end by the server's clock


def test_whatever_ends_the_leases_the_count_is_what_stands(run: Run) -> None:
    world = ShareWorld(permits=2, alone=False)
    clean(run(world, world.actors(a=1, b=1, c=2), {"o": TTL_ENDS}))


def test_renewals_and_an_operator_beside_leases_that_end(run: Run) -> None:
    world = ShareWorld(permits=2, alone=False)
    actors = {**world.actors(a=1, b=1), "k": world.renews("a.1", 2), "op": world.steals()}
    clean(run(world, actors, {"o": TTL_ENDS}))


def test_fences_of_shares_increase_over_empty_restarts(run: Run) -> None:
    world = ShareWorld(permits=2, alone=False)
    actors = world.actors(a=1, b=1, c=2)
    clean(run(world, actors, {"x": empty_restart_a_moment_later(2)}))


NO_COUNTER = without("acquire", "tonumber(mark[1] or '0') + 1, now_ms", "0, now_ms")
NO_CLOCK = without("acquire", "now_ms * 1000, tonumber(floor))", "tonumber(floor))")


@pytest.mark.parametrize(
    ("scripts", "environment"),
    [
        pytest.param(NO_COUNTER, {}, id="the counter, where the clock stands still"),
        pytest.param(NO_CLOCK, {"x": empty_restart_a_moment_later()}, id="the clock"),
    ],
)
def test_fences_of_shares_need(run: Run, scripts: Scripts, environment: dict[str, Move]) -> None:
    world = ShareWorld(scripts, permits=2, alone=False)
    found(run(world, world.actors(a=1, b=1), environment), "drew fence")


def test_one_of_two_keys_lost_is_both_lost(run: Run) -> None:
    """An eviction may take either; nobody is kept out by what is left."""

    def half(key: str) -> bool:
        return key.endswith((":l", ":e"))

    for scripts in (SHARES, NOT_TOGETHER):
        world = ShareWorld(scripts, permits=2, alone=False)

        def judge(view: Any, world: ShareWorld = world) -> str | None:
            kept = {world.keys.lock, world.keys.ends} & set(view.keys)
            return None if len(kept) == 1 else world.invariant(view)

        def served(view: Any) -> str | None:
            ended = {one for one in view.results.values() if not isinstance(one, int | str)}
            return f"failed: {ended}" if ended else None

        report = run(
            world,
            world.actors(a=1, b=2),
            {"x": expiry(1, half)},
            invariant=judge,
            final=served,
        )
        if scripts is SHARES:
            clean(report)
        else:
            assert report.finding is not None


NOT_TOGETHER = without(
    "acquire",
    "  if redis.call('EXISTS', shares, ends) < 2 then redis.call('DEL', shares, ends) end\n",
)


# -- lost replies, cancels, stragglers


@pytest.mark.parametrize("waits", [False, True], ids=["tries once", "waits"])
def test_no_share_is_left_behind_whatever_is_lost(run: Run, waits: bool) -> None:
    world = ShareWorld(permits=2)
    ask = {"wait": 5.0} if waits else {}
    actors = {name: world.taking(name, share, **ask) for name, share in (("a", 1), ("b", 2))}
    faults = Faults(
        times=2,
        kinds=("lost", "dropped", "cut"),
        on=frozenset({"acquire_share", "release_share"}),
    )
    clean(run(world, actors, faults=faults))


@pytest.mark.parametrize("sides", [("read", "write"), ("read", "read")], ids="-".join)
def test_no_side_is_left_behind_whatever_is_lost(run: Run, sides: tuple[str, str]) -> None:
    world = ShareWorld()
    actors = {
        name: world.taking(name, side, wait=5.0) for name, side in zip("ab", sides, strict=True)
    }
    faults = Faults(
        times=1,
        kinds=("lost", "dropped", "cut"),
        on=frozenset({"acquire_share", "release_share"}),
    )
    clean(run(world, actors, faults=faults))


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
@pytest.mark.parametrize("waits", [False, True], ids=["free", "held by another"])
@pytest.mark.parametrize("side", ["read", "write"])
def test_cancelled_at_every_step_no_share_is_left(
    scratch: ScratchServer, side: str, waits: bool, applied: bool
) -> None:
    """At each await in turn, before the server has the request and after."""
    left, steps = cancelled_at_every_step(scratch, SHARES, side, waits, applied)
    assert left == set()
    assert steps >= (8 if waits else 4)  # each of its steps was struck


UNDOES_NO_SHARE = without("undo", "take_out(shares, ends, attempt)\nredis", "redis")
LEAVES_THE_QUEUE = without(
    "undo", "redis.call('ZREM', queue, attempt)\nredis.call('ZREM', alive, attempt)\n"
)


@pytest.mark.parametrize(
    ("scripts", "key"),
    [
        pytest.param(UNDOES_NO_SHARE, "l", id="that it is taken out"),
        pytest.param(LEAVES_THE_QUEUE, "q", id="that it waits no more"),
    ],
)
def test_cancelled_at_every_step_needs(scratch: ScratchServer, scripts: Scripts, key: str) -> None:
    left, _ = cancelled_at_every_step(scratch, scripts, "write", True, True)
    assert key in left


def cancelled_at_every_step(
    scratch: ScratchServer, scripts: Scripts, side: str, waits: bool, applied: bool
) -> tuple[set[str], int]:
    """What was left at any of the steps, and how many there were."""
    at, leftover = 0, set[str]()
    while True:
        run_sync(scratch.port.run(commands.raw("FLUSHALL")))
        world = ShareWorld(scripts, alone=False)
        if waits:  # given back when the waiter has looked twice
            run_sync(scratch.port.run(world.place.take(Ask("other", "other", 10.0, 0.0))))
        work = world.taking("a", side, wait=5.0)(SimPort("a"))
        steps, answer, struck = 0, None, False
        try:
            step = work.send(None)
            while True:
                # What is undone, is undone by somebody who is not cancelled.
                strike = steps == at and not struck and step.label != "undo_share"
                if not strike or applied:
                    answer = take_step(scratch, step)
                struck = struck or strike
                step = work.throw(Cancelled()) if strike else work.send(answer)
                steps += 1
                if waits and steps == 3:
                    run_sync(scratch.port.run(world.place.give_back("other")))
        except StopIteration:
            pass
        left = run_sync(scratch.port.run(commands.raw("KEYS", "*")))
        names = {key.decode().rpartition("}:")[2].partition(":")[0] for key in left} - {"f", "x"}
        if waits and steps < 3:
            names -= {"l", "e"}  # the other still holds it
        leftover |= names
        if not struck:
            return leftover, at
        at += 1


def test_a_share_that_is_given_up_needs_undoing(run: Run) -> None:
    world = ShareWorld(permits=2)
    faults = Faults(times=2, on=frozenset({"acquire_share"}), kinds=("lost", "dropped"))
    actors = {"a": world.taking("a", 1, undoes=False)}
    found(run(world, actors, faults=faults), "held by nobody")


def test_a_repeated_request_takes_no_second_share(run: Run) -> None:
    faults = Faults(times=1, on=frozenset({"acquire_share"}), kinds=("lost",))
    world = ShareWorld(permits=2)
    clean(run(world, world.actors(a=1), faults=faults))
    world = ShareWorld(TWICE, permits=2)
    found(run(world, world.actors(a=1), faults=faults), "are counted")


NO_MARK = without("acquire", "if redis.call('EXISTS', ended) == 1 then return {'ENDED'} end\n")
LEAVES_NO_MARK = without("undo", "redis.pcall('SET', ended, '1', 'PX', straggler_ms)\n")


def test_a_duplicate_that_comes_late_takes_no_share(run: Run) -> None:
    for scripts in (SHARES, NO_MARK, LEAVES_NO_MARK):
        world = ShareWorld(scripts, permits=2)
        actors = {
            "a": world.taking("a", 1, doubt=True),
            "s": world.straggles("a.1", 2),
            "b": world.taking("b", 2),
        }
        report = run(world, actors)
        if scripts is SHARES:
            clean(report)
        else:
            found(report, "held by nobody")


LEAVES_THE_BOUND = without("release", ", '#bounds', counted(found[3], permits, -1))", ")")
LEAVES_THE_WEIGHT = without("release", "'#used', used, ", "")
WAITS_ON = without(
    "acquire",
    "  redis.call('ZREM', queue, attempt)\n  redis.call('ZREM', alive, attempt)\n  if room_left",
    "  if room_left",
)


@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        pytest.param(LEAVES_THE_BOUND, "bounds are", id="a bound is taken out with its holder"),
        pytest.param(LEAVES_THE_WEIGHT, "are counted", id="a weight likewise"),
        pytest.param(WAITS_ON, "waited for by nobody", id="who is in waits no more"),
    ],
)
def test_that_nothing_is_left_of_shares_needs(run: Run, scripts: Scripts, words: str) -> None:
    for tried in (SHARES, scripts):
        world = ShareWorld(tried, permits=3)
        asked = {"a": (1, 2), "b": (1, 3), "c": (3, 3)}
        report = run(world, {n: world.taking(n, one, wait=5.0) for n, one in asked.items()})
        if tried is SHARES:
            clean(report)
        else:
            found(report, words)


# -- all of it at once, deep


@pytest.mark.explore
@pytest.mark.parametrize(
    ("permits", "asked"),
    [(2, {"a": 1, "b": 2, "c": 1}), (3, {"a": (2, 2), "b": (1, 3), "c": (3, 3)}), (None, SIDES)],
    ids=["semaphore", "permits that differ", "read/write lock"],
)
@pytest.mark.parametrize("moves", ["lost replies", "leases that end", "an operator"])
def test_shares_in_every_order_with_all_that_may_happen(
    run: Run, permits: int | None, asked: dict[str, Any], moves: str
) -> None:
    world = ShareWorld(permits=permits, alone=moves == "lost replies")
    actors = {name: world.taking(name, share, wait=5.0) for name, share in asked.items()}
    more: dict[str, Any] = {"limit": 2_000_000}
    environment: dict[str, Move] = {}
    if moves == "lost replies":
        more["faults"] = Faults(
            times=2,
            kinds=("lost", "dropped", "cut"),
            on=frozenset({"acquire_share", "release_share"}),
        )
    elif moves == "leases that end":
        actors["k"] = world.renews("a.1", 2)
        environment = {"o": tick(11_000, 2)}
    else:
        actors["op"] = world.steals()
        environment = {"o": TTL_ENDS}
    clean(run(world, actors, environment, **more))
