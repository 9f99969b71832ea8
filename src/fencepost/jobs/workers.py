"""The two faces of a worker, side by side; the docstrings stand on the async one."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import socket
import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

from fencepost._core.aio import clock
from fencepost._core.keys import bounded
from fencepost.errors import Refused
from fencepost.jobs.worker import Works, stopped_by_signals


class _Worker:
    def __init__(self, jobs: Any, concurrency: int, grace: float, name: str | None) -> None:
        self._jobs = jobs
        self._settings = (concurrency, grace)
        who = name or f"{socket.gethostname()}:{os.getpid()}"
        self.name = f"{bounded(who)}:{secrets.token_hex(4)}"
        self._works: Works | None = None
        self._begun = threading.Event()

    @property
    def counts(self) -> Counter[str]:
        """What it did so far; what it never did counts 0.

        ``turns``, ``begun``, ``late_ms`` (of all that were begun together), ``done``, ``failed``, ``applied``
        and ``refused`` acknowledgements, ``lost`` claims; ``scheduled`` and ``skipped`` times of schedules.
        """
        return Counter() if self._works is None else Counter(self._works.counts)

    @property
    def silent(self) -> float:
        """Seconds since the server last answered it: one that is well looks every 2 s.

        Of a worker that has not begun, or had no answer yet, ``inf``. A process that is up says nothing:
        probe this.
        """
        if self._works is None or not self._works.looked:
            return math.inf
        return clock() - self._works.looked

    def _refuse_again(self) -> None:
        if self._works is not None:
            raise Refused(f"{self!r} runs, or has run: make another one")

    def _begin(self) -> Works:
        self._refuse_again()
        works: Works = self._jobs._works(*self._settings, self.name)  # noqa: SLF001  # its own queue
        self._works = works
        self._begun.set()
        return works

    async def _work(self, burst: bool, signals: bool) -> None:
        works = self._begin()
        with stopped_by_signals(works) if signals else contextlib.nullcontext():
            await works.run(burst)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._jobs.name!r}>"


class AsyncWorker(_Worker):
    """Runs the jobs of a queue; see ``AsyncJobs.worker``.

    ``await worker.run()`` is a process of its own. ``async with worker:`` works beside an application
    while the block runs, and installs no signal handlers; at its end it takes no more jobs, and waits
    until what runs has ended or was handed back.
    """

    _task: asyncio.Task[None] | None = None

    async def run(self, *, burst: bool = False, signals: bool = True) -> None:
        """Work until ``stop``.

        Args:
            burst: Return as soon as nothing is due any more.
            signals: SIGTERM and SIGINT stop it, in the main thread.

        Raises:
            Refused: It runs already.
        """
        await self._work(burst, signals)

    def stop(self) -> None:
        """Take no more jobs; ``run`` returns when what runs has ended or was handed back."""
        if self._works is not None:
            self._works.stop()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._begin().run(False), name="fencepost-jobs-worker")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self.stop()
        try:
            await task
        except Exception:
            if error is None:  # the body's own error is never masked
                raise


class Worker(_Worker):
    """Runs the jobs of a queue on an event loop of its own; plain functions run in threads."""

    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    def run(self, *, burst: bool = False, signals: bool = True) -> None:
        asyncio.run(self._run(burst, signals))

    async def _run(self, burst: bool, signals: bool) -> None:
        self._loop = asyncio.get_running_loop()
        await self._work(burst, signals)

    def stop(self) -> None:
        if self._works is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._works.stop)

    def __enter__(self) -> Self:
        self._refuse_again()
        self._thread = threading.Thread(target=self._beside, name="fencepost-jobs-worker")
        self._thread.start()
        self._begun.wait()  # so that ``stop`` finds it
        return self

    def _beside(self) -> None:
        try:
            self.run(signals=False)
        except Exception as error:  # raised where the block ends
            self._error = error
        finally:
            self._begun.set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(RuntimeError):  # its loop is closed: it ended by itself
            self.stop()
        thread.join()
        if self._error is not None and error is None:
            raise self._error
