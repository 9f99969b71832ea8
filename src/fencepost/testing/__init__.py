"""Run the real protocols and the real scripts on a real server, in every order or in the one you choose.

    scenario = Scenario(
        actors={"reader": lambda io: read(io, …), "writer": lambda io: write(io, …)},
        environment={"x": expiry()},
        final=lambda view: …,
    )
    explore(scenario).check()                             # every order; prints a schedule that fails
    replay(scenario, "reader.claim writer.save writer.invalidate reader.publish")

    play = Play(client.port, reader=lambda io: status(io, …), writer=lambda io: set_like(io, …))
    play.run("reader.begin reader.snapshot writer.set reader.fill")

Every step that a protocol takes is named after its script, command or function; a schedule is a
line of such names, and replays for ever. See ``docs/explorer.md``.
"""

from fencepost.testing.due import AsyncDueJobs, DueJobs
from fencepost.testing.environment import (
    Move,
    delete,
    expiry,
    failover,
    flush_all,
    restart_empty,
    script_flush,
    tick,
)
from fencepost.testing.explore import Replayed, explore, replay
from fencepost.testing.model_rows import Rows
from fencepost.testing.play import Play, PlayError
from fencepost.testing.reexecute import reexecute
from fencepost.testing.report import Finding, Found, Progress, Report
from fencepost.testing.sandbox import Sandbox, UndeclaredKey
from fencepost.testing.scenario import Faults, Scenario
from fencepost.testing.scratch import ScratchServer
from fencepost.testing.simulated import SimPort, Step
from fencepost.testing.world import Cell, ServerState, Stored, View

__all__ = [
    "AsyncDueJobs",
    "Cell",
    "DueJobs",
    "Faults",
    "Finding",
    "Found",
    "Move",
    "Play",
    "PlayError",
    "Progress",
    "Replayed",
    "Report",
    "Rows",
    "Sandbox",
    "Scenario",
    "ScratchServer",
    "ServerState",
    "SimPort",
    "Step",
    "Stored",
    "UndeclaredKey",
    "View",
    "delete",
    "expiry",
    "explore",
    "failover",
    "flush_all",
    "reexecute",
    "replay",
    "restart_empty",
    "script_flush",
    "tick",
]
