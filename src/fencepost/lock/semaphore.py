"""The two faces of a semaphore, side by side; the docstrings stand on the async one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fencepost._core.port import run_sync
from fencepost.errors import LockTimeout, Refused
from fencepost.lock.leases import AsyncLease, Lease
from fencepost.lock.options import SemaphoreOptions, check_count, check_fence
from fencepost.lock.scripts import Holder
from fencepost.lock.shares import SharePlace, permits_of
from fencepost.lock.taker import AsyncTaker, SyncTaker, Taker

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client


class _Semaphore(Taker):
    """What both faces share."""

    options: SemaphoreOptions

    def __init__(self, client: AsyncClient | Client, name: str, options: SemaphoreOptions) -> None:
        super().__init__(client, name, options)
        self._place = permits_of(client.namespace, name, options.permits)

    def _of(self, weight: int) -> SharePlace:
        permits = self.options.permits
        check_count("weight", weight, permits)
        return self._place if weight == 1 else replace(self._place, share=weight)

    def _again(self, who: Any) -> Any:
        held = sum(lease.weight for lease in self._held_by(who))
        if held >= self.options.permits:
            raise Refused(f"whoever holds all permits of {self.name!r} would wait for itself")


class AsyncSemaphore(_Semaphore, AsyncTaker):
    """A semaphore on one server, as ``AsyncClient.semaphore`` makes it; its permits are leases.

    ``async with client.semaphore("export", permits=10) as lease:`` takes one permit and gives it back;
    ``async with await semaphore.acquire(weight=3):`` takes three in one step. A permit whose holder
    died comes back when its lease ends. What this promises is written in ``docs/locks.md``.
    """

    async def acquire(
        self, *, weight: int = 1, wait: float | None = None, floor: int = 0
    ) -> AsyncLease:
        """Take permits, all or none; the caller releases the lease.

        Args:
            weight: How many, 1 to ``permits``.
            wait: Seconds to wait; None is the semaphore's, 0 tries once.
            floor: The fence is at least this.

        Returns:
            A lease on all of them, prolonged until it is released, lost, or held for ``max_hold``.

        Raises:
            Refused: So many permits there are not.
            LockTimeout: There was no room all the time; says whose lease ends first.
            Unavailable: The server could not be reached in that time.
            OutcomeUnknown: Replies were lost. Whatever they did is undone in the background.
        """
        return await self._take(self._of(weight), wait, floor)

    async def _take_one(self) -> AsyncLease:
        return await self.acquire()

    async def _admit(self, wait: float) -> AsyncLease:
        """One permit, for the load of a cache: a server that is away is no reason to wait."""
        return await self._take(self._place, wait, 0, insists=False)

    async def try_acquire(self, *, weight: int = 1, floor: int = 0) -> AsyncLease | None:
        """Take permits if there is room at once; None if there is not."""
        try:
            return await self.acquire(weight=weight, wait=0, floor=floor)
        except LockTimeout:
            return None

    async def holders(self) -> tuple[Holder, ...]:
        """Who holds permits by the server, in this process or another; the first to end first."""
        return await self._place.holders(self._client.port)

    async def force_release(self, fence: int | None = None) -> tuple[Holder, ...]:
        """Take permits from whoever holds them; for operators. See ``AsyncLock.force_release``.

        Args:
            fence: Of the holder who loses them; None takes all.

        Returns:
            Who held them.
        """
        check_fence(fence)
        return await self._place.put_out(self._client.port, fence)


class Semaphore(_Semaphore, SyncTaker):
    """A semaphore on one server, for threads; see ``AsyncSemaphore``."""

    def acquire(self, *, weight: int = 1, wait: float | None = None, floor: int = 0) -> Lease:
        return self._take(self._of(weight), wait, floor)

    def _take_one(self) -> Lease:
        return self.acquire()

    def _admit(self, wait: float) -> Lease:
        return self._take(self._place, wait, 0, insists=False)

    def try_acquire(self, *, weight: int = 1, floor: int = 0) -> Lease | None:
        try:
            return self.acquire(weight=weight, wait=0, floor=floor)
        except LockTimeout:
            return None

    def holders(self) -> tuple[Holder, ...]:
        return run_sync(self._place.holders(self._client.port))

    def force_release(self, fence: int | None = None) -> tuple[Holder, ...]:
        check_fence(fence)
        return run_sync(self._place.put_out(self._client.port, fence))
