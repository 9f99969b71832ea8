"""Locks that tell the truth: leases with fences, on one server."""

from fencepost.lock.api import AsyncLease, AsyncLock, Lease, Lock
from fencepost.lock.options import LockOptions
from fencepost.lock.scripts import Holder

__all__ = ["AsyncLease", "AsyncLock", "Holder", "Lease", "Lock", "LockOptions"]
