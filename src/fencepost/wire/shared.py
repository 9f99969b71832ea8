"""Small reads of many threads on one connection: whoever finds it free carries what the others ask.

A thread that has a socket to itself pays two switches of the interpreter's lock and a turn of the
server for each read, and with more threads than sockets it queues for one. Here the thread that
comes first drives: it sends its own read with all that wait, in one write, reads the replies, and
wakes their threads. Those who came meanwhile are the next batch, and the first of them drives it. (The
pattern is known as flat combining; Hendler, Incze, Shavit, Tzafrir, SPAA 2010.)

Only reads that are small by expectation belong here: a large reply would hold up everybody's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from fencepost.wire.verdict import lost, unsent

if TYPE_CHECKING:
    from fencepost._core.script import Call

Exchange = Callable[[Sequence["Call[Any]"], float], list[Any]]
BATCH: Final = 256
_NOTHING: Final = object()  # a seat's outcome while there is none


class _Seat:
    """A thread that waits: woken with its outcome, or to drive."""

    __slots__ = ("call", "drives", "lock", "outcome")

    def __init__(self, call: Call[Any]) -> None:
        self.call = call
        self.outcome: Any = _NOTHING
        self.drives = False
        self.lock = threading.Lock()
        self.lock.acquire()


class Carrier:
    """Batches the reads of threads.

    Args:
        exchange: Sends calls in one write until a deadline, and gives an outcome each: a reply, or
            the error that says what became of it. It raises only what is meant for its own thread.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._lock = threading.Lock()  # of who waits, and whether anybody drives
        self._waiting: deque[_Seat] = deque()
        self._driven = False

    def begin(self) -> bool:
        """Whether nobody drives: then the caller does, with its own exchange, until ``end``."""
        with self._lock:
            if self._driven:
                return False
            self._driven = True
            return True

    def end(self) -> None:
        """Let the first who waits drive, or nobody."""
        with self._lock:
            if self._waiting:
                seat = self._waiting.popleft()
                seat.drives = True
                seat.lock.release()
            else:
                self._driven = False

    def run(self, call: Call[Any], deadline: float, within: float) -> Any:
        """The outcome of a call of who does not drive: its reply, or an error that is not raised.

        Args:
            call: A small read.
            deadline: When it is given up, by ``monotonic``.
            within: Seconds until then.
        """
        seat = _Seat(call)
        with self._lock:
            alone = not self._driven  # who drove has ended meanwhile
            if alone:
                self._driven = True
            else:
                self._waiting.append(seat)
        if alone:
            return self._drive(call, deadline)
        try:
            woken = seat.lock.acquire(timeout=max(within, 0))
        except BaseException:
            self._leave(seat)
            raise
        if not woken:
            self._leave(seat)
        elif seat.drives:
            return self._drive(call, deadline)
        return seat.outcome

    def _leave(self, seat: _Seat) -> None:
        """Stop waiting: no outcome, no turn to drive, is left with a thread that has gone."""
        with self._lock:
            waits = seat in self._waiting
            if waits:
                self._waiting.remove(seat)
        if waits or seat.drives:
            seat.outcome = unsent("there was no turn in time")
        elif seat.outcome is _NOTHING:
            seat.outcome = lost("there was no answer in time")
        if seat.drives:
            self.end()

    def _drive(self, call: Call[Any], deadline: float) -> Any:
        batch: list[_Seat] = []
        outcomes: list[Any] = []
        try:
            with self._lock:
                while self._waiting and len(batch) < BATCH - 1:
                    batch.append(self._waiting.popleft())
            outcomes = self._exchange([call, *(one.call for one in batch)], deadline)
            return outcomes[0]
        finally:
            # However this ends, nobody waits for a driver that is gone.
            for number, one in enumerate(batch, 1):
                there = number < len(outcomes)
                one.outcome = outcomes[number] if there else lost("the exchange was interrupted")
                one.lock.release()
            self.end()
