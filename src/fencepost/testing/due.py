"""A worker for tests: it runs what is due at once, and lets time pass for a queue.

    due = DueJobs(mail)                   # AsyncDueJobs(mail) for an async client
    welcome.after(hours=24).send(7)
    assert due.run_due() == 0
    assert due.advance(hours=24) == 1     # not a second has passed for anybody else

The queue is real, on a real server: times of jobs, leases and unique windows are moved nearer instead of
the clock. What a job sends while time passes gets its own time in it: a retry after five minutes of a job
that came after one hour has come after one hour and five minutes. Results keep their own TTL, and
schedules (``cron``) go by the calendar, which can't be moved: ask their ``preview``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost._core.port import run_sync
from fencepost._core.script import Call, load_script
from fencepost.jobs.options import delay_of
from fencepost.jobs.protocol import ms

if TYPE_CHECKING:
    from fencepost.jobs import AsyncJobs, Jobs

_SHIFT = load_script(__package__, "shift_jobs", int)


def _shift(place: Any, most: int) -> Call[int]:
    keys = place.keys
    return _SHIFT((keys.due, keys.claimed, keys.remembered), (most,))


class AsyncDueJobs:
    """Runs the due jobs of a queue.

    Args:
        jobs: The queue, with its tasks.
        concurrency: How many jobs run at once.
    """

    def __init__(self, jobs: AsyncJobs, *, concurrency: int = 10) -> None:
        self._jobs = jobs
        self._concurrency = concurrency

    async def run_due(self) -> int:
        """Run what is due now, and what that sends for now; how many tries were begun."""
        worker = self._jobs.worker(concurrency=self._concurrency)
        await worker.run(burst=True, signals=False)
        return worker.counts.get("begun", 0)

    async def advance(
        self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> int:
        """Let time pass for the queue, and run everything at its time; how many tries were begun."""
        left = ms(delay_of(seconds, minutes, hours, days))
        begun = await self.run_due()
        while left > 0:
            left -= await self._jobs._client.port.run(_shift(self._jobs._place, left))  # noqa: SLF001
            begun += await self.run_due()
        return begun


class DueJobs:
    """Runs the due jobs of a queue, for threads; see ``AsyncDueJobs``."""

    def __init__(self, jobs: Jobs, *, concurrency: int = 10) -> None:
        self._jobs = jobs
        self._concurrency = concurrency

    def run_due(self) -> int:
        worker = self._jobs.worker(concurrency=self._concurrency)
        worker.run(burst=True, signals=False)
        return worker.counts.get("begun", 0)

    def advance(
        self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> int:
        left = ms(delay_of(seconds, minutes, hours, days))
        begun = self.run_due()
        while left > 0:
            shift = self._jobs._client.port.run(_shift(self._jobs._place, left))  # noqa: SLF001
            left -= run_sync(shift)
            begun += self.run_due()
        return begun
