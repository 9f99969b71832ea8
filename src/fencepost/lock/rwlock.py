"""The two faces of a read/write lock, side by side; the docstrings stand on the async one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fencepost._core.port import run_sync
from fencepost.errors import LockTimeout, Refused
from fencepost.lock.leases import AsyncLease, Lease
from fencepost.lock.options import LeaseOptions, check_fence
from fencepost.lock.scripts import Holder
from fencepost.lock.shares import READERS, SharePlace, reading, writing
from fencepost.lock.taker import AsyncTaker, SyncTaker, Taker

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client

_AGAIN: Final = {
    ("read", "write"): "a reader can't become the writer: two who tried would wait for each other "
    "for ever; leave the reading first, then write, and look again at what you read",
    ("write", "read"): "a writer may read as it is: it has the lock for itself",
    ("write", "write"): "whoever writes would wait for itself",
    (
        "read",
        "read",
    ): "whoever reads may not enter again: a writer that came meanwhile waits for it, "
    "and it would wait for that writer; pass the lease on instead",
}


class _Side(Taker):
    """One side of a read/write lock; both sides know who is inside."""

    def __init__(
        self,
        client: AsyncClient | Client,
        options: LeaseOptions,
        place: SharePlace,
        inside: dict[Any, list[Any]],
    ) -> None:
        super().__init__(client, place.name, options)
        self._place = place
        self._inside = inside

    def _again(self, who: Any) -> Any:
        for lease in self._held_by(who):
            raise Refused(f"{self.name!r}: {_AGAIN[_mode(lease.place), _mode(self._place)]}")


def _mode(place: SharePlace) -> str:
    return "read" if place.rank == READERS else "write"


class _RWLock:
    """What both faces share."""

    def __init__(self, client: AsyncClient | Client, name: str, options: LeaseOptions) -> None:
        self.name = name
        self.options = options
        self._client: Any = client
        self._reading = reading(client.namespace, name)
        self._writing = writing(client.namespace, name)
        self._inside: dict[Any, list[Any]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, ttl={self.options.ttl:g})"


class AsyncRWSide(_Side, AsyncTaker):
    """One side of a read/write lock, as ``read()`` and ``write()`` give it; used like a lock."""

    async def acquire(self, *, wait: float | None = None, floor: int = 0) -> AsyncLease:
        """Take it, beside other readers or alone; the caller releases the lease.

        Args:
            wait: Seconds to wait; None is the lock's, 0 tries once.
            floor: The fence is at least this.

        Raises:
            LockTimeout: It was held, or kept free for a writer that waits, all the time.
            Unavailable: The server could not be reached in that time.
            OutcomeUnknown: Replies were lost. Whatever they did is undone in the background.
        """
        return await self._take(self._place, wait, floor)

    async def _take_one(self) -> AsyncLease:
        return await self.acquire()

    async def try_acquire(self, *, floor: int = 0) -> AsyncLease | None:
        """Take it if that can be at once; None if it can't."""
        try:
            return await self.acquire(wait=0, floor=floor)
        except LockTimeout:
            return None


class RWSide(_Side, SyncTaker):
    """One side of a read/write lock, for threads; see ``AsyncRWSide``."""

    def acquire(self, *, wait: float | None = None, floor: int = 0) -> Lease:
        return self._take(self._place, wait, floor)

    def _take_one(self) -> Lease:
        return self.acquire()

    def try_acquire(self, *, floor: int = 0) -> Lease | None:
        try:
            return self.acquire(wait=0, floor=floor)
        except LockTimeout:
            return None


class AsyncRWLock(_RWLock):
    """A read/write lock on one server, as ``AsyncClient.rwlock`` makes it.

    Any number read at once, or one writes: ``async with rw.read():``, ``async with rw.write() as
    lease:``. A writer that waits keeps new readers out. A reader can't become the writer. What this
    promises is written in ``docs/locks.md``.
    """

    def read(self) -> AsyncRWSide:
        """The side of those who only read."""
        return AsyncRWSide(self._client, self.options, self._reading, self._inside)

    def write(self) -> AsyncRWSide:
        """The side of who changes something, alone."""
        return AsyncRWSide(self._client, self.options, self._writing, self._inside)

    async def holders(self) -> tuple[Holder, ...]:
        """Who is in by the server, and in which ``mode``; the first to end first."""
        return await self._writing.holders(self._client.port)

    async def force_release(self, fence: int | None = None) -> tuple[Holder, ...]:
        """Take it from whoever holds it; for operators. See ``AsyncLock.force_release``.

        Args:
            fence: Of the holder who loses it; None takes it from all.

        Returns:
            Who held it.
        """
        check_fence(fence)
        return await self._writing.put_out(self._client.port, fence)


class RWLock(_RWLock):
    """A read/write lock on one server, for threads; see ``AsyncRWLock``."""

    def read(self) -> RWSide:
        return RWSide(self._client, self.options, self._reading, self._inside)

    def write(self) -> RWSide:
        return RWSide(self._client, self.options, self._writing, self._inside)

    def holders(self) -> tuple[Holder, ...]:
        return run_sync(self._writing.holders(self._client.port))

    def force_release(self, fence: int | None = None) -> tuple[Holder, ...]:
        check_fence(fence)
        return run_sync(self._writing.put_out(self._client.port, fence))
