"""The sync port: the same protocols on threads. It never suspends; see ``run_sync``."""

from __future__ import annotations

import inspect
import random
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from fencepost._core.aio import clock, token
from fencepost._core.port import Cancelled, run_sync
from fencepost.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from fencepost._core.script import Call

T = TypeVar("T")


class Thread:
    """Spawned work: a thread that drives a protocol, and ends at its next step when cancelled."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, name="fencepost-spawn", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        _mine.thread = self
        try:
            self._result = run_sync(self._work)
        except BaseException as error:
            self._error = error

    def cancel(self) -> None:
        """Ask it to stop: its next step, or the sleep it is in, raises ``Cancelled``."""
        self.stopped.set()

    def join(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


class _Mine(threading.local):
    """The spawned work that this thread drives."""

    thread: Thread | None = None


_mine = _Mine()


def _step() -> None:
    thread = _mine.thread
    if thread is not None and thread.stopped.is_set():
        raise Cancelled


class SyncPort:
    """See ``Port``; its coroutines finish without ever suspending.

    Args:
        run: Runs one call on the server.
        all: Runs several in one write.
        server_ms: The server's clock.
    """

    def __init__(
        self,
        run: Callable[[Call[Any]], Any],
        all: Callable[[Sequence[Call[Any]]], list[Any]],  # the port's own word
        server_ms: Callable[[], float],
    ) -> None:
        self._run = run
        self._all = all
        self._server_ms = server_ms

    async def run(self, call: Call[T]) -> T:
        _step()
        result: T = self._run(call)
        return result

    async def all(self, calls: Sequence[Call[T]]) -> list[T]:
        _step()
        return self._all(calls)

    async def call(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        if inspect.iscoroutinefunction(fn):
            raise Refused(
                f"{fn!r} is a coroutine function: use the async client, or give a plain function"
            )
        return fn(*args)

    async def sleep(self, seconds: float) -> None:
        thread = _mine.thread
        if thread is None:
            time.sleep(seconds)  # noqa: ASYNC251  # this port never suspends
        elif thread.stopped.wait(seconds):
            raise Cancelled

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Thread:
        return Thread(work)

    async def wait(self, task: Thread) -> Any:
        return task.join()

    def token(self) -> str:
        return token()

    def chance(self) -> float:
        return random.random()

    def now(self) -> float:
        return clock()

    def server_ms(self) -> float:
        return self._server_ms()
