"""The client of threads; see ``AsyncClient``, which says what each part is."""

from __future__ import annotations

import contextlib
import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from fencepost._core.sync import SyncPort
from fencepost.client.base import Base, raw
from fencepost.errors import ClientClosed
from fencepost.wire.barrier import Barrier, Copies
from fencepost.wire.pool import SyncServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fencepost._core.codec import Codec
    from fencepost._core.script import Word
    from fencepost.cache import Cache
    from fencepost.election import Election
    from fencepost.hotkeys import HotKeys
    from fencepost.jobs import Jobs
    from fencepost.likes import LikeOptions, Likes, LikeStore
    from fencepost.lock import Fenced, FencedScript, Lock, Locks, RWLock, Semaphore

T = TypeVar("T")


class Client(Base):
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
        return self._server.run(raw(words))

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
