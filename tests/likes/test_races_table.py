"""The table of races is whole, and each test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parent.parent / "docs" / "races.md"


def rows() -> dict[int, list[str]]:
    """The cells of each race's row."""
    found = {}
    for line in TABLE.read_text().splitlines():
        match = re.match(r"\| R(\d+) \|(.*)\|$", line)
        if match:
            found[int(match[1])] = [cell.strip() for cell in match[2].split("|")]
    return found


def names() -> set[str]:
    """The names of all tests of likes."""
    return {
        node.name
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def test_every_race_has_a_test_of_its_number_and_a_control() -> None:
    table, there = rows(), names()
    assert sorted(table) == list(range(1, 48))
    for number, (_what, _right, test, control) in table.items():
        named = set(re.findall(r"`(test_\w+)`", f"{test} {control}"))
        assert named <= there, f"R{number} names tests that are not there: {named - there}"
        assert any(name.startswith(f"test_r{number}_") for name in named), f"R{number}"
        assert "`test_" in control or number == 45, f"R{number} has no control"


def test_every_test_with_a_number_is_in_the_table() -> None:
    named = set(re.findall(r"`(test_r\d+_\w+)`", TABLE.read_text()))
    assert {name for name in names() if re.match(r"test_r\d+_", name)} == named
