"""The sync port: the same protocols on threads. It never suspends; see ``run_sync``."""

from __future__ import annotations

import inspect
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fencepost._core.aio import clock, token
from fencepost._core.port import run_sync
from fencepost._core.script import Call
from fencepost.errors import Refused

T = TypeVar("T")


class Thread:
    """Spawned work: a thread that drives a protocol, stopped at its next sleep."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="fencepost-spawn", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self._result = run_sync(self._work)
        except BaseException as error:
            self._error = error

    def cancel(self) -> None:
        """Nothing to interrupt in a thread: a protocol that is meant to be stopped asks its own flag."""

    def join(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


class SyncPort:
    """See ``Port``; its coroutines finish without ever suspending.

    Args:
        run: Runs one call on the server.
        all: Runs several in one write.
    """

    def __init__(
        self,
        run: Callable[[Call[Any]], Any],
        all: Callable[[Sequence[Call[Any]]], list[Any]],  # noqa: A002  # the port's own word
    ) -> None:
        self._run = run
        self._all = all

    async def run(self, call: Call[T]) -> T:
        result: T = self._run(call)
        return result

    async def all(self, calls: Sequence[Call[T]]) -> list[T]:
        return self._all(calls)

    async def call(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        if inspect.iscoroutinefunction(fn):
            raise Refused(f"{fn!r} is a coroutine function: use the async client, or give a plain function")
        return fn(*args)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

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
