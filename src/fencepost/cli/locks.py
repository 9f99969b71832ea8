"""``fencepost locks``: who holds what, since when, with which fence, and who waits; and taking it away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from fencepost import Client
from fencepost._core.keys import LockKeys, escape, unescape
from fencepost._core.port import run_sync
from fencepost.election.leader import LOCK, read_card
from fencepost.errors import FencepostError
from fencepost.lock import Holder
from fencepost.lock.options import MAX_FENCE, MAX_PERMITS
from fencepost.lock.protocol import Place
from fencepost.lock.shares import ALL, SharePlace

_PAGE = 1000
_KINDS = ("lock", "semaphore", "rwlock")


def where_locks_are(command: Any) -> Any:
    """The options that say which server is asked, and how it is shown."""
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
@where_locks_are
@click.pass_context
def locks(context: click.Context, url: str, namespace: str, as_json: bool) -> None:
    """Who holds which lock, semaphore or read/write lock, since when, with which fence, and how many wait."""
    context.obj = (url, namespace, as_json)
    if context.invoked_subcommand is not None:
        return
    rows = asked(url, namespace, lambda client: list(_held(client)))
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows:
        click.echo("nobody holds a lock")
    for row in rows:
        waiters = f", {row['waiters']} wait" if row["waiters"] else ""
        click.echo(
            f"{row['name']}: {row['owner']}{_what(row)}, fence {row['fence']}, for "
            f"{row['held']:.1f} s, {row['remaining']:.1f} s left{waiters}"
        )


@locks.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(_KINDS), default="lock", show_default=True)
@click.option(
    "--fence",
    type=click.IntRange(0, MAX_FENCE),
    help="Of the one holder of a semaphore or read/write lock who loses it; else all do.",
)
@click.pass_obj
def release(where: tuple[str, str, bool], name: str, kind: str, fence: int | None) -> None:
    """Take the lock NAME from whoever holds it; exit 1 if nobody does.

    The holder learns of it when it next renews, within a third of its ttl. Until then it goes on: what
    it does is refused only where fences are compared.
    """
    url, namespace, as_json = where
    if kind == "lock" and fence is not None:
        raise click.UsageError("a lock has one holder: --fence is for the other kinds")
    found = asked(url, namespace, lambda client: _taken(client, kind, name, fence))
    rows = [_row(kind, name, one, time.time()) for one in found]
    if as_json:
        click.echo(json.dumps(rows if kind != "lock" else next(iter(rows), None)))
    elif not rows:
        click.echo(f"nobody holds {name}")
    else:
        for row in rows:
            click.echo(f"{name} is taken from {row['owner']} (fence {row['fence']})")
    if not rows:
        raise SystemExit(1)


def _taken(client: Client, kind: str, name: str, fence: int | None) -> tuple[Holder, ...]:
    if kind == "lock":
        one = client.lock(name).force_release()
        return () if one is None else (one,)
    if kind == "semaphore":
        return client.semaphore(name, permits=MAX_PERMITS).force_release(fence)
    return client.rwlock(name).force_release(fence)


def _what(row: dict[str, Any]) -> str:
    """What a holder has, if it is no lock."""
    if row["kind"] == "semaphore":
        return f" ({row['weight']} of a semaphore)"
    return f" ({row['mode']}s)" if row["kind"] == "rwlock" else ""


def _held(client: Client) -> Iterator[dict[str, Any]]:
    """All that is held: locks, semaphores, read/write locks, each by name."""
    seconds, micros = client.command("TIME")
    now = int(seconds) + int(micros) / 1e6
    # One look over all keys, for all kinds; leases of caches end alike, and are left out.
    found = scanned(client, f"{{{escape(client.namespace)}:")
    for kind in _KINDS:
        prefix = f"{{{escape(client.namespace)}:{kind}:"
        for key in [one for one in found if one.startswith(prefix)]:
            kept = key[len(prefix) : -len("}:l")]
            # A long name is kept as its beginning and a hash.
            name = kept if "~" in kept else unescape(kept)
            keys = LockKeys(key, *(f"{key[:-1]}{part}" for part in "fqace"))
            for holder in _holders(client, kind, name, keys):
                yield _row(kind, name, holder, now)


def _holders(client: Client, kind: str, name: str, keys: LockKeys) -> tuple[Holder, ...]:
    """Who is in by now: it may have been given back meanwhile."""
    if kind == "lock":
        one = run_sync(Place(name, keys).look(client.port))
        return () if one is None else (one,)
    place = SharePlace(name, keys, permits=ALL if kind == "rwlock" else 1)
    return run_sync(place.holders(client.port))


def scanned(client: Client, prefix: str) -> list[str]:
    """The keys of what is held that begin so."""
    pattern = "".join(f"\\{sign}" if sign in "*?[]\\^-" else sign for sign in prefix) + "*}:l"
    cursor, keys = b"0", set[str]()
    while True:
        cursor, found = client.command("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE)
        keys.update(key.decode() for key in found)
        if cursor == b"0":
            return sorted(keys)


def _row(kind: str, name: str, holder: Holder, now: float) -> dict[str, Any]:
    # An election rests on a lock, whose owner is a card.
    owner = read_card(holder.owner)[0] if name.startswith(LOCK) else holder.owner
    return {
        "kind": kind,
        "name": name,
        "owner": owner,
        "fence": holder.fence,
        "since": holder.since,
        "held": max(now - holder.since, 0.0),
        "remaining": holder.remaining,
        "waiters": holder.waiters,
        "weight": holder.weight,
        "mode": holder.mode,
    }


def asked(url: str, namespace: str, work: Callable[[Client], Any]) -> Any:
    """What the server answers; an error of ours becomes one line."""
    try:
        with Client.from_url(url, namespace=namespace) as client:
            return work(client)
    except FencepostError as error:
        raise click.ClickException(str(error)) from error
