"""Both faces of a lock under one async face, and a keeper that is told when to work."""

from __future__ import annotations

import asyncio
import functools
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fencepost import AsyncClient, AsyncQuorum, Client, Quorum
from fencepost._core.aio import clock
from support.until import until, until_sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.lock.keeper import Keeper


class LockFace:
    """A client, and how to call what its locks and leases have; the sync one runs in threads.

    Args:
        kind: ``async`` or ``threads``.
        url: Of the server.
        namespace: Of its keys.
        **wire: Options of the client.
    """

    def __init__(self, kind: str, url: str, namespace: str, **wire: Any) -> None:
        self.kind = kind
        self._threads = ThreadPoolExecutor(64)  # a call may wait for another
        maker = AsyncClient if kind == "async" else Client
        self.client: Any = maker.from_url(url, namespace=namespace, **wire)

    def lock(self, name: str = "x", **options: Any) -> Any:
        return self.client.lock(name, **options)

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of either face."""
        if inspect.iscoroutinefunction(method):
            return await method(*args, **kwargs)
        work = functools.partial(method, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def within(self, lock: Any, body: Callable[[Any], Any]) -> Any:
        """Run a plain function in a block that holds the lock."""
        if self.kind == "async":
            async with lock as lease:
                return body(lease)

        def block() -> Any:
            with lock as lease:
                return body(lease)

        return await self.call(block)

    async def command(self, *words: Any) -> Any:
        if self.kind == "async":
            return await self.client.command(*words)
        return await self.call(self.client.command, *words)

    async def keys(self) -> set[str]:
        """What there is on the server in this namespace but counters and marks, without the tag."""
        found = await self.command("KEYS", f"{{{self.client.namespace}:*")
        names = {key.decode().rpartition("}:")[2] for key in found}
        return {name for name in names if name != "f" and not name.startswith("x:")}

    async def queued(self, name: str, count: int) -> None:
        """Return when so many wait for a lock."""
        await self.queued_at(self.lock(name)._place, count)

    async def queued_at(self, place: Any, count: int) -> None:
        """Return when so many wait there."""
        queue = place.keys.queue
        while await self.command("ZCARD", queue) != count:  # noqa: ASYNC110  # others queue there
            await asyncio.sleep(0)

    @property
    def keeper(self) -> Keeper:
        keeper: Keeper = self.client._lock_hub().keeper
        return keeper

    async def settled(self) -> None:
        """Return when nothing is left to be ended in the background."""
        assert await asyncio.to_thread(self.keeper.settle, 30)

    async def close(self) -> None:
        if self.kind == "async":
            await self.client.aclose()
        else:
            await asyncio.to_thread(self.client.close)
        self._threads.shutdown()


def hurry(lease: Any) -> None:
    """A lease is due now, if it is still kept."""
    keeper = lease._keeper
    with keeper._changed:
        lease.due = clock()
        if lease in keeper._held:
            keeper._stir(lease.due)


async def renewed(lease: Any, times: int = 1) -> None:
    """Return when a lease was prolonged so often, whatever time it is."""
    for _ in range(times):
        before = _turns(lease)
        hurry(lease)
        await until(lambda before=before: _turns(lease) > before)  # type: ignore[misc]


def renewed_sync(lease: Any, times: int = 1) -> None:
    """The same, and meanwhile the event loop of this thread stands still."""
    for _ in range(times):
        before = _turns(lease)
        hurry(lease)
        until_sync(lambda before=before: _turns(lease) > before)  # type: ignore[misc]


def _turns(lease: Any) -> int:
    counts = lease._keeper.counts
    return int(counts["renewed"] + counts["lost"])


class QuorumFace(LockFace):
    """A quorum of either face."""

    def __init__(self, kind: str, urls: list[str], namespace: str, **options: Any) -> None:
        self.kind = kind
        self._threads = ThreadPoolExecutor(64)
        maker = AsyncQuorum if kind == "async" else Quorum
        self.client: Any = maker.from_urls(urls, namespace=namespace, **options)

    async def init(self, **more: Any) -> Any:
        return await self.call(self.client.init, **more)

    async def left(self) -> set[str]:
        """What there is on any server that answers but counters, marks and birth records."""
        names = set()
        for url in [client._address for client in self.client._clients]:
            with Client(None, namespace=self.client.namespace) as one:
                one._address = url
                found = one.command("KEYS", f"*{self.client.namespace}:lock:*")
            names |= {key.decode().rpartition("}:")[2] for key in found}
        return {name for name in names if name != "f" and not name.startswith("x:")}
