"""What all calls of one cache share: its options, its codec, its counters, its timeline."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from fencepost._core.codec import Codec
from fencepost._core.keys import CacheKeys, cache_entry, cache_epoch, cache_keys, cache_stamp
from fencepost._core.observe import Event, Hook, Refresh
from fencepost._core.port import Port
from fencepost.cache.entry import TOKEN_CHARS
from fencepost.cache.near import Near
from fencepost.cache.options import CacheOptions
from fencepost.cache.scripts import SCRIPTS, Scripts

TOLD: Final = 16  # refreshes of a key that are remembered
_KEYS_TOLD: Final = 1024
_COSTS: Final = 256


class Gate(Protocol):
    """Bounds the loads that run at once."""

    def enter(self) -> Any:
        """Wait for a place (a coroutine function for loops, a plain one for threads)."""

    def leave(self) -> Any:
        """Give the place back."""


class Bell(Protocol):
    """Hears a word on a channel."""

    def listen(self) -> Any:
        """Begin: what is said after this returned is heard (a coroutine function for loops)."""

    def hear(self, seconds: float) -> Any:
        """Wait for a word, so long at most (likewise)."""

    def close(self) -> None:
        """Hear no more."""


class Told:
    """What happened in this process: counters, load times, and the last refreshes of each key."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.near: Near | None = None
        self.counts: Counter[str] = Counter()
        self.costs: deque[float] = deque(maxlen=_COSTS)  # seconds that loads took
        self._timeline: OrderedDict[str, deque[Refresh]] = OrderedDict()

    def event(self, event: Event) -> None:
        """Pass an event on."""
        if self.hook.listener is not None:
            self.hook.listener(event)

    def refreshed(self, event: Refresh) -> None:
        """Remember how a refresh ended."""
        if self.near is not None:
            self.near.drop(event.key)  # it may have been published
        self.counts[
            event.verdict if event.verdict != "rejected" else f"rejected_{event.reason}"
        ] += 1
        if event.read_ended:
            self.costs.append(event.read_ended - event.read_began)
        of_key = self._timeline.get(event.key)
        if of_key is None:
            while len(self._timeline) >= _KEYS_TOLD:
                self._timeline.popitem(last=False)
            of_key = self._timeline[event.key] = deque(maxlen=TOLD)
        of_key.append(event)
        self.event(event)

    def timeline(self, key: str) -> tuple[Refresh, ...]:
        """The last refreshes of a key in this process, oldest first."""
        return tuple(self._timeline.get(key, ()))

    def cost(self, share: float) -> float:
        """How long a load takes at most, in seconds, for this share of the last loads."""
        costs = sorted(self.costs)
        return costs[min(int(share * len(costs)), len(costs) - 1)] if costs else 0.0


@dataclass(frozen=True, slots=True)
class Region:
    """One cache, as its protocols see it.

    Args:
        name: Of the cache.
        prefix: What its keys begin with.
        options: How it behaves.
        codec: How values are stored.
        told: Where what happens is told.
        scripts: Its scripts; tests take guards out.
        gate: Bounds its loads; None does not.
        bell: Makes what hears that a lease has ended, from a channel and a word of its own; None looks
            now and then.
        renews: Whether a lease is renewed while its load runs; an explorer says no.
        tagging: Becomes true when a loader named tags that its caller had not: from then on every
            load first looks at what tells whether tags were invalidated meanwhile.
    """

    name: str
    prefix: str
    options: CacheOptions
    codec: Codec[Any]
    told: Told = field(default_factory=lambda: Told(Hook()), compare=False)
    scripts: Scripts = SCRIPTS
    gate: Gate | None = None
    bell: Callable[[str, str], Bell] | None = field(default=None, compare=False)
    renews: bool = True
    tagging: list[bool] = field(default_factory=lambda: [False], compare=False)

    def entry(self, key: str) -> str:
        return cache_entry(self.prefix, key, self.options.shards)

    def keys(self, key: str) -> CacheKeys:
        return cache_keys(self.prefix, key, self.options.shards)

    def stamp(self, tag: str) -> str:
        return cache_stamp(self.prefix, tag) if tag else cache_epoch(self.prefix)


@dataclass(frozen=True, slots=True)
class Ask:
    """How one call asks.

    Args:
        tags: What the entry depends on, as far as the caller knows.
        ttl: Seconds that a new entry is fresh; None is the cache's.
        stale: Seconds of staleness that this caller takes; None is the entry's own, less tightens.
        conditional: The loader is shown the previous entry.
        newer_than: What was published before this is not taken (milliseconds of the server's clock).
        background: Nobody waits for the answer: leave it to another loader, if there is one.
    """

    tags: tuple[str, ...] = ()
    ttl: float | None = None
    stale: float | None = None
    conditional: bool = False
    newer_than: float = 0.0
    background: bool = False


Load = Callable[..., Any]
PLAIN: Final = Ask()


def new_token(io: Port) -> str:
    """A token as it stands in an entry; a simulated port's are shorter."""
    return io.token().ljust(TOKEN_CHARS, "_")


def remember_ms(region: Region) -> int:
    """How long an invalidation is remembered."""
    return int(region.options.remember * 1000)
