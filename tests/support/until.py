"""Waiting for a condition, never for time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 30.0
"""Seconds after which a condition that never came true fails the test."""


async def until(condition: Callable[[], bool]) -> None:
    """Give way to the loop until a condition is true."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "the condition never came true"
        await asyncio.sleep(0)


def until_sync(condition: Callable[[], bool]) -> None:
    """Give way to other threads until a condition is true."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "the condition never came true"
        time.sleep(0)
