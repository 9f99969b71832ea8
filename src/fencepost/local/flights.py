"""Loads that callers share: one a key for all threads, and one a key for each event loop.

Threads do not wait for an event loop's load: the loop might be their own, waiting for them. A change of
a key *detaches* its flights: who is in one gets its result, nobody else does, and it is not kept.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Protocol

from fencepost.local.entry import Entry


class Flight:
    """One load under way."""

    __slots__ = ("abandoned", "ended", "error", "key", "owner", "result", "scope", "task")

    def __init__(self, key: Hashable, scope: asyncio.AbstractEventLoop | None) -> None:
        self.key, self.scope = key, scope
        self.owner = threading.get_ident()
        self.ended = threading.Event()  # for threads; tasks await the task
        self.task: asyncio.Task[Any] | None = None
        self.result: Any = None
        self.error: Exception | None = None
        self.abandoned = False  # interrupted: one of those who wait loads


class Home(Protocol):
    """What flights need of their cache."""

    def joined(
        self, key: Hashable, scope: asyncio.AbstractEventLoop | None
    ) -> Entry | tuple[Flight, bool] | None:
        """What is there by now; else the flight, and whether it is the caller's own. None: neither."""

    def keep(self, flight: Flight, value: Any, lasts: float | None) -> None:
        """Keep what a flight has loaded, if it still stands, and end it."""

    def drop(self, flight: Flight) -> None:
        """End a flight that has loaded nothing."""


class Flights:
    """The flights of a cache. Those who change ``by_key`` are inside a step of the cache."""

    __slots__ = ("_home", "by_key", "errors", "loads", "unpublished")

    def __init__(self, home: Home) -> None:
        self._home = home
        self.by_key: dict[Hashable, dict[asyncio.AbstractEventLoop | None, Flight]] = {}
        self.loads = self.errors = self.unpublished = 0

    # -- inside a step --

    def join(self, key: Hashable, scope: asyncio.AbstractEventLoop | None) -> tuple[Flight, bool]:
        """The flight of a key, and whether it is new: the caller's own."""
        flights = self.by_key.setdefault(key, {})
        known = flights.get(scope)
        if known is not None:
            return known, False
        made = flights[scope] = Flight(key, scope)
        return made, True

    def land(self, flight: Flight) -> bool:
        """End a flight; gives whether it still stood."""
        flights = self.by_key.get(flight.key)
        if flights is None or flights.get(flight.scope) is not flight:
            return False
        del flights[flight.scope]
        if not flights:
            del self.by_key[flight.key]
        return True

    def detach(self, key: Hashable) -> None:
        """The key has changed."""
        self.by_key.pop(key, None)

    def detach_all(self) -> None:
        self.by_key.clear()

    # -- outside --

    def fly(self, key: Hashable, load: Callable[[], Any], lasts: float | None) -> Any:
        """Load in this thread, or wait for the thread that does."""
        while True:
            found = self._home.joined(key, None)
            if found is None:
                return load()
            if isinstance(found, Entry):
                return found.value
            flight, mine = found
            if mine:
                return self._load(flight, load, lasts)
            if flight.owner == threading.get_ident():
                raise _itself(key)
            flight.ended.wait()
            if flight.error is not None:
                raise flight.error
            if not flight.abandoned:
                return flight.result

    def _load(self, flight: Flight, load: Callable[[], Any], lasts: float | None) -> Any:
        try:
            flight.result = load()
            self._home.keep(flight, flight.result, lasts)
            self.loads += 1
            return flight.result
        except Exception as error:
            self.errors += 1
            flight.error = error
            raise
        except BaseException:
            flight.abandoned = True
            raise
        finally:
            self._home.drop(flight)  # before those who wait look again
            flight.ended.set()

    async def fly_async(
        self, key: Hashable, load: Callable[[], Awaitable[Any] | Any], lasts: float | None
    ) -> Any:
        """Load in a task of its own, or wait for the one that does."""
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        while True:
            found = self._home.joined(key, loop)
            if found is None:
                value = load()
                return await value if inspect.isawaitable(value) else value
            if isinstance(found, Entry):
                return found.value
            flight, mine = found
            if mine:
                flight.task = loop.create_task(self._load_async(flight, load, lasts))
                flight.task.add_done_callback(_taken)
            task = flight.task
            if (
                task is None or task is me
            ):  # (it is set in the turn of the loop that made the flight)
                raise _itself(key)
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                # The load was cancelled, not we: somebody who waits loads.
                if not flight.abandoned or (me is not None and me.cancelling()):
                    raise

    async def _load_async(
        self, flight: Flight, load: Callable[[], Awaitable[Any] | Any], lasts: float | None
    ) -> Any:
        try:
            value = load()
            if inspect.isawaitable(value):
                value = await value
            self._home.keep(flight, value, lasts)
            self.loads += 1
            return value
        except Exception:
            self.errors += 1
            raise
        except BaseException:
            flight.abandoned = True
            raise
        finally:
            self._home.drop(flight)


def _itself(key: Hashable) -> RuntimeError:
    return RuntimeError(f"the load of {key!r} asks for {key!r}: it would wait for itself")


def _taken(task: asyncio.Task[Any]) -> None:
    """Nobody may be waiting for its error any more."""
    if not task.cancelled():
        task.exception()
