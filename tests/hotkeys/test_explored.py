"""Merges of two processes in every order, with replies lost, requests dropped and sent twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fencepost._core.port import Port
from fencepost.errors import FencepostError
from fencepost.hotkeys import HotKeysOptions
from fencepost.hotkeys.meter import Report, Row
from fencepost.hotkeys.protocol import Place, place_of
from fencepost.hotkeys.scripts import MERGE
from fencepost.testing import Faults, Scenario, ScratchServer, explore
from support.require import require
from support.servers import find_binary

OPTIONS = HotKeysOptions(interval=60.0, enter=10.0, leave=5.0)
PLACE = place_of("fp")


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


def report(floor: int, *rows: tuple[str, int, int]) -> Report:
    return Report(floor, tuple(Row(*row) for row in rows))


REPORTS = {
    "a": [report(2, ("x", 6, 1), ("y", 3, 3)), report(1, ("x", 9, 0))],
    "b": [report(0, ("x", 5, 5)), report(4, ("y", 7, 2), ("z", 1, 0))],
}


def wrong(view: Any) -> str | None:
    """The sums against the reports that the server has."""
    sure, writes, reports, _, hot = PLACE.keys
    calls: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for text in (view.value(reports) or {}).values():
        floor, *rows = json.loads(text)
        written[""] += floor
        for name, seen, some in zip(*[iter(rows)] * 3, strict=True):
            calls[name] += seen
            written[name] += some
    is_sure = {key: int(float(n)) for key, n in dict(view.value(sure) or {}).items() if key}
    is_written = {key: int(n) for key, n in (view.value(writes) or {}).items() if int(n)}
    if is_sure != dict(calls) or is_written != {key: n for key, n in written.items() if n}:
        return f"{is_sure} and {is_written} are not {dict(calls)} and {dict(written)}"
    if any(calls[name] < OPTIONS.leave for name in view.value(hot) or {}):
        return "something is hot that is below leave"
    return None


def scenario(place: Place) -> Scenario:
    def process(name: str) -> Any:
        async def says(io: Port) -> None:
            for one in REPORTS[name]:
                try:
                    await place.merge(io, name, one, OPTIONS, 8)
                except FencepostError:
                    continue  # as the loop does: the next one takes its place

        return says

    return Scenario(
        actors={name: process(name) for name in REPORTS},
        invariant=wrong,
        faults=Faults(times=2),
    )


def test_sums_are_those_of_the_last_reports_in_every_order(scratch: ScratchServer) -> None:
    report = explore(scenario(PLACE), server=scratch)
    report.check()
    assert not report.bounded_by, report


def test_sums_need_the_old_report_taken_away(scratch: ScratchServer) -> None:
    """The control."""
    text = MERGE.plain.replace("redis.call('HGET', reports, process) or '[0]'", "'[0]'")
    assert text != MERGE.plain
    found = explore(scenario(replace(PLACE, script=MERGE.with_text(text))), server=scratch)
    assert found.finding is not None
