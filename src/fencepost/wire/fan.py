"""Several independent servers asked at once, on a loop and from threads.

An answer is a value, an error, or None as long as it is not in. Whoever asks says when enough are;
the others are waited for in the background, each no longer than the budget of its server. A server
that is known to be gone is asked by a few at a time only: nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost._core.aio import AsyncPort
from fencepost._core.sync import SyncPort
from fencepost.errors import FencepostError, Unavailable

if TYPE_CHECKING:
    from fencepost._core.script import Call
    from fencepost.wire.pool import SyncServer
    from fencepost.wire.single import Server

_PROBES: Final = 4
"""How many at a time ask a server that does not answer."""
_THREADS: Final = 16


class _Unasked:
    """The answer of a server that was asked nothing."""

    def __repr__(self) -> str:
        return "UNASKED"


UNASKED: Final = _Unasked()
Answers = Sequence[Any]


def wall_ms() -> float:
    """This machine's clock, in milliseconds."""
    return time.time() * 1000


class _Round:
    """One question to all servers."""

    __slots__ = ("answers", "enough", "late", "left", "over")

    def __init__(
        self,
        calls: Sequence[Call[Any] | None],
        enough: Callable[[Answers], bool],
        late: Callable[[Answers], None] | None,
    ) -> None:
        self.answers: list[Any] = [UNASKED if call is None else None for call in calls]
        self.left = sum(call is not None for call in calls)
        self.enough = enough
        self.late = late
        self.over = not self.left

    def put(self, number: int, answer: Any) -> bool:
        """An answer is in; whether the asker may go on by it."""
        self.answers[number] = answer
        self.left -= 1
        if self.over:
            return False
        self.over = not self.left or self.enough(self.answers)
        return self.over

    def tell(self) -> None:
        """The last answer is in."""
        if not self.left and self.late is not None:
            late, self.late = self.late, None
            late(self.answers)


class _Health:
    """What is known of one server: whether it answered last, and how many wait for it with care."""

    __slots__ = ("failed", "waiting")

    def __init__(self) -> None:
        self.failed = False
        self.waiting = 0

    def refuse(self) -> Unavailable | None:
        """Why nobody else should ask it now; None if one may."""
        if self.failed and self.waiting >= _PROBES:
            return Unavailable("the server has not answered for a while. Nothing was sent")
        return None


class AsyncFan(AsyncPort):
    """Several servers for the callers of an event loop; see ``lock.quorum.place.Fan``.

    Args:
        servers: Finds each of them, of the running loop.
    """

    def __init__(self, servers: Sequence[Callable[[], Server]]) -> None:
        first = servers[0]
        super().__init__(lambda call: first().run(call), lambda calls: first().all(calls), wall_ms)
        self.last: Answers = ()
        self._servers = servers
        self._health = [_Health() for _ in servers]
        self._tasks: set[asyncio.Task[Any]] = set()

    async def each(
        self,
        calls: Sequence[Call[Any] | None],
        enough: Callable[[Answers], bool],
        late: Callable[[Answers], None] | None = None,
    ) -> list[Any]:
        """See ``Fan.each``."""
        turn = _Round(calls, enough, late)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for number, call in enumerate(calls):
            if call is not None:
                self._ask(number, call, partial(_put, turn, done, number))
        if not turn.over:
            await done
        turn.tell()
        return turn.answers

    def _ask(self, number: int, call: Call[Any], put: Callable[[Any], None]) -> None:
        try:
            server = self._servers[number]()
            future = server.begin(call)
        except FencepostError as error:
            put(error)
            return
        if future is None:
            self._carefully(number, server, call, None, put)
            return

        def came(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is None and not future.cancelled():
                self._health[number].failed = False
                put(_parsed(call, future.result()))
            elif isinstance(error, FencepostError):
                self._carefully(number, server, call, error, put)
            else:
                put(error or Unavailable("the request was given up"))

        future.add_done_callback(came)

    def _carefully(
        self,
        number: int,
        server: Server,
        call: Call[Any],
        error: FencepostError | None,
        put: Callable[[Any], None],
    ) -> None:
        health = self._health[number]
        if error is None and (refusal := health.refuse()) is not None:
            put(refusal)
            return
        task = asyncio.get_running_loop().create_task(server.carry_on(call, error))
        self._tasks.add(task)
        health.waiting += 1

        def came(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            health.waiting -= 1
            failure = None if task.cancelled() else task.exception()
            health.failed = task.cancelled() or failure is not None
            if task.cancelled():
                put(Unavailable("the request was given up"))
            elif failure is None:
                put(task.result())
            else:
                put(failure)

        task.add_done_callback(came)


def _put(turn: _Round, done: asyncio.Future[None], number: int, answer: Any) -> None:
    if turn.put(number, answer) and not done.done():
        done.set_result(None)
    turn.tell()


def _parsed(call: Call[Any], reply: Any) -> Any:
    try:
        return call.parse(reply)
    except Exception as error:
        return error


class SyncFan(SyncPort):
    """Several servers for threads; see ``lock.quorum.place.Fan``.

    Args:
        servers: Each of them.
        budget: Seconds that one may be silent.
    """

    def __init__(self, servers: Sequence[SyncServer], budget: float) -> None:
        super().__init__(servers[0].run, servers[0].all, wall_ms)
        self._servers = servers
        self._budget = budget
        self.within = budget
        self.last: Answers = ()
        self.forget()

    def forget(self) -> None:
        """In a forked child: its threads are the parent's."""
        self._pools: list[ThreadPoolExecutor | None] = [None] * len(self._servers)
        self._health = [_Health() for _ in self._servers]
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Start no more threads."""
        with self._lock:
            self._closed = True
            pools, self._pools = self._pools, [None] * len(self._servers)
        for pool in pools:
            if pool is not None:
                pool.shutdown(wait=False)

    async def each(
        self,
        calls: Sequence[Call[Any] | None],
        enough: Callable[[Answers], bool],
        late: Callable[[Answers], None] | None = None,
    ) -> list[Any]:
        """See ``Fan.each``."""
        turn = _Round(calls, enough, late)
        changed = threading.Condition()
        for number, call in enumerate(calls):
            if call is None:
                continue
            put = partial(_put_and_notify, turn, changed, number)
            if turn.left == 1 and len(calls) == 1:
                put(_outcome(self._servers[number], call))
            else:
                self._start(number, partial(_outcome, self._servers[number], call), put)
        with changed:
            while not turn.over:
                changed.wait()
        turn.tell()
        return turn.answers

    async def columns(self, calls: Sequence[Sequence[Call[Any]]]) -> list[list[Any]]:
        """See ``Fan.columns``."""
        within = self.within
        columns: list[list[Any]] = [[None] * len(some) for some in calls]
        suspect = [health.failed for health in self._health]
        need = len(calls) // 2 + 1

        def enough(some: Answers) -> bool:
            # Who was silent the last time is not waited for; but there must be a majority.
            healthy = all(doubt or some[n] is not None for n, doubt in enumerate(suspect))
            return healthy and sum(one is not None for one in some) >= need

        turn = _Round(calls, enough, None)  # type: ignore[arg-type]  # only whether there are any
        changed = threading.Condition()
        for number, some in enumerate(calls):

            def ask(number: int = number, some: Sequence[Call[Any]] = some) -> Any:
                found = columns[number] = self._servers[number].outcomes(some, within)
                failed = all(isinstance(one, FencepostError) for one in found)
                return found[0] if failed else found

            self._start(number, ask, partial(_put_and_notify, turn, changed, number))
        with changed:
            changed.wait_for(lambda: turn.over, within * 2)
        for number, answer in enumerate(turn.answers):
            if isinstance(answer, Exception):
                columns[number] = [answer] * len(calls[number])
        return columns

    def _start(self, number: int, work: Callable[[], Any], put: Callable[[Any], None]) -> None:
        health = self._health[number]
        refusal = health.refuse()
        if refusal is not None:
            put(refusal)
            return
        deadline = time.monotonic() + self._budget

        def run() -> None:
            try:
                if time.monotonic() > deadline:  # it stood behind others that wait for this server
                    answer: Any = Unavailable("the server kept others waiting. Nothing was sent")
                else:
                    answer = work()
            except Exception as error:
                answer = error
            with self._lock:
                health.waiting -= 1
                health.failed = isinstance(answer, Exception)
            put(answer)

        with self._lock:
            pool = self._pools[number]
            if pool is None and not self._closed:
                pool = self._pools[number] = ThreadPoolExecutor(
                    _THREADS, thread_name_prefix=f"fencepost-server-{number + 1}"
                )
            health.waiting += 1
        if pool is None:
            with self._lock:
                health.waiting -= 1
            put(Unavailable("the quorum is closed; nothing was sent"))
            return
        try:
            pool.submit(run)
        except (
            RuntimeError
        ):  # the interpreter ends, and starts no threads: one after the other then
            run()


def _put_and_notify(turn: _Round, changed: threading.Condition, number: int, answer: Any) -> None:
    with changed:
        turn.put(number, answer)
        changed.notify_all()
    turn.tell()


def _outcome(server: SyncServer, call: Call[Any]) -> Any:
    try:
        return server.run(call)
    except Exception as error:
        return error
