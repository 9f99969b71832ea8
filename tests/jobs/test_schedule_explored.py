"""Two schedulers at half past two, in every order, on the night when there is no half past two.

What must hold: the nightly job of 8 March 2026 comes once, not before the clock says 03:00, whoever
dies, pauses for days, or loses a reply. Each guard is taken out once, and must be missed; and two
schedulers that know of no occurrences run it twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost._core import commands
from fencepost._core.script import Script, read_contract
from fencepost.errors import FencepostError
from fencepost.jobs.cron import Cron
from fencepost.jobs.schedule import OCCUR, Schedule, Watch, look
from fencepost.testing import (
    Cell,
    Faults,
    Move,
    Report,
    Scenario,
    ScratchServer,
    ServerState,
    SimPort,
    View,
    explore,
    tick,
)
from support.jobs import a_record, make_place
from support.require import require
from support.servers import find_binary

PLACE = make_place("t", "mail")
NIGHT = datetime(2026, 3, 8, 7, tzinfo=UTC)  # 02:30 is jumped over in New York: it comes at 03:00
DUE = int(NIGHT.timestamp() * 1000)
DAYS = 2 * 86_400_000
SCHEDULE = Schedule(
    name="nightly", cron=Cron("30 2 8 3 *", "America/New_York"), record=a_record(result_ttl=0)
)
# A worker that runs whatever is ready to its end, in one step.
RUNS = """-- runs: take a job and end it.
-- KEYS   ready, bodies, unique
-- ->     n   how many
local ready, bodies, unique = KEYS[1], KEYS[2], KEYS[3]

local popped = redis.call('ZPOPMIN', ready)
if #popped == 0 then return 0 end
redis.call('DEL', unique)
return redis.call('HDEL', bodies, popped[1])
"""
RUN = Script(read_contract(RUNS), RUNS, int)


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


class Night:
    """What was added, and what must hold of it."""

    def __init__(self) -> None:
        self.added = Cell(())

    def saw(self, actor: str, call: Any, answer: Any) -> None:
        count = getattr(answer, "said", "").count("C")
        self.added.state = (*self.added.state, *[actor] * count)

    def invariant(self, view: View) -> str | None:
        if len(self.added.state) > 1:
            return f"it came twice: added by {self.added.state}"
        if self.added.state and view.server.clock_ms < DUE:
            return "it came early"
        return None

    def came(self, view: View) -> str | None:
        """After a scheduler has lived to see the time."""
        return self.invariant(view) or (None if self.there(view) else "it never came")

    def there(self, view: View) -> bool:
        return bool(self.added.state) or PLACE.keys.remembered in view.keys


def run(
    scratch: ScratchServer,
    occur: Any = OCCUR,
    schedules: tuple[Schedule, Schedule] = (SCHEDULE, SCHEDULE),
    environment: dict[str, Move] | None = None,
    work: Any = None,
    heal: bool = True,
    **more: Any,
) -> Report:
    night = Night()

    def scheduler(schedule: Schedule) -> Any:
        async def keeps(io: SimPort) -> None:
            # It has been here since the evening; what it does not know it asks.
            watch = Watch(schedule, mark_ms=DUE - 1000)
            for _ in range(2):
                try:
                    await (work or look)(io, PLACE, [watch], occur)
                except FencepostError:  # as a worker does
                    await (work or look)(io, PLACE, [watch], occur)

        return keeps

    async def waits(io: SimPort) -> None:
        await io.until(lambda view: view.server.clock_ms >= DUE, "night")
        await scheduler(schedules[0])(io)

    async def works(io: SimPort) -> None:
        await io.run(RUN((PLACE.keys.ready, PLACE.keys.bodies, PLACE.keys.unique)))

    async def heals(io: SimPort) -> None:
        watch = Watch(schedules[0], mark_ms=DUE - 1000)
        await look(io, PLACE, [watch], occur)

    scenario = Scenario(
        actors={"a": waits, "b": scheduler(schedules[1]), "w": works},
        environment={"x": tick(1000)} if environment is None else environment,
        server=ServerState(clock_ms=DUE - 1000),
        cells=[night.added],
        crashes=frozenset({"b"}),
        invariant=night.invariant,
        observe={"occur": night.saw},
        final=night.came,
        **more,
    )
    if heal:
        scenario.heal = heals
        scenario.healed = lambda view: (
            night.came(view) if view.server.clock_ms >= DUE else night.invariant(view)
        )
    return explore(scenario, server=scratch, limit=400_000)


def without(old: str, new: str) -> Any:
    assert OCCUR.plain.count(old) == 1
    return OCCUR.with_text(OCCUR.plain.replace(old, new))


def exhausted(report: Report) -> Report:
    report.check()
    assert report.complete
    return report


def stepping(*steps: int) -> dict[str, Move]:
    """The clock goes on to the time, then by these."""
    return {"x": tick(1000), **{f"y{n}": tick(step) for n, step in enumerate(steps)}}


def test_two_schedulers_at_half_past_two(scratch: ScratchServer) -> None:
    assert exhausted(run(scratch)).states > 50


def test_a_scheduler_that_was_asleep_for_two_days(scratch: ScratchServer) -> None:
    """By then the id is not remembered any more; the mark is."""
    exhausted(run(scratch, environment=stepping(DAYS), heal=False))


def test_lost_replies(scratch: ScratchServer) -> None:
    exhausted(run(scratch, faults=Faults(times=1), heal=False))


def test_old_and_new_workers_during_a_change(scratch: ScratchServer) -> None:
    """The expression was changed, and both name this moment: its id is the same."""
    other = dataclasses.replace(SCHEDULE, cron=Cron("0 3 8 3 *", "America/New_York"))
    assert other.key != SCHEDULE.key
    exhausted(run(scratch, schedules=(SCHEDULE, other)))


def test_the_mark_is_missed(scratch: ScratchServer) -> None:
    marks_nothing = without("if tonumber(at_ms) > seen_ms then", "if true then")
    report = run(scratch, marks_nothing, environment=stepping(DAYS), heal=False)
    assert report.finding is not None
    assert "twice" in report.finding.message


def test_the_memory_of_ids_is_missed(scratch: ScratchServer) -> None:
    other = dataclasses.replace(SCHEDULE, cron=Cron("0 3 8 3 *", "America/New_York"))
    forgets = without("'k', remember_ms, record", "'k', '0', record")
    report = run(scratch, forgets, schedules=(SCHEDULE, other), heal=False)
    assert report.finding is not None
    assert "twice" in report.finding.message


def test_the_mark_moves_with_the_jobs_only(scratch: ScratchServer) -> None:
    """The usual order of those who fear to run it twice: note first, add then, and die between."""

    async def notes_first(io: Any, place: Any, watches: list[Watch], occur: Any) -> None:
        [watch] = watches
        keys = place.keys
        names = (keys.bodies, keys.due, keys.ready, keys.claims, keys.unique, keys.remembered)
        head: list[Any] = [watch.schedule.key, watch.mark_ms, DUE, 250, 86_400_000, DAYS, 0]
        job = [watch.schedule.id(NIGHT), DUE, watch.schedule.record]
        noted = await io.run(occur((*names, keys.wake, keys.schedules, keys.history), head))
        if getattr(noted, "seen_ms", DUE) < DUE:
            await io.run(
                occur(
                    (*names, keys.wake, keys.schedules, keys.history),
                    [*head[:1], 1, 1, *head[3:], *job],
                )
            )

    report = run(scratch, work=notes_first)
    assert report.finding is not None
    assert "never came" in report.finding.message


def test_schedulers_that_know_of_no_occurrences_run_it_twice(scratch: ScratchServer) -> None:
    """The usual beat: each adds a job of its own when the time has come."""

    async def beats(io: Any, place: Any, watches: list[Watch], occur: Any) -> None:
        seconds, _ = await io.run(commands.read("TIME"))
        if int(seconds) * 1000 < DUE or watches[0].next_ms:
            return
        watches[0].next_ms = DUE
        keys = place.keys
        names = (keys.bodies, keys.due, keys.ready, keys.claims, keys.unique, keys.remembered)
        words = [io.name, 1, 1, 250, 0, DAYS, 0, f"job of {io.name}", DUE, a_record(result_ttl=0)]
        await io.run(occur((*names, keys.wake, keys.schedules, keys.history), words))

    report = run(scratch, work=beats, heal=False)
    assert report.finding is not None
    assert "twice" in report.finding.message
