"""Caches in the process: ``LocalCache``, with the eviction policy that you choose."""

from fencepost.local.cache import LocalCache, LocalStats

__all__ = ["LocalCache", "LocalStats"]
