"""Locks that tell the truth: leases with fences, on one server."""

from fencepost._core.fenced import Fenced
from fencepost._core.observe import LeaseEnded, RenewalLate
from fencepost.lock.api import AsyncLease, AsyncLock, Lease, Lock
from fencepost.lock.gates import AsyncFencedScript, FencedScript
from fencepost.lock.options import LockOptions
from fencepost.lock.scripts import Holder
from fencepost.lock.several import AsyncLeases, AsyncLocks, Leases, Locks

__all__ = [
    "AsyncFencedScript",
    "AsyncLease",
    "AsyncLeases",
    "AsyncLock",
    "AsyncLocks",
    "Fenced",
    "FencedScript",
    "Holder",
    "Lease",
    "LeaseEnded",
    "Leases",
    "Lock",
    "LockOptions",
    "Locks",
    "RenewalLate",
]
