"""The two faces of a queue of jobs, side by side; the docstrings stand on the async one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from fencepost._core.keys import bounded, job_keys
from fencepost._core.port import run_sync
from fencepost.errors import Refused
from fencepost.jobs import protocol
from fencepost.jobs.handles import Asked, AsyncJobHandle, DeadJob, JobHandle, dead_job
from fencepost.jobs.options import QueueOptions, TaskOptions, check_workers
from fencepost.jobs.protocol import Place
from fencepost.jobs.scripts import Added, Figures
from fencepost.jobs.task import Message, Task, Tasks, Timing, naming, when_after, when_at
from fencepost.jobs.worker import Works
from fencepost.jobs.workers import AsyncWorker, Worker

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client
    from fencepost.jobs.recurring import AsyncCronDecorator, CronDecorator

P = ParamSpec("P")
R = TypeVar("R")
_BATCH = 500
_BATCH_BYTES = 1024 * 1024


class AsyncTask(Task[P, R]):
    """A function that can be sent; ``welcome(7)`` just runs it."""

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJobHandle[R]:
        """Have it run with these arguments, as soon as a worker is free.

        Returns:
            A handle; its ``verdict`` says whether a job was created, or one with its key is there.

        Raises:
            Refused: The arguments can't be stored, are too large, or are not the function's.
            Unavailable: It was not sent.
            OutcomeUnknown: It was sent or not.
        """
        handle: AsyncJobHandle[R] = await self.queue._send(self, self.new(args, kwargs))  # noqa: SLF001  # its own queue
        return handle

    def after(
        self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> AsyncTiming[P, R]:
        """Not before so long from now, by the server's clock: ``await welcome.after(hours=24).send(7)``."""
        return AsyncTiming(self, when_after(seconds, minutes, hours, days))

    def at(self, at: datetime) -> AsyncTiming[P, R]:
        """Not before a moment: a datetime with a zone; ``Refused`` without one."""
        return AsyncTiming(self, when_at(at))

    def named(self, id: str, *, remember: float = 0) -> AsyncTiming[P, R]:
        """Under an id: while a job has it, no other one is added.

        Args:
            id: Any text; the same text is the same job.
            remember: Seconds from now for which it is not used again, even when the job has ended.
        """
        return AsyncTiming(self, "", *naming(id, remember))


class AsyncTiming(Timing[P, R]):
    """A task with a time, or with an id."""

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJobHandle[R]:
        """See ``AsyncTask.send``."""
        handle: AsyncJobHandle[R] = await self.task.queue._send(self.task, self._new(args, kwargs))  # noqa: SLF001  # its own queue
        return handle

    def after(
        self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> AsyncTiming[P, R]:
        """See ``AsyncTask.after``."""
        when = when_after(seconds, minutes, hours, days)
        return AsyncTiming(self.task, when, self._id, self._remember)

    def at(self, at: datetime) -> AsyncTiming[P, R]:
        """See ``AsyncTask.at``."""
        return AsyncTiming(self.task, when_at(at), self._id, self._remember)

    def named(self, id: str, *, remember: float = 0) -> AsyncTiming[P, R]:
        """See ``AsyncTask.named``."""
        return AsyncTiming(self.task, self._when, *naming(id, remember))


class SyncTask(Task[P, R]):
    """A function that can be sent, from threads; see ``AsyncTask``."""

    def send(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        handle: JobHandle[R] = self.queue._send(self, self.new(args, kwargs))  # noqa: SLF001  # its own queue
        return handle

    def after(
        self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> SyncTiming[P, R]:
        return SyncTiming(self, when_after(seconds, minutes, hours, days))

    def at(self, at: datetime) -> SyncTiming[P, R]:
        return SyncTiming(self, when_at(at))

    def named(self, id: str, *, remember: float = 0) -> SyncTiming[P, R]:
        return SyncTiming(self, "", *naming(id, remember))


class SyncTiming(Timing[P, R]):
    """A task with a time, or with an id; see ``AsyncTiming``."""

    def send(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        handle: JobHandle[R] = self.task.queue._send(self.task, self._new(args, kwargs))  # noqa: SLF001  # its own queue
        return handle

    def after(
        self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> SyncTiming[P, R]:
        when = when_after(seconds, minutes, hours, days)
        return SyncTiming(self.task, when, self._id, self._remember)

    def at(self, at: datetime) -> SyncTiming[P, R]:
        return SyncTiming(self.task, when_at(at), self._id, self._remember)

    def named(self, id: str, *, remember: float = 0) -> SyncTiming[P, R]:
        return SyncTiming(self.task, self._when, *naming(id, remember))


class AsyncDecorator(Protocol):
    """Makes a task of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...


class Decorator(Protocol):
    """Makes a task of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class _Jobs:
    """What both faces share: the place, the tasks, and the options of the queue."""

    def __init__(self, client: Any, name: str, options: QueueOptions) -> None:
        self.name = name
        self.options = options
        self.tasks = Tasks()
        self._client = client
        self._place = Place(name, job_keys(client.namespace, name), history=options.history)
        self._asked = Asked(client, self._place, self.tasks)

    def _make(
        self, kind: type[Any], key: Callable[..., str] | None, options: dict[str, Any]
    ) -> Any:
        checked = TaskOptions(**options)  # now, not when the function is there

        def decorate(function: Callable[..., Any]) -> Any:
            task = kind(self, function, checked, key, self.options.max_body)
            self.tasks.add(task)
            return task

        return decorate

    def _mine(self, messages: Iterable[Message]) -> list[Message]:
        found = list(messages)
        for one in found:
            if not isinstance(one, Message):
                raise Refused(f"add_many takes what task.message(…) makes, got {one!r}")
            if one.task.queue is not self:
                raise Refused(f"{one.task.name} is a task of another queue: keys are apart there")
        return found

    def _works(self, concurrency: int, grace: float, name: str) -> Works:
        return Works(self._client, self._place, self.tasks, self.options, concurrency, grace, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, tasks={sorted(self.tasks.by_name)})"


class AsyncJobs(_Jobs):
    """A queue of jobs, as ``AsyncClient.jobs`` makes it.

    What it promises and what no queue can is written in ``docs/jobs.md``.
    """

    def __init__(self, client: AsyncClient, name: str, options: QueueOptions) -> None:
        super().__init__(client, name, options)
        self.dead = AsyncDead(self._asked)

    def job(self, *, key: Callable[..., str] | None = None, **options: Any) -> AsyncDecorator:
        """Make a function a task of this queue; plain functions run in threads.

        Args:
            key: Makes the unique key of a job from its arguments; see ``unique``.
            **options: See ``fencepost.jobs.TaskOptions``: ``retries``, ``backoff``, ``lease`` …

        Raises:
            Refused: An option can't work, or there is a task of this name.
        """
        decorator: AsyncDecorator = self._make(AsyncTask, key, options)
        return decorator

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        missed: str = "one",
        overlap: str = "skip",
        **options: Any,
    ) -> AsyncCronDecorator:
        """Make a function without arguments a task that comes by the calendar.

        Every worker of the queue that knows it sees to it; each time comes once, however many there
        are. ``task.preview(5)`` tells the next ones. See ``docs/cron.md``.

        Args:
            expression: Minute, hour, day of month, month, day of week; or ``@daily`` and its kind.
            tz: The zone whose clock it means, by its name in the tz database.
            missed: Of times that came while there was no worker: ``"one"`` runs the latest, ``"all"``
                each of the latest 100, ``"skip"`` none.
            overlap: Of a time whose predecessor has not ended: ``"skip"`` leaves it out, ``"allow"``
                runs both.
            **options: See ``fencepost.jobs.TaskOptions``, without ``unique`` and ``debounce``.

        Raises:
            Refused: The expression can't be read, the zone is not known, or an option can't work.
        """
        from fencepost.jobs.recurring import AsyncCronTask, recurring

        decorator: AsyncCronDecorator = recurring(
            self, AsyncCronTask, expression, tz, missed, overlap, options
        )
        return decorator

    async def _send(self, task: Any, new: protocol.New) -> AsyncJobHandle[Any]:
        [added] = await protocol.add(self._client.port, self._place, [new])
        return AsyncJobHandle(self._asked, added.id, added.verdict.value, task)

    async def add_many(self, messages: Iterable[Message]) -> list[AsyncJobHandle[Any]]:
        """Send many jobs, hundreds in a round trip.

        Args:
            messages: ``task.message(…)`` or ``task.after(…).message(…)`` each.

        Returns:
            A handle each, in order.

        Raises:
            Unavailable: Those from some point on were not sent.
            OutcomeUnknown: Some of one round trip were sent or not.
        """
        mine = self._mine(messages)
        added: list[Added] = []
        for some in _batches(mine):
            added += await protocol.add(self._client.port, self._place, [one.new for one in some])
        return [
            AsyncJobHandle(self._asked, one.id, one.verdict.value, message.task)
            for message, one in zip(mine, added, strict=True)
        ]

    def handle(self, id: str) -> AsyncJobHandle[Any]:
        """The handle of a job whose id was kept; no I/O."""
        return AsyncJobHandle(self._asked, bounded(id), "", None)

    async def pause(self) -> None:
        """Let no job begin any more, in any worker; what runs goes on."""
        await protocol.pause(self._client.port, self._place, True)

    async def resume(self) -> None:
        """Let jobs begin again."""
        await protocol.pause(self._client.port, self._place, False)

    async def count(self) -> Figures:
        """How much waits, runs and was given up."""
        return await protocol.count(self._client.port, self._place)

    def worker(
        self, *, concurrency: int = 10, grace: float = 20.0, name: str | None = None
    ) -> AsyncWorker:
        """A worker of this queue; it begins with ``await worker.run()``.

        Args:
            concurrency: How many jobs it runs at once, 1 to 1000.
            grace: Seconds that jobs get to end when it is stopped; then they are handed back.
            name: What it calls itself, for people; None is ``host:pid``.

        Raises:
            Refused: A value that can't work.
        """
        check_workers(concurrency, grace)
        return AsyncWorker(self, concurrency, grace, name)


class Jobs(_Jobs):
    """A queue of jobs, for threads; see ``AsyncJobs``."""

    def __init__(self, client: Client, name: str, options: QueueOptions) -> None:
        super().__init__(client, name, options)
        self.dead = DeadJobs(self._asked)

    def job(self, *, key: Callable[..., str] | None = None, **options: Any) -> Decorator:
        decorator: Decorator = self._make(SyncTask, key, options)
        return decorator

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        missed: str = "one",
        overlap: str = "skip",
        **options: Any,
    ) -> CronDecorator:
        from fencepost.jobs.recurring import CronTask, recurring

        decorator: CronDecorator = recurring(
            self, CronTask, expression, tz, missed, overlap, options
        )
        return decorator

    def _send(self, task: Any, new: protocol.New) -> JobHandle[Any]:
        [added] = run_sync(protocol.add(self._client.port, self._place, [new]))
        return JobHandle(self._asked, added.id, added.verdict.value, task)

    def add_many(self, messages: Iterable[Message]) -> list[JobHandle[Any]]:
        mine = self._mine(messages)
        added: list[Added] = []
        for some in _batches(mine):
            work = protocol.add(self._client.port, self._place, [one.new for one in some])
            added += run_sync(work)
        return [
            JobHandle(self._asked, one.id, one.verdict.value, message.task)
            for message, one in zip(mine, added, strict=True)
        ]

    def handle(self, id: str) -> JobHandle[Any]:
        return JobHandle(self._asked, bounded(id), "", None)

    def pause(self) -> None:
        run_sync(protocol.pause(self._client.port, self._place, True))

    def resume(self) -> None:
        run_sync(protocol.pause(self._client.port, self._place, False))

    def count(self) -> Figures:
        return run_sync(protocol.count(self._client.port, self._place))

    def worker(
        self, *, concurrency: int = 10, grace: float = 20.0, name: str | None = None
    ) -> Worker:
        check_workers(concurrency, grace)
        return Worker(self, concurrency, grace, name)


class AsyncDead:
    """The jobs of a queue that were given up: ``mail.dead``."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    async def list(self, *, first: int = 0, most: int = 100) -> list[DeadJob]:
        """Some of them, the latest first.

        Args:
            first: How many to leave out.
            most: How many to tell, at most.
        """
        one = self._asked
        return [dead_job(it) for it in await protocol.dead_list(one.port, one.place, first, most)]

    async def replay(self, *ids: str) -> int:
        """Run them again; what was counted against them is forgotten.

        Returns:
            How many of these ids were dead, and wait again.
        """
        return await protocol.revive(self._asked.port, self._asked.place, ids)

    async def discard(self, *ids: str) -> int:
        """Forget them; how many of these ids were dead."""
        return await protocol.discard(self._asked.port, self._asked.place, ids)


class DeadJobs:
    """The jobs of a queue that were given up; see ``AsyncDead``."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def list(self, *, first: int = 0, most: int = 100) -> list[DeadJob]:
        one = self._asked
        found = run_sync(protocol.dead_list(one.port, one.place, first, most))
        return [dead_job(it) for it in found]

    def replay(self, *ids: str) -> int:
        return run_sync(protocol.revive(self._asked.port, self._asked.place, ids))

    def discard(self, *ids: str) -> int:
        return run_sync(protocol.discard(self._asked.port, self._asked.place, ids))


def _batches(messages: Sequence[Message]) -> Iterable[Sequence[Message]]:
    """What goes in one call each: so many jobs, or so many bytes."""
    begin, size = 0, 0
    for at, one in enumerate(messages):
        if at > begin and (at - begin == _BATCH or size + len(one.new.record) > _BATCH_BYTES):
            yield messages[begin:at]
            begin, size = at, 0
        size += len(one.new.record)
    if messages:
        yield messages[begin:]
