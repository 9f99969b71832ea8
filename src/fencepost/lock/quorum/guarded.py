"""One server that votes: a lock of a client that waits after its server came back."""

from __future__ import annotations

from typing import Any

from fencepost.lock.options import LockOptions
from fencepost.lock.protocol import Place
from fencepost.lock.quorum.place import polls
from fencepost.lock.quorum.protocol import QuorumPlace
from fencepost.wire.fan import AsyncFan, SyncFan
from fencepost.wire.pool import SyncServer


class Guarded:
    """A client as its guarded locks see it: a quorum of one server.

    Args:
        client: Whose server it is.
    """

    def __init__(self, client: Any) -> None:
        self.namespace: str = client.namespace
        self._client = client
        server = client._server  # noqa: SLF001  # a client's parts share it
        self.port: Any = (
            SyncFan([server], 0.0) if isinstance(server, SyncServer) else AsyncFan([server])
        )

    def _lock_hub(self) -> Any:
        return self._client._lock_hub().guarded  # noqa: SLF001


def place_of(namespace: str, name: str, servers: int, max_ttl: float) -> Place:
    """The lock ``name`` on so many servers that vote."""
    where = polls(namespace, name, servers, max_ttl)
    return QuorumPlace(name, where.keys[0], polls=where)


def ground(client: Any, name: str, options: LockOptions) -> tuple[Any, Place]:
    """Whom a lock talks to, and where it is, if its server waits after it came back."""
    return Guarded(client), place_of(client.namespace, name, 1, options.max_ttl)
