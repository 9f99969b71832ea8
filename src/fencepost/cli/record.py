"""``fencepost record``: run a program and write down which keys its clients read."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fencepost.errors import Refused

if TYPE_CHECKING:
    from fencepost.local.record import Recorder


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("trace.u32le"),
    show_default=True, help="The trace.",
)  # fmt: skip
@click.option(
    "--rate", type=click.FloatRange(0, 1, min_open=True), default=0.1, show_default=True,
    help="The share of the keys that are followed; give it to `simulate --sampled`.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1), default=10_000_000, show_default=True,
    help="Requests after which nothing more is written.",
)  # fmt: skip
@click.option(
    "--match", default="*", show_default=True,
    help="Only keys like this, as the server knows them: '*:cache:products:*'.",
)  # fmt: skip
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def record(out: Path, rate: float, limit: int, match: str, program: tuple[str, ...]) -> None:
    """Run PROGRAM (a script, or -m MODULE, with its arguments) and record which keys it reads.

    The server is not involved. Keys are written as hashes under a secret that is kept nowhere. What a
    program does in other processes (workers that it forks) is not recorded: run it with one.
    """
    from fencepost.wire.recording import recording

    words = list(program)
    module = words[0] == "-m"
    if module:
        words = words[1:]
    if not words:
        raise click.UsageError("-m needs the name of a module")
    if not module and not Path(words[0]).is_file():
        raise click.ClickException(f"there is no script {words[0]}; for a module give -m NAME")
    with contextlib.ExitStack() as stack:
        try:
            recorder = stack.enter_context(recording(out, rate, limit=limit, match=match))
        except (Refused, OSError) as error:
            raise click.ClickException(str(error)) from error
        stack.callback(_say, recorder)
        _run(words, module=module)


def _run(words: list[str], *, module: bool) -> None:
    argv, path = sys.argv, list(sys.path)
    try:
        sys.argv = words
        sys.path.insert(0, str(Path.cwd() if module else Path(words[0]).resolve().parent))
        if module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
    finally:
        sys.argv, sys.path[:] = argv, path


def _say(recorder: Recorder) -> None:
    recorder.close()
    click.echo(
        f"{recorder.written:,} requests for {recorder.rate:g} of the keys are in {recorder.path}; "
        f"next: fencepost simulate {recorder.path} --sampled {recorder.rate:g}",
        err=True,
    )
