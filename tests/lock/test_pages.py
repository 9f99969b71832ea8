"""The pages about locks name tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"


def named() -> set[str]:
    """Every test of locks, and every file of them."""
    files = list(HERE.glob("test_*.py"))
    found = {file.stem for file in files}
    for file in files:
        found |= set(re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8")))
    return found


def missing(text: str) -> set[str]:
    """Names of tests in a page that no test has; ``…`` at an end stands for the rest of a name."""
    there = named()
    names = re.findall(r"\b(test_\w+)(…?)", text)
    return {
        name
        for name, more in names
        if not (any(one.startswith(name) for one in there) if more else name in there)
    }


@pytest.mark.parametrize("page", ["locks.md", "races-locks.md"])
def test_a_page_names_tests_that_are_there(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert missing(text) == set()
    assert len(re.findall(r"test_\w+", text)) > 20


def test_a_name_that_is_not_there_is_missed() -> None:
    assert missing("`test_api::test_nobody_wrote_this`") == {"test_nobody_wrote_this"}
    assert missing("`test_a_duplicate_that_comes_…`") == set()
