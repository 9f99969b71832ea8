"""A read-through cache whose refresh is fenced: late writers are rejected, waiting is bounded."""

from fencepost._core.codec import Codec
from fencepost._core.observe import CacheBypassed, EntryDiscarded, Refresh
from fencepost.cache.api import AsyncCache, Cache
from fencepost.cache.decorator import AsyncCached, Cached
from fencepost.cache.entry import Entry, Loaded, Missing, NotModified
from fencepost.cache.explain import Explained
from fencepost.cache.options import CacheOptions
from fencepost.cache.write import Written

__all__ = [
    "AsyncCache",
    "AsyncCached",
    "Cache",
    "CacheBypassed",
    "CacheOptions",
    "Cached",
    "Codec",
    "Entry",
    "EntryDiscarded",
    "Explained",
    "Loaded",
    "Missing",
    "NotModified",
    "Refresh",
    "Written",
]
