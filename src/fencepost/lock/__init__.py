"""Locks that tell the truth: leases with fences, on one server."""

from fencepost._core.fenced import Fenced
from fencepost.lock.api import AsyncLease, AsyncLock, Lease, Lock
from fencepost.lock.gates import AsyncFencedScript, FencedScript
from fencepost.lock.options import LockOptions
from fencepost.lock.scripts import Holder

__all__ = [
    "AsyncFencedScript",
    "AsyncLease",
    "AsyncLock",
    "Fenced",
    "FencedScript",
    "Holder",
    "Lease",
    "Lock",
    "LockOptions",
]
