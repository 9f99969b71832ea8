"""The two clients: lazy, safe at module level, one factory a part.

A client does no I/O until it is used. It opens a link per event loop (``AsyncClient``) or a small
pool of sockets (``Client``); a forked child gets its own; links of closed loops are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import threading
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from fencepost._core import commands
from fencepost._core.aio import AsyncPort
from fencepost._core.keys import escape
from fencepost._core.observe import Event, Hook
from fencepost._core.script import Call
from fencepost._core.sync import SyncPort
from fencepost._core.taps import Taps
from fencepost.errors import ClientClosed, Refused
from fencepost.wire.address import Address, parse_url
from fencepost.wire.barrier import AsyncBarrier, Barrier, Copies
from fencepost.wire.options import WireOptions
from fencepost.wire.pool import SyncServer
from fencepost.wire.resp import SHARED, why_not_shared
from fencepost.wire.single import Server

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Sequence,
    )

    from fencepost._core.codec import Codec
    from fencepost._core.script import Word
    from fencepost.cache import AsyncCache, Cache
    from fencepost.election import AsyncElection, Election
    from fencepost.hotkeys import AsyncHotKeys, HotKeys
    from fencepost.jobs import AsyncJobs, Jobs
    from fencepost.likes import AsyncLikes, LikeOptions, Likes, LikeStore
    from fencepost.lock import (
        AsyncFencedScript,
        AsyncLock,
        AsyncLocks,
        AsyncRWLock,
        AsyncSemaphore,
        Fenced,
        FencedScript,
        Lock,
        Locks,
        RWLock,
        Semaphore,
    )
    from fencepost.lock.hub import Hub
    from fencepost.server import EmbeddedServer

T = TypeVar("T")
_ENV = "FENCEPOST_URL"
_clients: weakref.WeakSet[_Base] = weakref.WeakSet()


def _after_fork() -> None:
    """A child must not touch its parent's sockets: it forgets them and opens its own."""
    for client in list(_clients):
        client.taps.forget()
        client.__dict__.pop("hotkeys", None)  # a child that wants to count begins anew
        client._forget()  # noqa: SLF001  # same module


os.register_at_fork(after_in_child=_after_fork)


def _accepts(path: Path) -> bool:
    """Whether anybody listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True


def _raw(words: tuple[Word, ...]) -> Call[Any]:
    """The call of a raw command, if it may go over a connection that all callers share."""
    verb = SHARED.get(words[0]) if words else None
    if verb is not None:
        return Call(verb, words, commands.same)
    if why := why_not_shared(words):
        raise Refused(f"{why}; use a connection of your own for it")
    return commands.raw(*words)


class _Base(ABC):
    """What both clients share: where the server is, and how keys and events are named."""

    def __init__(
        self,
        source: str | Path | None,
        *,
        namespace: str = "fp",
        budget: float = 2.0,
        observe: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> None:
        escape(namespace)  # refused now, not at the first call
        self.namespace = namespace
        self.hook = Hook(observe)
        self.taps = Taps()
        self._options = WireOptions(budget=budget, **options)
        self._address = parse_url(source) if isinstance(source, str) else None
        self._data = None if isinstance(source, str) else source
        self._embedded: EmbeddedServer | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._closing = False  # no more locks; the rest goes on until they are given back
        self._hub: Hub | None = None
        _clients.add(self)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """A client of the server at ``url``; nothing is opened yet.

        Args:
            url: ``redis://``, ``rediss://``, ``valkey://``, ``valkeys://`` or ``unix://``; see
                ``fencepost.wire.address.parse_url`` for its parts.
            **options: ``namespace`` (the first part of every key), ``budget`` (seconds a call may
                take, waiting included), ``observe`` (a listener for events), ``health`` (seconds of
                silence before a probe), ``max_requests`` and ``max_bytes`` (bounds of what is
                unanswered), ``max_connections`` (sockets that threads share).

        Raises:
            Refused: The URL or an option is wrong.
        """
        return cls(url, **options)

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """A client of the server that ``FENCEPOST_URL`` names.

        Raises:
            Refused: The variable is not set, or its URL is wrong.
        """
        url = os.environ.get(_ENV, "")
        if not url:
            raise Refused(
                f"{_ENV} is not set; give a server URL, or use .embedded() for one machine"
            )
        return cls(url, **options)

    @classmethod
    def embedded(cls, data: str | Path | None = None, **options: Any) -> Self:
        """A client of a server of its own on this machine, started at first use.

        Every process that names the same folder shares one server; it stops with its last user,
        and what it acknowledged is on disk within a second.

        Args:
            data: The folder for its files; None is a folder of this user.
            **options: As for ``from_url``.
        """
        return cls(Path(data) if data is not None else None, **options)

    def observe(self, listener: Callable[[Event], None]) -> None:
        """Hear of connections, loads, flushes … as frozen events; see ``fencepost.observe``."""
        self.hook.listen(listener)

    def _locate(self) -> Address:
        """The server's address; starts the embedded one (blocking, at most a few seconds)."""
        if self._address is not None:
            return self._address
        with self._starting:
            if self._closed:
                raise ClientClosed("the client is closed; nothing was sent")
            held = self._embedded
            if held is not None and _accepts(held.path):
                return Address(path=str(held.path))
            from fencepost.server import start

            # Held anew before it is let go: a server stops with its last user.
            now_held = self._embedded = start(self._data)
            if held is not None:
                held.close()
            return Address(path=str(now_held.path))

    def _lock_hub(self) -> Hub:
        """What the locks of this client share; begun with the first of them."""
        hub = self._hub
        if hub is not None:
            return hub
        from fencepost.lock.hub import Hub

        with self._starting:
            if self._closed or self._closing:
                raise ClientClosed("the client is closed; nothing was sent")
            if self._hub is None:
                self._hub = Hub(self._locate, self._options, self.hook)
            return self._hub

    def _close_hub(self) -> None:
        """While the server can still be told which locks are given back."""
        with self._starting:
            self._closing = True
            hub, self._hub = self._hub, None
        if hub is not None:
            hub.close()

    def _forget_hub(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            hub.forget()

    def _close_embedded(self) -> None:
        with self._starting:
            if self._embedded is not None:
                self._embedded.close()
                self._embedded = None

    @abstractmethod
    def _forget(self) -> None:
        """Let go, in a forked child, of what is the parent's."""

    def __repr__(self) -> str:
        where = self._address or f"embedded:{self._data or 'default'}"
        return f"{type(self).__name__}({where}, namespace={self.namespace!r})"


class AsyncClient(_Base):
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
        return self._server().run(_raw(words))

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


class Client(_Base):
    """The sync client, for threads. Make it with ``from_url``, ``from_env`` or ``embedded``."""

    def __init__(self, source: str | Path | None, **options: Any) -> None:
        super().__init__(source, **options)
        self._server = SyncServer(self._locate, self._options, self.hook)
        self._barriers: dict[Copies, Barrier] = {}
        self.port = SyncPort(self._server.run, self._server.all, self._server.server_ms)

    def barrier(self, copies: Copies) -> Barrier:
        """See ``AsyncClient.barrier``."""
        with self._starting:
            if self._closed:
                raise ClientClosed("the client is closed; nothing was sent")
            if copies not in self._barriers:
                self._barriers[copies] = Barrier(
                    self._locate, self._options, self.namespace, copies
                )
            return self._barriers[copies]

    def command(self, *words: Word) -> Any:
        """Send any command: ``client.command("GET", "k")``. See ``AsyncClient.command``."""
        return self._server.run(_raw(words))

    def likes(self, name: str, *, store: LikeStore, options: LikeOptions | None = None) -> Likes:
        """The like cache ``name``; see ``fencepost.likes.AsyncLikes``."""
        from fencepost.likes import Likes

        return Likes(self, name, store=store, options=options)

    def cache(
        self,
        name: str,
        *,
        type: type[T] | None = None,
        codec: Codec[T] | None = None,
        **options: Any,
    ) -> Cache[T]:
        """The cache ``name``; see ``AsyncClient.cache``."""
        from fencepost.cache import Cache, CacheOptions, Codec

        codec = codec or Codec(Any if type is None else type)
        return Cache(self, name, codec=codec, options=CacheOptions(**options))

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
    ) -> Lock:
        """The lock ``name``; see ``AsyncClient.lock``."""
        from fencepost.lock import Lock, LockOptions

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
        return Lock(self, name, options)

    def lock_all(
        self,
        names: Iterable[str],
        *,
        ttl: float = 10.0,
        wait: float = 10.0,
        max_hold: float = 3600.0,
        fair: bool = False,
        owner: str | None = None,
    ) -> Locks:
        """Several locks in one acquire; see ``AsyncClient.lock_all``."""
        from fencepost.lock import Locks
        from fencepost.lock.several import ordered

        options: dict[str, Any] = {
            "ttl": ttl,
            "wait": wait,
            "max_hold": max_hold,
            "fair": fair,
            "owner": owner,
        }
        return Locks([self.lock(name, **options) for name in ordered(names)])

    def semaphore(self, name: str, *, permits: int, **options: Any) -> Semaphore:
        """The semaphore ``name``; see ``AsyncClient.semaphore``."""
        from fencepost.lock import Semaphore, SemaphoreOptions

        return Semaphore(self, name, SemaphoreOptions(permits=permits, **options))

    def rwlock(self, name: str, **options: Any) -> RWLock:
        """The read/write lock ``name``; see ``AsyncClient.rwlock``."""
        from fencepost.lock import LeaseOptions, RWLock

        return RWLock(self, name, LeaseOptions(**options))

    def election(self, name: str, **options: Any) -> Election:
        """A candidate in the election ``name``; see ``AsyncClient.election``."""
        from fencepost.election import Election, ElectionOptions

        return Election(self, name, ElectionOptions(**options))

    def fenced_set(
        self,
        key: str,
        value: Word,
        lease: Fenced,
        *,
        ttl: float | None = None,
        remember: float | None = None,
    ) -> None:
        """Write a value, unless a newer holder has; see ``AsyncClient.fenced_set``."""
        from fencepost.lock.gates import fenced_set

        self._server.run(fenced_set(key, value, lease, ttl, remember))

    def fenced_script(self, text: str) -> FencedScript:
        """A Lua script behind a gate; see ``AsyncClient.fenced_script``."""
        from fencepost.lock import FencedScript

        return FencedScript(self, text)

    def jobs(self, name: str, **options: Any) -> Jobs:
        """The queue of jobs ``name``; see ``AsyncClient.jobs``."""
        from fencepost.jobs import Jobs, QueueOptions

        return Jobs(self, name, QueueOptions(**options))

    @functools.cached_property
    def hotkeys(self) -> HotKeys:
        """See ``AsyncClient.hotkeys``."""
        from fencepost.hotkeys import HotKeys

        return HotKeys(self)

    def close(self) -> None:
        """Close the connections and the embedded server; later calls raise ``ClientClosed``."""
        if "hotkeys" in self.__dict__:
            self.hotkeys.stop()
        self._close_hub()
        self._closed = True
        for barrier in list(self._barriers.values()):
            barrier.close()
        self._server.close()
        self._close_embedded()

    @contextlib.contextmanager
    def lifespan(self, app: object = None) -> Iterator[None]:
        """The client is closed at the end of the block."""
        try:
            yield
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _forget(self) -> None:
        self._forget_hub()
        self._server.forget()
        for barrier in self._barriers.values():
            barrier.forget()
        self._starting = threading.Lock()
