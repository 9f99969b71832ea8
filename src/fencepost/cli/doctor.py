"""``fencepost doctor``: what a server's settings do to what is kept on it. Nothing is changed."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from fencepost import Client
from fencepost._core.port import run_sync
from fencepost.errors import FencepostError

_COLOURS = {"danger": "red", "warning": "yellow", "ok": "green", "note": None}


@click.group()
def doctor() -> None:
    """Look at a server, and tell what its settings do to what is kept on it. Nothing is changed."""


@doctor.command()
@click.option("--url", envvar="FENCEPOST_URL", show_envvar=True, required=True, help="The server.")
@click.option(
    "--namespace", envvar="FENCEPOST_NAMESPACE", default="fp", show_default=True, show_envvar=True,
    help="The first part of every key, as the clients were given it.",
)  # fmt: skip
@click.option(
    "--sample", type=click.IntRange(1, 100_000), default=1000, show_default=True,
    help="Keys that are looked at, by chance.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def eviction(url: str, namespace: str, sample: int, as_json: bool) -> None:
    """Does the eviction policy endanger journals, leases or jobs, and does it know hot from cold?

    The exit code is 1 if something is in danger.
    """
    from fencepost.doctor.eviction import judge
    from fencepost.doctor.server import look

    told = sys.stderr.isatty() and not as_json

    def progress(done: int) -> None:
        if told:
            click.echo(f"\r{done:,} of {sample:,} keys …", nl=False, err=True)

    try:
        with Client.from_url(url, namespace=namespace) as client:
            facts = run_sync(look(client.port, namespace, sample, progress))
    except FencepostError as error:
        raise click.ClickException(str(error)) from error
    if told:
        click.echo("\r\x1b[K", nl=False, err=True)
    findings = judge(facts)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "policy": facts.policy,
                    "settings": facts.settings,
                    "used": facts.used,
                    "limit": facts.limit,
                    "keys": facts.keys,
                    "expiring": facts.expiring,
                    "evicted": facts.evicted,
                    "sampled": len(facts.sample),
                    "findings": [asdict(one) for one in findings],
                }
            )
        )
    else:
        click.echo(
            f"{facts.keys:,} keys, {facts.expiring:,} of them with a TTL; {len(facts.sample):,} looked at"
        )
        for one in findings:
            mark = click.style(f"{one.level:8}", fg=_COLOURS[one.level])
            click.echo(f"{mark} {one.text}")
    if any(one.level == "danger" for one in findings):
        raise SystemExit(1)
