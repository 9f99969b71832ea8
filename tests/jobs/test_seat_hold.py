"""``examples/seat_hold.py`` does what it says: no order releases a paid seat, and two usual ones do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from fencepost.testing import Report, ScratchServer, explore
from support.require import require
from support.servers import find_binary

FILE = Path(__file__).parents[2] / "examples" / "seat_hold.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("seat_hold", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def look(scenario: Any) -> Report:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        return explore(scenario, server=server, limit=400_000)


def test_no_order_releases_a_paid_seat(example: Any) -> None:
    report = look(example.seat_that_is_compared_under_its_lock())
    report.check()
    assert report.complete
    assert report.states > 1000


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("seat_that_is_looked_at_first", "ann has paid, and the seat is free"),
        ("payment_that_trusts_the_cancel", "bob has paid, and the seat is paid by ann"),
    ],
)
def test_the_usual_orders_release_or_sell_a_paid_seat(example: Any, name: str, wrong: str) -> None:
    report = look(getattr(example, name)())
    assert report.finding is not None
    assert report.finding.message == wrong
