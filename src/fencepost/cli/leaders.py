"""``fencepost leaders``: who leads what, since when, until when, with which fence, and what it says of itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from fencepost._core.keys import LockKeys, escape, unescape
from fencepost._core.port import run_sync
from fencepost.cli.locks import asked, scanned, where_locks_are
from fencepost.election.leader import LOCK, Leader, leader_of
from fencepost.lock.protocol import Place

if TYPE_CHECKING:
    from fencepost import Client


@click.command()
@where_locks_are
def leaders(url: str, namespace: str, as_json: bool) -> None:
    """Who leads in each election, since when and until when, with which fence, and its metadata."""
    rows = asked(url, namespace, _rows)
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows:
        click.echo("nobody leads")
    for row in rows:
        says = "".join(f", {name}={value}" for name, value in sorted(row["metadata"].items()))
        click.echo(
            f"{row['name']}: {row['identity']}, fence {row['fence']}, since {_instant(row['since'])} for "
            f"{row['held']:.1f} s, until {_instant(row['until'])} unless renewed, in "
            f"{row['remaining']:.1f} s{says}"
        )


def _rows(client: Client) -> list[dict[str, Any]]:
    """Who leads, by the name of the election."""
    seconds, micros = client.command("TIME")
    now = int(seconds) + int(micros) / 1e6
    prefix = f"{{{escape(client.namespace)}:lock:{escape(LOCK)}"
    found = []
    for key in scanned(client, prefix):
        kept = key[len(prefix) : -len("}:l")]
        # A long name is kept as its beginning and a hash.
        name = kept if "~" in kept else unescape(kept)
        keys = LockKeys(key, *(f"{key[:-1]}{part}" for part in "fqace"))
        holder = run_sync(Place(name, keys).look(client.port))
        if holder is not None:  # it may have resigned meanwhile
            found.append(_row(leader_of(name, holder), now))
    return found


def _row(leader: Leader, now: float) -> dict[str, Any]:
    return {
        "name": leader.name,
        "identity": leader.identity,
        "metadata": dict(leader.metadata),
        "fence": leader.fence,
        "since": leader.since,
        "held": max(now - leader.since, 0.0),
        "until": now + leader.remaining,
        "remaining": leader.remaining,
        "ttl": leader.ttl,
    }


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
