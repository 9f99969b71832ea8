"""How everything is measured: contestants take turns, and the ratio is the median of the pairs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from fencepost.server.binary import find_binary


@dataclass(frozen=True, slots=True)
class Scale:
    """How long to measure."""

    name: str
    rounds: int
    seconds: float  # a round, about


QUICK = Scale("quick", 3, 0.05)
NORMAL = Scale("normal", 5, 0.25)
FULL = Scale("full", 11, 0.5)


@dataclass(frozen=True, slots=True)
class Spent:
    """What one round took."""

    calls: int
    wall: float
    cpu: float

    @property
    def cpu_us(self) -> float:
        return self.cpu / self.calls * 1e6

    @property
    def per_second(self) -> float:
        return self.calls / self.wall


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result. ``ratio`` is how many times better ours is, ``aim`` the least it should be."""

    what: str
    unit: str
    ours: float
    peer_name: str = ""
    peer: float | None = None
    ratio: float | None = None
    aim: float | None = None

    @property
    def verdict(self) -> str:
        if self.aim is None or self.ratio is None:
            return ""
        return "met" if self.ratio >= self.aim else "MISSED"


class Contestant(Protocol):
    """Somebody who can do a number of calls."""

    def round(self, calls: int) -> Spent: ...


@dataclass(frozen=True, slots=True)
class Load:
    """What a contestant does: ``work(worker, calls)``, and afterwards, untimed, ``settle()``."""

    work: Callable[[int, int], Awaitable[None]]
    settle: Callable[[], Awaitable[Any]] | None = None


class Looped:
    """Coroutines on an event loop of their own.

    Args:
        load: Opens a client; entered on that loop.
        width: How many coroutines call at once.
        factory: Makes the loop; None is asyncio's own.
    """

    def __init__(
        self,
        load: Callable[[], contextlib.AbstractAsyncContextManager[Load]],
        width: int,
        factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._open, self._width = load, width
        self._runner = asyncio.Runner(loop_factory=factory)

    def __enter__(self) -> Self:
        self._stack = contextlib.AsyncExitStack()
        self._load = self._runner.run(self._stack.enter_async_context(self._open()))
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def round(self, calls: int) -> Spent:
        spent = self._runner.run(self._spend(max(calls // self._width, 1)))
        if self._load.settle is not None:
            self._runner.run(_await(self._load.settle()))
        return spent

    async def _spend(self, each: int) -> Spent:
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(self._load.work(worker, each) for worker in range(self._width)))
        return Spent(each * self._width, time.perf_counter() - wall, time.process_time() - cpu)


async def _await(what: Awaitable[Any]) -> Any:
    return await what


class Threaded:
    """Threads that share a client: ``work(worker, calls)`` in each."""

    def __init__(self, work: Callable[[int, int], None], width: int) -> None:
        self._work, self._width = work, width

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self._width)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def round(self, calls: int) -> Spent:
        each = max(calls // self._width, 1)
        wall, cpu = time.perf_counter(), time.process_time()
        list(self._pool.map(lambda worker: self._work(worker, each), range(self._width)))
        return Spent(each * self._width, time.perf_counter() - wall, time.process_time() - cpu)


@dataclass(frozen=True, slots=True)
class Duel:
    """Two contestants' rounds, pair by pair."""

    ours: list[Spent]
    peer: list[Spent]

    def row(
        self,
        what: str,
        unit: str,
        peer_name: str,
        figure: Callable[[Spent], float],
        aim: float | None = None,
    ) -> Row:
        ours, peer = list(map(figure, self.ours)), list(map(figure, self.peer))
        return compare(what, unit, ours, peer_name, peer, aim)

    def cpu(self, what: str, peer_name: str, aim: float | None = None) -> Row:
        return self.row(what, "µs CPU", peer_name, lambda one: one.cpu_us, aim)

    def rate(self, what: str, peer_name: str, aim: float | None = None) -> Row:
        return self.row(what, "calls/s", peer_name, lambda one: one.per_second, aim)


def compare(
    what: str,
    unit: str,
    ours: list[float],
    peer_name: str,
    peer: list[float],
    aim: float | None = None,
) -> Row:
    """The row of two lists of figures, measured in turns; more is better where the unit is a rate."""
    more = unit.endswith("/s")
    pairs = zip(ours, peer, strict=True)
    ratios = [a / b if more else b / a for a, b in pairs if min(a, b) > 0]
    ratio = statistics.median(ratios) if ratios else None
    return Row(what, unit, statistics.median(ours), peer_name, statistics.median(peer), ratio, aim)


def duel(ours: Contestant, peer: Contestant, scale: Scale) -> Duel:
    """Let two take turns, ABBA, after each has found out how many calls fill a round."""
    sizes = {one: _calibrate(one, scale) for one in (ours, peer)}
    rounds: dict[Contestant, list[Spent]] = {ours: [], peer: []}
    for number in range(scale.rounds):
        for one in (ours, peer) if number % 2 == 0 else (peer, ours):
            gc.collect()
            rounds[one].append(one.round(sizes[one]))
    return Duel(rounds[ours], rounds[peer])


def _calibrate(one: Contestant, scale: Scale) -> int:
    one.round(256)  # connections, scripts and caches are warm after it
    return max(int(one.round(1024).per_second * scale.seconds), 64)


_KEEPER = '"$@" >/dev/null 2>&1 & read -r _; kill -9 $!; wait'
"""Runs the server until our end of the pipe closes, however we end."""


@contextlib.contextmanager
def server(port: int = 0) -> Iterator[str]:
    """A server of the benchmark's own, on a unix socket; gives the socket's path.

    Args:
        port: Of 127.0.0.1, for clients that know no unix sockets; 0 is none.
    """
    home = Path(tempfile.mkdtemp(prefix="fpb-"))
    path = home / "s"
    words = [
        str(find_binary()),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--unixsocket",
        str(path),
        "--save",
        "",
        "--dir",
        str(home),
    ]
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "keeper", *words], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        wait_for(path.exists, 10, "the server")
        yield str(path)
    finally:
        keeper.communicate()
        shutil.rmtree(home, ignore_errors=True)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody used a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(ready: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until something is so."""
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} was not ready within {seconds:g} s")
        time.sleep(0.005)


def say(words: str) -> None:
    """Progress: to stderr, so that the table can be piped."""
    print(words, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that can be asked for by name (``--only``); ``full`` ones only with ``--full``."""

    name: str
    run: Callable[[Scale], list[Row]]
    full: bool = False


def end_on_sigterm() -> None:
    """SIGTERM unwinds like Ctrl-C: what was started is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
