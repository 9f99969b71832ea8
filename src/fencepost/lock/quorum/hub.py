"""What all locks of a quorum share: one keeper for all servers, and ears at each of them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fencepost._core.port import run_sync
from fencepost.lock.keeper import Keeper
from fencepost.lock.protocol import Ending, Renewal
from fencepost.lock.quorum.protocol import tend
from fencepost.wire.fan import SyncFan
from fencepost.wire.pool import SyncServer

if TYPE_CHECKING:
    from fencepost._core.observe import Hook
    from fencepost.wire.address import Address
    from fencepost.wire.listener import Listener
    from fencepost.wire.options import WireOptions


class ManyServers:
    """A keeper's way to several servers: a connection of its own to each.

    Args:
        servers: Each of them.
        budget: Seconds that one may be silent.
    """

    def __init__(self, servers: Sequence[SyncServer], budget: float) -> None:
        self._servers = servers
        self._fan = SyncFan(servers, budget)

    def tend(
        self, renewals: Sequence[Renewal], endings: Sequence[Ending], within: float
    ) -> list[Any]:
        self._fan.within = within
        return run_sync(tend(self._fan, renewals, endings))

    def close(self) -> None:
        self._fan.close()
        for server in self._servers:
            server.close()

    def forget(self) -> None:
        self._fan.forget()
        for server in self._servers:
            server.forget()


class Chorus:
    """Ears at several servers: a word counts when a majority has said it.

    The first servers at which a lock is given back say so before the others have it back.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners

    def add(
        self, channel: str, word: str, ring: Callable[[], None], ready: Callable[[], None]
    ) -> None:
        """See ``Listener.add``."""
        need, lock = len(self.listeners) // 2 + 1, threading.Lock()
        rung: set[int] = set()
        heard: set[int] = set()

        def count(some: set[int], number: int, then: Callable[[], None]) -> None:
            with lock:
                some.add(number)
                if len(some) < need:
                    return
                some.clear()
            then()

        for number, listener in enumerate(self.listeners):
            listener.add(
                channel,
                word,
                lambda n=number: count(rung, n, ring),  # type: ignore[misc]
                lambda n=number: count(heard, n, ready),  # type: ignore[misc]
            )

    def remove(self, channel: str, word: str) -> None:
        """See ``Listener.remove``."""
        for listener in self.listeners:
            listener.remove(channel, word)


class QuorumHub:
    """Of one quorum in one process; its threads and connections begin when they are needed.

    Args:
        locates: Finds each server.
        options: Budgets.
        hook: Where events go.
        listeners: At each server.
    """

    def __init__(
        self,
        locates: Sequence[Callable[[], Address]],
        options: WireOptions,
        hook: Hook,
        listeners: Sequence[Listener],
    ) -> None:
        servers = [SyncServer(locate, options, hook) for locate in locates]
        self.keeper = Keeper(ManyServers(servers, options.budget), options.budget, hook)
        self.listener = Chorus(listeners)
        self.owner = f"{socket.gethostname()}:{os.getpid()}"

    def close(self) -> None:
        """End what must be ended, and stop."""
        for listener in self.listener.listeners:
            listener.close()
        self.keeper.close()

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""
        for listener in self.listener.listeners:
            listener.forget()
        self.keeper.forget()
