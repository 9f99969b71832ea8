"""The async port: protocols run on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import random
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from fencepost._core.script import Call

T = TypeVar("T")

# A clock that goes on while the machine sleeps: a lease does not wait for a laptop to wake up.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds on a clock that never goes back and runs in suspend (Linux, macOS)."""
    return time.clock_gettime(_CLOCK)


def token() -> str:
    """128 unpredictable bits, 22 characters."""
    return secrets.token_urlsafe(16)


class AsyncPort:
    """See ``Port``.

    Args:
        run: Runs one call on the server.
        all: Runs several in one write.
        server_ms: The server's clock.
    """

    def __init__(
        self,
        run: Callable[[Call[Any]], Coroutine[Any, Any, Any]],
        all: Callable[[Sequence[Call[Any]]], Coroutine[Any, Any, list[Any]]],  # the port's own word
        server_ms: Callable[[], float],
    ) -> None:
        self._run = run
        self._all = all
        self._server_ms = server_ms

    # Not `async def`: one more coroutine around each call would only pass its value on.

    def run(self, call: Call[T]) -> Coroutine[Any, Any, T]:
        return self._run(call)

    def all(self, calls: Sequence[Call[T]]) -> Coroutine[Any, Any, list[T]]:
        return self._all(calls)

    async def call(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        if inspect.iscoroutinefunction(fn):
            return await fn(*args)
        return await asyncio.to_thread(fn, *args)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work)

    async def wait(self, task: asyncio.Task[Any]) -> Any:
        return await task

    def token(self) -> str:
        return token()

    def chance(self) -> float:
        return random.random()

    def now(self) -> float:
        return clock()

    def server_ms(self) -> float:
        return self._server_ms()
