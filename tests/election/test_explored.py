"""Campaigns in every order: leaders, candidates, keepers, operators, expiry, lost replies, crashes.

What must hold: two never lead while nothing ends their leases; who is at work holds the lock, until it
has stopped; fences increase from term to term, whatever ends them; ``started`` and ``stopped`` are
paired; and when all have ended, nobody leads. Each guard is taken out once, and must be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost.lock.scripts import SCRIPTS, Scripts
from fencepost.testing import (
    Faults,
    Move,
    Report,
    Scenario,
    ScratchServer,
    expiry,
    explore,
    restart_empty,
    tick,
)
from support.election_world import ElectionWorld, SimSeat
from support.lock import altered, empty_restart_a_moment_later
from support.require import require
from support.servers import find_binary

LOST = Faults(times=2, on=frozenset({"acquire", "release"}), kinds=("lost", "dropped", "cut"))
Run = Callable[..., Report]


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


@pytest.fixture
def run(scratch: ScratchServer) -> Run:
    def one(
        world: ElectionWorld,
        actors: dict[str, Any],
        environment: dict[str, Move] | None = None,
        **more: Any,
    ) -> Report:
        scenario = Scenario(
            actors=actors,
            environment=environment or {},
            cells=world.cells,
            invariant=more.pop("invariant", world.judge),
            final=more.pop("final", world.all_over),
            observe=world.observe,
            allowed=(Exception,),
            **more,
        )
        return explore(scenario, server=scratch, limit=300_000)

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


# -- one leads


def test_three_candidates_and_one_leads(run: Run) -> None:
    world = ElectionWorld()
    clean(run(world, {"a": world.stands(), "b": world.stands(), "c": world.stands()}))


def test_two_campaigns_that_stand_again(run: Run) -> None:
    world = ElectionWorld()
    report = clean(run(world, {"a": world.stands(terms=2), "b": world.stands(terms=2)}))
    assert report.states > 300


def test_whatever_replies_are_lost_nobody_leads_when_all_have_ended(run: Run) -> None:
    world = ElectionWorld()
    clean(run(world, {"a": world.stands(), "b": world.stands()}, faults=LOST))


@pytest.mark.parametrize("where", ["started", "work"])
def test_what_is_raised_leaves_nobody_leading(run: Run, where: str) -> None:
    world = ElectionWorld()
    clean(run(world, {"a": world.stands(fails=where), "b": world.stands()}, faults=LOST))


def test_whatever_ends_a_term_fences_increase_and_callbacks_are_paired(run: Run) -> None:
    world = ElectionWorld(alone=False)
    actors = {
        "a": world.stands(),
        "b": world.stands(),
        "k": world.renews("a.1"),
        "op": world.steals(),
    }
    clean(run(world, actors, {"x": expiry(1, of_the_lease), "o": tick(-5)}))


@pytest.mark.explore
def test_campaigns_renewals_an_operator_expiry_lost_replies_and_crashes_at_once(run: Run) -> None:
    world = ElectionWorld(alone=False)
    actors = {
        "a": world.stands(terms=2),
        "b": world.stands(),
        "k": world.renews("a.1"),
        "op": world.steals(),
    }
    faults = Faults(times=1, on=frozenset({"acquire", "release", "renew"}))
    report = clean(
        run(
            world,
            actors,
            {"x": expiry(1, of_the_lease)},
            faults=faults,
            crashes=frozenset({"a"}),
            final=lambda view: world.wrong() or None,
        )
    )
    assert report.states > 10_000


def test_a_server_that_comes_back_empty_draws_greater_fences(run: Run) -> None:
    world = ElectionWorld(alone=False)
    actors = {"a": world.stands(), "b": world.stands()}
    clean(run(world, actors, {"x": empty_restart_a_moment_later()}))


def test_a_gates_floor_lifts_the_next_term_over_a_clock_that_is_behind(run: Run) -> None:
    """T6: an empty restart and a clock that steps back; the gate refused, and said how far it was."""
    world = ElectionWorld(alone=False)
    gate = 1_000_000 * 1000 + 70
    actors = {"a": world.stands(terms=2, refused_at=gate)}
    two = {"x": restart_empty(), "o": tick(-5)}

    def lifted(view: Any) -> str | None:
        fences = view.results["a"]
        if len(fences) == 2 and fences[1] <= gate:
            return f"a leads again below the gate's fence: {fences}"
        return None

    clean(run(world, actors, two, invariant=None, final=lifted))


def test_after_a_crash_at_any_step_the_next_one_leads(run: Run) -> None:
    """From every state there is, as if all had died there and the lease had ended."""
    world = ElectionWorld()

    def led(view: Any) -> str | None:
        fences, before = view.results["heal"], world.seen.state.taken
        if not fences:
            return "nobody is elected any more"
        fell = before and fences[0] <= before[-1][1]
        return f"it led with {fences}, after {before}" if fell else None

    actors = {"a": world.stands(terms=2), "b": world.stands()}
    report = clean(run(world, actors, heal=world.comes_after(), healed=led))
    assert report.states > 100


# -- what is missed


class ResignsEarly(SimSeat):
    """Gives the term back while its work goes on."""

    async def reign(self, term: Any) -> BaseException | None:
        await self.begin(term)
        await self.resign(term)
        await self.end(term)
        return None


class SaysStoppedAnyway(SimSeat):
    """Tells who never led that it has stopped."""

    async def take(self, floor: int) -> Any:
        try:
            return await super().take(floor)
        except Exception:
            await self.io.call(self.world.says, self.io.name, "stopped")
            raise


class KeepsWhatFailed(SimSeat):
    """Lets what work raises pass by the giving back."""

    async def reign(self, term: Any) -> BaseException | None:
        error = await super().reign(term)
        if error is not None:
            raise error
        return None


class GivesUpNothing(SimSeat):
    """Leaves behind what a lost reply may have taken."""

    undoes = False


@pytest.mark.parametrize(
    ("seat", "options", "faults", "says"),
    [
        pytest.param(ResignsEarly, {}, Faults(times=0), ("does not hold", "beside"), id="stop, then resign"),
        pytest.param(SaysStoppedAnyway, {}, Faults(times=0), ("not paired",), id="stopped only if started"),
        pytest.param(KeepsWhatFailed, {"fails": "work"}, Faults(times=0), ("held by nobody",), id="resign always"),
        pytest.param(GivesUpNothing, {}, LOST, ("held by nobody",), id="undo what was given up"),
    ],
)  # fmt: skip
def test_it_needs(
    run: Run, seat: type[SimSeat], options: dict[str, Any], faults: Faults, says: tuple[str, ...]
) -> None:
    world = ElectionWorld()
    actors = {"a": world.stands(seat=seat, **options), "b": world.stands()}
    found(run(world, actors, faults=faults), *says)


LOOKS_AWAY = altered("acquire", "if not held[1] and overtaken", "if overtaken")
RELEASES_ANY = altered(
    "release", "if redis.pcall('HGET', lock, 'attempt') ~= attempt then return {'LOST'} end\n", ""
)
NO_COUNTER = altered("acquire", "tonumber(mark[1] or '0') + 1, near_us", "0, near_us")
NO_FLOOR = altered("acquire", "now_ms * 1000, tonumber(floor))", "now_ms * 1000)")


@pytest.mark.parametrize(
    ("scripts", "says"),
    [
        pytest.param(LOOKS_AWAY, ("beside", "does not hold"), id="the look at who leads"),
        pytest.param(NO_COUNTER, ("drew fence",), id="the counter of fences"),
    ],
)
def test_it_needs_in_the_script(run: Run, scripts: Scripts, says: tuple[str, ...]) -> None:
    world = ElectionWorld(scripts)
    found(run(world, {"a": world.stands(), "b": world.stands()}), *says)


def test_it_needs_the_floor_in_the_script(run: Run) -> None:
    world = ElectionWorld(NO_FLOOR, alone=False)
    gate = 1_000_000 * 1000 + 70
    report = run(
        world,
        {"a": world.stands(terms=2, refused_at=gate)},
        invariant=None,
        final=lambda view: "below the gate" if view.results["a"][1] <= gate else None,
    )
    found(report, "below the gate")


def test_resigning_needs_the_attempt(run: Run) -> None:
    """Who was overtaken must not give back the term of who leads now."""
    for scripts in (SCRIPTS, RELEASES_ANY):
        world = ElectionWorld(scripts, alone=False)

        def robbed(view: Any, world: ElectionWorld = world) -> str | None:
            """The only expiry struck a while it led; so the lock of b, who came after, stands."""
            at_work = world.now()
            if world.seen.state.both and at_work == ("b",) and world.keys.lock not in view.keys:
                return "the term of b was given back under it"
            return None

        actors = {"a": world.stands(), "b": world.stands(after_expiry=True)}
        report = run(world, actors, {"x": expiry(1, of_the_lease)}, invariant=robbed, final=None)
        if scripts is SCRIPTS:
            clean(report)
        else:
            found(report, "given back")
