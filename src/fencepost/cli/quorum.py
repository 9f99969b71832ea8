"""``fencepost quorum``: which servers of a quorum vote, and an operator's word that they may."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fencepost.errors import FencepostError
from fencepost.quorum import MAX_TTL, Quorum

if TYPE_CHECKING:
    from fencepost.lock.quorum.admission import Standing


def _options(command: Any) -> Any:
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    command = click.option(
        "--max-ttl",
        type=float,
        default=MAX_TTL,
        show_default=True,
        help="Seconds of the longest lease, as the clients were given it.",
    )(command)
    command = click.option(
        "--namespace",
        envvar="FENCEPOST_NAMESPACE",
        default="fp",
        show_default=True,
        show_envvar=True,
        help="The first part of every key, as the clients were given it.",
    )(command)
    return click.argument("urls", metavar="URL...", nargs=-1, required=True)(command)


@click.group()
def quorum() -> None:
    """Locks on several servers: who of them votes."""


@quorum.command()
@_options
def status(urls: tuple[str, ...], namespace: str, max_ttl: float, as_json: bool) -> None:
    """Which servers vote; exit 1 if no majority does."""
    _tell(urls, namespace, max_ttl, as_json, lambda one: one.standing())


@quorum.command()
@_options
@click.option(
    "--anew", is_flag=True, help="Also servers that were born with another longest lease."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def init(
    urls: tuple[str, ...],
    namespace: str,
    max_ttl: float,
    as_json: bool,
    anew: bool,
    yes: bool,
) -> None:
    """Let every server vote at once; exit 1 if no majority does then.

    A server that is new, or came back, gives no vote until the longest lease is over, since somebody may
    hold a lock by a vote that it has forgotten. Only you can know that nobody does: a new installation,
    or all clients stopped. With one URL, for locks with after_restart="wait".
    """
    if not yes:
        click.confirm(
            "Does nobody hold a lock of these servers? Otherwise two may hold one",
            abort=True,
            err=True,
        )
    _tell(urls, namespace, max_ttl, as_json, lambda one: one.init(anew=anew))


def _tell(
    urls: tuple[str, ...],
    namespace: str,
    max_ttl: float,
    as_json: bool,
    ask: Callable[[Quorum], list[Standing]],
) -> None:
    try:
        with Quorum(urls, namespace=namespace, max_ttl=max_ttl, patience=2.0) as one:
            where = [str(client._address) for client in one._clients]  # noqa: SLF001
            told = ask(one)
    except FencepostError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        rows = [{"server": url, **asdict(row)} for url, row in zip(where, told, strict=True)]
        click.echo(json.dumps(rows))
    else:
        for url, row in zip(where, told, strict=True):
            left = f", for {row.left:.1f} s more" if row.left else ""
            says = f"votes, fence {row.high}" if row.votes else f"no vote: {row.trouble}{left}"
            click.echo(f"{url}: {says}")
    if sum(row.votes for row in told) <= len(told) // 2:
        raise SystemExit(1)
