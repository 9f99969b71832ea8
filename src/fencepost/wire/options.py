"""How a client talks to a server: budgets and bounds, checked at birth."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class WireOptions:
    """How a client talks to a server.

    Args:
        budget: Seconds that a call may take, waiting included, before it fails.
        health: Seconds of silence after which an idle connection is probed.
        max_requests: Unanswered requests a server and event loop; above it callers wait, in order.
        max_bytes: Unanswered bytes likewise, looked at once a write.
        max_connections: Sockets that threads share a server; above it they wait, in order.

    Raises:
        Refused: A value that can't work.
    """

    budget: float = 2.0
    health: float = 15.0
    max_requests: int = 32_768
    max_bytes: int = 64 * 1024 * 1024
    max_connections: int = 64

    def __post_init__(self) -> None:
        for name in ("budget", "health"):
            if not 0.001 <= getattr(self, name) <= 3600:
                raise Refused(f"{name} is in seconds, 0.001 to 3600, got {getattr(self, name)!r}")
        for name in ("max_requests", "max_bytes", "max_connections"):
            if not getattr(self, name) >= 1:
                raise Refused(f"{name} is at least 1, got {getattr(self, name)!r}")
