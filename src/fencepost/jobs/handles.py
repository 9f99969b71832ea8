"""Handles: what a sender has in hand of a job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from fencepost._core.port import run_sync
from fencepost.errors import Refused, WaitTimeout
from fencepost.jobs import protocol
from fencepost.jobs.job import JobFailed
from fencepost.jobs.protocol import Place
from fencepost.jobs.record import Unreadable, unpack, unpack_value
from fencepost.jobs.scripts import Cancelling, Dead, JobStatus, Moved
from fencepost.jobs.task import Task, Tasks, when_after, when_at
from fencepost.wire.bells import AsyncBell, SyncBell

R = TypeVar("R")


class Asked:
    """How the handles of a queue reach the server."""

    def __init__(self, client: Any, place: Place, tasks: Tasks) -> None:
        self.client = client
        self.place = place
        self.tasks = tasks
        self._numbers = 0

    @property
    def port(self) -> Any:
        return self.client.port

    def listener(self) -> Any:
        """Who hears for this process that jobs have ended."""
        return self.client._lock_hub().listener  # noqa: SLF001  # a client's parts share it


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that was given up.

    Args:
        id: Of the job.
        task: Its name; empty if that can't be read.
        args: Its arguments, as they are stored.
        kwargs: Likewise.
        at: When it was given up, in seconds of the server's clock.
        tries: How often it failed.
        crashes: How many workers were lost while they ran it.
        why: The last words about it.
    """

    id: str
    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at: float
    tries: int
    crashes: int
    why: str


def dead_job(one: Dead) -> DeadJob:
    """What people see of it."""
    try:
        task, args, kwargs = unpack(one.record)
    except Unreadable:
        task, args, kwargs = "", [], {}
    counts = one.counts
    return DeadJob(
        one.id, task, tuple(args), kwargs, one.at, counts.tries, counts.crashes, counts.why
    )


class _Handle(Generic[R]):
    """What both faces share.

    Attributes:
        id: Of the job that is there: of another one, if that has the key of what was sent.
        verdict: ``created``; ``kept`` or ``moved`` (a job with this key or id was there); ``running`` or
            ``recent`` (refused: one with this key runs, or has ended lately); empty if nothing was sent.
    """

    def __init__(self, asked: Asked, id: str, verdict: str, task: Task[..., Any] | None) -> None:
        self._asked = asked
        self.id = id
        self.verdict = verdict
        self._task = task

    @property
    def created(self) -> bool:
        """Whether a job was created."""
        return self.verdict == "created"

    def _known(self) -> str:
        if not self.id:
            raise Refused(f"nothing was sent ({self.verdict}), and the job with this key has ended")
        return self.id

    def _value(self, seen: JobStatus, wait: float) -> R:
        match seen.state:
            case "done":
                type = Any if self._task is None else self._task.returns
                try:
                    value: R = unpack_value(seen.outcome, type)
                except msgspec.MsgspecError:
                    value = unpack_value(seen.outcome)
                return value
            case "dead":
                raise JobFailed(f"job {self.id!r} was given up: {seen.counts.why}", state="dead")
            case "cancelled":
                why = seen.outcome.decode(errors="replace")
                raise JobFailed(
                    f"job {self.id!r} was cancelled: {why or 'from outside'}", state="cancelled"
                )
            case "gone":
                raise JobFailed(
                    f"nothing is known of job {self.id!r}: it has ended and nothing was kept "
                    "(result_ttl), or it never was",
                    state="gone",
                )
        raise WaitTimeout(f"job {self.id!r} is {seen.state} and has not ended within {wait:g} s")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} {self.verdict}>"


def _moved(answer: Any) -> bool:
    return isinstance(answer, Moved)


def _when(at: datetime | None, seconds: float, minutes: float, hours: float, days: float) -> str:
    if at is None:
        return when_after(seconds, minutes, hours, days)
    if seconds or minutes or hours or days:
        raise Refused("move to a moment (at), or so long from now, not both")
    return when_at(at)


class AsyncJobHandle(_Handle[R]):
    """A job that was sent."""

    async def cancel(self, *, running: bool = False) -> str:
        """Take the job out of the queue.

        Args:
            running: Stop it even if it runs: its claim is taken away, and its worker learns of that
                when it renews it, within a third of the lease.

        Returns:
            ``cancelled``: it never ran, and will not; ``stopped``: it ran; ``running``: it runs, and
            nothing was done; ``gone``: it has ended, or never was.
        """
        answer: Cancelling = await protocol.cancel(
            self._asked.port, self._asked.place, self._known(), running
        )
        return answer.value

    async def move(
        self,
        *,
        at: datetime | None = None,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> bool:
        """Give it another time: a moment, or so long from now by the server's clock.

        Returns:
            False if it does not wait any more: it runs, has ended or was given up.
        """
        when = _when(at, seconds, minutes, hours, days)
        one = self._asked
        return _moved(await protocol.move(one.port, one.place, self._known(), when))

    async def status(self) -> JobStatus:
        """Where it is."""
        status: JobStatus = await protocol.look(self._asked.port, self._asked.place, self._known())
        return status

    async def result(self, *, wait: float = 0) -> R:
        """What its function returned.

        Args:
            wait: Seconds to wait for its end.

        Raises:
            JobFailed: It was given up or cancelled, or nothing was kept of it.
            WaitTimeout: It has not ended in that time.
        """
        one, id = self._asked, self._known()
        bell = AsyncBell(one.listener(), one.place.keys.channel, id) if wait > 0 else None
        seen = await protocol.ended(one.port, one.place, id, wait, bell)  # type: ignore[arg-type]  # not rung at once
        return self._value(seen, wait)


class JobHandle(_Handle[R]):
    """A job that was sent, for threads; see ``AsyncJobHandle``."""

    def cancel(self, *, running: bool = False) -> str:
        work = protocol.cancel(self._asked.port, self._asked.place, self._known(), running)
        answer: Cancelling = run_sync(work)
        return answer.value

    def move(
        self,
        *,
        at: datetime | None = None,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> bool:
        when = _when(at, seconds, minutes, hours, days)
        one = self._asked
        return _moved(run_sync(protocol.move(one.port, one.place, self._known(), when)))

    def status(self) -> JobStatus:
        status: JobStatus = run_sync(
            protocol.look(self._asked.port, self._asked.place, self._known())
        )
        return status

    def result(self, *, wait: float = 0) -> R:
        one, id = self._asked, self._known()
        bell = SyncBell(one.listener(), one.place.keys.channel, id) if wait > 0 else None
        seen = run_sync(protocol.ended(one.port, one.place, id, wait, bell))  # type: ignore[arg-type]  # not rung at once
        return self._value(seen, wait)
