"""The public verbs: explore a scenario, replay one of its schedules."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fencepost.testing.engine import Engine
from fencepost.testing.graph import Graph
from fencepost.testing.play import PlayError
from fencepost.testing.report import Finding, Report
from fencepost.testing.sandbox import Sandbox
from fencepost.testing.scenario import Scenario
from fencepost.testing.scratch import ScratchServer
from fencepost.testing.world import View


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a schedule led to.

    Args:
        told: The words that were taken.
        wrong: What is wrong there; '' if nothing is.
        view: Server and results there. The scenario's cells are left as they are there.
    """

    told: str
    wrong: str
    view: View


@contextlib.contextmanager
def _engine(scenario: Scenario, server: ScratchServer | str | None) -> Iterator[Engine]:
    with contextlib.ExitStack() as stack:
        if not isinstance(server, ScratchServer):
            server = stack.enter_context(ScratchServer(server))
        engine = Engine(scenario, Sandbox(server.port))
        stack.callback(engine.close)
        yield engine


def explore(
    scenario: Scenario,
    *,
    server: ScratchServer | str | None = None,
    limit: int = 400_000,
    walks: int = 0,
    seed: int = 0,
    endings: bool = False,
) -> Report:
    """Run a scenario's protocols and scripts in every order that matters.

    The search is a state graph: each state of server, cells and actors is visited once. Where it
    does not end within ``limit``, seeded random walks may go on from the start.

    Args:
        scenario: What to explore.
        server: Where scripts run: a ``ScratchServer``, the URL of an empty server, or None for one
            that lives as long as this call.
        limit: States, at most.
        walks: How many random schedules to run if the graph was not exhausted.
        seed: Of the walks: the same seed gives the same schedules.
        endings: Collect how the runs end in ``report.endings``.

    Returns:
        What was covered and what was found; ``.check()`` raises what was found.

    Raises:
        UndeclaredKey: A script touched a key that its caller did not declare.
        Refused: The server holds keys.
    """
    with _engine(scenario, server) as engine:
        graph = Graph(engine, limit)
        report = graph.search(endings)
        if report.finding is not None or not walks or len(report.bounded_by) == 0:
            return report
        return _walk_on(graph, report, walks, seed)


def _walk_on(graph: Graph, report: Report, walks: int, seed: int) -> Report:
    started, dice, finding, done = time.perf_counter(), random.Random(seed), None, 0
    while done < walks and finding is None:
        done += 1
        words, message = graph.walk(dice)
        if message:
            words = graph.minimise(words)
            told, message, node = graph.follow(words, strict=True)
            finding = Finding(
                message, " ".join(told), graph.engine.view(node[0], node[1], node[4:])
            )
    return dataclasses.replace(
        report,
        search="graph, then walks",
        schedules=done,
        transitions=graph.transitions,
        bounded_by=f"{report.bounded_by}; then {done:,} random walks, seed {seed}",
        seconds=report.seconds + time.perf_counter() - started,
        asked=graph.engine.sandbox.calls,
        finding=finding,
    )


def replay(
    scenario: Scenario, schedule: str, *, server: ScratchServer | str | None = None
) -> Replayed:
    """Run one schedule, as a report prints it; ``actor.*`` runs an actor to its end.

    Args:
        scenario: Whose.
        schedule: Words, each ``actor.step``; see ``Play`` for faults.
        server: See ``explore``.

    Raises:
        PlayError: A word is not what could be next.
    """
    with _engine(scenario, server) as engine:
        graph = Graph(engine, limit=0)
        try:
            told, wrong, node = graph.follow(schedule.split(), strict=True)
        except ValueError as error:
            raise PlayError(str(error)) from None
        view = engine.view(node[0], node[1], node[4:])
        view = dataclasses.replace(view)
        return Replayed(" ".join(told), wrong, view)
