"""The two clients: lazy, safe at module level, one factory a part.

A client does no I/O until it is used. It opens a link per event loop (``AsyncClient``) or a small
pool of sockets (``Client``); a forked child gets its own; links of closed loops are dropped.
"""

from __future__ import annotations

from fencepost.client.aio import AsyncClient
from fencepost.client.threads import Client

__all__ = ["AsyncClient", "Client"]
