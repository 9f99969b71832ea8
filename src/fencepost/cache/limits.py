"""The hard limit of a load: what is cancelled, and what can only be left to itself."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fencepost.cache.fleet import AsyncFleetGate
from fencepost.cache.flight import AsyncGate
from fencepost.cache.region import Load
from fencepost.cache.under_way import UnderWay
from fencepost.errors import WaitTimeout


class Limits:
    """The loads of a cache on loops: a coroutine function is awaited, a plain one runs in a thread.

    Args:
        name: Of the cache.
        limit: Seconds that a load may take.
        threads: So many plain loads run at once.
        gate: Which they have passed.
    """

    def __init__(
        self, name: str, limit: float, threads: int, gate: AsyncGate | AsyncFleetGate
    ) -> None:
        self._name, self._limit, self._most, self._gate = name, limit, threads, gate
        self._threads: ThreadPoolExecutor | None = None

    def of(self, load: Load, under_way: UnderWay) -> Load:
        """The loader, stopped at its limit and when its lease is lost."""
        limit = self._limit

        async def limited(*shown: Any) -> Any:
            loop = asyncio.get_running_loop()
            with under_way.running(limit):
                try:
                    async with asyncio.timeout(limit) as scope:
                        under_way.stop = partial(_end, scope, loop)
                        if inspect.iscoroutinefunction(load):
                            return await load(*shown)
                        answer = await self._in_thread(load, shown)
                        return await answer if inspect.isawaitable(answer) else answer
                except TimeoutError as error:
                    if not scope.expired():
                        raise
                    under_way.check_lease()
                    raise WaitTimeout(f"the load took longer than {limit:g} s") from error

        limited.__name__ = getattr(load, "__name__", "load")
        return limited

    async def _in_thread(self, load: Load, shown: tuple[Any, ...]) -> Any:
        """Call a plain loader. If nobody waits for it any more it goes on, and keeps its place at the
        gate until it returns: the source is at work for it."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._most, f"fencepost-{self._name}")
        loop, gate = asyncio.get_running_loop(), self._gate
        running = self._threads.submit(contextvars.copy_context().run, load, *shown)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if running.running():
                gate.keep()
                running.add_done_callback(lambda _: _give_back(loop, gate))
            raise

    def close(self) -> None:
        """Begin no more; what runs goes on to its end."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _end(scope: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it ends already
        scope.reschedule(loop.time())


def _give_back(loop: asyncio.AbstractEventLoop, gate: AsyncGate | AsyncFleetGate) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits at its gate
        loop.call_soon_threadsafe(gate.leave)


def limited(load: Load, under_way: UnderWay, limit: float) -> Load:
    """The loader of a thread. It can't be stopped: what it brings too late is dropped.

    Args:
        load: The loader.
        under_way: What it may ask.
        limit: Seconds that it may take.
    """

    def in_time(*shown: Any) -> Any:
        with under_way.running(limit):
            value = load(*shown)
            if under_way.over:
                raise WaitTimeout(
                    f"the load took longer than {limit:g} s; a thread can't be stopped, so it "
                    "went on to its end, and what it brought was dropped"
                )
            return value

    in_time.__name__ = getattr(load, "__name__", "load")
    return in_time
