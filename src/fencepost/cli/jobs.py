"""``fencepost jobs``: what waits, runs and was given up; what happened to a job; and doing something about it."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import click

from fencepost import Client
from fencepost._core.keys import bounded
from fencepost._core.port import run_sync
from fencepost.errors import FencepostError
from fencepost.jobs import AsyncJobs, Jobs
from fencepost.jobs import inspect as look
from fencepost.jobs.inspect import STATES, Entry, Listed

_SILENT: Final = 10.0
"""Seconds after which a worker that has not looked is not counted: an idle one looks every two."""


@click.group(invoke_without_command=True)
@click.option("--url", envvar="FENCEPOST_URL", show_envvar=True, help="The server.")
@click.option(
    "--namespace",
    envvar="FENCEPOST_NAMESPACE",
    default="fp",
    show_default=True,
    show_envvar=True,
    help="The first part of every key, as the clients were given it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def jobs(context: click.Context, url: str | None, namespace: str, as_json: bool) -> None:
    """The queues of jobs, and how much there is in each."""
    context.obj = _Where(url, namespace, as_json)
    if context.invoked_subcommand is None:
        rows = context.obj.run(lambda client: [_stats(client, name) for name in _names(client)])
        context.obj.say(rows, [_told(row) for row in rows] or ["there is no queue"])


@dataclasses.dataclass(frozen=True)
class _Where:
    url: str | None
    namespace: str
    as_json: bool

    def run(self, work: Callable[[Client], Any]) -> Any:
        if self.url is None:
            raise click.UsageError("say which server: --url, or FENCEPOST_URL")
        try:
            with Client.from_url(self.url, namespace=self.namespace) as client:
                return work(client)
        except FencepostError as error:
            raise click.ClickException(str(error)) from error

    def say(self, value: Any, lines: list[str]) -> None:
        click.echo(json.dumps(value, default=str) if self.as_json else "\n".join(lines))


def _names(client: Client) -> list[str]:
    return run_sync(look.queues(client.port, client.namespace))


def _clock(seconds: float) -> str:
    """A moment of the server's clock, for people: UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z" if seconds else "-"


# -- figures


@jobs.command()
@click.argument("queue")
@click.option("--max-late", type=float, help="Exit 2 if a job is later than so many seconds.")
@click.pass_obj
def stats(where: _Where, queue: str, max_late: float | None) -> None:
    """How much there is in QUEUE, how late it is, who works, and whether it is stuck."""
    row = where.run(lambda client: _stats(client, queue))
    lines = [_told(row)]
    lines += [f"  worker {name}: looked {ago:.0f} s ago" for name, ago in row["workers"].items()]
    lines += [f"  schedule {name}: looked at {_clock(at)}" for name, at in row["schedules"].items()]
    where.say(row, lines)
    if max_late is not None and row["late"] > max_late:
        raise SystemExit(2)


def _stats(client: Client, queue: str) -> dict[str, Any]:
    them = client.jobs(queue)
    io, place = client.port, them._place  # noqa: SLF001  # the command looks where the faces do not
    figures = them.count()
    seconds, micros = client.command("TIME")
    now = int(seconds) + int(micros) / 1e6
    seen = {name: max(now - at, 0.0) for name, at in run_sync(look.workers(io, place)).items()}
    row = {
        "queue": queue,
        **dataclasses.asdict(figures),
        "workers": {name: ago for name, ago in seen.items() if ago <= 3600},
        "schedules": run_sync(look.schedules(io, place)),
    }
    row["stuck"] = _stuck(row, min(seen.values(), default=None))
    return row


def _stuck(row: dict[str, Any], silent: float | None) -> str:
    """Why jobs that are due do not begin; empty if they do, or there are none."""
    if not row["ready"] and not row["overdue"]:
        return ""
    if row["paused"]:
        return "it is paused"
    if silent is None or silent > _SILENT:
        since = "ever" if silent is None else f"for {silent:.0f} s"
        return f"no worker has looked {since}"
    return ""


def _told(row: dict[str, Any]) -> str:
    parts = [f"{row['ready']} ready", f"{row['due']} due", f"{row['running']} running"]
    parts += [f"{row['dead']} dead"] if row["dead"] else []
    late = f"; the one that waits longest is {row['late']:.1f} s late" if row["late"] > 0 else ""
    stuck = f"; STUCK: {row['stuck']}" if row["stuck"] else ""
    paused = "; paused" if row["paused"] and not row["stuck"] else ""
    return f"{row['queue']}: {', '.join(parts)}{late}{stuck}{paused}"


# -- jobs


@jobs.command("list")
@click.argument("queue")
@click.option("--state", type=click.Choice(STATES), help="Only these; without it, some of each.")
@click.option("--most", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--first", type=click.IntRange(0), default=0, help="How many to leave out.")
@click.pass_obj
def list_(where: _Where, queue: str, state: str | None, most: int, first: int) -> None:
    """The jobs of QUEUE: those that come first, of the dead the latest."""

    def work(client: Client) -> list[Listed]:
        io, place = client.port, client.jobs(queue)._place  # noqa: SLF001
        wanted = [state] if state else STATES
        return [
            one for each in wanted for one in run_sync(look.listed(io, place, each, most, first))
        ]

    found = where.run(work)
    lines = [_line(one) for one in found] or ["there is none"]
    where.say([dataclasses.asdict(one) for one in found], lines)


def _line(one: Listed) -> str:
    task = f"{one.task or 'unreadable'}({', '.join(map(_short, one.arguments))})"
    words = {"due": "due", "ready": "ready since", "running": "runs since", "dead": "given up"}
    tried = f", {one.counts.tries} failed" if one.counts.tries else ""
    lost = f", {one.counts.crashes} lost" if one.counts.crashes else ""
    by = f" by {one.worker}, epoch {one.epoch}" if one.worker else ""
    why = f": {one.counts.why}" if one.counts.why else ""
    return f"{one.id} {task} {words[one.state]} {_clock(one.at)}{by}{tried}{lost}{why}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) and "=" in value else repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


@jobs.command()
@click.argument("queue")
@click.argument("id")
@click.pass_obj
def show(where: _Where, queue: str, id: str) -> None:
    """Where the job ID of QUEUE is, and what happened to it, as far as it was kept; exit 1 if nothing is known."""

    def work(client: Client) -> tuple[Any, list[Entry]]:
        them = client.jobs(queue)
        place = them._place  # noqa: SLF001
        entries = run_sync(look.history(client.port, place, bounded(id)))
        return them.handle(id).status(), entries

    status, entries = where.run(work)
    row = dataclasses.asdict(status) | {"history": [dataclasses.asdict(one) for one in entries]}
    tried = [f"{status.counts.tries} tries failed"] if status.counts.tries else []
    tried += [f"{status.counts.crashes} workers lost"] if status.counts.crashes else []
    by = f" by {status.worker}, epoch {status.epoch}" if status.worker else ""
    at = f" at {_clock(status.at)}" if status.at else ""
    why = f": {status.counts.why}" if status.counts.why else ""
    lines = [f"{id}: {', '.join([f'{status.state}{by}{at}', *tried])}{why}"]
    lines += [f"  {_clock(one.at)} {_happened(one)}" for one in entries]
    where.say(row, lines)
    if status.state == "gone" and not entries:
        raise SystemExit(1)


def _happened(one: Entry) -> str:
    if not one.began:
        return f"{one.what}, due {_clock(one.due)}"
    took = f"{one.at - one.began:.3f} s after it began, {one.late:.3f} s late"
    return f"{one.what} by {one.worker}, epoch {one.epoch}, {took}"


@jobs.command()
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True)
@click.pass_obj
def retry(where: _Where, queue: str, ids: tuple[str, ...]) -> None:
    """Run jobs now: those that were given up, and those that wait. Exit 1 if one could not be."""

    def work(client: Client) -> dict[str, bool]:
        them = client.jobs(queue)
        return {
            id: bool(them.dead.replay(bounded(id))) or them.handle(id).move(seconds=0) for id in ids
        }

    _each(where, where.run(work), "runs as soon as a worker is free", "neither waits nor is dead")


@jobs.command()
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True)
@click.option("--running", is_flag=True, help="Stop those that run, too.")
@click.pass_obj
def cancel(where: _Where, queue: str, ids: tuple[str, ...], running: bool) -> None:
    """Take jobs out of QUEUE. Exit 1 if one could not be."""
    done = where.run(
        lambda client: {id: client.jobs(queue).handle(id).cancel(running=running) for id in ids}
    )
    lines = [f"{id}: {word}" for id, word in done.items()]
    where.say(done, lines)
    if not {"cancelled", "stopped"}.issuperset(done.values()):
        raise SystemExit(1)


@jobs.command()
@click.argument("queue")
@click.argument("id")
@click.option("--at", help="A time with its offset, such as 2026-03-01T18:30:00+01:00.")
@click.option("--in", "seconds", type=float, help="Seconds from now.")
@click.pass_obj
def move(where: _Where, queue: str, id: str, at: str | None, seconds: float | None) -> None:
    """Give a job that waits another time. Exit 1 if it does not wait."""
    if (at is None) == (seconds is None):
        raise click.UsageError("give --at or --in")
    try:
        moment = None if at is None else datetime.fromisoformat(at)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--at") from error
    moved = where.run(
        lambda client: client.jobs(queue).handle(id).move(at=moment, seconds=seconds or 0)
    )
    _each(where, {id: moved}, "is moved", "does not wait")


@jobs.command()
@click.argument("queue")
@click.option("--most", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--replay", is_flag=True, help="Run them again.")
@click.option("--discard", is_flag=True, help="Forget them.")
@click.pass_obj
def dead(where: _Where, queue: str, most: int, replay: bool, discard: bool) -> None:
    """The jobs of QUEUE that were given up, the latest first; --replay or --discard acts on those shown."""
    if replay and discard:
        raise click.UsageError("give --replay or --discard")

    def work(client: Client) -> tuple[list[Any], int]:
        them = client.jobs(queue).dead
        found = them.list(most=most)
        ids = [one.id for one in found]
        act = them.replay if replay else them.discard if discard else None
        return found, act(*ids) if act and ids else 0

    found, count = where.run(work)
    lines = [
        f"{one.id} {one.task or 'unreadable'}({', '.join(map(_short, one.args))}) given up "
        f"{_clock(one.at)}, {one.tries} failed, {one.crashes} lost: {one.why}"
        for one in found
    ] or ["there is none"]
    if replay or discard:
        lines.append(f"{count} {'run again' if replay else 'are forgotten'}")
    where.say([dataclasses.asdict(one) for one in found], lines)


def _each(where: _Where, done: dict[str, bool], yes: str, no: str) -> None:
    where.say(done, [f"{id} {yes if fine else no}" for id, fine in done.items()])
    if not all(done.values()):
        raise SystemExit(1)


# -- working


@jobs.command()
@click.argument("apps", nargs=-1, required=True, metavar="MODULE:ATTR…")
@click.option(
    "--concurrency", type=int, default=10, show_default=True, help="Jobs at once, a queue."
)
@click.option(
    "--grace", type=float, default=20.0, show_default=True, help="Seconds that jobs get to end."
)
@click.option("--name", help="What the workers call themselves; without it host:pid.")
@click.option("--burst", is_flag=True, help="End as soon as nothing is due any more.")
def work(
    apps: tuple[str, ...], concurrency: int, grace: float, name: str | None, burst: bool
) -> None:
    """Work on queues: package.module:mail, where mail is client.jobs(…).

    SIGTERM or SIGINT: takes no more, lets what runs end, and hands the rest back after the grace. The
    server is the one of the application's own client.
    """
    sys.path.insert(0, "")
    queues = [_queue(app) for app in apps]
    try:
        counts = asyncio.run(_work(queues, concurrency, grace, name, burst))
    except FencepostError as error:
        raise click.ClickException(str(error)) from error
    for queue, counted in zip(queues, counts, strict=True):
        click.echo(
            f"{queue.name}: {counted['done']} done, {counted['failed']} failed, "
            f"{counted['lost']} claims lost, {counted['refused']} acknowledgements refused"
        )


def _queue(app: str) -> Any:
    module, colon, attribute = app.partition(":")
    if not colon or not attribute:
        raise click.BadParameter(f"{app!r} is not package.module:name")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise  # the application's own trouble: its trace says where
        raise click.BadParameter(f"there is no module {module!r}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise click.BadParameter(f"{module} has no {attribute}") from error
    if not isinstance(found, Jobs | AsyncJobs):
        raise click.BadParameter(f"{app} is no queue of jobs but {type(found).__name__}")
    return found


async def _work(
    queues: list[Any], concurrency: int, grace: float, name: str | None, burst: bool
) -> list[Counter[str]]:
    loop, works = asyncio.get_running_loop(), []
    for queue in queues:
        named = queue.worker(concurrency=concurrency, grace=grace, name=name).name
        works.append(queue._works(concurrency, grace, named))  # noqa: SLF001  # either face, one loop

    def stop() -> None:
        for one in works:
            one.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    for queue in queues:
        click.echo(f"works on {queue.name}: {', '.join(sorted(queue.tasks.by_name)) or 'no task'}")
    async with asyncio.TaskGroup() as group:
        for one in works:
            group.create_task(one.run(burst))
    for queue in queues:
        client = queue._client  # noqa: SLF001
        await client.aclose() if isinstance(queue, AsyncJobs) else client.close()
    return [one.counts for one in works]
