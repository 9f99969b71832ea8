"""The two faces of a lease, side by side; the docstrings stand on the async one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

from fencepost._core.aio import clock
from fencepost._core.port import run_sync
from fencepost.errors import FencepostError, Refused
from fencepost.lock.guard import Guard
from fencepost.lock.lease import Held, report


class AsyncLease(Held):
    """A lease on a lock; ``async with lease:`` cancels its body when it is lost, and releases it.

    Attributes:
        name: Of the lock.
        fence: Greater than that of every holder before: give it to what the lock protects.
        token: Who drew the fence.
        owner: What the holder calls itself.
        lost: Whether it ended before it was released, by the clock.
        released: Whether it was given back.
    """

    _guard: Guard | None = None

    async def release(self) -> bool:
        """Give the lock back, from any task; a second time is harmless.

        Returns:
            False if it had been lost before.

        Raises:
            Unavailable: It was not given back; it is tried on in the background.
            OutcomeUnknown: Likewise; it was given back or not.
        """
        return await self._give_back()

    async def wait_lost(self, within: float | None = None) -> bool:
        """Wait until the lease is over.

        Args:
            within: Seconds to wait at most; None waits as long as it lives.

        Returns:
            True if it was lost, False if it was released or still stands.
        """
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        end = None if within is None else clock() + within
        self._watch(told)  # first watch, then look: what is told between the two counts
        try:
            while not self.lost and not self.released:
                left = self.remaining() + 0.0005
                if end is not None:
                    left = min(left, end - clock())
                    if left <= 0:
                        return False
                timer = loop.call_later(left, changed.set)
                try:
                    await changed.wait()
                finally:
                    timer.cancel()
                changed.clear()
        finally:
            self._unwatch(told)
        return self.lost

    async def __aenter__(self) -> AsyncLease:
        if self._guard is not None:
            raise Refused(f"the lease on {self.name!r} guards a body already")
        self.check()
        self._guard = Guard(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        guard, self._guard = self._guard, None
        if guard is None:
            return
        guard.close()
        with contextlib.suppress(FencepostError):  # then it is done in the background
            await self._give_back()
        guard.settle(error)


class Lease(Held):
    """A lease on a lock, for threads; see ``AsyncLease``. A body can't be cancelled: ``check`` in it."""

    def release(self) -> bool:
        return run_sync(self._give_back())

    def wait_lost(self, within: float | None = None) -> bool:
        changed = threading.Event()
        end = None if within is None else clock() + within
        self._watch(changed.set)
        try:
            while not self.lost and not self.released:
                left = self.remaining() + 0.0005
                if end is not None:
                    left = min(left, end - clock())
                    if left <= 0:
                        return False
                changed.wait(left)
                changed.clear()
        finally:
            self._unwatch(changed.set)
        return self.lost

    def __enter__(self) -> Lease:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(FencepostError):  # then it is done in the background
            run_sync(self._give_back())
        if self.why:
            report(self, error)
