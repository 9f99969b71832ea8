"""Both faces of a cache under one async face, and loaders that count and wait to be told."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fencepost import AsyncClient, Client


class CacheFace:
    """A cache with a client of its own; the sync one runs in threads.

    Args:
        kind: ``async`` or ``threads``.
        url: Of the server.
        namespace: Of its keys.
        name: Of the cache.
        wire: Options of the client.
        **options: Of the cache.
    """

    def __init__(
        self,
        kind: str,
        url: str,
        namespace: str,
        name: str = "products",
        *,
        wire: dict[str, Any] | None = None,
        observe: Any = None,
        **options: Any,
    ) -> None:
        self.kind = kind
        self._threads = ThreadPoolExecutor(64)  # a call may wait for another
        maker = AsyncClient if kind == "async" else Client
        self.client: Any = maker.from_url(url, namespace=namespace, observe=observe, **(wire or {}))
        self.cache: Any = self.client.cache(name, **options)

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.cache, verb)
        if self.kind == "async" or verb in ("stats", "cached", "options", "_region"):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            work = functools.partial(method, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

        return call

    async def command(self, *words: Any) -> Any:
        if self.kind == "async":
            return await self.client.command(*words)
        return await asyncio.to_thread(self.client.command, *words)

    def key(self, key: str) -> Any:
        """The server's keys of an entry."""
        return self.cache._region.keys(key)

    @property
    def count(self) -> Any:
        """Counters of this process."""
        return self.cache.stats()

    async def close(self) -> None:
        if self.kind == "async":
            await self.client.aclose()
        else:
            await asyncio.to_thread(self.client.close)
        self._threads.shutdown()


class Loader:
    """Reads a source that is one value; counts, and waits to be told if it is held.

    Args:
        kind: Of the face that calls it.
        value: What it returns; an exception is raised, a function is called.
        held: It waits for ``go``.
    """

    def __init__(self, kind: str, value: Any = "v", *, held: bool = False) -> None:
        self.value = value
        self.calls = self.running = self.peak = 0
        self.cancelled = 0
        self.arguments: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()
        self.began = threading.Event()
        self.go = threading.Event()
        if not held:
            self.go.set()
        self.load: Any = self._async if kind == "async" else self._sync

    async def _async(self, *args: Any) -> Any:
        self.calls += 1
        self.arguments.append(args)
        answer = self._read()
        self._enter()
        try:
            while not self.go.is_set():  # noqa: ASYNC110  # threads tell it, too
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._leave()
        return self._say(answer)

    def _sync(self, *args: Any) -> Any:
        self.calls += 1
        self.arguments.append(args)
        answer = self._read()
        self._enter()
        try:
            assert self.go.wait(30), "nobody told the loader to go on"
        finally:
            self._leave()
        return self._say(answer)

    def _enter(self) -> None:
        with self._lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
        self.began.set()

    def _leave(self) -> None:
        with self._lock:
            self.running -= 1

    def _read(self) -> Any:
        """The source as it is when the load begins."""
        return self.value() if callable(self.value) else self.value

    def _say(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    async def wait_began(self) -> None:
        """Return when a load is under way."""
        while not self.began.is_set():  # noqa: ASYNC110  # threads tell it, too
            await asyncio.sleep(0)


async def joined(face: CacheFace, key: str, others: int) -> None:
    """Return when so many callers wait for the flight that another one began."""
    by_key = face.cache._flights._by_key
    place: Any = (asyncio.get_running_loop(), key) if face.kind == "async" else key
    first = 1 if face.kind == "async" else 0
    while True:
        flight = by_key.get(place)
        if flight is not None and flight.callers >= others + first:
            return
        await asyncio.sleep(0)
