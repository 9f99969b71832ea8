"""``fencepost explore``: run the scenarios of a file in every order, or one schedule again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from fencepost.testing import Progress, Report, Scenario, ScratchServer
    from fencepost.testing.files import Maker

_LINE_EVERY = 5.0  # seconds: for logs


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--only", "names", multiple=True, help="Only this scenario; may be repeated.")
@click.option("--replay", "schedule", help="Run one schedule instead, as a report prints it.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=400_000,
    show_default=True,
    help="States (or schedules) at most, each.",
)
@click.option(
    "--search",
    type=click.Choice(["graph", "re-execution", "every-schedule"]),
    default="graph",
    show_default=True,
    help="A graph of states; schedules from scratch, with sleep sets; or without.",
)
@click.option(
    "--walks", type=click.IntRange(0), default=0, help="Random schedules where that was not enough."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random schedules.")
@click.option("--list", "listing", is_flag=True, help="Only name the scenarios.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def explore(
    file: Path,
    names: tuple[str, ...],
    schedule: str | None,
    listing: bool,
    as_json: bool,
    search: str,
    **bounds: Any,
) -> None:
    """Run the scenarios of FILE on a private server, in every order that matters.

    The exit code is 1 if something was found; its schedule is what --replay takes.
    """
    chosen = _choose(file, names)
    if listing:
        click.echo("\n".join(chosen))
        return
    if schedule is not None and len(chosen) > 1:
        raise click.UsageError(
            f"--replay is for one scenario: choose with --only {', --only '.join(chosen)}"
        )
    from rich.console import Console

    from fencepost.testing import ScratchServer, UndeclaredKey

    console = Console(highlight=False, soft_wrap=True)
    found = 0
    try:
        with ScratchServer() as server:
            for name, make in chosen.items():
                if schedule is not None:
                    live = search != "graph"
                    found += _replay(console, name, make(), schedule, server, as_json, live)
                else:
                    run = _searching(search, bounds)
                    found += _explore(console, file, name, make(), run, server, as_json)
    except NotImplementedError as error:  # what only re-execution can follow
        raise click.ClickException(f"{name}: {error}: --search re-execution") from error
    except UndeclaredKey as error:
        raise click.ClickException(f"{name}: {error}") from error
    except FencepostError as error:
        raise click.ClickException(str(error)) from error
    if found:
        raise SystemExit(1)


def _choose(file: Path, names: tuple[str, ...]) -> dict[str, Maker]:
    from fencepost.testing.files import load

    try:
        there = load(file)
    except (FencepostError, ImportError) as error:
        raise click.ClickException(f"{file}: {error}") from error
    if unknown := [name for name in names if name not in there]:
        raise click.ClickException(f"{file} has no {', '.join(unknown)}; it has {', '.join(there)}")
    return {name: there[name] for name in names or there}


def _searching(search: str, bounds: dict[str, Any]) -> Callable[..., Report]:
    from fencepost.testing import explore as graph
    from fencepost.testing import reexecute

    if search == "graph":
        return partial(graph, **bounds)
    return partial(reexecute, limit=bounds["limit"], reduce=search == "re-execution")


def _explore(
    console: Console,
    file: Path,
    name: str,
    scenario: Scenario,
    run: Callable[..., Report],
    server: ScratchServer,
    as_json: bool,
) -> bool:
    with _Told(name, quiet=as_json) as told:
        report = run(scenario, server=server, progress=told)
    if as_json:
        click.echo(json.dumps({"scenario": name, **_as_dict(report)}))
        return report.finding is not None
    sign = (
        "[bold red]✗[/]"
        if report.finding
        else "[bold green]✓[/]"
        if report.complete
        else "[bold yellow]~[/]"
    )
    console.print(f"{sign} [bold]{name}[/]  {report}")
    if report.finding is not None:
        console.print(f"  {report.finding}", markup=False)
        live = "--search re-execution " if report.search == "re-execution" else ""
        again = f'fencepost explore {file} --only {name} {live}--replay "{report.finding.schedule}"'
        console.print(f"  again: {again}", markup=False)
    return report.finding is not None


class _Told:
    """Shows how far an exploration is: in place on a terminal, else a line now and then. On stderr."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        from rich.console import Console

        self._name, self._next = name, _LINE_EVERY
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
        self._status = self._console.status(f"{name} …")

    def __enter__(self) -> _Told:
        self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._status.stop()

    def __call__(self, progress: Progress) -> None:
        told = f"{self._name}: {progress.search}, {progress}"
        if self._console.is_terminal:
            self._status.update(told)
        elif progress.seconds >= self._next:
            self._next = progress.seconds + _LINE_EVERY
            self._console.print(told, markup=False)


def _replay(
    console: Console,
    name: str,
    scenario: Scenario,
    schedule: str,
    server: ScratchServer,
    as_json: bool,
    live: bool,
) -> bool:
    from fencepost.testing import PlayError, replay

    try:
        done = replay(scenario, schedule, server=server, live=live)
    except PlayError as error:
        raise click.ClickException(str(error)) from error
    results = {actor: repr(result) for actor, result in done.view.results.items()}
    keys = {key: repr(stored.value) for key, stored in done.view.keys.items()}
    if as_json:
        told = {
            "scenario": name,
            "told": done.told,
            "wrong": done.wrong,
            "results": results,
            "keys": keys,
        }
        click.echo(json.dumps(told))
        return bool(done.wrong)
    sign = "[bold red]✗[/]" if done.wrong else "[bold green]✓[/]"
    console.print(f"{sign} [bold]{name}[/]", end="  ")
    console.print(done.wrong or "nothing is wrong here", markup=False)
    for title, what in (("told", {"": done.told}), ("results", results), ("server", keys)):
        for key, text in what.items():
            console.print(f"  {title:8}{key and key + ' '}{text}", markup=False)
    return bool(done.wrong)


def _as_dict(report: Report) -> dict[str, Any]:
    finding = report.finding
    return {
        "search": report.search,
        "states": report.states,
        "transitions": report.transitions,
        "schedules": report.schedules,
        "bounded_by": report.bounded_by,
        "seconds": round(report.seconds, 3),
        "wrong": finding.message if finding else "",
        "schedule": finding.schedule if finding else "",
    }
