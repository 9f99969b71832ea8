"""``fencepost simulate``: what each policy would have hit on your keys, and which to take."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from fencepost.errors import Refused
from fencepost.local import simulate as engine

_WIDTH = 40  # characters that stand for 100 %


@click.command()
@click.argument("trace", type=click.Path(allow_dash=True))
@click.option("--policy", "policies", multiple=True, help="Of LocalCache; without it all of them.")
@click.option(
    "--size", "sizes", multiple=True,
    help="Entries, or a share of the keys (10%); without it some between 0.5 % and 40 %.",
)  # fmt: skip
@click.option(
    "--format", "kind", type=click.Choice(["text", "u32le", "csv"]),
    help="One key a line, 4 bytes a key, or CSV; without it the name says.",
)  # fmt: skip
@click.option(
    "--column", help="Of a CSV: the name of the column with the keys, or its number from 0."
)
@click.option(
    "--sampled", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
    help="The share of the keys that the trace holds: the --rate of `fencepost record`.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    trace: str,
    policies: tuple[str, ...],
    sizes: tuple[str, ...],
    kind: engine.Format | None,
    column: str | None,
    sampled: float,
    as_json: bool,
) -> None:
    """Play the keys of TRACE (a file, also .gz or .xz; - is stdin) through policies at sizes.

    Belady's optimum stands beside them: what somebody would hit who knew the future.
    """
    try:
        keys = engine.read_trace(trace, kind, column)
        number = len(set(keys))
        told = sys.stderr.isatty() and not as_json

        def progress(policy: str, size: int) -> None:
            if told:
                click.echo(f"\r\x1b[K{policy} at {size:,} …", nl=False, err=True)

        found = engine.simulate(
            keys, policies, [_size(one, number, sampled) for one in sizes], sampled, progress
        )
        if told:
            click.echo("\r\x1b[K", nl=False, err=True)
    except (Refused, OSError) as error:
        raise click.ClickException(str(error)) from error
    policy, size, reason = found.recommend()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "requests": found.requests,
                    "keys": found.keys,
                    "sampled": found.sampled,
                    "ceiling": found.ceiling,
                    "ratios": found.ratios,
                    "recommended": {"policy": policy, "size": size, "reason": reason},
                }
            )
        )
        return
    name = "stdin" if trace == "-" else Path(trace).name
    click.echo(
        f"{name}: {found.requests:,} requests for {found.keys:,} keys; "
        f"at most {found.ceiling:.1%} can hit\n"
    )
    for each, row in found.ratios.items():
        click.echo(f"{each:,} entries")
        for label, hit in row.items():
            bar = "█" * round(hit * _WIDTH)
            click.echo(f"  {label:9} {hit:6.1%}  {bar.ljust(_WIDTH, '·')}")
    click.echo(f'\nTake LocalCache({size}, policy="{policy}"): {reason}.')


def _size(text: str, keys: int, sampled: float) -> int:
    share = text.endswith("%")
    try:
        number = float(text.rstrip("%"))
    except ValueError:
        number = 0
    size = round(number / 100 * keys / sampled) if share else round(number)
    if size < 1:
        raise click.UsageError(
            f"--size {text}: give a number of entries above 0, or a share like 10%"
        )
    return size
