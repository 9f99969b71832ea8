"""The group of commands."""

from __future__ import annotations

import click

from fencepost import __version__
from fencepost.cli.doctor import doctor
from fencepost.cli.explore import explore
from fencepost.cli.jobs import jobs
from fencepost.cli.lab import lab
from fencepost.cli.leaders import leaders
from fencepost.cli.likes import likes
from fencepost.cli.locks import locks
from fencepost.cli.quorum import quorum
from fencepost.cli.record import record
from fencepost.cli.serve import serve
from fencepost.cli.simulate import simulate
from fencepost.cli.top import top


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fencepost")
def main() -> None:
    """Caching and coordination on Redis or Valkey."""


main.add_command(serve)
main.add_command(likes)
main.add_command(locks)
main.add_command(leaders)
main.add_command(quorum)
main.add_command(jobs)
main.add_command(explore)
main.add_command(lab)
main.add_command(simulate)
main.add_command(record)
main.add_command(doctor)
main.add_command(top)
