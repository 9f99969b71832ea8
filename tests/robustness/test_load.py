"""Many clients at once: three services, and a flusher that is killed again and again.

Nothing is lost here, and nothing strikes the services: at the end rows, counts and cache must agree
to the last like, and no answer may be a 5xx but the announced kinds of 503.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from robustness.fleet import Fleet
from robustness.test_robustness import SEED, judgement
from robustness.traffic import Client, Traffic
from robustness.validate import Judgement
from support.require import require
from support.servers import find_binary

SERVICES = 3
BETWEEN_KILLS = 2.5


def load(home: Path, *, seconds: float, clients: int, items: int, kills: int) -> Judgement:
    """What is to be said of a run of so many seconds, and at least so many kills of the flusher."""
    require("valkey", find_binary("valkey") is not None)
    killed = 0
    with Fleet(home, services=SERVICES, flushers=1, items=items, proxy=False) as fleet:
        everybody = [
            Client(number, fleet.port, fleet.items, SEED, SERVICES) for number in range(clients)
        ]
        with Traffic(everybody) as traffic:
            traffic.go_on()
            began = time.monotonic()
            while time.monotonic() < began + seconds or killed < kills:
                # time itself: the flusher works for a while before it is killed
                time.sleep(min(BETWEEN_KILLS, seconds / 2))
                fleet.flushers[0].kill()
                killed += 1
                fleet.flushers[0].start()
                fleet.flushers[0].wait_ready()
            took = time.monotonic() - began
            traffic.go_on()
            traffic.stop(look_round=False)
        began = time.monotonic()
        fleet.drain()
        drained = time.monotonic() - began
        fleet.stop()
        found = judgement(fleet, traffic, "")
        rate = found.requests["ok"] / took
        print(f"{took:.0f} s, {killed} kills, {rate:.0f} answers/s; drained within {drained:.1f} s")
        return found


def came_out_exact(found: Judgement) -> None:
    print(found)
    assert found.wrong == [], str(found)
    assert found.requests["ok"] > 100
    # A request that was cut short by the end of the run is the only thing that may be open.
    assert found.exact >= found.pairs - found.requests["unknown"]


@pytest.mark.timeout(300)
def test_some_seconds_of_load(tmp_path: Path) -> None:
    """The short slice."""
    came_out_exact(load(tmp_path, seconds=3.0, clients=16, items=60, kills=1))


@pytest.mark.soak
def test_a_minute_of_load(tmp_path: Path) -> None:
    """64 clients on 1,000 activities."""
    came_out_exact(load(tmp_path, seconds=60.0, clients=64, items=1000, kills=8))
