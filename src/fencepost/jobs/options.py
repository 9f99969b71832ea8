"""How jobs, queues and workers behave; checked at birth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from fencepost.errors import Refused

MIN_LEASE: Final = 0.1
MAX_LEASE: Final = 3600.0
MAX_DELAY: Final = 100 * 366 * 86_400.0
MAX_CONCURRENCY: Final = 1000
PRIORITY: Final = 5


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _within(name: str, value: Any, least: float, most: float) -> None:
    if not _number(value) or not least <= value <= most:
        raise Refused(f"{name} is in seconds or a factor, {least:g} to {most:g}, got {value!r}")


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise Refused(f"{name} is a whole number, {least} to {most}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a job waits after a failed try: ``base * factor ** (tries - 1)``, with jitter.

    Args:
        base: Seconds after the first failure.
        factor: What each later wait is multiplied by.
        jitter: The part of a wait that is left to chance, 0 to 1: 0.5 waits between half of it and all.
        cap: Seconds, the longest wait.

    Raises:
        Refused: A value that can't work.
    """

    base: float = 1.0
    factor: float = 2.0
    jitter: float = 0.5
    cap: float = 3600.0

    def __post_init__(self) -> None:
        _within("base", self.base, 0.0, MAX_DELAY)
        _within("factor", self.factor, 1.0, 1000.0)
        _within("jitter", self.jitter, 0.0, 1.0)
        _within("cap", self.cap, 0.0, MAX_DELAY)

    def delay(self, tries: int, chance: float) -> float:
        """Seconds to wait after so many failed tries; ``chance`` is a number in [0, 1)."""
        try:
            whole = self.base * self.factor ** max(tries - 1, 0)
        except OverflowError:
            whole = self.cap
        whole = min(whole, self.cap)
        return whole * (1 - self.jitter + self.jitter * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of a task; keyword-only and frozen.

    Args:
        name: What the task is called on the wire; None is the function's name. Keep it when the
            function moves: jobs that wait are found by it.
        retries: How often a try that failed is repeated.
        backoff: How long it waits before.
        lease: Seconds without a sign of life of its worker after which others may run it, 0.1 to an
            hour. It is renewed three times in that time, however long the job runs.
        time_limit: Seconds that a try may take; async functions only, since a thread can't be stopped.
        crashes: Lost workers after which a job is given up: one that kills whoever runs it.
        priority: 0 (first) to 9 (last).
        unique: The window in which no second job with the same key is added: ``"pending"`` (it waits),
            ``"running"`` (it waits or runs), or seconds after its end.
        debounce: Seconds. A job is sent for so long from now; one with its key that waits is moved
            there, with the newer arguments.
        result_ttl: Seconds for which what became of a job can be asked for; 0 keeps nothing.

    Raises:
        Refused: A value that can't work, and what to do.
    """

    name: str | None = None
    retries: int = 3
    backoff: Backoff = Backoff()
    lease: float = 20.0
    time_limit: float | None = None
    crashes: int = 3
    priority: int = PRIORITY
    unique: str | float = "running"
    debounce: float | None = None
    result_ttl: float = 600.0

    def __post_init__(self) -> None:
        if self.name is not None and not (isinstance(self.name, str) and 0 < len(self.name) <= 200):
            raise Refused(f"name is text of 1 to 200 letters, got {self.name!r}")
        _whole("retries", self.retries, 0, 1_000_000)
        if not isinstance(self.backoff, Backoff):
            raise Refused(f"backoff is a Backoff, got {self.backoff!r}")
        _within("lease", self.lease, MIN_LEASE, MAX_LEASE)
        if self.time_limit is not None:
            _within("time_limit", self.time_limit, 0.001, MAX_DELAY)
        _whole("crashes", self.crashes, 1, 1000)
        _whole("priority", self.priority, 0, 9)
        if self.unique not in ("pending", "running"):
            if isinstance(self.unique, str):
                raise Refused(f"unique is 'pending', 'running' or seconds, got {self.unique!r}")
            _within("unique", self.unique, 0.001, MAX_DELAY)
        if self.debounce is not None:
            _within("debounce", self.debounce, 0.001, MAX_DELAY)
        _within("result_ttl", self.result_ttl, 0.0, MAX_DELAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options of a queue; give them alike wherever it is used.

    Args:
        limit: How many of its jobs may run at once, over all workers; 0 is no limit.
        history: How many entries of what happened to jobs are kept, for ``fencepost jobs show``; 0 is none.
        max_body: Bytes that the arguments of a job may take.
        max_result: Bytes that what a function returns may take.

    Raises:
        Refused: A value that can't work.
    """

    limit: int = 0
    history: int = 0
    max_body: int = 64 * 1024
    max_result: int = 64 * 1024

    def __post_init__(self) -> None:
        _whole("limit", self.limit, 0, 1_000_000)
        _whole("history", self.history, 0, 1_000_000)
        _whole("max_body", self.max_body, 16, 16 * 1024 * 1024)
        _whole("max_result", self.max_result, 16, 16 * 1024 * 1024)


def delay_of(seconds: float, minutes: float, hours: float, days: float) -> float:
    """Seconds of a delay.

    Raises:
        Refused: It is negative, no number, or longer than a hundred years.
    """
    for name, value in (
        ("seconds", seconds),
        ("minutes", minutes),
        ("hours", hours),
        ("days", days),
    ):
        if not _number(value):
            raise Refused(f"{name} is a number, got {value!r}")
    delay = seconds + 60 * minutes + 3600 * hours + 86_400 * days
    _within("a delay", delay, 0.0, MAX_DELAY)
    return delay


def ms_of(at: Any) -> int:
    """The milliseconds since 1970 of a moment; never earlier than it.

    Raises:
        Refused: It is no datetime, or one without a zone.
    """
    if not isinstance(at, datetime):
        raise Refused(f"a time is a datetime with a zone, got {at!r}")
    if at.tzinfo is None or at.utcoffset() is None:
        raise Refused(
            f"{at!r} has no zone: the same digits are another moment elsewhere. "
            "Give one, as in datetime(…, tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    since = at - _EPOCH
    ms = -(-(since // timedelta(microseconds=1)) // 1000)
    if not 0 <= ms < 4_000_000_000_000:
        raise Refused(f"{at!r} is not between 1970 and 2096")
    return ms


_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def check_workers(concurrency: object, grace: object) -> None:
    """Refuse what can't be a worker.

    Raises:
        Refused: A value that can't work.
    """
    _whole("concurrency", concurrency, 1, MAX_CONCURRENCY)
    _within("grace", grace, 0.0, 86_400.0)
