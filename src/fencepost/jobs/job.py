"""What a function learns of the job that it runs."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

from fencepost._core.aio import clock
from fencepost.errors import FencepostError, LeaseLost, Refused
from fencepost.jobs.options import delay_of

if TYPE_CHECKING:
    import asyncio

    from fencepost.jobs.scripts import Claim

_current: contextvars.ContextVar[Job] = contextvars.ContextVar("fencepost.jobs.job")


class Job:
    """A job while it runs: its claim, and whether that still stands. Any thread may ask it.

    Attributes:
        id: Of the job.
        queue: That it is in.
        fence: Greater than that of whoever ran it before: give it to what the job changes.
        token: Who drew the fence: the job's id.
        tries: How often it has failed before.
        crashes: How many workers were lost while they ran it.
    """

    __slots__ = (
        *("_until", "_why", "crashes", "due", "ended", "fence", "id", "keep_ms", "lease", "queue"),
        *("record", "task", "tries"),
    )

    def __init__(self, queue: str, claim: Claim, lease: float, keep_ms: int, sent: float) -> None:
        self.queue = queue
        self.id, self.fence, counts, self.record = claim
        self.tries = counts.tries
        self.crashes = counts.crashes
        self.lease = lease
        self.keep_ms = keep_ms
        self.due = sent + lease / 3
        self.task: asyncio.Task[Any] | None = None
        self.ended = False
        self._until = sent + lease * 0.9
        self._why = ""

    @property
    def token(self) -> str:
        return self.id

    def remaining(self) -> float:
        """Seconds for which the claim may still be trusted, by the local clock and without I/O."""
        return 0.0 if self._why else max(self._until - clock(), 0.0)

    @property
    def lost(self) -> bool:
        """Whether another worker may run this job by now; asked of the clock each time."""
        return bool(self._why) or clock() >= self._until

    def check(self, at_least: float = 0.0) -> float:
        """Make sure that the claim stands, just before an act that rests on it; no I/O.

        Args:
            at_least: Seconds that must be left.

        Returns:
            Seconds that are left.

        Raises:
            LeaseLost: It is over, or has less than that left.
        """
        left = self.remaining()
        if left <= 0 or left < at_least:
            why = self._why or "it was not renewed in time"
            raise LeaseLost(
                f"the claim on job {self.id!r} is over: {why}"
                if left <= 0
                else f"the claim on job {self.id!r} has {left:.3g} s left, {at_least:g} s were asked for"
            )
        return left

    def renewed(self, sent: float) -> None:
        """The server prolonged it, by a request that was sent then."""
        self._until = max(self._until, sent + self.lease * 0.9)
        self.due = sent + self.lease / 3

    def lose(self, why: str) -> None:
        """It is over, says somebody who knows."""
        self._why = self._why or why

    def __repr__(self) -> str:
        return (
            f"<Job {self.id!r} of {self.queue!r} fence={self.fence}{' lost' if self.lost else ''}>"
        )


def this_job() -> Job:
    """The job that the caller runs.

    Raises:
        Refused: No job runs here: the function was called, not sent.
    """
    try:
        return _current.get()
    except LookupError:
        raise Refused("no job runs here; a function that is called, not sent, has none") from None


def running(job: Job) -> None:
    """What this task or thread runs from now on is this job."""
    _current.set(job)


class Retry(Exception):
    """Raised by a job: this try failed, try again. Counts as a failed try.

    Args:
        after: Seconds until then; None is the task's back-off.
        why: For people.
    """

    def __init__(self, why: str = "", *, after: float | None = None) -> None:
        super().__init__(why or "asked for another try")
        self.after = None if after is None else delay_of(after, 0, 0, 0)


class Snooze(Exception):
    """Raised by a job: not now, run it again later. Counts as nothing.

    Args:
        after: Seconds until then.
    """

    def __init__(self, after: float) -> None:
        self.after = delay_of(after, 0, 0, 0)
        super().__init__(f"put off by {self.after:g} s")


class Cancel(Exception):
    """Raised by a job: it is not wanted any more, and ends as cancelled.

    Args:
        why: For people.
    """


class JobFailed(FencepostError):
    """What ``JobHandle.result`` raises for a job that was given up or cancelled; says why.

    Args:
        message: What became of it.
        state: ``dead``, ``cancelled`` or ``gone``.
    """

    def __init__(self, message: str, *, state: str) -> None:
        super().__init__(message)
        self.state = state
