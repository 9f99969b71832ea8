"""The two faces of the cache, side by side; the docstrings stand on the async one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import MsgspecError

from fencepost._core.aio import clock
from fencepost._core.codec import Codec
from fencepost._core.port import run_sync
from fencepost.cache.base import must_be_key
from fencepost.cache.changes import Changes
from fencepost.cache.decorator import KeyOf, decorate_async, decorate_sync
from fencepost.cache.entry import Entry
from fencepost.cache.explain import Explained
from fencepost.cache.fleet import AsyncFleetGate, SyncFleetGate, permits
from fencepost.cache.flight import AsyncFlights, AsyncGate, SyncFlights, SyncGate
from fencepost.cache.limits import Limits, limited
from fencepost.cache.loading import UNREACHABLE
from fencepost.cache.near import NOTHING
from fencepost.cache.options import BehindOptions, CacheOptions, Consistency
from fencepost.cache.reads import Reads
from fencepost.cache.region import Load
from fencepost.cache.saving import AsyncBehind, Behind
from fencepost.cache.under_way import UnderWay
from fencepost.cache.write import Written
from fencepost.errors import Overloaded, ServerError
from fencepost.wire.bells import AsyncBell, SyncBell

if TYPE_CHECKING:
    from fencepost.cache.behind import Batch
    from fencepost.client import AsyncClient, Client
    from fencepost.journal.protocol import Epochs

T = TypeVar("T")


class AsyncCache(Reads[T], Changes[T]):
    """A read-through cache, as ``AsyncClient.cache`` makes it.

    A refresh publishes only while its lease stands; an invalidation stops every load that began
    before it; waiting, staleness and the load of the source are bounded. Where these promises end
    is written in ``docs/guarantees.md``.
    """

    def __init__(
        self, client: AsyncClient, name: str, *, codec: Codec[T], options: CacheOptions
    ) -> None:
        gate: AsyncGate | AsyncFleetGate
        gate = places = AsyncGate(options.max_loads, options.max_queue, options.load_limit)
        if (semaphore := permits(client, name, options)) is not None:
            gate = AsyncFleetGate(places, semaphore, options, self._is_down)
        super().__init__(
            client,
            name,
            codec,
            options,
            gate,
            AsyncFlights,
            lambda channel, word: AsyncBell(client._lock_hub().listener, channel, word),  # noqa: SLF001
        )
        self._client = client
        self._limits = Limits(name, options.load_limit, options.max_loads, gate)

    def _limited(self, load: Load, under_way: UnderWay) -> Load:
        return self._limits.of(load, under_way)

    async def get(
        self,
        key: str,
        load: Callable[..., Awaitable[Any]] | Callable[..., Any],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
        stale: float | None = None,
        conditional: bool = False,
        consistency: Consistency = "near",
    ) -> T | None:
        """The value of ``key``: from the cache, or loaded.

        Args:
            key: A text.
            load: Reads the source: a coroutine function, or a plain one, which runs in a thread. It
                returns the value, None (or raises ``Missing``) if there is none, or a ``Loaded``.
            tags: What the value depends on; give the same ones at each call.
            ttl: Seconds that a value loaded by this call is fresh; None is the cache's.
            stale: Seconds of staleness that this caller takes: less than the cache's, or None.
            conditional: ``load`` is given the previous ``Entry`` (or None), and may answer
                ``NotModified``.
            consistency: ``"server"`` asks the server though the entry is held near (``near=``).

        Returns:
            The value; None if the source has none.

        Raises:
            WaitTimeout: Somebody else's load took longer than ``wait``, or ours than ``load_limit``.
            RefreshRejected: The load was refused, and ``on_rejected`` is ``raise``.
            Overloaded: More loads wait than ``max_queue``.
            Unavailable: The server can't be reached, and ``on_down`` is ``raise``.
            Exception: Whatever ``load`` raised; all callers who share it get the same.
        """
        if (tap := self._tap) is not None:
            tap.left = left = tap.left - 1
            if left < 0:
                tap.take(key)
        mark = None
        if (near := self._near) is not None and not tags:
            held: Any = near.get(key, NOTHING) if consistency == "near" else NOTHING
            if held is not NOTHING:
                return self._decode(held) if self._copied else held  # type: ignore[no-any-return]
            must_be_key(key)
            mark = near.mark(key)
        raw, down, asked, missed = None, None, None, False
        if not tags and not self._breaker.failures:
            # The hit path: one GET, and nothing that is not needed to answer from it.
            known = self._known.get(key) or self._know(key)
            server = self._client._server()  # noqa: SLF001
            asked = clock()
            try:
                raw = await server.run(known.call)
                missed = raw is None
                if raw is not None:
                    head, end, until_ms = known.seen
                    if raw.startswith(head) and (now_ms := server.server_ms()) < until_ms:
                        value: T = self._decode(raw[end:])
                        self._hits += 1
                        if near is not None and mark is not None:
                            kept = raw[end:] if self._copied else value
                            near.keep(key, mark, kept, asked, (until_ms - now_ms) / 1000)
                        return value
            except (*UNREACHABLE, Overloaded) as error:
                self._note_failure(error)
                down = error
            except (ServerError, ValueError, MsgspecError):
                raw = None  # it is not even a string, or no value: the long way drops it
        ask = self._ask(tags, ttl, stale, conditional)
        return (await self._entry(key, load, ask, raw, down, asked, missed)).value

    async def entry(
        self,
        key: str,
        load: Callable[..., Awaitable[Any]] | Callable[..., Any],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
        stale: float | None = None,
        conditional: bool = False,
    ) -> Entry[T]:
        """Like ``get``, and how it came about: status, age, revision, whether it was published."""
        self._reads(key)
        return await self._entry(key, load, self._ask(tags, ttl, stale, conditional))

    async def refresh(
        self,
        key: str,
        load: Callable[..., Awaitable[Any]] | Callable[..., Any],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
        conditional: bool = False,
    ) -> Entry[T]:
        """Load ``key`` now, though it may be fresh; fenced and admitted as ever."""
        return await self._force(key, load, self._ask(tags, ttl, None, conditional))

    async def get_many(
        self,
        keys: Iterable[str],
        load_many: Callable[[list[str]], Awaitable[Mapping[str, Any]]]
        | Callable[[list[str]], Mapping[str, Any]],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
        stale: float | None = None,
    ) -> dict[str, T]:
        """The values of many keys: read in one write, what is missing loaded by one call.

        Args:
            keys: Any number.
            load_many: Is given the keys to load; returns a mapping of what there is. Its values may
                be ``Loaded``.
            tags: As for ``get``; of all of them.
            ttl: As for ``get``.
            stale: As for ``get``.

        Returns:
            What there is, in the order of ``keys``; what the source does not have is left out.
        """
        return await self._get_many(keys, load_many, self._ask(tags, ttl, stale))

    async def peek(
        self, key: str, *, stale: float | None = None, tags: Iterable[str] = ()
    ) -> Entry[T] | None:
        """What the cache has, without a load; None if it has nothing. A cached "there is none" is
        an ``Entry`` whose value is None."""
        return await self._peek(key, stale, tags)

    async def set(
        self, key: str, value: Any, *, tags: Iterable[str] = (), ttl: float | None = None
    ) -> Entry[T]:
        """Write a value that you know to be the newest; loads that began before are refused.

        Args:
            key: Its key.
            value: The value, None for "there is none", or a ``Loaded`` with a revision.
            tags: What it depends on.
            ttl: Seconds that it is fresh.

        Raises:
            RefreshRejected: The source has been seen at a newer revision.
            OutcomeUnknown: The reply was lost; a set is never repeated, since it could undo a newer.
        """
        return await self._set(key, value, self._ask(tags, ttl, None))

    async def touch(self, key: str, *, ttl: float | None = None) -> bool:
        """Let an entry live anew from now; False if it is not there, or changed meanwhile."""
        return await self._touch(key, ttl)

    async def invalidate(self, *keys: str, hard: bool = True, revision: int | None = None) -> None:
        """Forget entries. A load that began before can't publish; a read that begins after does not
        join it, in this process or another.

        Args:
            *keys: Any number.
            hard: False keeps them for who may be served stale.
            revision: The source's version after the change: nothing older is published for
                ``remember`` seconds.

        Raises:
            Unavailable: The server can't be reached; the entries stand.
            OutcomeUnknown: The replies were lost; do it again.
        """
        await self._invalidate(keys, hard, revision)

    async def invalidate_tags(self, *tags: str) -> None:
        """Make every entry that carries one of these tags a miss, at once, whoever publishes later."""
        await self._invalidate_tags(tags)

    async def write_through(
        self,
        key: str,
        value: Any,
        save: Callable[[Any], Awaitable[Any]] | Callable[[Any], Any],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
    ) -> Written:
        """Save a value to the source, and publish it, unless other writes of the key overlapped.

        Args:
            key: Its key.
            value: The value; ``save`` is given it.
            save: Writes the source. If it returns a ``Loaded``, that is published instead.
            tags: What it depends on.
            ttl: Seconds that it is fresh.

        Raises:
            Unavailable: The write could not be announced; nothing was saved.
            OutcomeUnknown: Likewise.
            Exception: Whatever ``save`` raised; the entry is forgotten then.
        """
        return await self._write_through(key, value, save, self._ask(tags, ttl, None))

    async def write_around(
        self, key: str, save: Callable[[], Awaitable[Any]] | Callable[[], Any]
    ) -> Written:
        """Write the source, and forget the entry; a reader loads it when it is asked for.

        Raises:
            Unavailable: The write could not be announced; nothing was saved.
            OutcomeUnknown: Likewise.
            Exception: Whatever ``save`` raised; the entry is forgotten then.
        """
        return await self._write_around(key, save)

    def behind(
        self,
        save_many: Callable[[Batch[T]], Awaitable[None]] | Callable[[Batch[T]], None],
        *,
        gate: Epochs | None = None,
        **options: Any,
    ) -> AsyncBehind[T]:
        """Write values behind: they are in the cache at once, and saved in batches a moment later.

        The cache must have been made with ``shards``, and then this is the only way to write it.

        Args:
            save_many: Is given a ``Batch`` of different keys, one newest value each, and saves all of
                them or raises. It may be given the same values again, and by two flushers at once:
                let the ``gate`` say in the same transaction what is to be saved, or compare
                ``Batch.order`` or ``Unsaved.version`` where you write. What it raises for one
                value alone sets that one aside in the end; ``Superseded`` means that a newer batch
                was there.
            gate: Where the source keeps epoch and fence: ``fencepost.sql.gate.SqlGate(engine)``;
                None where it can't.
            **options: See ``BehindOptions``: ``flush_delay``, ``batch_items``, ``tries`` …

        Returns:
            What writes: its ``set``, and its ``flusher``, which some process must run.

        Raises:
            Refused: The cache has no ``shards``, or an option can't work.
        """
        return AsyncBehind(self, save_many, gate, BehindOptions(**options))

    def cached(
        self,
        key: str | KeyOf | None = None,
        *,
        tags: Iterable[str] | Callable[..., Iterable[str]] = (),
        ttl: float | None = None,
        stale: float | None = None,
    ) -> Callable[[Any], Any]:
        """Decorate a function: its result is cached by its arguments.

        Args:
            key: A template over its parameters (``"{product_id}"``), a function of its arguments, or
                None: module, name and every argument. Equal keys mean equal arguments: defaults are
                filled in, ``1``, ``"1"``, ``True``, ``None`` and ``""`` differ, and what can't be
                told apart is refused.
            tags: Tags, or a function of its arguments that gives them.
            ttl: Seconds that a value is fresh.
            stale: As for ``get``.

        Returns:
            A decorator. The function gets ``invalidate``, ``refresh`` and ``key``, which take its
            arguments, and ``uncached``, which is the function as it was.
        """
        return decorate_async(self, key, tags, ttl, stale)

    async def explain(self, key: str) -> Explained:
        """Why a read of ``key`` is a hit or a miss, and what its refreshes met."""
        return await self._explain(key)

    async def _aclose(self) -> None:
        if isinstance(self._flights, AsyncFlights):
            await self._flights.aclose()
        self._limits.close()


class Cache(Reads[T], Changes[T]):
    """A read-through cache for threads; see ``AsyncCache``."""

    def __init__(
        self, client: Client, name: str, *, codec: Codec[T], options: CacheOptions
    ) -> None:
        port = client.port
        gate: SyncGate | SyncFleetGate
        gate = places = SyncGate(options.max_loads, options.max_queue, options.load_limit)
        if (semaphore := permits(client, name, options)) is not None:
            gate = SyncFleetGate(places, semaphore, options, self._is_down)
        super().__init__(
            client,
            name,
            codec,
            options,
            gate,
            lambda give_back: SyncFlights(give_back, port.spawn),
            lambda channel, word: SyncBell(client._lock_hub().listener, channel, word),  # noqa: SLF001
        )
        self._client = client

    def _limited(self, load: Load, under_way: UnderWay) -> Load:
        return limited(load, under_way, self.options.load_limit)

    def get(
        self,
        key: str,
        load: Callable[..., Any],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
        stale: float | None = None,
        conditional: bool = False,
        consistency: Consistency = "near",
    ) -> T | None:
        if (tap := self._tap) is not None:
            tap.left = left = tap.left - 1
            if left < 0:
                tap.take(key)
        mark = None
        if (near := self._near) is not None and not tags:
            held: Any = near.get(key, NOTHING) if consistency == "near" else NOTHING
            if held is not NOTHING:
                return self._decode(held) if self._copied else held  # type: ignore[no-any-return]
            must_be_key(key)
            mark = near.mark(key)
        raw, down, asked, missed = None, None, None, False
        if not tags and not self._breaker.failures:
            known = self._known.get(key) or self._know(key)
            server = self._client._server  # noqa: SLF001
            asked = clock()
            try:
                raw = server.run(known.call) if known.big else server.run_shared(known.call)
                missed = raw is None
                if raw is not None:
                    head, end, until_ms = known.seen
                    if raw.startswith(head) and (now_ms := server.server_ms()) < until_ms:
                        value: T = self._decode(raw[end:])
                        self._hits += 1
                        if near is not None and mark is not None:
                            kept = raw[end:] if self._copied else value
                            near.keep(key, mark, kept, asked, (until_ms - now_ms) / 1000)
                        return value
            except (*UNREACHABLE, Overloaded) as error:
                self._note_failure(error)
                down = error
            except (ServerError, ValueError, MsgspecError):
                raw = None  # it is not even a string, or no value: the long way drops it
        ask = self._ask(tags, ttl, stale, conditional)
        return run_sync(self._entry(key, load, ask, raw, down, asked, missed)).value

    def entry(
        self,
        key: str,
        load: Callable[..., Any],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
        stale: float | None = None,
        conditional: bool = False,
    ) -> Entry[T]:
        self._reads(key)
        return run_sync(self._entry(key, load, self._ask(tags, ttl, stale, conditional)))

    def refresh(
        self,
        key: str,
        load: Callable[..., Any],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
        conditional: bool = False,
    ) -> Entry[T]:
        return run_sync(self._force(key, load, self._ask(tags, ttl, None, conditional)))

    def get_many(
        self,
        keys: Iterable[str],
        load_many: Callable[[list[str]], Mapping[str, Any]],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
        stale: float | None = None,
    ) -> dict[str, T]:
        return run_sync(self._get_many(keys, load_many, self._ask(tags, ttl, stale)))

    def peek(
        self, key: str, *, stale: float | None = None, tags: Iterable[str] = ()
    ) -> Entry[T] | None:
        return run_sync(self._peek(key, stale, tags))

    def set(
        self, key: str, value: Any, *, tags: Iterable[str] = (), ttl: float | None = None
    ) -> Entry[T]:
        return run_sync(self._set(key, value, self._ask(tags, ttl, None)))

    def touch(self, key: str, *, ttl: float | None = None) -> bool:
        return run_sync(self._touch(key, ttl))

    def invalidate(self, *keys: str, hard: bool = True, revision: int | None = None) -> None:
        run_sync(self._invalidate(keys, hard, revision))

    def invalidate_tags(self, *tags: str) -> None:
        run_sync(self._invalidate_tags(tags))

    def write_through(
        self,
        key: str,
        value: Any,
        save: Callable[[Any], Any],
        *,
        tags: Iterable[str] = (),
        ttl: float | None = None,
    ) -> Written:
        return run_sync(self._write_through(key, value, save, self._ask(tags, ttl, None)))

    def write_around(self, key: str, save: Callable[[], Any]) -> Written:
        return run_sync(self._write_around(key, save))

    def behind(
        self,
        save_many: Callable[[Batch[T]], None],
        *,
        gate: Epochs | None = None,
        **options: Any,
    ) -> Behind[T]:
        return Behind(self, save_many, gate, BehindOptions(**options))

    def cached(
        self,
        key: str | KeyOf | None = None,
        *,
        tags: Iterable[str] | Callable[..., Iterable[str]] = (),
        ttl: float | None = None,
        stale: float | None = None,
    ) -> Callable[[Any], Any]:
        return decorate_sync(self, key, tags, ttl, stale)

    def explain(self, key: str) -> Explained:
        return run_sync(self._explain(key))
