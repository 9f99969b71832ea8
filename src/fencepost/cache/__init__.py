"""A read-through cache whose refresh is fenced: late writers are rejected, waiting is bounded."""

from fencepost._core.codec import Codec
from fencepost._core.observe import (
    CacheBypassed,
    EntryDiscarded,
    Refresh,
    WriteSetAside,
    WritesSaved,
)
from fencepost.cache.api import AsyncCache, Cache
from fencepost.cache.behind import Batch, Unsaveable, Unsaved
from fencepost.cache.decorator import AsyncCached, Cached
from fencepost.cache.entry import Entry, Loaded, Missing, NotModified
from fencepost.cache.explain import Explained
from fencepost.cache.flush import SaveReport
from fencepost.cache.hot import HotOptions
from fencepost.cache.near import NearOptions
from fencepost.cache.options import BehindOptions, CacheOptions
from fencepost.cache.saving import AsyncBehind, Behind, SetAside, Waiting
from fencepost.cache.under_way import UnderWay, this_load
from fencepost.cache.write import Written

__all__ = [
    "AsyncBehind",
    "AsyncCache",
    "AsyncCached",
    "Batch",
    "Behind",
    "BehindOptions",
    "Cache",
    "CacheBypassed",
    "CacheOptions",
    "Cached",
    "Codec",
    "Entry",
    "EntryDiscarded",
    "Explained",
    "HotOptions",
    "Loaded",
    "Missing",
    "NearOptions",
    "NotModified",
    "Refresh",
    "SaveReport",
    "SetAside",
    "UnderWay",
    "Unsaveable",
    "Unsaved",
    "Waiting",
    "WriteSetAside",
    "WritesSaved",
    "Written",
    "this_load",
]
