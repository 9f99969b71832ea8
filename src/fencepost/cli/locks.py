"""``fencepost locks``: who holds what, since when, with which fence, and who waits; and taking it away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from fencepost import Client
from fencepost._core.keys import escape, unescape
from fencepost._core.port import run_sync
from fencepost.errors import FencepostError
from fencepost.lock import Holder
from fencepost.lock.scripts import SCRIPTS

_PAGE = 1000


def _options(command: Any) -> Any:
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    command = click.option(
        "--namespace",
        envvar="FENCEPOST_NAMESPACE",
        default="fp",
        show_default=True,
        show_envvar=True,
        help="The first part of every key, as the clients were given it.",
    )(command)
    return click.option(
        "--url", envvar="FENCEPOST_URL", show_envvar=True, required=True, help="The server."
    )(command)


@click.group(invoke_without_command=True)
@_options
@click.pass_context
def locks(context: click.Context, url: str, namespace: str, as_json: bool) -> None:
    """Who holds which lock, since when, with which fence, and how many wait."""
    context.obj = (url, namespace, as_json)
    if context.invoked_subcommand is not None:
        return
    rows = _run(url, namespace, lambda client: list(_held(client)))
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows:
        click.echo("nobody holds a lock")
    for row in rows:
        waiters = f", {row['waiters']} wait" if row["waiters"] else ""
        click.echo(
            f"{row['name']}: {row['owner']}, fence {row['fence']}, for {row['held']:.1f} s, "
            f"{row['remaining']:.1f} s left{waiters}"
        )


@locks.command()
@click.argument("name")
@click.pass_obj
def release(where: tuple[str, str, bool], name: str) -> None:
    """Take the lock NAME from whoever holds it; exit 1 if nobody does.

    The holder learns of it when it next renews, within a third of its ttl. Until then it goes on: what
    it does is refused only where fences are compared.
    """
    url, namespace, as_json = where
    found = _run(url, namespace, lambda client: client.lock(name).force_release())
    row = None if found is None else _row(name, found, time.time())
    if as_json:
        click.echo(json.dumps(row))
    elif row is None:
        click.echo(f"nobody holds {name}")
    else:
        click.echo(f"{name} is taken from {row['owner']} (fence {row['fence']})")
    if row is None:
        raise SystemExit(1)


def _held(client: Client) -> Iterator[dict[str, Any]]:
    """Every lock that is held, by name."""
    prefix = f"{{{escape(client.namespace)}:lock:"
    pattern = "".join(f"\\{sign}" if sign in "*?[]\\^-" else sign for sign in prefix) + "*}:l"
    seconds, micros = client.command("TIME")
    now, cursor, keys = int(seconds) + int(micros) / 1e6, b"0", set[str]()
    while True:
        cursor, found = client.command("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE)
        keys.update(key.decode() for key in found)
        if cursor == b"0":
            break
    for key in sorted(keys):
        kept = key[len(prefix) : -len("}:l")]
        name = (
            kept if "~" in kept else unescape(kept)
        )  # a long name is kept as its beginning and a hash
        holder = run_sync(client.port.run(SCRIPTS.look((key, f"{key[:-1]}q"))))
        if isinstance(holder, Holder):  # it may have been given back meanwhile
            yield _row(name, holder, now)


def _row(name: str, holder: Holder, now: float) -> dict[str, Any]:
    return {
        "name": name,
        "owner": holder.owner,
        "fence": holder.fence,
        "since": holder.since,
        "held": max(now - holder.since, 0.0),
        "remaining": holder.remaining,
        "waiters": holder.waiters,
    }


def _run(url: str, namespace: str, work: Callable[[Client], Any]) -> Any:
    try:
        with Client.from_url(url, namespace=namespace) as client:
            return work(client)
    except FencepostError as error:
        raise click.ClickException(str(error)) from error
