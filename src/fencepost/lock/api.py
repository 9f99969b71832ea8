"""The two faces of a lock, side by side; the docstrings stand on the async one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost._core.keys import lock_keys
from fencepost._core.port import run_sync
from fencepost.errors import LockTimeout, Refused
from fencepost.lock.leases import AsyncLease, Lease
from fencepost.lock.options import LockOptions
from fencepost.lock.protocol import Place
from fencepost.lock.scripts import Holder
from fencepost.lock.taker import AsyncTaker, SyncTaker, Taker

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client
    from fencepost.quorum import AsyncQuorum, Quorum

__all__ = ["AsyncLease", "AsyncLock", "Lease", "Lock"]


class _Lock(Taker):
    """What both faces share."""

    options: LockOptions

    def __init__(
        self,
        client: AsyncClient | Client | AsyncQuorum | Quorum,
        name: str,
        options: LockOptions,
        place: Place | None = None,
    ) -> None:
        super().__init__(client, name, options)
        if place is None and options.after_restart == "wait":
            from fencepost.lock.quorum.guarded import ground

            self._client, place = ground(client, name, options)
        self._place = place or Place(name, lock_keys(client.namespace, name))

    def _again(self, who: Any) -> Any:
        held = self._held_by(who)
        if not held:
            return None
        if not self.options.reentrant:
            raise Refused(
                f"whoever holds {self.name!r} would wait for itself; use one lock, or reentrant=True"
            )
        self._inside[who][-1][1] += 1
        return held[-1]


class AsyncLock(_Lock, AsyncTaker):
    """A lock on one server, as ``AsyncClient.lock`` makes it; any number of tasks may use one object.

    ``async with client.lock("invoice:42") as lease:`` takes it, and gives it back. The lease is
    prolonged while the body runs. If it is lost, the body is cancelled and ``LeaseLost`` raised.
    What this promises and what no lock can is written in ``docs/locks.md``.
    """

    async def acquire(self, *, wait: float | None = None, floor: int = 0) -> AsyncLease:
        """Take the lock; the caller releases the lease.

        Args:
            wait: Seconds to wait; None is the lock's, 0 tries once.
            floor: The fence is at least this: one more than that of a gate that refused.

        Returns:
            A lease that is prolonged until it is released, lost, or held for ``max_hold``.

        Raises:
            LockTimeout: Somebody else held it all the time; says who.
            Unavailable: The server could not be reached in that time.
            OutcomeUnknown: Replies were lost. Whatever they did is undone in the background.
        """
        return await self._take(self._place, wait, floor)

    async def _take_one(self) -> AsyncLease:
        return await self.acquire()

    async def try_acquire(self, *, floor: int = 0) -> AsyncLease | None:
        """Take the lock if it is free at once; None if somebody else holds it."""
        try:
            return await self.acquire(wait=0, floor=floor)
        except LockTimeout:
            return None

    async def locked_by(self) -> Holder | None:
        """Who holds the lock by the server, be it this process or another; None if nobody does."""
        return await self._place.look(self._client.port)

    async def force_release(self) -> Holder | None:
        """Take the lock from whoever holds it; for operators.

        The holder learns of it when it next tells the server that it lives: within a third of its
        ttl. Until then it goes on, and only gates that compare fences refuse it.

        Returns:
            Who held it; None if nobody did.
        """
        return await self._place.force_release(self._client.port)


class Lock(_Lock, SyncTaker):
    """A lock on one server, for threads; see ``AsyncLock``."""

    def acquire(self, *, wait: float | None = None, floor: int = 0) -> Lease:
        return self._take(self._place, wait, floor)

    def _take_one(self) -> Lease:
        return self.acquire()

    def try_acquire(self, *, floor: int = 0) -> Lease | None:
        try:
            return self.acquire(wait=0, floor=floor)
        except LockTimeout:
            return None

    def locked_by(self) -> Holder | None:
        return run_sync(self._place.look(self._client.port))

    def force_release(self) -> Holder | None:
        return run_sync(self._place.force_release(self._client.port))
