"""One server as threads see it: a pool of sockets, the last one used first.

The rules and the errors are those of ``single.Server``; what differs is that a thread has a socket
to itself for one exchange. The hit path is ``run``: take, pack, send, receive, give back, parse.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from copy import copy
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import hiredis

from fencepost._core import commands
from fencepost._core.aio import clock
from fencepost._core.observe import Connected, Disconnected, Hook
from fencepost.errors import FencepostError, OutcomeUnknown, Overloaded, Unavailable
from fencepost.wire import resp
from fencepost.wire.hello import read_time
from fencepost.wire.shared import Carrier
from fencepost.wire.sock import Connection, open_connection
from fencepost.wire.verdict import RECONNECT, Trouble, closed, lost, no_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost._core.script import Call
    from fencepost.wire.address import Address
    from fencepost.wire.options import WireOptions

T = TypeVar("T")
pack: Final[Callable[[tuple[Any, ...]], bytes]] = hiredis.pack_command
_TIME_EVERY: Final = 120.0  # seconds: how long an estimate of the server's clock is good
_SLICE_CALLS: Final = 512  # of one batch: what goes out before replies are read is bounded
_SLICE_BYTES: Final = 1024 * 1024


class _Turn:
    """A thread that waits: woken with a connection, or with a place to open one."""

    __slots__ = ("connection", "lock", "served")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.connection: Connection | None = None
        self.served = False


class SyncServer:
    """One server for the threads of one process.

    Args:
        locate: Finds the address; called at each connect, so that a moved server is found again.
        options: Budgets and bounds.
        hook: Where events go.
    """

    def __init__(self, locate: Callable[[], Address], options: WireOptions, hook: Hook) -> None:
        self._locate = locate
        self._options = options
        self._budget = options.budget
        self._hook = hook
        self._closed = False
        self._located = False
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked child: let the parent's sockets go, and say nothing on them."""
        for connection in getattr(self, "_all", ()):
            connection.close("it belongs to the parent process")
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._queue: deque[_Turn] = deque()  # threads that wait for a socket, in order
        self._carrier = Carrier(self._carry)
        self._all: set[Connection] = set()  # idle or in use
        self._places = 0  # taken: connections, and those being opened
        self._failures = 0
        self._not_before = 0.0  # no connect before this time
        self._why = ""  # the last connect failed
        self._was_lost = False
        self._offset_ms = (time.time() - clock()) * 1000
        self._timed = monotonic()

    # -- the hit path

    def run(self, call: Call[T]) -> T:
        """Send one call and read its reply. See ``Port.run`` for the errors."""
        start = monotonic()
        connection = self._at_once()
        if connection is None:
            return self._carefully(call, None, start)
        try:
            packed = call.packed
            if not packed:
                info = connection.info
                packed = pack(call.words(info.identity, info.flagged))
                if call.script is None and not call.only:
                    call.packed = packed
            reply = connection.ask(packed, start + self._budget)
            if isinstance(reply, FencepostError):
                raise reply
        except FencepostError as error:
            self._give(connection, error)
            return self._carefully(call, error, start)
        except BaseException:
            self._give(connection, None)
            raise
        self._idle.append(connection)
        if self._queue or self._closed:
            self._serve()
        return call.parse(reply)

    def run_shared(self, call: Call[T]) -> T:
        """Like ``run``, for a small read: threads that ask at the same time share one exchange."""
        carrier = self._carrier
        if carrier.begin():  # nobody else is asking
            try:
                return self.run(call)
            finally:
                carrier.end()
        start = monotonic()
        outcome = carrier.run(call, start + self._budget, self._budget)
        if isinstance(outcome, FencepostError):
            return self._carefully(call, outcome, start)
        return call.parse(outcome)

    def _carry(self, calls: Sequence[Call[Any]], deadline: float) -> list[Any]:
        """One exchange for several threads: an outcome for each."""
        try:
            connection = self._at_once() or self._take(deadline)
        except FencepostError as error:
            return [copy(error) for _ in calls]  # one each: threads raise them
        refused: FencepostError | None = None
        try:
            info = connection.info
            packed = [
                call.packed or pack(call.words(info.identity, info.flagged)) for call in calls
            ]
            left = deadline - monotonic()
            if left < self._budget * 0.9:  # who waited long has less than a connection's own limit
                connection.limit(max(left, 0.001))
            outcomes = connection.ask_all(packed, deadline)
            outcomes += [lost(connection.lost) for _ in range(len(packed) - len(outcomes))]
            refused = next((one for one in outcomes if isinstance(one, resp.NotPrimary)), None)
        finally:
            self._give(connection, refused)
        return outcomes

    def _at_once(self) -> Connection | None:
        if self._queue or self._closed:
            return None
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if connection.alive(self._options.health):
            return connection
        self._give(connection, None)
        return None

    def all(self, calls: Sequence[Call[T]], within: float | None = None) -> list[T]:
        """Send several calls in one write and read their replies.

        Every reply is awaited before the first error is raised; only what failed is tried again.
        ``within`` is the seconds that this may take; None is the budget.
        """
        outcomes = self.outcomes(calls, within)
        for outcome in outcomes:
            if isinstance(outcome, FencepostError):
                raise outcome
        return outcomes

    def outcomes(self, calls: Sequence[Call[Any]], within: float | None = None) -> list[Any]:
        """The same, and the error of each that failed stands in its place."""
        start = monotonic()
        budget = self._budget if within is None else within
        outcomes: list[Any] = []
        while len(outcomes) < len(calls):
            try:
                outcomes += self._some(calls, len(outcomes), start + budget)
            except FencepostError as error:  # no connection: nothing of the rest was sent
                outcomes += [error] * (len(calls) - len(outcomes))
        results: list[Any] = []
        for call, outcome in zip(calls, outcomes, strict=True):
            try:
                if isinstance(outcome, FencepostError):
                    results.append(self._carefully(call, outcome, start, budget))
                else:
                    results.append(call.parse(outcome))
            except FencepostError as error:
                results.append(error)
        return results

    def _some(self, calls: Sequence[Call[T]], begin: int, deadline: float) -> list[Any]:
        """Send a slice of a batch; the replies, and an error for each that did not come."""
        connection = self._take(deadline)
        try:
            info = connection.info
            packed: list[bytes] = []
            size = 0
            for call in calls[begin : begin + _SLICE_CALLS]:
                packed.append(pack(call.words(info.identity, info.flagged)))
                size += len(packed[-1])
                if size >= _SLICE_BYTES:
                    break
            connection.limit(max(deadline - monotonic(), 0.001))
            outcomes = connection.ask_all(packed, deadline)
        except BaseException:
            self._give(connection, None)
            raise
        outcomes += [lost(connection.lost) for _ in range(len(packed) - len(outcomes))]
        self._give(connection, None)
        return outcomes

    def server_ms(self) -> float:
        """The server's clock by our estimate, in milliseconds; this machine's before there is one."""
        if monotonic() - self._timed > _TIME_EVERY:
            sent, self._timed = clock(), monotonic()
            with contextlib.suppress(FencepostError):
                offset = read_time(self.run(commands.read("TIME")), sent, clock())
                self._offset_ms = self._offset_ms if offset is None else offset
        return clock() * 1000 + self._offset_ms

    # -- everything else

    def _carefully(
        self,
        call: Call[T],
        error: FencepostError | None,
        start: float,
        budget: float | None = None,
    ) -> T:
        """Run a call through trouble, within the budget; ``verdict`` says what is tried again."""
        if not self._located:
            # Before the clock of the call starts: an embedded server may have to load its data.
            self._locate()
            self._located = True
            start = monotonic()
        deadline = start + (self._budget if budget is None else budget)
        trouble = Trouble()
        while True:
            if error is not None:
                trouble.meet(call, error, left=0.0 if self._closed else deadline - monotonic())
                if trouble.pause:
                    time.sleep(trouble.pause)
            try:
                connection = self._take(deadline)
            except FencepostError as caught:
                error = caught
                continue
            error = None
            try:
                info = connection.info
                packed = pack(call.words(info.identity, info.flagged, trouble.whole))
                connection.limit(max(deadline - monotonic(), 0.001))
                reply = connection.ask(packed, deadline)
                if isinstance(reply, FencepostError):
                    error = reply
            except FencepostError as caught:
                error = caught
            except BaseException:
                self._give(connection, None)
                raise
            self._give(connection, error)
            if error is None:
                return call.parse(reply)

    # -- connections

    def _take(self, deadline: float) -> Connection:
        """A connection that works: an idle one, a new one, or the next that is given back."""
        while True:
            connection = self._claim(deadline)
            if connection is None:
                return self._open(deadline)
            if connection.alive(self._options.health):
                return connection
            self._give(connection, None)

    def _claim(self, deadline: float) -> Connection | None:
        """An idle connection, or None with a place to open one."""
        with self._lock:
            self._refuse_if_closed()
            if not self._queue:
                if self._idle:
                    return self._idle.pop()
                if self._places < self._options.max_connections:
                    self._places += 1
                    return None
            turn = _Turn()
            self._queue.append(turn)
        self._serve()  # one may have been given back between the look and the queueing
        try:
            turn.lock.acquire(timeout=max(deadline - monotonic(), 0))
        except BaseException:
            self._leave(turn)
            raise
        with self._lock:
            if not turn.served:
                self._queue.remove(turn)
                raise Overloaded(
                    f"all {self._places} connections were busy for {self._budget:g} s. "
                    "Nothing was sent; use fewer threads, or raise max_connections",
                    retry_after=self._budget,
                )
        try:
            self._refuse_if_closed()
        except BaseException:
            self._leave(turn)
            raise
        return turn.connection

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise closed()

    def _leave(self, turn: _Turn) -> None:
        """Stop waiting; what was handed over meanwhile goes to the next."""
        with self._lock:
            if not turn.served:
                self._queue.remove(turn)
                return
        if turn.connection is not None:
            self._give(turn.connection, None)
        else:
            self._vacate()

    def _open(self, deadline: float) -> Connection:
        """Open a connection in a place that is already ours."""
        try:
            pause = min(self._not_before, deadline) - monotonic()
            if pause > 0:
                time.sleep(pause)
            within = deadline - monotonic()
            if within <= 0:
                raise no_connection(self._budget, self._why)
            address, began = self._locate(), monotonic()
            try:
                connection = open_connection(address, self._budget, within)
            except Unavailable as error:
                # A try that ran out of time says less than the one before it, which was answered.
                late = monotonic() >= deadline and bool(self._why)
                with self._lock:
                    self._why = self._why if late else str(error)
                    if began >= self._not_before:  # threads that fail together fail once
                        pause = RECONNECT.delay(self._failures, random.random())
                        self._not_before = monotonic() + min(pause, self._budget / 4)
                        self._failures += 1
                if late:
                    raise no_connection(self._budget, self._why) from error
                raise
        except BaseException:
            self._vacate()
            raise
        with self._lock:
            self._all.add(connection)
            self._failures, self._not_before, self._why = 0, 0.0, ""
            self._offset_ms, self._timed = connection.info.offset_ms, monotonic()
            again, self._was_lost = self._was_lost, False
        try:
            self._refuse_if_closed()
        except BaseException:
            self._give(connection, None)
            raise
        if self._hook.listener is not None:
            info = connection.info
            self._hook.listener(Connected(connection.server, info.identity, info.protocol, again))
        return connection

    def _give(self, connection: Connection, error: FencepostError | None) -> None:
        """Give a connection back; one that ended, or leads to a replica, makes room instead."""
        if isinstance(error, resp.NotPrimary):
            connection.close("the server is not the primary any more")
        if self._closed:
            connection.close("the client was closed")
        if not connection.lost:
            self._idle.append(connection)
            if self._queue:
                self._serve()
            return
        with self._lock:
            known = connection in self._all
            self._all.discard(connection)
            self._was_lost = True
            if isinstance(error, resp.NotPrimary):  # the others lead to the same server
                for other in self._idle:
                    other.close(connection.lost)
        if known:
            self._vacate()
            if self._hook.listener is not None:
                unanswered = int(isinstance(error, OutcomeUnknown))
                self._hook.listener(Disconnected(connection.server, connection.lost, unanswered))

    def _vacate(self) -> None:
        with self._lock:
            self._places -= 1
        self._serve()

    def _serve(self) -> None:
        """Hand idle connections and free places to the threads that wait, in order."""
        with self._lock:
            if self._closed:
                while self._idle:  # others may still be giving theirs back
                    connection = self._idle.pop()
                    connection.close("the client was closed")
                    self._all.discard(connection)
            while self._queue:
                if self._idle and not self._closed:
                    self._queue[0].connection = self._idle.pop()
                elif self._places < self._options.max_connections or self._closed:
                    self._places += 1
                else:
                    return
                turn = self._queue.popleft()
                turn.served = True
                turn.lock.release()

    def close(self) -> None:
        """Close the connections; a thread that waits for a reply gets ``OutcomeUnknown``."""
        with self._lock:
            self._closed = True
            idle = set(self._idle)
            for connection in self._all - idle:
                connection.interrupt("the client was closed")
        self._serve()
