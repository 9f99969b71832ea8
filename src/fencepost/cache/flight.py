"""One load for all callers of a process: flights, and the gate that all loads pass.

On a loop a flight is a task of its own: cancelling a caller cancels nobody else, and with its last
caller the load is cancelled too. A thread can't hand its work to another (the loader may need what
belongs to its thread: a connection, a request), so there the first caller flies and the others wait;
if it is interrupted, one of them takes over. A caller is given a result only if that was known to
be right after the caller came; otherwise it asks anew (see ``Entry.as_of``).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final
from weakref import WeakKeyDictionary

from fencepost.cache.loading import Held
from fencepost.errors import Overloaded, Unavailable

Work = Callable[[Held], Coroutine[Any, Any, Any]]
GiveBack = Callable[[Held], Coroutine[Any, Any, None]]
LATE: Final = object()
"""The result of a flight that took longer than a caller waits."""


class Crowded(Overloaded):
    """The gate is full: not the server, but this process has too much to do."""


def _full(limit: int, queue: int) -> Overloaded:
    return Crowded(
        f"{limit} loads run and {queue} wait their turn; raise max_loads if the source can take it"
    )


class AsyncGate:
    """At most so many loads at once on a loop, and so many that wait, in order."""

    def __init__(self, limit: int, queue: int, within: float) -> None:
        self._limit, self._most, self._within = limit, queue, within
        self._loops: WeakKeyDictionary[Any, _Places] = WeakKeyDictionary()

    async def enter(self) -> None:
        """Wait for a place.

        Raises:
            Overloaded: Too many wait already, or it took too long.
        """
        loop = asyncio.get_running_loop()
        places = self._loops.get(loop)
        if places is None:
            places = self._loops[loop] = _Places()
        if places.taken < self._limit:
            places.taken += 1
            return
        if len(places.queue) >= self._most:
            raise _full(self._limit, self._most)
        turn: asyncio.Future[None] = loop.create_future()
        places.queue.append(turn)
        late = loop.call_later(self._within, turn.cancel)
        try:
            await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                places.leave()  # given a place and cancelled at the same time: the next one's
            else:
                places.queue.remove(turn)
            task = asyncio.current_task()
            if turn.cancelled() and task is not None and not task.cancelling():
                raise _full(self._limit, len(places.queue)) from error  # it was ``late``
            raise
        finally:
            late.cancel()

    def leave(self) -> bool:
        """Give the place to the next; False if it is kept."""
        return self._loops[asyncio.get_running_loop()].leave()

    def keep(self) -> None:
        """The next ``leave`` gives no place back: a thread that can't be stopped has it yet."""
        self._loops[asyncio.get_running_loop()].kept += 1


class _Places:
    """The places of one loop."""

    __slots__ = ("__weakref__", "kept", "queue", "taken")

    def __init__(self) -> None:
        self.taken = self.kept = 0
        self.queue: deque[asyncio.Future[None]] = deque()

    def leave(self) -> bool:
        if self.kept:
            self.kept -= 1
            return False
        while self.queue:
            turn = self.queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        self.taken -= 1
        return True


class SyncGate:
    """At most so many loads at once in a process, and so many threads that wait."""

    def __init__(self, limit: int, queue: int, within: float) -> None:
        self._limit, self._most, self._within = limit, queue, within
        self._places = threading.BoundedSemaphore(limit)
        self._lock = threading.Lock()
        self._waiting = 0

    def enter(self) -> None:
        """Wait for a place.

        Raises:
            Overloaded: Too many wait already, or it took too long.
        """
        if self._places.acquire(blocking=False):
            return
        with self._lock:
            if self._waiting >= self._most:
                raise _full(self._limit, self._most)
            self._waiting += 1
        try:
            if not self._places.acquire(timeout=self._within):
                raise _full(self._limit, self._waiting)
        finally:
            with self._lock:
                self._waiting -= 1

    def leave(self) -> None:
        """Give the place back."""
        self._places.release()


class _Flight:
    """A load that is under way on a loop."""

    __slots__ = ("callers", "kept", "task")

    task: asyncio.Task[Any]

    def __init__(self, kept: bool) -> None:
        self.callers = 0
        self.kept = kept  # it goes on without callers


class AsyncFlights:
    """The flights of a cache, on all loops that use it.

    Args:
        give_back: Releases the lease of a flight that was cancelled.
    """

    def __init__(self, give_back: GiveBack) -> None:
        self._give_back = give_back
        self._by_key: dict[tuple[Any, str], _Flight] = {}
        self._tasks: set[asyncio.Task[Any]] = set()  # detached ones too

    async def share(self, key: str, work: Work | None, within: float | None) -> Any:
        """The result of the flight of ``key``, begun if there is none.

        Args:
            key: Of the entry.
            work: Begins a load; None begins none.
            within: Seconds that a caller waits for a flight that another one began.

        Returns:
            What the flight returned; ``LATE`` if it took too long, or there is none.
        """
        place = (asyncio.get_running_loop(), key)
        flight = self._by_key.get(place)
        mine = flight is None
        if flight is None:
            if work is None:
                return LATE
            flight = self._start(place, work, kept=False)
        task = flight.task
        flight.callers += 1
        try:
            # Not awaited itself: a cancel of this caller must not reach it.
            await asyncio.wait((task,), timeout=None if mine else within)
        finally:
            flight.callers -= 1
            if not flight.callers and not flight.kept and not task.done():
                self._forget(place, flight)
                task.cancel()
        if not task.done():
            return LATE
        if task.cancelled():  # not this caller: the loader itself, or the end of the client
            raise Unavailable(f"the load of {key!r} was cancelled")
        return task.result()

    def start(self, key: str, work: Work) -> None:
        """Begin a flight that nobody waits for, unless there is one."""
        place = (asyncio.get_running_loop(), key)
        if place not in self._by_key:
            self._start(place, work, kept=True)

    def _start(self, place: tuple[Any, str], work: Work, *, kept: bool) -> _Flight:
        flight = self._by_key[place] = _Flight(kept)
        task = place[0].create_task(self._fly(place, flight, work), name="fencepost-load")
        flight.task = task
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return flight

    async def _fly(self, place: tuple[Any, str], flight: _Flight, work: Work) -> Any:
        held = Held()
        try:
            return await work(held)
        except asyncio.CancelledError:
            if held.token or held.many:
                self._spawn(place[0], self._give_back(held))
            raise
        finally:
            held.hush()
            self._forget(place, flight)

    def _spawn(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
        task = loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # taken: nobody may be waiting any more

    def _forget(self, place: tuple[Any, str], flight: _Flight) -> None:
        if self._by_key.get(place) is flight:
            del self._by_key[place]

    def detach(self, key: str) -> None:
        """Who comes from now on does not join the flight of ``key``; who is in it stays."""
        for place in [place for place in self._by_key if place[1] == key]:
            del self._by_key[place]

    async def aclose(self) -> None:
        """Cancel what is under way on this loop, and wait until it has ended."""
        loop = asyncio.get_running_loop()
        for _ in range(2):  # what is cancelled may give back its lease
            tasks = [task for task in self._tasks if task.get_loop() is loop]
            for task in tasks:
                if task.get_name() == "fencepost-load":
                    task.cancel()
            if tasks:
                await asyncio.wait(tasks)


class _Shared:
    """A load that a thread runs for others."""

    __slots__ = ("abandoned", "callers", "ended", "error", "held", "result")

    def __init__(self) -> None:
        self.held = Held()
        self.callers = 0  # those that wait, its own thread not counted
        self.ended = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None
        self.abandoned = False

    @property
    def over(self) -> bool:
        """Whether its load takes longer than it may: it is left to itself."""
        return self.held.load is not None and self.held.load.over


class SyncFlights:
    """The flights of a cache that threads use; its coroutines never suspend.

    Args:
        give_back: Releases the lease of a flight that was interrupted.
        spawn: Runs a protocol in a thread beside.
    """

    def __init__(
        self, give_back: GiveBack, spawn: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._give_back = give_back
        self._spawn = spawn
        self._lock = threading.Lock()
        self._by_key: dict[str, _Shared] = {}

    async def share(self, key: str, work: Work | None, within: float | None) -> Any:
        """See ``AsyncFlights.share``."""
        while True:
            with self._lock:
                flight = self._by_key.get(key)
                if flight is not None and flight.over:
                    flight = None
                if flight is not None:
                    flight.callers += 1
                elif work is not None:
                    mine = self._by_key[key] = _Shared()
            if flight is None:
                return LATE if work is None else await self._fly(key, mine, work)
            if not flight.ended.wait(within):
                return LATE
            if flight.error is not None:
                raise flight.error
            if not flight.abandoned:
                return flight.result

    async def _fly(self, key: str, flight: _Shared, work: Work) -> Any:
        held = flight.held
        try:
            flight.result = await work(held)
        except Exception as error:
            flight.error = error
            raise
        except BaseException:  # interrupted: one of those who wait flies on
            flight.abandoned = True
            if held.token or held.many:
                self._spawn(self._give_back(held))
            raise
        finally:
            held.hush()
            with self._lock:
                if self._by_key.get(key) is flight:
                    del self._by_key[key]
            flight.ended.set()
        return flight.result

    def start(self, key: str, work: Work) -> None:
        """See ``AsyncFlights.start``."""
        with self._lock:
            known = self._by_key.get(key)
            if known is not None and not known.over:
                return
            flight = self._by_key[key] = _Shared()

        async def quietly() -> None:
            with contextlib.suppress(Exception):  # told as an event
                await self._fly(key, flight, work)

        try:
            self._spawn(quietly())
        except BaseException:  # no thread could be started
            with self._lock:
                self._by_key.pop(key, None)
            flight.abandoned = True
            flight.ended.set()
            raise

    def detach(self, key: str) -> None:
        """See ``AsyncFlights.detach``."""
        with self._lock:
            self._by_key.pop(key, None)
