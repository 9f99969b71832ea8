"""Real processes under real faults: what users were told must be what is true when all has healed.

A seed says what is struck, in order and for how long: ``ROBUSTNESS_SEED=7 make robustness``. A run
that fails prints its plan, and keeps its logs where it says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from robustness.faults import (
    AROUND,
    FAULTS,
    NETWORK,
    OF_SERVER,
    CutConnections,
    EmptyServer,
    HoldReplies,
    LockDatabase,
    LoseReply,
    Storm,
    plan,
    storms,
)
from robustness.fleet import Fleet, eventually
from robustness.machine import (
    CLOCKS,
    DISKS,
    FillDisk,
    JumpServerClock,
    JumpWorkerClocks,
    require_clocks,
)
from robustness.postgres import POSTGRES
from robustness.traffic import Client, Traffic
from robustness.validate import Judgement, judge
from support.postgres import has_postgres
from support.require import require
from support.servers import find_binary

SEED = int(os.environ.get("ROBUSTNESS_SEED", "1"))
LOSSY = (*OF_SERVER, EmptyServer)
FAULTS_OF_WORKERS = tuple(one for one in AROUND if one is not LockDatabase)  # that is of SQLite


def traffic(fleet: Fleet, seed: int, clients: int = 4) -> Traffic:
    """Clients of a fleet."""
    return Traffic([Client(n, fleet.port, fleet.items, seed) for n in range(clients)])


def suffer(fleet: Fleet, clients: Traffic, planned: Sequence[Storm]) -> None:
    """One storm after the other; after each, everybody must get answers again."""
    for storm in planned:
        print(" with ".join(map(str, storm)), "…", flush=True)
        if any(one.fault.loses for one in storm):
            clients.mark("loss")
        for one in storm:
            one.fault.strike(fleet)
        # time itself: traffic meets the faults for a while
        time.sleep(max(one.seconds for one in storm))
        # What others need to start comes first.
        last = [one for one in reversed(storm) if not one.fault.needed]
        for one in [one for one in storm if one.fault.needed] + last:
            one.fault.heal(fleet)
        clients.go_on()
        clients.mark("calm")


def run(home: Path, seed: int, planned: Sequence[Storm], **fleet_options: Any) -> Judgement:
    """A whole run: start, suffer, drain, stop, judge."""
    require("valkey", find_binary("valkey") is not None)
    print(f"seed {seed}; logs in {home}")
    with Fleet(home, **fleet_options) as fleet:
        with traffic(fleet, seed) as clients:
            clients.go_on()
            suffer(fleet, clients, planned)
            clients.stop()
        fleet.drain()
        fleet.stop()
        lossy = any(one.fault.loses for storm in planned for one in storm)
        return judgement(fleet, clients, "lost data" if lossy else "")


def judgement(fleet: Fleet, clients: Traffic, expected: str) -> Judgement:
    """What its clients were told, held against what there is now; and nobody may have complained."""
    histories = [client.history for client in clients.clients]
    pairs = {(op.item, op.user) for history in histories for op in history if hasattr(op, "user")}
    unannounced = [one for client in clients.clients for one in client.unannounced]
    found = judge(histories, unannounced, fleet.ending(sorted(pairs)))
    found.wrong += [f"in the log of {one}" for one in fleet.complaints(expected)]
    return found


def came_out_right(found: Judgement) -> None:
    print(found)
    assert found.wrong == [], str(found)
    assert found.requests["ok"] > 100
    assert found.exact > 0.9 * found.pairs  # else nothing was held against anything


@pytest.mark.timeout(600)
def test_every_fault_once(tmp_path: Path) -> None:
    """The short slice: every kind of fault, two at a time."""
    came_out_right(run(tmp_path, SEED, storms(SEED, len(AROUND))))


@pytest.mark.timeout(600)
def test_the_network_holds_halves_and_swallows(tmp_path: Path) -> None:
    came_out_right(run(tmp_path, SEED, [(one,) for one in plan(SEED, len(NETWORK), NETWORK)]))


@pytest.mark.timeout(600)
def test_clocks_jump(tmp_path: Path) -> None:
    """The server's clock, and that of the services and flushers, a day ahead and a day behind."""
    require_clocks()
    jumps = [(one,) for one in plan(SEED, 2 * len(CLOCKS), CLOCKS)]
    came_out_right(run(tmp_path, SEED, jumps, clocks=True))


@pytest.mark.timeout(600)
def test_the_rows_are_in_a_postgresql_that_is_cut_locked_and_killed(tmp_path: Path) -> None:
    """And services speak TLS to the server, which is cut and held meanwhile."""
    require("postgres", has_postgres())
    around = storms(SEED, len(POSTGRES), (CutConnections, LoseReply, HoldReplies), POSTGRES)
    came_out_right(run(tmp_path, SEED, around, postgres=True, tls=True))


class FillDiskUntilFelt(FillDisk):
    """Until a flusher has said so (it does once), however slow the machine is."""

    def heal(self, fleet: Fleet) -> None:
        eventually(lambda: self._met(fleet), "a flusher finds the disk full")
        super().heal(fleet)

    def _met(self, fleet: Fleet) -> bool:
        return any("database or disk is full" in worker.said() for worker in fleet.flushers)


@pytest.mark.timeout(600)
def test_the_disk_of_the_database_is_full(tmp_path: Path) -> None:
    full = [(one,) for one in (*plan(SEED, 1, [FillDiskUntilFelt]), *plan(SEED, 1, DISKS))]
    came_out_right(run(tmp_path, SEED, full, disk=True))
    told = "".join(log.read_text() for log in tmp_path.glob("flusher*.log"))
    assert "database or disk is full" in told
    # A COMMIT that found no room was not done, and is not said to be unknown.
    assert "OutcomeUnknown" not in told


@pytest.mark.robustness
@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_many_storms_on_a_bad_machine(tmp_path: Path, seed: int) -> None:
    """Two faults at a time, jumping clocks and a full disk among them."""
    around = (*AROUND, *NETWORK, *DISKS, JumpWorkerClocks)
    of_server = (*OF_SERVER, JumpServerClock)
    require_clocks()
    storm = storms(seed, 40, of_server, around)
    came_out_right(run(tmp_path, seed, storm, clocks=True, disk=True))


@pytest.mark.robustness
@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_many_storms_over_a_postgresql(tmp_path: Path, seed: int) -> None:
    """Two faults at a time, one of them of the database."""
    require("postgres", has_postgres())
    storm = storms(seed, 40, (*FAULTS_OF_WORKERS, *OF_SERVER, *NETWORK), POSTGRES)
    came_out_right(run(tmp_path, seed, storm, postgres=True, tls=True))


@pytest.mark.robustness
@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_many_faults(tmp_path: Path, seed: int) -> None:
    """No data is declared lost, so nothing that was acknowledged may be missing or reversed."""
    came_out_right(run(tmp_path, seed, [(one,) for one in plan(seed, 4 * len(FAULTS))]))


@pytest.mark.robustness
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_many_storms(tmp_path: Path, seed: int) -> None:
    """The same, two faults at a time."""
    came_out_right(run(tmp_path, seed, storms(seed, 56)))


@pytest.mark.robustness
@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_many_storms_and_losses(tmp_path: Path, seed: int) -> None:
    """The server is emptied too: what was told after the last loss holds, and all sides agree."""
    came_out_right(run(tmp_path, seed, storms(seed, 48, LOSSY)))
