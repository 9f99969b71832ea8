"""The explorer against what it promises: transitions a second of the graph, schedules a second of re-execution.

There is no peer to take turns with, so the ratio is to the promise, and means something on a quiet
machine only; the figures of ``docs/explorer.md`` are these.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benches.runner import Case, Row, Scale
from fencepost.testing import Report, Scenario, ScratchServer, explore, reexecute
from fencepost.testing.files import load

SCHEDULES: Final = 1_500.0  # a second
TRANSITIONS: Final = 50_000.0
STATES: Final = {"quick": 40_000, "normal": 200_000, "full": 600_000}
HERE: Final = Path(__file__).parent.parent
RACES: Final = ("lock", "cache_aside", "counter")


def _row(what: str, unit: str, promise: float, scale: Scale, run: Callable[[], Report]) -> Row:
    rates = [run().check().rate for _ in range(scale.rounds)]
    rate = statistics.median(rates)
    return Row(what, unit, rate, "promised", promise, rate / promise, 1.0)


def _reexecution(scale: Scale) -> list[Row]:
    examples = load(HERE / "examples" / "explored.py")
    rows = []
    with ScratchServer() as server:
        for name in RACES:

            def run(make: Callable[[], Scenario] = examples[name]) -> Report:
                return reexecute(make(), server=server, reduce=False)

            rows.append(
                _row(
                    f"re-execution, every schedule of {name}", "schedules/s", SCHEDULES, scale, run
                )
            )
    return rows


def _graph(scale: Scale) -> list[Row]:
    sys.path.insert(0, str(HERE / "tests"))
    from likes.scenarios import SCENARIOS

    states = STATES[scale.name]
    with ScratchServer() as server:

        def run() -> Report:
            return explore(SCENARIOS["two_loads"](), server=server, limit=states)

        what = f"graph, {states:,} states of the like cache"
        return [_row(what, "transitions/s", TRANSITIONS, scale, run)]


def cases() -> list[Case]:
    """What this file measures."""
    return [
        Case("explorer: re-execution", partial(_reexecution)),
        Case("explorer: graph", partial(_graph)),
    ]
