"""Bells: how a waiter hears that it is called, on a loop and in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Final

from fencepost.wire.listener import Listener

PATIENCE: Final = 0.5
"""Seconds that a waiter gives the server to confirm that it listens; then it looks more often."""
POLL: Final = 0.1
"""Seconds between looks of a waiter that could not listen."""


class AsyncBell:
    """Of one waiter on a loop.

    Args:
        listener: Of the process.
        channel: Where it is called.
        word: By which; unique among those who listen there.
        poll: Seconds between looks while it can't listen.
    """

    def __init__(self, listener: Listener, channel: str, word: str, poll: float = POLL) -> None:
        self._listener, self._channel, self._word = listener, channel, word
        self._poll = poll
        self._loop = asyncio.get_running_loop()
        self._rung = False
        self._ready = False
        self._waiter: asyncio.Future[None] | None = None

    async def listen(self) -> None:
        self._listener.add(self._channel, self._word, self.ring, self._ready_from_thread)
        if not self._ready:
            await self._until(PATIENCE)

    async def hear(self, seconds: float) -> None:
        if not self._rung:
            await self._until(seconds if self._ready else min(seconds, self._poll))
        self._rung = False

    async def _until(self, seconds: float) -> None:
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _ring(self) -> None:
        self._rung = True
        self._wake()

    def _confirm(self) -> None:
        self._ready = True
        self._wake()

    def ring(self) -> None:
        """Wake who hears, from any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._ring)

    def _ready_from_thread(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._confirm)

    def close(self) -> None:
        self._listener.remove(self._channel, self._word)


class SyncBell:
    """Of one waiter in a thread."""

    def __init__(self, listener: Listener, channel: str, word: str, poll: float = POLL) -> None:
        self._listener, self._channel, self._word = listener, channel, word
        self._poll = poll
        self._rung = threading.Event()
        self._ready = threading.Event()

    def listen(self) -> None:
        self._listener.add(self._channel, self._word, self.ring, self._ready.set)
        self._ready.wait(PATIENCE)

    def hear(self, seconds: float) -> None:
        self._rung.wait(seconds if self._ready.is_set() else min(seconds, self._poll))
        self._rung.clear()

    def ring(self) -> None:
        self._rung.set()

    def close(self) -> None:
        self._listener.remove(self._channel, self._word)
