"""Tasks that come by the calendar: what ``jobs.cron`` makes of a function."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from fencepost._core.keys import bounded
from fencepost.errors import Refused
from fencepost.jobs.api import AsyncTask, SyncTask
from fencepost.jobs.cron import Cron
from fencepost.jobs.options import TaskOptions
from fencepost.jobs.schedule import Schedule, check_words

P = ParamSpec("P")
R = TypeVar("R")
_OURS = {"unique", "debounce", "key"}


class _Recurring:
    schedule: Schedule
    """When it comes."""

    def preview(self, n: int = 5, after: datetime | None = None) -> list[datetime]:
        """The next times, as the clock of its zone shows them; no I/O.

        Args:
            n: How many.
            after: Later than this moment, which has a zone; None is now, by the local clock.

        Raises:
            Refused: The moment has no zone.
        """
        return self.schedule.cron.preview(n, datetime.now(UTC) if after is None else after)


class AsyncCronTask(_Recurring, AsyncTask[P, R]):
    """A function that comes by the calendar, and that can be sent as well."""


class CronTask(_Recurring, SyncTask[P, R]):
    """A function that comes by the calendar, and that can be sent as well."""


class AsyncCronDecorator(Protocol):
    """Makes a task of a function."""

    @overload
    def __call__(
        self, function: Callable[[], Coroutine[Any, Any, R]], /
    ) -> AsyncCronTask[[], R]: ...
    @overload
    def __call__(self, function: Callable[[], R], /) -> AsyncCronTask[[], R]: ...


class CronDecorator(Protocol):
    """Makes a task of a function."""

    @overload
    def __call__(self, function: Callable[[], Coroutine[Any, Any, R]], /) -> CronTask[[], R]: ...
    @overload
    def __call__(self, function: Callable[[], R], /) -> CronTask[[], R]: ...


def recurring(
    jobs: Any,
    kind: type[Any],
    expression: str,
    tz: str,
    missed: str,
    overlap: str,
    options: dict[str, Any],
) -> Any:
    """The decorator of ``jobs.cron``, its arguments checked.

    Raises:
        Refused: One can't work.
    """
    cron = Cron(expression, tz)
    check_words(missed, overlap)
    if wrong := _OURS & options.keys():
        raise Refused(
            f"cron does not take {', '.join(sorted(wrong))}: overlap says what may run beside"
        )

    TaskOptions(**options)  # now, not when the function is there

    def decorate(function: Callable[..., Any]) -> Any:
        name = str(options.get("name") or getattr(function, "__name__", ""))
        # One at a time is what a unique key says, from the first wait to the end of the last try.
        key = (lambda: f"cron:{name}") if overlap == "skip" else None
        task = jobs._make(kind, key, {**options, "unique": "running"})(function)
        bounded(f"{name}@2000-01-01T000000Z")  # refused now, not at night
        record = task.new((), {}).record
        task.schedule = Schedule(
            name=name, cron=cron, missed=missed, overlap=overlap, record=record
        )
        jobs.tasks.schedules.append(task.schedule)
        return task

    return decorate
