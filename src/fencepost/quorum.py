"""Locks on a majority of independent servers; both faces, the docstrings on the async one."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from fencepost._core.observe import Event, Hook
from fencepost._core.port import run_sync
from fencepost.client import AsyncClient, Client
from fencepost.errors import ClientClosed, Refused

if TYPE_CHECKING:
    from fencepost.election import AsyncElection, Election
    from fencepost.lock import AsyncLock, AsyncLocks, Lock, LockOptions, Locks
    from fencepost.lock.quorum.admission import Standing
    from fencepost.lock.quorum.hub import QuorumHub

LEAST: Final = 3
"""Servers that a quorum has at least: with two, one that is gone takes both with it."""
MAX_TTL: Final = 30.0
_quorums: weakref.WeakSet[_Quorum] = weakref.WeakSet()


def _after_fork() -> None:
    for quorum in list(_quorums):
        quorum._forget()  # noqa: SLF001  # same module


os.register_at_fork(after_in_child=_after_fork)


class _Quorum(ABC):
    """What both faces share."""

    port: Any

    def __init__(
        self,
        urls: Iterable[str],
        *,
        namespace: str = "fp",
        max_ttl: float = MAX_TTL,
        patience: float = 0.5,
        observe: Callable[[Event], None] | None = None,
        least: int = 1,
        **options: Any,
    ) -> None:
        from fencepost.lock.options import check_max_ttl

        check_max_ttl(max_ttl)
        self.namespace, self.max_ttl = namespace, max_ttl
        self.hook = Hook(observe)
        if isinstance(urls, str):
            raise Refused(f"give the URLs of several servers, not the one text {urls!r}")
        self._clients: list[Any] = [
            self._client(url, namespace=namespace, budget=patience, observe=observe, **options)
            for url in urls
        ]
        if len(self._clients) < least:
            raise Refused(
                f"a quorum has {least} servers or more, got {len(self._clients)}: with two, the loss "
                "of one is the loss of both; for one server there is client.lock(…)"
            )
        seen: dict[Any, int] = {}
        for number, client in enumerate(self._clients):
            address = client._address  # noqa: SLF001  # the same floor
            where = address.path or (address.host.lower(), address.port)
            if seen.setdefault(where, number) != number:
                raise Refused(
                    f"the URLs {seen[where] + 1} and {number + 1} lead to one server, which would "
                    "vote twice; give independent servers"
                )
        self._starting = threading.Lock()
        self._closed = False
        self._hub: QuorumHub | None = None
        _quorums.add(self)

    @staticmethod
    @abstractmethod
    def _client(url: str, **options: Any) -> Any:
        """A client of one server."""

    @classmethod
    def from_urls(
        cls,
        urls: Iterable[str],
        *,
        namespace: str = "fp",
        max_ttl: float = MAX_TTL,
        patience: float = 0.5,
        observe: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> Self:
        """A quorum of the servers at these URLs; nothing is opened yet.

        Args:
            urls: Three or more independent servers: none a replica of another, no cluster. Five
                bear the loss of two.
            namespace: The first part of every key.
            max_ttl: Seconds of the longest lease there can be, alike everywhere: a server that came
                back gives no vote for so long. So does each server the first time, unless
                ``fencepost quorum init`` says that no lease stands.
            patience: Seconds that one server may take to answer before it counts as silent.
            observe: A listener for events.
            **options: As for ``AsyncClient.from_url``.

        Raises:
            Refused: There are fewer than three, one comes twice, or an option can't work.
        """
        return cls(
            urls,
            namespace=namespace,
            max_ttl=max_ttl,
            patience=patience,
            observe=observe,
            least=LEAST,
            **options,
        )

    def _lock_hub(self) -> QuorumHub:
        """What the locks of this quorum share; begun with the first of them."""
        hub = self._hub
        if hub is not None:
            return hub
        from fencepost.lock.quorum.hub import QuorumHub
        from fencepost.wire.listener import Listener

        with self._starting:
            if self._closed:
                raise ClientClosed("the quorum is closed; nothing was sent")
            if self._hub is None:
                options = self._clients[0]._options  # noqa: SLF001
                locates = [client._locate for client in self._clients]  # noqa: SLF001
                listeners = [Listener(locate, options) for locate in locates]
                self._hub = QuorumHub(locates, options, self.hook, listeners)
            return self._hub

    def _close_hub(self) -> None:
        with self._starting:
            self._closed = True
            hub, self._hub = self._hub, None
        if hub is not None:
            hub.close()

    def _forget(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            hub.forget()
        self._starting = threading.Lock()

    def _place(self, name: str) -> Any:
        from fencepost.lock.quorum.guarded import place_of

        return place_of(self.namespace, name, len(self._clients), self.max_ttl)

    def _options(self, **options: Any) -> LockOptions:
        from fencepost.lock import LockOptions

        if options.get("fair"):
            raise Refused(
                "fair=True needs one queue, and each server of a quorum has its own; take fair=False"
            )
        made = LockOptions(**options)
        if made.ttl > self.max_ttl:
            raise Refused(
                f"ttl {made.ttl:g} s is longer than the quorum's max_ttl {self.max_ttl:g} s, for "
                "which a server that came back gives no vote; shorten ttl"
            )
        return made

    def __repr__(self) -> str:
        where = ", ".join(str(client._address) for client in self._clients)  # noqa: SLF001
        return f"{type(self).__name__}({where}, namespace={self.namespace!r})"


class AsyncQuorum(_Quorum):
    """Locks on a majority of independent servers. Make it with ``from_urls``.

    ``quorum.lock("x")`` is used like ``client.lock("x")``, and gives the same leases. What it
    promises beyond a lock on one server, and what it can't, is written in ``docs/locks.md``.
    """

    def __init__(self, urls: Iterable[str], **options: Any) -> None:
        from fencepost.wire.fan import AsyncFan

        super().__init__(urls, **options)
        self.port = AsyncFan([client._server for client in self._clients])  # noqa: SLF001

    @staticmethod
    def _client(url: str, **options: Any) -> AsyncClient:
        return AsyncClient.from_url(url, **options)

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
    ) -> AsyncLock:
        """The lock ``name``; see ``AsyncClient.lock``.

        Raises:
            Refused: A value that can't work; ``fair=True``, since there is no one queue.
        """
        from fencepost.lock import AsyncLock

        options = self._options(
            ttl=ttl, wait=wait, max_hold=max_hold, fair=fair, reentrant=reentrant, owner=owner
        )
        return AsyncLock(self, name, options, self._place(name))

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
        """Several locks in one acquire: all, or none; see ``AsyncClient.lock_all``."""
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

    def election(self, name: str, **options: Any) -> AsyncElection:
        """A candidate in the election ``name``, on this quorum; see ``AsyncClient.election``."""
        from fencepost.election import AsyncElection, ElectionOptions

        return AsyncElection(self, name, ElectionOptions(**options))

    async def standing(self) -> list[Standing]:
        """Which of the servers vote, in the order of their URLs.

        Raises:
            Refused: Two of them are one.
        """
        from fencepost.lock.quorum.admission import standing

        return await standing(self.port, self._place("any"))

    async def init(self, *, anew: bool = False) -> list[Standing]:
        """Let every server vote at once: your word that nobody holds a lock of this quorum.

        Args:
            anew: Also servers that were born with another ``max_ttl``.

        Returns:
            As ``standing`` does.
        """
        from fencepost.lock.quorum.admission import init

        return await init(self.port, self._place("any"), anew)

    async def aclose(self) -> None:
        """Close the connections; later calls raise ``ClientClosed``."""
        await asyncio.to_thread(self._close_hub)
        for client in self._clients:
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class Quorum(_Quorum):
    """Locks on a majority of independent servers, for threads; see ``AsyncQuorum``."""

    def __init__(self, urls: Iterable[str], **options: Any) -> None:
        from fencepost.wire.fan import SyncFan

        super().__init__(urls, **options)
        servers = [client._server for client in self._clients]  # noqa: SLF001
        self.port = SyncFan(servers, self._clients[0]._options.budget)  # noqa: SLF001

    @staticmethod
    def _client(url: str, **options: Any) -> Client:
        return Client.from_url(url, **options)

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
    ) -> Lock:
        """The lock ``name``; see ``AsyncQuorum.lock``."""
        from fencepost.lock import Lock

        options = self._options(
            ttl=ttl, wait=wait, max_hold=max_hold, fair=fair, reentrant=reentrant, owner=owner
        )
        return Lock(self, name, options, self._place(name))

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
        """Several locks in one acquire; see ``AsyncQuorum.lock_all``."""
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

    def election(self, name: str, **options: Any) -> Election:
        """A candidate in the election ``name``, on this quorum; see ``AsyncClient.election``."""
        from fencepost.election import Election, ElectionOptions

        return Election(self, name, ElectionOptions(**options))

    def standing(self) -> list[Standing]:
        """Which of the servers vote; see ``AsyncQuorum.standing``."""
        from fencepost.lock.quorum.admission import standing

        return run_sync(standing(self.port, self._place("any")))

    def init(self, *, anew: bool = False) -> list[Standing]:
        """Let every server vote at once; see ``AsyncQuorum.init``."""
        from fencepost.lock.quorum.admission import init

        return run_sync(init(self.port, self._place("any"), anew))

    def close(self) -> None:
        """Close the connections; later calls raise ``ClientClosed``."""
        self._close_hub()
        self.port.close()
        for client in self._clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _forget(self) -> None:
        super()._forget()
        self.port.forget()
