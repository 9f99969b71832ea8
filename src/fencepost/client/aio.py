"""The client of an event loop; the docstrings of both stand here."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from fencepost._core.aio import AsyncPort
from fencepost._core.script import Call
from fencepost.client.base import Base, raw
from fencepost.errors import ClientClosed
from fencepost.wire.address import Address
from fencepost.wire.barrier import AsyncBarrier, Copies
from fencepost.wire.single import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence

    from fencepost._core.codec import Codec
    from fencepost._core.script import Word
    from fencepost.cache import AsyncCache
    from fencepost.election import AsyncElection
    from fencepost.hotkeys import AsyncHotKeys
    from fencepost.jobs import AsyncJobs
    from fencepost.likes import AsyncLikes, LikeOptions, LikeStore
    from fencepost.lock import (
        AsyncFencedScript,
        AsyncLock,
        AsyncLocks,
        AsyncRWLock,
        AsyncSemaphore,
        Fenced,
    )

T = TypeVar("T")


class AsyncClient(Base):
    """The async client. Make it with ``from_url``, ``from_env`` or ``embedded``."""

    def __init__(self, source: str | Path | None, **options: Any) -> None:
        super().__init__(source, **options)
        self._servers: dict[asyncio.AbstractEventLoop, Server] = {}
        self._barriers: dict[asyncio.AbstractEventLoop, dict[Copies, AsyncBarrier]] = {}
        self._caches: weakref.WeakSet[AsyncCache[Any]] = weakref.WeakSet()
        self.port = AsyncPort(self._run, self._all, lambda: self._server().server_ms())

    def _server(self) -> Server:
        loop = asyncio.get_running_loop()
        try:
            return self._servers[loop]
        except KeyError:
            pass
        if self._closed:
            raise ClientClosed("the client is closed; nothing was sent")
        for old in list(self._servers):
            if old.is_closed():
                self._drop(old)
        server = self._servers[loop] = Server(self._locate_async, self._options, self.hook)
        return server

    def _drop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let go of another loop's links: from within that loop, if it still can."""
        server = self._servers.pop(loop, None)
        ways: list[Server | AsyncBarrier] = [
            *([server] if server is not None else []),
            *self._barriers.pop(loop, {}).values(),
        ]
        for way in ways:
            try:
                loop.call_soon_threadsafe(way.shut)
            except RuntimeError:  # it is closed
                way.forget()

    def barrier(self, copies: Copies) -> AsyncBarrier:
        """This loop's barrier: what waits until changes are where ``copies`` wants them."""
        self._server()  # not after the end, and not for loops that are gone
        mine = self._barriers.setdefault(asyncio.get_running_loop(), {})
        if copies not in mine:
            mine[copies] = AsyncBarrier(
                self._locate_async, self._options, self.hook, self.namespace, copies
            )
        return mine[copies]

    async def _locate_async(self) -> Address:
        return self._address if self._address is not None else await asyncio.to_thread(self._locate)

    def _run(self, call: Call[T]) -> Coroutine[Any, Any, T]:
        return self._server().run(call)

    def _all(self, calls: Sequence[Call[T]]) -> Coroutine[Any, Any, list[T]]:
        return self._server().all(calls)

    # Not `async def`: one more coroutine around each call would only pass its value on.
    def command(self, *words: Word) -> Coroutine[Any, Any, Any]:
        """Send any command, pipelined like everything else: ``await client.command("GET", "k")``.

        Args:
            *words: The command and its arguments; text is sent as UTF-8.

        Returns:
            The reply as the server gave it (bytes, int, list, dict …).

        Raises:
            Refused: The command would block or change the connection that all callers share.
            Unavailable: Nothing was applied.
            OutcomeUnknown: The reply was lost; raw commands are never re-sent.
            ServerError: The server answered with an error.
        """
        return self._server().run(raw(words))

    def likes(
        self, name: str, *, store: LikeStore, options: LikeOptions | None = None
    ) -> AsyncLikes:
        """The like cache ``name``; see ``fencepost.likes.AsyncLikes``."""
        from fencepost.likes import AsyncLikes

        return AsyncLikes(self, name, store=store, options=options)

    def cache(
        self,
        name: str,
        *,
        type: type[T] | None = None,
        codec: Codec[T] | None = None,
        **options: Any,
    ) -> AsyncCache[T]:
        """The cache ``name``; see ``fencepost.cache.AsyncCache``.

        Args:
            name: Of the cache: the same name is the same cache, in every process.
            type: What its values are; what is read is checked against it. None takes what msgpack
                knows.
            codec: How values are stored, instead of typed msgpack.
            **options: See ``fencepost.cache.CacheOptions``: ``ttl``, ``stale``, ``wait`` …

        Raises:
            Refused: An option can't work, or values of this type can't be stored.
        """
        from fencepost.cache import AsyncCache, CacheOptions, Codec

        codec = codec or Codec(Any if type is None else type)
        cache: AsyncCache[T] = AsyncCache(self, name, codec=codec, options=CacheOptions(**options))
        self._caches.add(cache)
        return cache

    def lock(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        wait: float = 10.0,
        max_hold: float = 3600.0,
        fair: bool = False,
        reentrant: bool = False,
        owner: str | None = None,
        after_restart: Literal["trust", "wait"] = "trust",
        max_ttl: float = 30.0,
    ) -> AsyncLock:
        """The lock ``name``; see ``fencepost.lock.AsyncLock``. No I/O until it is used.

        Args:
            name: Of the lock: the same name is the same lock, in every process.
            ttl: Seconds that a lease lasts without a sign of life of its holder.
            wait: Seconds that a caller waits; 0 tries once, ``math.inf`` waits for ever.
            max_hold: Seconds after which a lease is prolonged no more.
            fair: First come, first served.
            reentrant: Whoever holds it through this object may enter it again.
            owner: What the holder calls itself, for people; None is ``host:pid``.
            after_restart: ``wait``: a server that came back gives the lock only after ``max_ttl``.
            max_ttl: With that: seconds of the longest ttl of any lock there, alike everywhere.

        Raises:
            Refused: A value that can't work.
        """
        from fencepost.lock import AsyncLock, LockOptions

        options = LockOptions(
            ttl=ttl,
            wait=wait,
            max_hold=max_hold,
            fair=fair,
            reentrant=reentrant,
            owner=owner,
            after_restart=after_restart,
            max_ttl=max_ttl,
        )
        return AsyncLock(self, name, options)

    def lock_all(
        self,
        names: Iterable[str],
        *,
        ttl: float = 10.0,
        wait: float = 10.0,
        max_hold: float = 3600.0,
        fair: bool = False,
        owner: str | None = None,
    ) -> AsyncLocks:
        """Several locks in one acquire: all, or none; see ``fencepost.lock.AsyncLocks``.

        Args:
            names: Of the locks, in any order: they are always taken in the same one.
            ttl: As for ``lock``.
            wait: Seconds that a caller waits for all together.
            max_hold: As for ``lock``.
            fair: As for ``lock``.
            owner: As for ``lock``.

        Raises:
            Refused: There is no name, one comes twice, or an option can't work.
        """
        from fencepost.lock import AsyncLocks
        from fencepost.lock.several import ordered

        options: dict[str, Any] = {
            "ttl": ttl,
            "wait": wait,
            "max_hold": max_hold,
            "fair": fair,
            "owner": owner,
        }
        return AsyncLocks([self.lock(name, **options) for name in ordered(names)])

    def semaphore(self, name: str, *, permits: int, **options: Any) -> AsyncSemaphore:
        """The semaphore ``name``; see ``fencepost.lock.AsyncSemaphore``.

        Args:
            name: Of the semaphore: the same name is the same one, in every process.
            permits: How much may be out at once.
            **options: ``ttl``, ``wait``, ``max_hold``, ``fair``, ``owner``, as for ``lock``.

        Raises:
            Refused: A value that can't work.
        """
        from fencepost.lock import AsyncSemaphore, SemaphoreOptions

        return AsyncSemaphore(self, name, SemaphoreOptions(permits=permits, **options))

    def rwlock(self, name: str, **options: Any) -> AsyncRWLock:
        """The read/write lock ``name``; see ``fencepost.lock.AsyncRWLock``.

        Args:
            name: Of the lock: the same name is the same one, in every process.
            **options: ``ttl``, ``wait``, ``max_hold``, ``owner``, as for ``lock``.

        Raises:
            Refused: A value that can't work.
        """
        from fencepost.lock import AsyncRWLock, LeaseOptions

        return AsyncRWLock(self, name, LeaseOptions(**options))

    def election(self, name: str, **options: Any) -> AsyncElection:
        """A candidate in the election ``name``; see ``fencepost.election.AsyncElection``.

        Args:
            name: Of the election: the same name is the same one, in every process.
            **options: ``ttl``, ``renew_deadline``, ``retry``, ``drain``, ``identity``, ``metadata``;
                see ``fencepost.election.ElectionOptions``.

        Raises:
            Refused: A value that can't work.
        """
        from fencepost.election import AsyncElection, ElectionOptions

        return AsyncElection(self, name, ElectionOptions(**options))

    async def fenced_set(
        self,
        key: str,
        value: Word,
        lease: Fenced,
        *,
        ttl: float | None = None,
        remember: float | None = None,
    ) -> None:
        """Write a value, unless a newer holder of the lock has: SET and the comparison in one script.

        Args:
            key: Of the value; beside it stands its gate, ``{key}:fence``.
            value: What to write.
            lease: Who writes; anything with ``fence`` and ``token``.
            ttl: Seconds that the value lasts; None for ever.
            remember: Seconds after its last use that the gate is forgotten; None never. Then an old
                holder would be let in again.

        Raises:
            FenceRefused: A newer holder has written. Nothing was changed.
            OutcomeUnknown: The reply was lost; to do it again is harmless while nothing else is
                written under this lease.
        """
        from fencepost.lock.gates import fenced_set

        await self.port.run(fenced_set(key, value, lease, ttl, remember))

    def fenced_script(self, text: str) -> AsyncFencedScript:
        """A Lua script behind a gate: it runs unless a newer holder has run one.

        Args:
            text: Its text; ``KEYS`` and ``ARGV`` are what ``run`` is given.

        Raises:
            Refused: It is no script.
        """
        from fencepost.lock import AsyncFencedScript

        return AsyncFencedScript(self, text)

    def jobs(self, name: str, **options: Any) -> AsyncJobs:
        """The queue of jobs ``name``; ``options``: see ``fencepost.jobs.QueueOptions``. No I/O."""
        from fencepost.jobs import AsyncJobs, QueueOptions

        return AsyncJobs(self, name, QueueOptions(**options))

    @functools.cached_property
    def hotkeys(self) -> AsyncHotKeys:
        """The keys that are asked for most, over all processes; see ``fencepost.hotkeys.AsyncHotKeys``."""
        from fencepost.hotkeys import AsyncHotKeys

        return AsyncHotKeys(self)

    async def aclose(self) -> None:
        """Close the connections and the embedded server; later calls raise ``ClientClosed``."""
        if "hotkeys" in self.__dict__:
            await self.hotkeys.stop()
        for cache in list(self._caches):  # their loads end while leases can still be given back
            await cache._aclose()  # noqa: SLF001  # what it started, it ends
        if self._hub is not None:
            await asyncio.to_thread(self._close_hub)
        self._closed = True
        mine = self._servers.pop(asyncio.get_running_loop(), None)
        barriers = self._barriers.pop(asyncio.get_running_loop(), {})
        for loop in list(self._servers):
            self._drop(loop)
        for barrier in barriers.values():
            await barrier.aclose()
        if mine is not None:
            await mine.aclose()
        await asyncio.to_thread(self._close_embedded)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """An ASGI lifespan: the client is closed when the application stops."""
        try:
            yield
        finally:
            await self.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _forget(self) -> None:
        self._forget_hub()
        for server in self._servers.values():
            server.forget()
        for barriers in self._barriers.values():
            for barrier in barriers.values():
                barrier.forget()
        self._servers.clear()
        self._barriers.clear()
        self._starting = threading.Lock()
