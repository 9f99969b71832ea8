"""``fencepost serve``: run campus."""

from __future__ import annotations

from typing import Any

import click

from fencepost.cli.campus import make_settings, missing, where_options


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one."
)
@where_options
@click.option(
    "--token",
    envvar="FENCEPOST_TOKEN",
    show_envvar=True,
    help="What clients and people must show; needed beyond loopback. Others on this machine may"
    " see command lines: better set the variable.",
)
@click.option(
    "--secret",
    envvar="FENCEPOST_SECRET",
    show_envvar=True,
    help="Signs sessions; needed where several machines serve one address.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    help="A further name under which the service is reached; may be repeated.",
)
@click.option("--flusher/--no-flusher", default=True, help="Write likes from the journal to SQL.")
@click.option("--desk/--no-desk", default=True, help="Release held seats, and send reminders.")
@click.option(
    "--hold", type=float, default=600.0, show_default=True, help="Seconds for which a seat is held."
)
@click.option("--samples/--no-samples", default=True, help="Sample activities at the first run.")
@click.option(
    "--duties/--no-duties",
    default=True,
    help="Stand for election; the leader audits the likes and makes the digests.",
)
@click.option(
    "--leader-ttl",
    type=float,
    default=15.0,
    show_default=True,
    help="Seconds after which another one leads if the leader has died.",
)
@click.option(
    "--digest-every",
    type=float,
    default=86_400.0,
    show_default=True,
    help="Seconds that a digest covers; they end at multiples of it, UTC.",
)
@click.option(
    "--audit-every",
    type=float,
    default=3600.0,
    show_default=True,
    help="Seconds between two audits.",
)
@click.option(
    "--drain", type=float, default=10.0, show_default=True, help="Seconds that a stop may take."
)
def serve(**options: Any) -> None:
    """Run campus, a notice board with hearts."""
    settings = make_settings(**options)
    try:
        from fencepost.campus.serve import CannotServe, run
    except ImportError as error:
        raise missing(error) from error
    try:
        run(settings, say=click.echo)
    except CannotServe as error:
        raise click.ClickException(str(error)) from error
