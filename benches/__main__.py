"""``python -m benches``: run what is asked for, print a table."""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benches import (
    cache,
    cost,
    explorer,
    flush,
    hotkeys,
    jobs,
    likes,
    link,
    local,
    lock,
    lock_peers,
    near,
    postgres,
    quorum,
    serve,
    sparse,
    threads,
    writes,
)
from benches.peers import NotHere
from benches.runner import FULL, NORMAL, QUICK, Case, Row, end_on_sigterm, processors, say

GROUPS = (
    link,
    cache,
    local,
    near,
    hotkeys,
    writes,
    lock,
    jobs,
    lock_peers,
    quorum,
    threads,
    likes,
    cost,
    flush,
    sparse,
    postgres,
    serve,
    explorer,
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benches", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a look: seconds, and figures to match")
    size.add_argument(
        "--full", action="store_true", help="more rounds, and peers in venvs of their own"
    )
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose name matches")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there, too")
    parser.add_argument("--list", action="store_true", help="name the cases")
    return parser.parse_args()


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    """The rows, aligned."""
    head = ("what", "unit", "ours", "peer", "", "ratio", "aim", "")
    lines = [
        (
            row.what,
            row.unit,
            _figure(row.ours),
            _figure(row.peer),
            row.peer_name,
            f"{row.ratio:.2f}x" if row.ratio is not None else "",
            f"{row.aim:g}x" if row.aim is not None else "",
            row.verdict,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    right = (2, 3, 5, 6)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *lines)
    )


def main() -> int:
    options = _options()
    end_on_sigterm()
    wanted = re.compile(options.only)
    found: list[Case] = [
        case for group in GROUPS for case in group.cases() if wanted.search(case.name)
    ]
    if options.list:
        print("\n".join(case.name + (" (full)" if case.full else "") for case in found))
        return 0
    found = [case for case in found if options.full or not case.full]
    if not found:
        say(f"no case matches {options.only!r}; see --list")
        return 2
    scale = FULL if options.full else QUICK if options.quick else NORMAL
    rows: list[Row] = []
    start = time.monotonic()
    for number, case in enumerate(found, 1):
        say(f"[{number}/{len(found)}] {case.name}")
        try:
            rows += case.run(scale)
        except NotHere as error:
            say(f"  left out: {error}")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{python}, {platform.machine()}, {processors()} processors"
    print(table(rows))
    print(
        f"\n{machine}; {scale.name}: medians of {scale.rounds} interleaved rounds of {scale.seconds:g} s;"
        f" {time.monotonic() - start:.0f} s in all. A ratio says how many times better ours is."
    )
    if options.json:
        figures = [{**asdict(row), "verdict": row.verdict} for row in rows]
        text = json.dumps(
            {"machine": machine, "scale": scale.name, "rows": figures}, indent=1, ensure_ascii=False
        )
        options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
