"""The public verbs: explore a scenario, replay one of its schedules."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass

from fencepost.testing.engine import Engine
from fencepost.testing.graph import Graph
from fencepost.testing.minimise import minimise
from fencepost.testing.play import PlayError
from fencepost.testing.reexecute import Reexecution
from fencepost.testing.report import Finding, Report, Telling, Told
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
        view: Server and results there.
    """

    told: str
    wrong: str
    view: View


@contextlib.contextmanager
def _engine(scenario: Scenario, server: ScratchServer | str | None) -> Iterator[Engine]:
    with _scratch(server) as own:
        engine = Engine(scenario, Sandbox(own.port))
        try:
            yield engine
        finally:
            engine.close()


@contextlib.contextmanager
def _scratch(server: ScratchServer | str | None) -> Iterator[ScratchServer]:
    if isinstance(server, ScratchServer):
        yield server
        return
    with ScratchServer(server) as own:
        yield own


def explore(
    scenario: Scenario,
    *,
    server: ScratchServer | str | None = None,
    limit: int = 400_000,
    walks: int = 0,
    seed: int = 0,
    endings: bool = False,
    progress: Told | None = None,
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
        progress: Told how far it is, a few times a second and at the end (see ``Progress``). What it
            raises ends the exploration.

    Returns:
        What was covered and what was found; ``.check()`` raises what was found.

    Raises:
        UndeclaredKey: A script touched a key that its caller did not declare.
        Refused: The server holds keys.
    """
    with _engine(scenario, server) as engine:
        graph = Graph(engine, limit)
        report = graph.search(endings, progress)
        if report.finding is not None or not walks or len(report.bounded_by) == 0:
            return report
        return _walk_on(graph, report, walks, seed, progress)


def _walk_on(graph: Graph, report: Report, walks: int, seed: int, progress: Told | None) -> Report:
    dice, finding, done = random.Random(seed), None, 0
    telling = Telling(progress, "walks", walks)
    while done < walks and finding is None:
        done += 1
        if telling.due(done == walks):
            telling.tell(schedules=done)
        words, message = graph.walk(dice)
        if message:
            words = minimise(words, lambda some: graph.follow(some, strict=False)[:2])
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
        seconds=report.seconds + telling.seconds,
        asked=graph.engine.sandbox.calls,
        finding=finding,
    )


def replay(
    scenario: Scenario,
    schedule: str,
    *,
    server: ScratchServer | str | None = None,
    live: bool = False,
) -> Replayed:
    """Run one schedule, as a report prints it; ``actor.*`` runs an actor to its end.

    Args:
        scenario: Whose.
        schedule: Words, each ``actor.step``; see ``Play`` for faults.
        server: See ``explore``.
        live: From scratch and unwrapped, as ``reexecute`` does; there is no ``actor.*`` then.

    Raises:
        PlayError: A word is not what could be next.
    """
    words = schedule.split()
    if live:
        with _scratch(server) as own:
            search = Reexecution(scenario, own, limit=1)
            told, wrong, view = search.follow(words, strict=True)
            search.put_cells()
        return Replayed(" ".join(told), wrong, view)
    with _engine(scenario, server) as engine:
        graph = Graph(engine, limit=0)
        try:
            told, wrong, node = graph.follow(words, strict=True)
        except ValueError as error:
            raise PlayError(str(error)) from None
        return Replayed(" ".join(told), wrong, engine.view(node[0], node[1], node[4:]))
