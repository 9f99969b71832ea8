"""Locks, semaphores and read/write locks that tell the truth: leases with fences, on one server."""

from fencepost._core.fenced import Fenced
from fencepost._core.observe import LeaseEnded, RenewalLate
from fencepost.lock.api import AsyncLease, AsyncLock, Lease, Lock
from fencepost.lock.gates import AsyncFencedScript, FencedScript
from fencepost.lock.options import LeaseOptions, LockOptions, SemaphoreOptions
from fencepost.lock.rwlock import AsyncRWLock, AsyncRWSide, RWLock, RWSide
from fencepost.lock.scripts import Holder
from fencepost.lock.semaphore import AsyncSemaphore, Semaphore
from fencepost.lock.several import AsyncLeases, AsyncLocks, Leases, Locks

__all__ = [
    "AsyncFencedScript",
    "AsyncLease",
    "AsyncLeases",
    "AsyncLock",
    "AsyncLocks",
    "AsyncRWLock",
    "AsyncRWSide",
    "AsyncSemaphore",
    "Fenced",
    "FencedScript",
    "Holder",
    "Lease",
    "LeaseEnded",
    "LeaseOptions",
    "Leases",
    "Lock",
    "LockOptions",
    "Locks",
    "RWLock",
    "RWSide",
    "RenewalLate",
    "Semaphore",
    "SemaphoreOptions",
]
