"""The proof of the like cache as tables, written into ``docs/guarantees.md`` by the run that found them.

``make explore`` runs every scenario to its end or its bound and every mutant, and puts what it saw
between the marks in the page. A run of a part (``ARGS="-k mutant"``) writes those rows anew and keeps
the others; what the code does not hold any more goes.
"""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Sequence
from pathlib import Path

from fencepost.testing import Report
from likes.mutants import MUTANTS
from likes.scenarios import SCENARIOS
from likes.second_lines import SECOND

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"
CASES = [f"{name} {kind}" for name in SCENARIOS for kind in ("full", "sparse")]
HEADS = {
    "mutants": ("taken out", "of", "found in", "states until then", "shortest schedule"),
    "second lines": ("taken out", "of", "what one call answers with it", "and without it"),
    "scenarios": ("scenario, items", "states", "transitions", "until"),
}
ORDER: Mapping[str, Sequence[str]] = {
    "mutants": [one.name for one in MUTANTS],
    "second lines": [one.name for one in SECOND],
    "scenarios": CASES,
}
Row = tuple[str, ...]


def marks(table: str) -> tuple[str, str]:
    """What stands before and behind a table."""
    return (f"<!-- {table}: written by `make explore` -->", f"<!-- end of {table} -->")


def rows(table: str, text: str | None = None) -> dict[str, Row]:
    """The rows of a table in the page, by their first cell, in order."""
    before, behind = marks(table)
    text = PAGE.read_text("utf-8") if text is None else text
    body = text.partition(before)[2].partition(behind)[0]
    cells = [
        tuple(cell.strip().strip("`") for cell in line.split("|")[1:-1])
        for line in body.splitlines()
        if line.startswith("|")
    ]
    return {row[0]: row for row in cells[2:]}


def write(table: str, found: Mapping[str, Row]) -> None:
    """Put rows into the page: these are new, the others stay as they were run before."""
    with PAGE.open("r+", encoding="utf-8") as page:
        fcntl.flock(page, fcntl.LOCK_EX)  # several workers of one run may come at once
        text = page.read()
        both = {**rows(table, text), **found}
        lines = [
            "| " + " | ".join(HEADS[table]) + " |",
            "|" + "---|" * len(HEADS[table]),
            *(_line(both[name]) for name in ORDER[table] if name in both),
        ]
        before, behind = marks(table)
        head, _, rest = text.partition(before)
        tail = rest.partition(behind)[2]
        assert tail, f"{PAGE.name} has no place for the {table}"
        page.seek(0)
        page.write("\n".join([head + before, "", *lines, "", behind]) + tail)
        page.truncate()


def _line(row: Row) -> str:
    *cells, last = row
    return (
        "| " + " | ".join(cells) + f" | `{last}` |" if len(row) == 5 else f"| {' | '.join(row)} |"
    )


def scenario_row(case: str, report: Report) -> Row:
    """What was covered of a scenario."""
    until = "its end" if report.complete else report.bounded_by
    return (case, f"{report.states:,}", f"{report.transitions:,}", until)


def mutant_row(name: str, of: str, where: str, report: Report) -> Row:
    """Where a mutant was found."""
    assert report.finding is not None, name
    return (name, of, where, f"{report.states:,}", report.finding.schedule)
