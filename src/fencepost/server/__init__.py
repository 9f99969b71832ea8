"""The embedded server: a Valkey that lives as long as somebody uses it.

    with start() as server:
        client = Client(server.url)

The first process that calls ``start`` brings the server up, later ones join it, and it stops when
the last of them is gone, however that one ended. Data outlives it.
"""

from __future__ import annotations

from fencepost.server.binary import find_binary
from fencepost.server.launcher import EmbeddedServer, start

__all__ = ["EmbeddedServer", "find_binary", "start"]
