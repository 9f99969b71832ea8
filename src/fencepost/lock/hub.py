"""What all locks of one client share: who prolongs their leases, and who hears that they are called."""

from __future__ import annotations

import os
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from fencepost._core.port import run_sync
from fencepost._core.sync import SyncPort
from fencepost.lock.keeper import Keeper
from fencepost.lock.protocol import Ending, Renewal, tend
from fencepost.wire.listener import Listener
from fencepost.wire.pool import SyncServer
from fencepost.wire.tracker import Held, Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost._core.observe import Hook
    from fencepost.lock.quorum.hub import QuorumHub
    from fencepost.wire.address import Address
    from fencepost.wire.options import WireOptions


class OneServer:
    """A keeper's way to one server: a connection of its own."""

    def __init__(self, server: SyncServer) -> None:
        self._server = server

    def tend(
        self, renewals: Sequence[Renewal], endings: Sequence[Ending], within: float
    ) -> list[Any]:
        server = self._server
        port = SyncPort(server.run, partial(server.all, within=within), server.server_ms)
        return run_sync(tend(port, renewals, endings))

    def close(self) -> None:
        self._server.close()

    def forget(self) -> None:
        self._server.forget()


class Hub:
    """Of one client in one process; its threads and connections begin when they are needed."""

    def __init__(self, locate: Callable[[], Address], options: WireOptions, hook: Hook) -> None:
        self.keeper = Keeper(OneServer(SyncServer(locate, options, hook)), options.budget, hook)
        self.listener = Listener(locate, options)
        self.owner = f"{socket.gethostname()}:{os.getpid()}"
        self._guarded: QuorumHub | None = None
        self._make_guarded = partial(_guarded, locate, options, hook, self.listener)
        self._making = threading.Lock()
        self._locate, self._options = locate, options
        self._trackers: list[Tracker] = []

    @property
    def guarded(self) -> QuorumHub:
        """The same for locks whose server waits after it came back."""
        with self._making:
            if self._guarded is None:
                self._guarded = self._make_guarded()
            return self._guarded

    def track(self, prefix: str, held: Held) -> None:
        """Tell ``held`` of changes under a prefix, from now on."""
        tracker = Tracker(self._locate, self._options, prefix, held)
        self._trackers.append(tracker)
        tracker.start()

    def close(self) -> None:
        """End what must be ended, and stop."""
        for tracker in self._trackers:
            tracker.close()
        self.listener.close()
        if self._guarded is not None:
            self._guarded.keeper.close()
        self.keeper.close()

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""
        for tracker in self._trackers:
            tracker.forget()
        self.listener.forget()
        if self._guarded is not None:
            self._guarded.keeper.forget()
        self.keeper.forget()


def _guarded(
    locate: Callable[[], Address], options: WireOptions, hook: Hook, listener: Listener
) -> QuorumHub:
    from fencepost.lock.quorum.hub import QuorumHub

    return QuorumHub([locate], options, hook, [listener])
