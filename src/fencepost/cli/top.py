"""``fencepost top``: the keys that are asked for most, over all processes that count; live, or once."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fencepost import Client
from fencepost._core.port import run_sync
from fencepost.cli.locks import where_locks_are
from fencepost.errors import FencepostError
from fencepost.hotkeys.protocol import place_of

if TYPE_CHECKING:
    from rich.table import Table

    from fencepost.hotkeys.scripts import Merged

_NOBODY = "no process counts; in each of them: client.hotkeys.start()"


@click.command()
@where_locks_are
@click.option("-n", "most", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--once", is_flag=True, help="Print one look, and end; `--json` does so, too.")
@click.option(
    "--every", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True,
    help="Seconds between two looks.",
)  # fmt: skip
def top(url: str, namespace: str, as_json: bool, most: int, once: bool, every: float) -> None:
    """The keys that are asked for most: calls a second, reads and writes, and since when they are hot.

    Looks at what the processes say of themselves, so they must count (client.hotkeys.start()). It changes
    nothing and costs the server one small script a look.
    """
    place = place_of(namespace)
    try:
        with Client.from_url(url, namespace=namespace) as client:

            def look() -> Merged:
                return run_sync(place.look(client.port, most))

            if as_json:
                click.echo(json.dumps(_shown(look())))
            elif once:
                _print(look())
            else:
                _live(look, every)
    except FencepostError as error:
        raise click.ClickException(str(error)) from error


def _shown(merged: Merged) -> dict[str, Any]:
    keys = [{**asdict(one), "hot": one.hot} for one in merged.keys]
    return {"at": merged.at, "processes": merged.processes, "keys": keys}


def _print(merged: Merged) -> None:
    if not merged.processes:
        click.echo(_NOBODY)
    for one in merged.keys:
        since = "" if one.since is None else f", hot for {max(merged.at - one.since, 0):.0f} s"
        click.echo(
            f"{_safe(one.name)}: {one.estimate:,} (+{one.error:,}) calls a second, {one.reads:,} reads, "
            f"{one.writes:,} writes{since}"
        )


def _safe(name: str) -> str:
    """Names are others' text: no control sequences reach the terminal."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in name)


def _live(look: Any, every: float) -> None:
    from rich.live import Live

    merged = look()
    with Live(table(merged), auto_refresh=False, screen=True) as live:
        try:
            while True:
                time.sleep(every)
                live.update(table(look()), refresh=True)
        except KeyboardInterrupt:
            return


def table(merged: Merged) -> Table:
    """What a look shows."""
    from rich.table import Table
    from rich.text import Text

    title = f"{merged.processes} processes count" if merged.processes else _NOBODY
    shown = Table("key", title=title, expand=True)
    for head in ("calls/s", "up to", "reads", "writes", "hot for"):
        shown.add_column(head, justify="right")
    for one in merged.keys:
        since = "" if one.since is None else f"{max(merged.at - one.since, 0):.0f} s"
        figures = (one.estimate, one.estimate + one.error, one.reads, one.writes)
        name = Text(_safe(one.name))  # no markup
        shown.add_row(
            name, *[f"{figure:,}" for figure in figures], since, style="bold" if one.hot else ""
        )
    return shown
