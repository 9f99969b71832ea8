"""A worker: takes jobs in turns, runs them, and says what became of them.

One turn at a time is under way. What ends meanwhile is said in the next one, so that under load one
round trip serves a whole batch. Nothing here is trusted by others: whatever this process does, the
scripts refuse what its claims do not allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fencepost._core.aio import AsyncPort, clock
from fencepost._core.observe import log
from fencepost._core.script import Call
from fencepost.errors import FencepostError, Refused
from fencepost.jobs import protocol
from fencepost.jobs.job import Cancel, Job, Retry, Snooze, running
from fencepost.jobs.protocol import LOOK, Ack, Me, Place
from fencepost.jobs.record import Unreadable, pack_value, terms_of
from fencepost.jobs.renewer import Renewer
from fencepost.jobs.scripts import Claim, Turned
from fencepost.wire.pool import SyncServer
from fencepost.wire.single import Server

if TYPE_CHECKING:
    from fencepost.jobs.options import QueueOptions
    from fencepost.jobs.task import Task, Tasks

_WORDS: Final = 500  # letters of an error that are kept
_LAST_WORDS: Final = 5.0  # seconds for what is handed back, and for its last turn


class Works:
    """One worker on one event loop; ``run`` it once.

    Args:
        client: Either client: where the server is. The worker's links are its own.
        place: Which queue.
        tasks: What it can run.
        options: Of the queue.
        concurrency: How many jobs it runs at once.
        grace: Seconds that running jobs get when it stops.
        name: What it calls itself, for people.
    """

    def __init__(
        self,
        client: Any,
        place: Place,
        tasks: Tasks,
        options: QueueOptions,
        concurrency: int,
        grace: float,
        name: str,
    ) -> None:
        self._client = client
        self._place = place
        self._tasks = tasks
        self._options = options
        self._concurrency = concurrency
        self._grace = grace
        self.me = Me(name)
        self._running: dict[int, Job] = {}
        self._ended: list[Ack] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._asked = asyncio.Event()  # to stop
        self._stopping = False
        self._handing_back = False
        self._timer: asyncio.TimerHandle | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._untold: set[asyncio.Task[Any]] = set()
        self.looked = 0.0
        """When the server last answered, by ``clock()``; a worker that is alive looks every 2 s."""
        self.counts: Counter[str] = Counter()

    # -- its life

    async def run(self, burst: bool = False) -> None:
        """Work until stopped; with ``burst`` until nothing is due any more."""
        self._burst = burst
        self._loop = asyncio.get_running_loop()
        client, wire = self._client, self._client._options  # noqa: SLF001  # its parts share it
        locate, hook = self._locate, client.hook
        self._server = Server(locate, wire, hook)
        # A link that waits for a token is silent for as long as a worker sleeps.
        waiter = Server(locate, replace(wire, budget=wire.budget + LOOK), hook)
        self._port = AsyncPort(self._server.run, self._server.all, self._server.server_ms)
        own = SyncServer(client._locate, wire, hook)  # noqa: SLF001
        self._renewer = Renewer(
            own, self._place, self.me, lambda: list(self._running.values()), self._lost_in_thread
        )
        self._renewer.start()
        listening = self._loop.create_task(self._listen(waiter), name="fencepost-jobs-listen")
        scheduling = self._loop.create_task(self._schedule(), name="fencepost-jobs-schedule")
        try:
            if burst:
                await scheduling
            self._news.set()
            await self._work()
        finally:
            listening.cancel()
            scheduling.cancel()
            await asyncio.wait((scheduling,))
            if self._timer is not None:
                self._timer.cancel()
            await self._abandon()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
            await asyncio.to_thread(self._renewer.close)
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            await waiter.aclose()
            await self._server.aclose()

    def stop(self) -> None:
        """Take no more; ``run`` returns when what runs has ended, or ``grace`` is over."""
        if not self._stopping:
            self._stopping = True
            self._asked.set()
            self._room.clear()
            self._news.set()

    async def _schedule(self) -> None:
        """Add the jobs of the queue's schedules when their times come; with ``burst`` once."""
        schedules = self._tasks.schedules
        if schedules:
            from fencepost.jobs.schedule import keep

            rounds = 1 if self._burst else None
            await keep(self._port, self._place, schedules, self.counts, rounds)

    async def _locate(self) -> Any:
        return await asyncio.to_thread(self._client._locate)  # noqa: SLF001

    async def _work(self) -> None:
        turns = self._loop.create_task(self._turns(), name="fencepost-jobs-turns")
        asked = self._loop.create_task(self._asked.wait())
        timer: asyncio.TimerHandle | None = None
        try:
            await asyncio.wait((turns, asked), return_when=asyncio.FIRST_COMPLETED)
            if not turns.done():
                timer = self._loop.call_later(self._grace, self._hand_back)
                # Not for ever: a job may not let itself be stopped, and the server may be away.
                await asyncio.wait((turns,), timeout=self._grace + _LAST_WORDS)
            if turns.done():
                await turns
        finally:
            if timer is not None:
                timer.cancel()
            asked.cancel()
            turns.cancel()
            await asyncio.wait((turns, asked))

    def _hand_back(self) -> None:
        """The grace is over: who can be stopped is, and its job is ready for others at once.

        A thread can't be: it is told (``job.lost``), and its claim runs out by itself.
        """
        self._handing_back = True
        for job in list(self._running.values()):
            job.lose("its worker stops")
            if job.task is not None:
                job.task.cancel()
        self._news.set()

    async def _abandon(self) -> None:
        """What still runs when all is over: its claims run out by themselves."""
        left = list(self._running.values())
        for job in left:
            job.lose("its worker ended")
        tasks = [job.task for job in left if job.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    # -- turns

    async def _turns(self) -> None:
        place, me, news = self._place, self.me, self._news
        limit = self._options.limit
        while True:
            await news.wait()
            news.clear()
            acks, self._ended = self._ended, []
            room = 0 if self._stopping else self._concurrency - len(self._running)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            sent = clock()  # before the request: what a reply takes must not lengthen a lease
            answer = await protocol.turn(self._port, place, me, max(room, 0), acks, limit)
            if not isinstance(answer, Turned):
                raise Refused(f"another process uses the name of worker {me.name!r}")
            self.looked = clock()
            self.counts["turns"] += 1
            self.counts["late_ms"] += round(1000 * answer.late)
            if acks:
                self._heard(acks, answer.applied)
            if answer.claims:
                self._tell_known()
                self.counts["begun"] += len(answer.claims)
                for claim in answer.claims:
                    self._begin(claim, sent)
            self._rest(answer)
            idle = not self._running and not self._ended
            if idle and (
                self._stopping or (self._burst and not answer.claims and answer.wait != 0)
            ):
                return

    def _heard(self, acks: list[Ack], applied: tuple[bool, ...]) -> None:
        """What the server said of our words."""
        counted = sum(applied)
        self.counts["applied"] += counted
        if counted < len(acks):
            self.counts["refused"] += len(acks) - counted
            for ack, one in zip(acks, applied, strict=True):
                if not one:
                    log.warning("job %s: %s came too late and was refused", ack.id, ack.verdict)

    def _rest(self, answer: Turned) -> None:
        """How long until the next turn, if nothing happens before."""
        if self._stopping or len(self._running) >= self._concurrency:
            self._room.clear()
            return
        self._room.set()
        if answer.wait is not None and answer.wait < LOOK:
            self._timer = self._loop.call_later(answer.wait, self._news.set)

    def _tell_known(self) -> None:
        """Before the jobs begin: one that kills this process is a crash only if it was known of."""
        task = self._loop.create_task(self._tell(protocol.knowing(self._place, self.me)))
        self._untold.add(task)
        task.add_done_callback(self._untold.discard)

    async def _tell(self, call: Call[Any]) -> None:
        with contextlib.suppress(FencepostError):  # then the next turn says it
            await self._server.run(call)

    async def _listen(self, waiter: Server) -> None:
        """Wait for a token, while there is room; a token is a hint, and so is the end of the wait."""
        key = self._place.keys.wake
        while True:
            await self._room.wait()
            seconds = f"{LOOK * (0.5 + random.random() / 2):.3f}"
            try:
                await waiter.run(Call("wake", ("BLPOP", key, seconds), bool, (key,), resend=True))
            except FencepostError as error:
                log.debug("no token can be waited for: %s", error)
                await asyncio.sleep(0.2)
            self._news.set()

    # -- jobs

    def _begin(self, claim: Claim, sent: float) -> None:
        lease, keep_ms = terms_of(claim.record)
        job = Job(self._place.name, claim, lease, keep_ms, sent)
        self._renewer.knows(lease)
        self._running[claim.epoch] = job
        job.task = self._loop.create_task(self._run(job))

    async def _run(self, job: Job) -> None:
        running(job)
        try:
            if job.lost:  # its claim was answered too late, after an outage say
                self._end(job, "B")
                return
            task, args, kwargs = self._tasks.read(job.record)
        except Unreadable as error:
            self._end(job, "P", text=str(error))
            return
        except BaseException:
            self._end(job, "B")
            raise
        try:
            if not task.is_async:
                result = await self._in_thread(job, task, args, kwargs)
            elif task.options.time_limit is None:
                result = await task.function(*args, **kwargs)
            else:
                result = await self._in_time(task, task.options.time_limit, args, kwargs)
        except (Exception, SystemExit) as error:  # a job that calls sys.exit() ends no worker
            self._failed(job, task, error)
        except asyncio.CancelledError:
            if job.lost or self._handing_back:
                self._end(job, "B")
            else:
                self._failed(job, task, RuntimeError("it was cancelled from within"))
        except BaseException as error:
            self._failed(job, task, error)
            raise
        else:
            self._done(job, task, result)

    async def _in_time(self, task: Task[..., Any], limit: float, args: Any, kwargs: Any) -> Any:
        try:
            async with asyncio.timeout(limit) as timer:
                return await task.function(*args, **kwargs)
        except TimeoutError:
            if timer.expired():
                raise TimeoutError(f"it took longer than its time_limit {limit:g} s") from None
            raise

    async def _in_thread(self, job: Job, task: Task[..., Any], args: Any, kwargs: Any) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, "fencepost-job")
        job.task = None  # a thread can't be cancelled: its job asks ``lost``, or runs to its end
        context = contextvars.copy_context()
        return await self._loop.run_in_executor(
            self._threads, lambda: context.run(task.function, *args, **kwargs)
        )

    def _done(self, job: Job, task: Task[..., Any], result: Any) -> None:
        keep, packed = job.keep_ms, b""
        if keep:
            try:
                packed = pack_value(result, f"what {task.name} returns")
                if len(packed) > self._options.max_result:
                    raise Refused(
                        f"what {task.name} returns takes {len(packed)} bytes, more than max_result "
                        f"{self._options.max_result}"
                    )
            except Refused as error:  # to run it again would change nothing
                self.counts["failed"] += 1
                self._end(job, "X", text=str(error))
                return
        self.counts["done"] += 1
        self._end(job, "D", keep, packed)

    def _failed(self, job: Job, task: Task[..., Any], error: BaseException) -> None:
        match error:
            case Snooze():
                self._end(job, "S", protocol.ms(error.after))
                return
            case Cancel():
                self._end(job, "C", job.keep_ms, str(error))
                return
        self.counts["failed"] += 1
        options, failures = task.options, job.tries + 1
        why = f"{type(error).__name__}: {error}"[:_WORDS]
        if not isinstance(error, Retry):
            log.info("job %s of %s failed", job.id, task.name, exc_info=error)
        if failures > options.retries:
            self._end(job, "X", text=why)
            return
        after = error.after if isinstance(error, Retry) else None
        if after is None:
            after = options.backoff.delay(failures, random.random())
        self._end(job, "R", protocol.ms(after), why)

    def _end(self, job: Job, verdict: str, number: int = 0, text: bytes | str = b"") -> None:
        job.ended = True
        self._running.pop(job.fence, None)
        self._ended.append(Ack(job.id, job.fence, verdict, number, text))
        self._news.set()

    def _lost_in_thread(self, job: Job, why: str) -> None:
        """In the renewer's thread: the job is told at once, and cancelled as soon as its loop runs."""
        if job._why:  # noqa: SLF001  # it was told before
            return
        job.lose(why)
        self.counts["lost"] += 1
        log.warning("job %s: its claim is lost: %s", job.id, why)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop_job, job)

    def _stop_job(self, job: Job) -> None:
        if job.task is not None and not job.ended:
            job.task.cancel()


@contextlib.contextmanager
def stopped_by_signals(works: Works) -> Any:
    """SIGTERM and SIGINT stop the worker, where this is the main thread's loop."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = (signal.SIGTERM, signal.SIGINT)
    for one in caught:
        loop.add_signal_handler(one, works.stop)
    try:
        yield
    finally:
        for one in caught:
            loop.remove_signal_handler(one)
