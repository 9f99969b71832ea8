"""Who acts under a fence, and how one that comes too late is told."""

from __future__ import annotations

from typing import Protocol

from fencepost.errors import FenceRefused


class Fenced(Protocol):
    """Who acts: a lease, or anything that carries its two words on, such as a message."""

    @property
    def fence(self) -> int:
        """Greater than that of every holder before."""
        ...

    @property
    def token(self) -> str:
        """Who drew it."""
        ...


def refusal(what: str, fence: int) -> FenceRefused:
    """The error of who came too late."""
    return FenceRefused(
        f"{what} was refused: a newer holder (fence {fence}) has been here. Nothing was changed; "
        "your lease is over",
        fence=fence,
    )
