"""``fencepost likes``: look at the likes of a campus, and write them to SQL."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from fencepost.cli.campus import make_settings, missing, where_options
from fencepost.errors import FencepostError


@click.group()
def likes() -> None:
    """The likes of a campus."""


@likes.command()
@where_options
@click.option("--within", type=float, default=30.0, show_default=True, help="Seconds at most.")
def flush(within: float, **options: Any) -> None:
    """Write what waits in the journal to the database, now."""
    settings = make_settings(**options)
    try:
        from fencepost.campus.flush import flush as run
    except ImportError as error:
        raise missing(error) from error
    try:
        before, left = asyncio.run(run(settings, within))
    except FencepostError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"likes of {before} activities waited; {left} are left")
    if left:
        raise SystemExit(1)
