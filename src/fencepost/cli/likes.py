"""``fencepost likes``: look at likes, compare them, mend them, and bring them to SQL.

Without ``--app`` the likes are those of a campus. ``--app package.module:name`` takes yours: an
``AsyncLikes``, or a function without arguments that makes one (or an async context manager of one).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli.campus import make_settings, missing, where_options
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.likes import AsyncLikes, AuditReport

Action = Callable[["AsyncLikes"], Awaitable[int]]


@click.group()
def likes() -> None:
    """Likes: their journal, their rows, and whether the two agree."""


def _options(command: Any) -> Any:
    command = click.option("--app", help="Your likes, package.module:name; without it a campus.")(
        command
    )
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    return where_options(command)


@likes.command()
@_options
def status(as_json: bool, **options: Any) -> None:
    """How much waits for its flush, and since when."""

    async def show(them: AsyncLikes) -> int:
        backlog = await them.backlog()
        _say(
            as_json,
            asdict(backlog),
            f"{backlog.items} items with {backlog.changes} changes wait for their flush; "
            f"the oldest for {backlog.oldest:.1f} s",
        )
        return 0

    _run(show, options)


@likes.command()
@_options
@click.option(
    "--within", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds at most."
)
def drain(within: float, as_json: bool, **options: Any) -> None:
    """Bring everything to SQL now; exit 1 if something is left."""

    async def run(them: AsyncLikes) -> int:
        before = (await them.backlog()).items
        async with _progress(as_json, before, lambda: _left(them)):
            left = await them.drain(within)
        _say(
            as_json,
            {"waited": before, "left": left},
            f"likes of {before} items waited; {left} are left",
        )
        return 1 if left else 0

    _run(run, options)


@likes.command()
@_options
@click.option(
    "--drain", "seconds", type=click.FloatRange(0), default=5.0, show_default=True,
    help="Seconds that the end may take.",
)  # fmt: skip
def flush(seconds: float, as_json: bool, **options: Any) -> None:
    """Flush until SIGTERM or Ctrl-C. Any number of these may run, beside any number of services."""

    async def run(them: AsyncLikes) -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        click.echo("flushing; Ctrl-C or SIGTERM ends it", err=True)
        async with them.flusher(drain=seconds):
            await stop.wait()
            click.echo("stopping: what waits is flushed first", err=True)
        left = (await them.backlog()).items
        figures = {**them.stats(), "left": left}
        _say(
            as_json,
            figures,
            f"flushed {figures['entries']} changes; {left} items are left in the journal",
        )
        return 1 if left else 0

    _run(run, options)


@likes.command()
@_options
@click.option("--sample", type=click.IntRange(1), help="So many items by chance; without it all.")
def audit(sample: int | None, as_json: bool, **options: Any) -> None:
    """Compare cache, journal, rows and counts; exit 1 if they differ."""
    _compare("audit", sample, as_json, options)


@likes.command()
@_options
@click.option("--sample", type=click.IntRange(1), help="So many items by chance; without it all.")
def repair(sample: int | None, as_json: bool, **options: Any) -> None:
    """The same, and mend what is found; exit 0 if it could be."""
    _compare("repair", sample, as_json, options)


def _compare(verb: str, sample: int | None, as_json: bool, options: dict[str, Any]) -> None:
    async def run(them: AsyncLikes) -> int:
        seen = 0

        def count(number: int) -> None:
            nonlocal seen
            seen = number

        async def done() -> int:
            return seen

        async with _progress(as_json, sample, done):
            report: AuditReport = await getattr(them, verb)(sample, progress=count)
        found = report.differences
        lines = [
            f"{one.item}  {one.kind}: expected {one.expected}, found {one.found}  ({one.explanation})"
            for one in found
        ]
        mended = " and mended" if verb == "repair" and found else ""
        lines.append(f"{report.items} items compared, {len(found)} differences found{mended}")
        _say(
            as_json,
            {"items": report.items, "differences": [asdict(one) for one in found]},
            "\n".join(lines),
        )
        return 1 if found and verb == "audit" else 0

    _run(run, options)


async def _left(them: AsyncLikes) -> int:
    return (await them.backlog()).items


@contextlib.asynccontextmanager
async def _progress(
    quiet: bool, total: int | None, done: Callable[[], Awaitable[int]]
) -> AsyncIterator[None]:
    """Say twice a second how far it is, on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return

    async def tell() -> None:
        while True:
            await asyncio.sleep(0.5)
            click.echo(
                f"\r{await done()} of {total if total is not None else 'all'} items …",
                nl=False,
                err=True,
            )

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, FencepostError):
            await task
        click.echo("\r\x1b[K", nl=False, err=True)


def _say(as_json: bool, figures: dict[str, Any], words: str) -> None:
    click.echo(json.dumps(figures) if as_json else words)


def _run(action: Action, options: dict[str, Any]) -> None:
    async def main() -> int:
        async with _open(options.pop("app"), options) as them:
            return await action(them)

    try:
        code = asyncio.run(main())
    except FencepostError as error:
        raise click.ClickException(str(error)) from error
    if code:
        raise SystemExit(code)


@contextlib.asynccontextmanager
async def _open(app: str | None, options: dict[str, Any]) -> AsyncIterator[AsyncLikes]:
    if app is None:
        settings = make_settings(**options)
        try:
            from fencepost.campus.flush import likes_of
        except ImportError as error:
            raise missing(error) from error
        async with likes_of(settings) as them:
            yield them
        return
    made = _import(app)
    if callable(made):
        made = made()
    if inspect.isawaitable(made):
        made = await made
    if hasattr(made, "__aenter__"):
        async with made as them:
            yield _checked(app, them)
    else:
        yield _checked(app, made)


def _import(app: str) -> Any:
    module, colon, name = app.partition(":")
    if not colon or not module or not name:
        raise click.UsageError(f"--app is package.module:name, got {app!r}")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise click.ClickException(f"--app {app}: {error}") from error
    return found


def _checked(app: str, them: Any) -> AsyncLikes:
    from fencepost.likes import AsyncLikes

    if not isinstance(them, AsyncLikes):
        raise click.ClickException(f"--app {app} is {type(them).__name__}, not AsyncLikes")
    return them
