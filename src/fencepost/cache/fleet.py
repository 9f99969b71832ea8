"""The gate of a cache whose loads are bounded over all processes: a place here, and a permit of a semaphore.

A permit is a lease: a process that dies gives its own back by that. While the server can't be reached
there are none to be had: then ``on_down`` decides, as it does for the cache itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fencepost._core.aio import clock
from fencepost.cache.flight import AsyncGate, Crowded, SyncGate
from fencepost.cache.loading import UNREACHABLE
from fencepost.errors import FencepostError, LockTimeout, Overloaded, ServerError

if TYPE_CHECKING:
    from fencepost.cache.options import CacheOptions
    from fencepost.client import AsyncClient, Client

_HELD_AT_MOST: Final = 3600.0
"""Seconds after which a load that never returns gives its permit back all the same."""


def permits(client: AsyncClient | Client, name: str, options: CacheOptions) -> Any:
    """The semaphore of a cache; None if its loads are bounded by process alone."""
    if options.max_loads_total is None:
        return None
    lease = max(options.lease, 0.1)
    return client.semaphore(
        f"cache:{name}",
        permits=options.max_loads_total,
        ttl=lease,
        max_hold=max(_HELD_AT_MOST, options.load_limit, lease),
    )


class _Permits:
    """What both faces share. Permits are all alike: whoever leaves gives one back."""

    def __init__(self, semaphore: Any, options: CacheOptions, down: Callable[[], bool]) -> None:
        self._semaphore = semaphore
        self._total = options.max_loads_total
        self._limit = options.load_limit
        self._goes_on = options.on_down == "load"
        self._down = down
        self._held: list[Any] = []
        self._without = 0
        self._lock = threading.Lock()

    def _left(self, began: float) -> float:
        """Seconds to wait for a permit: for both together a load waits no longer than it may run."""
        return max(self._limit - (clock() - began), 0.0)

    def _pass(self) -> bool:
        """Whether a load goes without a permit: the server is away, and that is no reason to wait."""
        if not (self._goes_on and self._down()):
            return False
        self._note(None)
        return True

    def _note(self, lease: Any) -> None:
        with self._lock:
            if lease is None:
                self._without += 1
            else:
                self._held.append(lease)

    def _refused(self, error: Exception) -> None:
        """No permit was to be had.

        Raises:
            Crowded: All are out.
            Exception: The server can't be asked, and ``on_down`` is ``raise``.
        """
        if isinstance(error, LockTimeout):
            raise Crowded(
                f"{self._total} loads run in all processes; raise max_loads_total if the source can "
                "take it"
            ) from error
        if not self._goes_on:
            raise error
        self._note(None)

    def _given_back(self) -> Any:
        """A lease to release; None if a load went without one, which is then the one that ended."""
        with self._lock:
            if self._without:
                self._without -= 1
                return None
            return self._held.pop() if self._held else None


_AWAY: Final = (LockTimeout, *UNREACHABLE, Overloaded, ServerError)


class AsyncFleetGate(_Permits):
    """On loops: first a place of this loop, then a permit.

    Args:
        gate: Of this process.
        semaphore: Of the fleet.
        options: Of the cache.
        down: Whether the server is known to be away.
    """

    def __init__(
        self, gate: AsyncGate, semaphore: Any, options: CacheOptions, down: Callable[[], bool]
    ) -> None:
        super().__init__(semaphore, options, down)
        self._gate = gate
        self._tasks: set[asyncio.Task[None]] = set()

    async def enter(self) -> None:
        began = clock()
        await self._gate.enter()
        try:
            if not self._pass():
                try:
                    self._note(await self._semaphore._admit(self._left(began)))  # noqa: SLF001
                except _AWAY as error:
                    self._refused(error)
        except BaseException:
            self._gate.leave()
            raise

    def leave(self) -> None:
        if not self._gate.leave():
            return  # a thread that can't be stopped is still at it
        lease = self._given_back()
        if lease is not None:
            task = asyncio.get_running_loop().create_task(_release(lease))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def keep(self) -> None:
        self._gate.keep()


async def _release(lease: Any) -> None:
    with contextlib.suppress(FencepostError):  # then it is done in the background
        await lease.release()


class SyncFleetGate(_Permits):
    """In threads; see ``AsyncFleetGate``."""

    def __init__(
        self, gate: SyncGate, semaphore: Any, options: CacheOptions, down: Callable[[], bool]
    ) -> None:
        super().__init__(semaphore, options, down)
        self._gate = gate

    def enter(self) -> None:
        began = clock()
        self._gate.enter()
        try:
            if not self._pass():
                try:
                    self._note(self._semaphore._admit(self._left(began)))  # noqa: SLF001
                except _AWAY as error:
                    self._refused(error)
        except BaseException:
            self._gate.leave()
            raise

    def leave(self) -> None:
        lease = self._given_back()
        try:
            if lease is not None:
                with contextlib.suppress(FencepostError):
                    lease.release()
        finally:
            self._gate.leave()
