"""The lock's protocols and scripts in every order: holders, waiters, operators, expiry, lost replies.

What must hold: two are never inside while nothing ends their leases; fences increase in the order in
which the lock is taken, whatever happens to the leases; when all have ended, nothing of them is left.
Each guard is taken out once, and must be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost._core import commands
from fencepost._core.port import Cancelled, run_sync
from fencepost.lock.protocol import Ask
from fencepost.lock.scripts import SCRIPTS, Scripts
from fencepost.testing import (
    Faults,
    Move,
    Report,
    Scenario,
    ScratchServer,
    SimPort,
    expiry,
    explore,
    restart_empty,
    tick,
)
from support.lock import LockWorld, altered, empty_restart_a_moment_later, take_step
from support.require import require
from support.servers import find_binary

FAIR = {"overtakes": 0, "wait": 5.0}


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


Run = Callable[..., Report]


@pytest.fixture
def run(scratch: ScratchServer) -> Run:
    def one(
        world: LockWorld,
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
    """Nothing was found, and every order was tried."""
    report.check()
    assert not report.bounded_by, report
    return report


def found(report: Report, *words: str) -> None:
    """Something was found, and it says so."""
    assert report.finding is not None, "the guard is not missed"
    assert any(word in report.finding.message for word in words), report.finding.message


def of_the_lease(key: str) -> bool:
    return key.endswith(":l")


# -- who is inside


def test_three_holders_one_at_a_time(run: Run) -> None:
    world = LockWorld()
    clean(run(world, {"a": world.holds(), "b": world.holds(), "c": world.holds()}))


def test_two_who_wait_and_one_who_does_not(run: Run) -> None:
    world = LockWorld()
    actors = {"a": world.holds(wait=5.0), "b": world.holds(wait=5.0), "c": world.holds()}
    report = clean(run(world, actors))
    assert report.states > 500


LOOKS_AWAY = altered("acquire", "if not held[1] and overtaken", "if overtaken")


def test_taking_needs_the_look_at_the_holder(run: Run) -> None:
    world = LockWorld(LOOKS_AWAY)
    found(run(world, {"a": world.holds(), "b": world.holds()}), "entered beside")


RELEASES_ANY = altered(
    "release", "if redis.pcall('HGET', lock, 'attempt') ~= attempt then return {'LOST'} end\n", ""
)


def test_releasing_needs_the_attempt(run: Run) -> None:
    """One whose lease has ended must not give back the lock of the next."""
    for scripts in (SCRIPTS, RELEASES_ANY):
        world = LockWorld(scripts, alone=False)

        def robbed(view: Any, world: LockWorld = world) -> str | None:
            """The only expiry struck a while it was inside; b came in, so b's lock stands."""
            seen = world.seen.state
            if seen.both and seen.inside == ("b",) and world.keys.lock not in view.keys:
                return "the lock of b was given back under it"
            return None

        # b begins after a was inside, so the expiry was a's.
        actors = {"a": world.holds(), "b": world.holds(after="a")}
        report = run(world, actors, {"x": expiry(1, of_the_lease)}, invariant=robbed)
        if scripts is SCRIPTS:
            clean(report)
        else:
            found(report, "given back")


# -- fences


def test_fences_increase_whatever_ends_the_leases(run: Run) -> None:
    world = LockWorld(alone=False)
    actors = {"a": world.holds(), "b": world.holds(), "c": world.holds()}
    clean(run(world, actors, {"x": expiry(2, of_the_lease), "o": tick(-5, 2)}))


def test_fences_increase_over_empty_restarts(run: Run) -> None:
    world = LockWorld(alone=False)
    actors = {"a": world.holds(), "b": world.holds(), "c": world.holds()}
    clean(run(world, actors, {"x": empty_restart_a_moment_later(2)}))


def test_fences_increase_under_an_operator_and_lost_replies(run: Run) -> None:
    world = LockWorld(alone=False)
    actors = {"a": world.holds(), "b": world.holds(), "op": world.steals()}
    faults = Faults(times=2, on=frozenset({"acquire", "release"}))
    clean(run(world, actors, {"x": expiry(1, of_the_lease)}, faults=faults))


NO_COUNTER = altered("acquire", "tonumber(mark[1] or '0') + 1, near_us", "0, near_us")
NO_CLOCK = altered("acquire", "near_us or now_ms * 1000, tonumber(floor))", "tonumber(floor))")


@pytest.mark.parametrize(
    ("scripts", "environment"),
    [
        pytest.param(NO_COUNTER, {}, id="the counter, where the clock stands still"),
        pytest.param(NO_CLOCK, {"x": empty_restart_a_moment_later()}, id="the clock"),
    ],
)
def test_fences_need(run: Run, scripts: Scripts, environment: dict[str, Move]) -> None:
    world = LockWorld(scripts, alone=False)
    found(run(world, {"a": world.holds(), "b": world.holds()}, environment), "drew fence")


def test_a_clock_behind_after_an_empty_restart_repeats_a_fence_and_a_floor_mends_it(
    run: Run,
) -> None:
    """T6: where the promise ends, and what the caller can do: the gate says which floor."""
    back = tick(-5)
    world = LockWorld(alone=False)
    two = {"x": restart_empty(), "o": back}
    found(run(world, {"a": world.holds(), "b": world.holds()}, two), "drew fence")
    world = LockWorld(alone=False)
    past = 1_000_000 * 1000 + 50
    report = run(
        world,
        {"a": world.holds(), "b": world.holds(floor=past)},
        two,
        final=lambda view: (
            "b is below its floor"
            if isinstance(view.results["b"], int) and view.results["b"] < past
            else None
        ),
        invariant=None,
    )
    clean(report)


# -- lost replies, cancels, stragglers (T2)


@pytest.mark.parametrize("waits", [False, True], ids=["tries once", "waits"])
def test_nothing_is_left_behind_whatever_is_lost(run: Run, waits: bool) -> None:
    world = LockWorld()
    ask = {"wait": 5.0} if waits else {}
    actors = {"a": world.holds(**ask), "b": world.holds(**ask)}
    kinds = ("lost", "dropped", "cut")
    clean(
        run(
            world, actors, faults=Faults(times=2, kinds=kinds, on=frozenset({"acquire", "release"}))
        )
    )


def test_what_is_given_up_needs_undoing(run: Run) -> None:
    world = LockWorld()
    faults = Faults(times=2, on=frozenset({"acquire"}), kinds=("lost", "dropped"))
    found(run(world, {"a": world.holds(undoes=False)}, faults=faults), "held by nobody")


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
@pytest.mark.parametrize("waits", [False, True], ids=["free", "held by another"])
def test_cancelled_at_every_step_nothing_is_left(
    scratch: ScratchServer, applied: bool, waits: bool
) -> None:
    """At each await in turn, before the server has the request and after."""
    world = LockWorld(alone=False)
    keys, at = world.keys, 0
    while True:
        run_sync(scratch.port.run(commands.raw("FLUSHALL")))
        if waits:  # given back when the waiter has looked twice
            call = world.place.take(Ask("other", "other", 10.0, 0.0))
            run_sync(scratch.port.run(call))
        work = world.holds(wait=5.0)(SimPort("a"))
        steps, answer, struck = 0, None, False
        try:
            step = work.send(None)
            while True:
                # What is undone, is undone by somebody who is not cancelled.
                strike = steps == at and not struck and step.label != "undo"
                if not strike or applied:
                    answer = take_step(scratch, step)
                struck = struck or strike
                step = work.throw(Cancelled()) if strike else work.send(answer)
                steps += 1
                if waits and steps == 3:
                    run_sync(scratch.port.run(commands.delete(keys.lock)))
        except StopIteration:
            pass
        left = run_sync(scratch.port.run(commands.raw("KEYS", "*")))
        names = {key.decode().rpartition("}:")[2].partition(":")[0] for key in left}
        if waits and steps < 3:
            names.discard("l")  # the other still holds it
        assert names <= {"f", "x"}, (at, names)
        if not struck:
            break
        at += 1
    run_sync(scratch.port.run(commands.raw("FLUSHALL")))
    assert at >= (8 if waits else 4)  # each of its steps was struck


SAME_ATTEMPT = altered(
    "acquire",
    "if held[1] == attempt then",
    "if false then",
)


def test_the_same_attempt_is_the_same_request(run: Run) -> None:
    """Without that, the request whose reply was lost locks its own sender out."""
    faults = Faults(times=1, on=frozenset({"acquire"}), kinds=("lost",))

    def locked_out(view: Any) -> str | None:
        return "locked out by itself" if view.results["a"] == "LockTimeout" else None

    world = LockWorld()
    clean(run(world, {"a": world.holds()}, faults=faults, final=locked_out))
    world = LockWorld(SAME_ATTEMPT)
    found(run(world, {"a": world.holds()}, faults=faults, final=locked_out), "locked out")


@pytest.mark.parametrize("waits", [False, True], ids=["tries once", "waits"])
def test_a_duplicate_that_comes_late_takes_the_lock_for_nobody(run: Run, waits: bool) -> None:
    """T2: a first request went unanswered; it may come at any moment."""
    world = LockWorld()
    ask = {"wait": 5.0} if waits else {}
    actors = {
        "a": world.holds(doubt=True, **ask),
        "s": world.straggles("a.1", 2, **ask),
        "b": world.holds(**ask),
    }
    clean(run(world, actors))


NO_MARK = altered("acquire", "if redis.call('EXISTS', ended) == 1 then return {'ENDED'} end\n", "")
LEAVES_NO_MARK = altered("undo", "redis.pcall('SET', ended, '1', 'PX', straggler_ms)\n", "")


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param(NO_MARK, id="acquire looks for the mark"),
        pytest.param(LEAVES_NO_MARK, id="undo leaves it"),
    ],
)
def test_a_duplicate_that_comes_late_needs(run: Run, scripts: Scripts) -> None:
    world = LockWorld(scripts)
    actors = {"a": world.holds(doubt=True), "s": world.straggles("a.1")}
    found(run(world, actors), "held by nobody")


def test_a_duplicate_needs_an_end_after_a_release_too(run: Run) -> None:
    world = LockWorld()
    actors = {"a": world.holds(doubt=True, undoes=False), "s": world.straggles("a.1")}
    found(run(world, actors), "held by nobody")


# -- renewal


def test_a_renewal_prolongs_what_is_held_and_nothing_else(run: Run) -> None:
    world = LockWorld(alone=False)
    actors = {"a": world.holds(), "k": world.renews("a.1", 2), "b": world.holds()}
    faults = Faults(times=1, on=frozenset({"renew"}))
    clean(run(world, actors, {"x": expiry(1, of_the_lease)}, faults=faults))


MAKES_ANEW = altered(
    "renew",
    "if redis.pcall('HGET', lock, 'attempt') ~= attempt then return {'LOST'} end",
    "if redis.call('EXISTS', lock) == 0 then redis.call('HSET', lock, 'attempt', attempt, 'owner', '', 'fence', 1) end",
)


def test_a_renewal_must_not_make_a_lost_lock_anew(run: Run) -> None:
    world = LockWorld(MAKES_ANEW, alone=False)
    actors = {"a": world.holds(), "k": world.renews("a.1")}
    found(run(world, actors, {"x": expiry(1, of_the_lease)}), "held by nobody")


# -- waiting in line


def test_who_takes_the_lock_waits_no_more(run: Run) -> None:
    world = LockWorld()

    def judge(view: Any) -> str | None:
        queue = view.value(world.keys.queue, {})
        held = view.value(world.keys.lock, {}).get("attempt")
        return world.invariant(view) or (f"{held} holds and waits" if held in queue else None)

    def all_served(view: Any) -> str | None:
        unserved = [name for name, one in view.results.items() if not isinstance(one, int)]
        return world.nothing_left(view) or (f"not served: {unserved}" if unserved else None)

    actors = {name: world.holds(**FAIR) for name in ("a", "b", "c")}
    clean(run(world, actors, invariant=judge, final=all_served))


def overtaken(world: LockWorld) -> Callable[[Any], str | None]:
    """Judges whether a newcomer took the lock while somebody waited for it."""

    def judge(view: Any) -> str | None:
        queue = view.value(world.keys.queue, {})
        holder = view.value(world.keys.lock, {})
        if not holder or not queue:
            return None
        marks = view.value(world.keys.fences, {})
        return "a newcomer was quicker" if int(marks.get("overtaken", "0")) else None

    return judge


def test_a_fair_lock_lets_no_newcomer_pass_and_another_does(run: Run) -> None:
    fair = LockWorld()
    actors = {name: fair.holds(**FAIR) for name in ("a", "b", "c")}
    clean(run(fair, actors, invariant=overtaken(fair)))
    barging = LockWorld()
    actors = {name: barging.holds(wait=5.0) for name in ("a", "b", "c")}
    found(run(barging, actors, invariant=overtaken(barging)), "a newcomer was quicker")
