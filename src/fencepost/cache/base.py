"""What every call of a cache stands on: where it is, what this process remembers of it, how a call asks."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from fencepost._core import commands, keys
from fencepost._core.codec import Codec
from fencepost._core.observe import CacheBypassed, HotHeld
from fencepost._core.port import Port
from fencepost._core.taps import Tap
from fencepost.cache import loading, many
from fencepost.cache.breaker import Breaker
from fencepost.cache.entry import Known
from fencepost.cache.explain import Explained, explain
from fencepost.cache.flight import AsyncFlights, SyncFlights
from fencepost.cache.hot import HotNear, HotOptions
from fencepost.cache.judge import tag_names
from fencepost.cache.loading import UNREACHABLE, Held
from fencepost.cache.near import Near
from fencepost.cache.options import CacheOptions, seconds
from fencepost.cache.region import PLAIN, Ask, Bell, Gate, Load, Region, Told
from fencepost.cache.under_way import UnderWay
from fencepost.errors import ClientClosed, Overloaded, Refused, ServerError

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client

T = TypeVar("T")
DOWN: Final = (*UNREACHABLE, Overloaded, ServerError)
"""The server does not do what it should: it is away, full, out of memory, misconfigured."""
_FAILED_KEYS: Final = 1024
_KNOWN: Final = 8192


class CacheBase(ABC, Generic[T]):
    """A cache, without its public face.

    Args:
        client: Where its server is.
        name: Of the cache.
        codec: How values are stored.
        options: How it behaves.
        gate: Bounds its loads.
        flights: Made with a function that gives back a lease.
        bell: Makes what hears that a lease has ended.
    """

    def __init__(
        self,
        client: AsyncClient | Client,
        name: str,
        codec: Codec[T],
        options: CacheOptions,
        gate: Gate,
        flights: Callable[[Callable[[Held], Any]], AsyncFlights | SyncFlights],
        bell: Callable[[str, str], Bell],
    ) -> None:
        self.name = name
        self.options = options
        self._io: Port = client.port
        prefix = keys.cache_prefix(client.namespace, name)
        self._told = Told(client.hook)
        self._region = Region(name, prefix, options, codec, self._told, gate=gate, bell=bell)
        self._breaker = Breaker()
        self._failed: OrderedDict[str, tuple[float, Exception]] = OrderedDict()
        self._flights = flights(self._give_back)
        self._hits = 0
        self._tap: Tap | None = client.taps.add(self, f"cache:{keys.escape(name)}")
        self._early = options.beta * 40.0  # times the cost of a load: nobody refreshes earlier
        self._known: dict[str, Known[T]] = {}  # entries that were read here
        self._decode = codec.decode_plain
        self._near = self._told.near = self._near_of(client, prefix)
        self._copied = self._near is not None and self._near.options.values == "copied"

    def _near_of(self, client: AsyncClient | Client, prefix: str) -> Near | None:
        options = self.options
        if options.near is None and options.hot is None:
            return None

        def start() -> None:
            with contextlib.suppress(ClientClosed):  # it is about to end
                client._lock_hub().track(prefix, near)  # noqa: SLF001

        near: Near
        if options.near is not None:
            near = Near(options.near, self._region.entry, start)
        else:
            near = HotNear(options.hot or HotOptions(), self._region.entry, start)
        return near

    def _heat(self, calls: dict[str, tuple[int, int]]) -> None:
        """These keys of ours are hot now; called by who counts them."""
        if isinstance(self._near, HotNear):
            came, went = self._near.heat(calls)
            for key in sorted(came | went):
                self._told.event(HotHeld(self.name, key, key in came))

    def _know(self, key: str) -> Known[T]:
        must_be_key(key)
        if len(self._known) >= _KNOWN:
            self._known.clear()
        known: Known[T] = Known(commands.get(self._region.entry(key)))
        self._known[key] = known
        return known

    async def _give_back(self, held: Held) -> None:
        if held.token:
            await loading.release(self._io, self._region, held.lease, held)
        if held.many:
            await many.release_many(self._io, self._region, held.many)

    @abstractmethod
    def _limited(self, load: Load, under_way: UnderWay) -> Load:
        """The loader, with its hard limit where that can be had."""

    def _ask(
        self, tags: Iterable[str], ttl: float | None, stale: float | None, conditional: bool = False
    ) -> Ask:
        if not tags and ttl is None and stale is None and not conditional:
            return PLAIN
        if ttl is not None:
            seconds("ttl", ttl, least=0.001)
        if stale is not None:
            seconds("stale", stale, least=0)
        return Ask(tag_names(tags), ttl, stale, conditional)

    def _asked(self, key: str, tags: Iterable[str], ttl: float | None) -> Ask:
        must_be_key(key)
        return self._ask(tags, ttl, None)

    async def _explain(self, key: str) -> Explained:
        must_be_key(key)
        return await explain(self._io, self._region, key)

    def stats(self) -> dict[str, Any]:
        """Counters of this process since it began, load times, and whether the server is bypassed."""
        return {
            "hits": self._hits,
            **self._told.counts,
            "load_p50": self._told.cost(0.5),
            "load_p99": self._told.cost(0.99),
            "bypassed": self._breaker.open,
            **({"near": self._near.stats()} if self._near is not None else {}),
        }

    # -- hot keys are counted, if they are; `get` does it by itself

    def _reads(self, key: str) -> None:
        if self._tap is not None:
            self._tap.see(key)

    def _writes(self, key: str) -> None:
        if self._tap is not None:
            self._tap.see(key, True)

    # -- what is remembered here

    def _forget_here(self, key: str) -> None:
        self._detach(key)
        self._failed.pop(key, None)

    def _detach(self, key: str) -> None:
        """Who comes from now on asks the server."""
        self._flights.detach(key)
        if self._near is not None:
            self._near.drop(key)

    def _recently_failed(self, key: str, least: float = 0.0) -> Exception | None:
        """The error of a load that failed within ``error_ttl`` seconds, or ``least``."""
        known = self._failed.get(key) if self._failed else None
        if known is None or self._io.now() >= known[0] + max(self.options.error_ttl, least):
            return None
        return known[1]

    def _raise_recent_failure(self, key: str) -> None:
        error = self._recently_failed(key)
        if error is not None:
            raise error

    def _remember_failure(self, key: str, error: Exception) -> None:
        while len(self._failed) >= _FAILED_KEYS:
            self._failed.popitem(last=False)
        self._failed[key] = (self._io.now(), error)

    def _is_down(self) -> bool:
        """Whether the last thing that was heard of the server is that it is away."""
        return self._breaker.failures > 0

    def _note_failure(self, error: Exception) -> None:
        self._told.counts["server_failures"] += 1
        if self._breaker.failed(self._io.now(), self._io.chance()):
            self._told.event(CacheBypassed(self.name, True, str(error)))

    def _note_answer(self) -> None:
        if self._breaker.failures and self._breaker.answered():
            self._told.event(CacheBypassed(self.name, False, "the server answers again"))


def must_be_key(key: Any) -> None:
    """Refuse what is no key.

    Raises:
        Refused: It is no text, or too long.
    """
    if not isinstance(key, str):
        raise Refused(
            f"a key is a text, got {type(key).__name__} {key!r}: 1 and '1' would be one key"
        )
    if len(key) > 4096:
        raise Refused(f"a key has at most 4,096 characters, got {len(key)}")
