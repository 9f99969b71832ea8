"""The guard of a body: when its lease is lost, its task is cancelled.

As ``asyncio.timeout`` does it, with the lease's own deadline: one cancel request of ours, which the
end of the body takes back (``uncancel``); only if no other was made meanwhile does it become
``LeaseLost``. So a timeout or a task group around the body, or within it, sees its own cancels.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from fencepost.errors import LeaseLost
from fencepost.lock.lease import report

if TYPE_CHECKING:
    from fencepost.lock.lease import Guarded


class Guard:
    """Watches one body; made in its task."""

    def __init__(self, lease: Guarded) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease guards the body of a task; there is none here")
        self._task = task
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._cancelling = task.cancelling()
        self._struck = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        lease._watch(self._from_thread)  # noqa: SLF001  # the same part
        self._look()

    def _from_thread(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """Strike if the lease is lost, else look again when it would be."""
        if self._timer is not None:
            self._timer.cancel()
        if self._closed or self._struck:
            return
        if self._lease.lost:
            self._struck = True
            self._task.cancel()
        elif not self._lease.released:
            # By then it may have been prolonged; the loop's clock stands still in suspend, ours does not.
            self._timer = self._loop.call_later(self._lease.remaining() + 0.0005, self._look)

    def close(self) -> None:
        """The body has ended: strike no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._lease._unwatch(self._from_thread)  # noqa: SLF001

    def settle(self, error: BaseException | None) -> None:
        """Take our cancel back, and tell a loss.

        Raises:
            LeaseLost: The lease was lost, and the body ended well or by our cancel alone.
        """
        if self._struck:
            alone = self._task.uncancel() <= self._cancelling
            if alone and isinstance(error, asyncio.CancelledError):
                raise LeaseLost(
                    f"the lease on {self._lease.name!r} was lost, and its work was cancelled: {self._lease.why}"
                ) from error
        if self._lease.why:
            report(self._lease, error)
