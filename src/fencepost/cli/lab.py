"""``fencepost lab``: the races of this field, played on a real server in columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.testing.lab import Column, Performed, Story


_SHORT = {"dogpile": "dogpile.cache"}


@click.command()
@click.argument("names", metavar="[STORY]...", nargs=-1)
@click.option(
    "--against",
    "library",
    help="Only what is written with one library: redis-py, cashews, aiocache, dogpile, django-redis.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Everything as JSON, each step with what it left."
)
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a page that steps through it all; it needs no network.",
)
@click.option("--list", "listing", is_flag=True, help="Only name the stories.")
def lab(
    names: tuple[str, ...], library: str | None, as_json: bool, page: Path | None, listing: bool
) -> None:
    """Play each STORY on a private server: the usual code, the usual fix, and ours.

    The exit code is 1 if ours came out wrong; with --against, if that library did.
    """
    library = _SHORT.get(library or "", library)
    stories = _choose(names, library)
    if listing:
        for story in stories.values():
            click.echo(f"{story.name:16} {story.title}")
        return
    from fencepost.testing.lab.page import as_data, render

    told = _play(stories, library)
    if page is not None:
        page.write_text(render(as_data(told, stories)), encoding="utf-8")
        click.echo(f"{page} steps through {len(told)} stories; open it in a browser", err=as_json)
    if as_json:
        click.echo(json.dumps(as_data(told, stories), ensure_ascii=False, indent=2))
    elif page is None:
        _print(stories, told, library)
    judged = [one for each in told.values() for one in each if library or one.column.kind == "ours"]
    if not all(one.verdict.holds for one in judged):
        raise SystemExit(1)


def _choose(names: tuple[str, ...], library: str | None) -> dict[str, Story]:
    try:
        from fencepost.testing.lab import STORIES
    except ImportError as error:
        raise click.ClickException(
            f"{error}; install what the lab needs: 'fencepost[cli,embedded,sql]'"
        ) from error
    if unknown := [name for name in names if name not in STORIES]:
        raise click.ClickException(
            f"there is no story {', '.join(unknown)}; there are {', '.join(STORIES)}"
        )
    stories = {name: STORIES[name] for name in names or STORIES}
    there = sorted(
        {each.by for story in STORIES.values() for each in (*story.columns, *story.peers)}
    )
    if library is not None and library not in there:
        raise click.UsageError(
            f"there is no adapter for {library} yet; there are adapters for {', '.join(there)}"
        )
    return stories


def _play(stories: dict[str, Story], library: str | None) -> dict[str, list[Performed]]:
    from fencepost.testing import ScratchServer
    from fencepost.testing.lab import run

    def wanted(column: Column) -> bool:
        return column.kind != "peer" if library is None else column.by == library

    told = {}
    try:
        with ScratchServer() as server:
            for name, story in stories.items():
                columns = run(story, server.url, wanted)
                if columns:
                    told[name] = columns
    except FencepostError as error:
        raise click.ClickException(str(error)) from error
    return told


def _print(
    stories: dict[str, Story], told: dict[str, list[Performed]], library: str | None
) -> None:
    from rich.console import Console

    from fencepost.testing.lab import terminal

    console = Console(highlight=False)
    for name, columns in told.items():
        if library is None:
            terminal.show(console, stories[name], columns)
        else:
            terminal.against(console, stories[name], columns)
    played = [one for columns in told.values() for one in columns]
    failed = sum(not one.verdict.holds for one in played)
    if library is not None:
        console.print(
            f"{len(played) - failed} of {len(played)} designs on {library} came out right"
        )
