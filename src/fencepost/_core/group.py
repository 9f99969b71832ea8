"""Callers that come while a batch is under way form the next one: one flush, one WAIT, for all of them.

At most one batch of a group is under way. Who gives up waiting leaves the others alone, and the work
for them goes on.

Callers who ask again as soon as they are answered would fall into two halves that take turns, each
half a batch. So with ``patience`` a batch begins only when as many have come as were answered last
and waited meanwhile, or when a part of the time that the last batch took has passed. And where
``known`` says that a batch did more than was asked of it, whoever waits for that waits no longer.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class _Waiting(Generic[A, R]):
    """The callers of one event loop."""

    def __init__(self) -> None:
        self.queue: list[tuple[A, asyncio.Future[R]]] = []
        self.task: asyncio.Task[None] | None = None
        self.last = _Last()
        self.complete: asyncio.Future[None] | None = None  # somebody waits for the rest to come
        self.batch: list[tuple[A, asyncio.Future[R]]] = []  # under way
        self.callers = 0  # of the batch and the queue, when they were answered ahead of its end
        # One timer for all: a timer a caller would cost as much as all the rest of a join.
        self.limits: deque[tuple[float, asyncio.Future[R], float]] = deque()
        self.timer: asyncio.TimerHandle | None = None


class _Last:
    """The batch before: how many may come now, and until when they are waited for."""

    __slots__ = ("expected", "until")

    def __init__(self) -> None:
        self.expected, self.until = 0, 0.0

    def note(self, expected: int, began: float, patience: float) -> None:
        now = monotonic()
        self.expected, self.until = expected, now + patience * (now - began)

    def wait(self, there: int) -> float:
        """Seconds to wait for the rest, when so many are there."""
        return self.until - monotonic() if there < self.expected else 0.0


class AsyncGroup(Generic[A, R]):
    """The group of an event loop; each loop has its own.

    Args:
        work: Does a batch; a result each, in order. Its error is everybody's.
        most: Callers a batch.
        patience: How long to wait for those who come back, as a part of what the last batch took.
        known: What a batch that is over says of somebody who was not in it; None: nothing.
    """

    def __init__(
        self,
        work: Callable[[Sequence[A]], Awaitable[Sequence[R]]],
        most: int,
        patience: float = 0.0,
        known: Callable[[A], R | None] = lambda _: None,
    ) -> None:
        self._work = work
        self._most = most
        self._patience = patience
        self._known = known
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting[A, R]] = (
            weakref.WeakKeyDictionary()
        )

    async def join(self, one: A, within: float) -> R:
        """Wait for a batch that begins after this call, with ``one`` in it, or for what is known.

        Raises:
            TimeoutError: It was not done within so many seconds; it may be yet.
            Exception: The batch's own error.
        """
        if (known := self._known(one)) is not None:
            return known
        loop = asyncio.get_running_loop()
        waiting = self._loops.get(loop)
        if waiting is None:
            waiting = self._loops[loop] = _Waiting()
        future: asyncio.Future[R] = loop.create_future()
        waiting.queue.append((one, future))
        if waiting.task is None:
            # A task of its own: whoever is cancelled takes nobody along.
            waiting.task = loop.create_task(self._serve(waiting), name="fencepost-group")
        elif waiting.complete is not None and len(waiting.queue) >= waiting.last.expected:
            _arrived(waiting.complete)
        limits, limit = waiting.limits, loop.time() + within
        while limits and limits[0][1].done():
            limits.popleft()
        if limits and limit < limits[-1][0]:  # out of order: a timer of its own
            timer = loop.call_at(limit, _expire, future, within)
            try:
                return await future
            finally:
                timer.cancel()
        limits.append((limit, future, within))
        if waiting.timer is None:
            waiting.timer = loop.call_at(limit, _sweep, loop, waiting)
        return await future

    async def _serve(self, waiting: _Waiting[A, R]) -> None:
        try:
            while waiting.queue:
                await self._gather(waiting)
                batch = waiting.queue[: self._most]
                del waiting.queue[: self._most]
                batch = [(one, future) for one, future in batch if not future.done()]
                if not batch:
                    continue
                waiting.batch, waiting.callers, began = batch, 0, monotonic()
                try:
                    results = await self._work([one for one, _ in batch])
                except Exception as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(_again(error))
                    continue
                except BaseException:
                    for _, future in batch:
                        future.cancel()
                    raise
                for (_, future), result in zip(batch, results, strict=True):
                    if not future.done():
                        future.set_result(result)
                callers = waiting.callers or len(batch) + len(waiting.queue)
                self._answer_queue(waiting)
                waiting.last.note(min(callers, self._most), began, self._patience)
        finally:
            waiting.task, waiting.batch = None, []
            for _, future in waiting.queue:
                future.cancel()
            waiting.queue.clear()

    def settle(self) -> None:
        """Answer everybody of whom something is known by now, ahead of the end of the batch."""
        waiting = self._loops.get(asyncio.get_running_loop())
        if waiting is None or waiting.callers:
            return
        waiting.callers = len(waiting.batch) + len(waiting.queue)
        for one, future in waiting.batch:
            self._answer(one, future)
        self._answer_queue(waiting)

    def _answer_queue(self, waiting: _Waiting[A, R]) -> None:
        waiting.queue[:] = [
            (one, future) for one, future in waiting.queue if not self._answer(one, future)
        ]

    def _answer(self, one: A, future: asyncio.Future[R]) -> bool:
        """Answer somebody for whom the batch that is over did it as well."""
        known = self._known(one)
        if known is not None and not future.done():
            future.set_result(known)
        return known is not None

    async def _gather(self, waiting: _Waiting[A, R]) -> None:
        """Wait a little for those who come back."""
        seconds = waiting.last.wait(len(waiting.queue))
        if seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        waiting.complete = loop.create_future()
        timer = loop.call_later(seconds, _arrived, waiting.complete)
        try:
            await waiting.complete
        finally:
            timer.cancel()
            waiting.complete = None


def _arrived(complete: asyncio.Future[None]) -> None:
    if not complete.done():
        complete.set_result(None)


def _sweep(loop: asyncio.AbstractEventLoop, waiting: _Waiting[Any, Any]) -> None:
    """Expire those whose time is over, and come again when the next one's is."""
    limits, waiting.timer = waiting.limits, None
    while limits and (limits[0][1].done() or limits[0][0] <= loop.time()):
        _, future, within = limits.popleft()
        _expire(future, within)
    if limits:
        waiting.timer = loop.call_at(limits[0][0], _sweep, loop, waiting)


def _expire(future: asyncio.Future[Any], within: float) -> None:
    if not future.done():
        future.set_exception(TimeoutError(f"not done within {within:g} s"))


def _again(error: Exception) -> Exception:
    """The error for one of many: each caller adds a traceback of its own."""
    try:
        own = type(error)(*error.args)
    except TypeError:
        own = RuntimeError(str(error))
    own.__cause__ = error
    return own


class _Ticket(Generic[A, R]):
    """A thread that waits: woken with its result, or to lead the next batch."""

    __slots__ = ("error", "lead", "one", "result", "woken")

    def __init__(self, one: A) -> None:
        self.one = one
        self.woken = threading.Event()
        self.lead = False
        self.result: R | None = None
        self.error: Exception | None = None


class Group(Generic[A, R]):
    """The same for threads: the first to come does the batch, and hands the next one on."""

    def __init__(
        self,
        work: Callable[[Sequence[A]], Sequence[R]],
        most: int,
        patience: float = 0.0,
        known: Callable[[A], R | None] = lambda _: None,
    ) -> None:
        self._work = work
        self._most = most
        self._patience = patience
        self._known = known
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queue: list[_Ticket[A, R]] = []
        self._busy = False
        self._last = _Last()
        self._complete: threading.Event | None = None  # a leader waits for the rest to come

    def join(self, one: A, within: float) -> R:
        """See ``AsyncGroup.join``."""
        if self._pid != os.getpid():
            self._begin()  # the parent's callers are not ours
        if (known := self._known(one)) is not None:
            return known
        ticket: _Ticket[A, R] = _Ticket(one)
        with self._lock:
            self._queue.append(ticket)
            ticket.lead, self._busy = not self._busy, True
            if self._complete is not None and len(self._queue) >= self._last.expected:
                self._complete.set()
        if not ticket.lead:
            self._wait(ticket, within)
        if ticket.lead:
            self._serve()
        if ticket.error is not None:
            raise _again(ticket.error)
        return ticket.result  # type: ignore[return-value]  # set where there is no error

    def _wait(self, ticket: _Ticket[A, R], within: float) -> None:
        try:
            if ticket.woken.wait(within):
                return
        except BaseException:
            self._leave(ticket)
            raise
        if self._leave(ticket):
            raise TimeoutError(f"not done within {within:g} s")

    def _leave(self, ticket: _Ticket[A, R]) -> bool:
        """Stop waiting; whether nothing had been decided yet. Who was made leader hands it on."""
        with self._lock:
            if ticket.woken.is_set() and not ticket.lead:
                return False
            if ticket in self._queue:
                self._queue.remove(ticket)
            if ticket.lead:
                ticket.lead = False
                self._hand_on()
            return True

    def _serve(self) -> None:
        """Do one batch, this thread's among it, and let the next thread do the next."""
        self._gather()
        with self._lock:
            batch = self._queue[: self._most]
            del self._queue[: self._most]
        began = monotonic()
        try:
            results = self._work([ticket.one for ticket in batch])
            for ticket, result in zip(batch, results, strict=True):
                ticket.result = result
        except Exception as error:
            for ticket in batch:
                ticket.error = error
        except BaseException:
            for ticket in batch:
                ticket.error = RuntimeError("the thread that did this for all was interrupted")
            raise
        finally:
            with self._lock:
                expected = min(len(batch) + len(self._queue), self._most)
                self._last.note(expected, began, self._patience)
                for ticket in self._queue:
                    ticket.result = self._known(ticket.one)
                done = [ticket for ticket in self._queue if ticket.result is not None]
                self._queue = [ticket for ticket in self._queue if ticket.result is None]
                for ticket in (*batch, *done):
                    ticket.lead = False
                    ticket.woken.set()
                self._hand_on()

    def _gather(self) -> None:
        """Wait a little for those who come back."""
        with self._lock:
            seconds = self._last.wait(len(self._queue))
            if seconds <= 0:
                return
            complete = self._complete = threading.Event()
        try:
            complete.wait(seconds)
        finally:
            with self._lock:
                self._complete = None

    def _hand_on(self) -> None:
        self._busy = bool(self._queue)
        if self._queue:
            self._queue[0].lead = True
            self._queue[0].woken.set()
