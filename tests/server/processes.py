"""Watching real processes: who runs in a data directory, and starters that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil
import pytest

import fencepost.server

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 30.0
PACKAGE = str(Path(fencepost.server.__file__).parents[1])

# A package without its __init__: these processes are many, and the client is half their start.
STARTER = """
import sys, types
from pathlib import Path
sys.modules["fencepost"] = package = types.ModuleType("fencepost")
package.__path__ = [{package!r}]
from fencepost.server import start
{before}
print("begin", flush=True)
server = start(Path(sys.argv[1]))
print(server.pid, server.path, flush=True)
{after}
sys.stdin.read()
"""


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; fails after ``PATIENCE`` seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"still not so after {PATIENCE:.0f} s: {what}")
        time.sleep(0.005)  # time itself: how often a condition of other processes is looked at


def processes_in(data: Path) -> list[psutil.Process]:
    """Every living process whose working directory is ``data``: servers and supervisors."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(data):
                found.append(process)
        except psutil.Error:  # ended, a zombie, or not ours
            continue
    return found


def servers_in(data: Path) -> list[int]:
    return [p.pid for p in processes_in(data) if not is_supervisor(p)]


def supervisors_in(data: Path) -> list[int]:
    return [p.pid for p in processes_in(data) if is_supervisor(p)]


def is_supervisor(process: psutil.Process) -> bool:
    try:
        return any(word.endswith("supervisor.py") for word in process.cmdline())
    except psutil.Error:
        return False


def empty(data: Path) -> None:
    """Wait until nothing runs in ``data`` any more."""
    eventually(lambda: not processes_in(data), f"no process in {data}")


class Starter:
    """A process of its own that starts or joins the server and then holds it.

    Args:
        data: The data directory.
        before: Code that it runs first.
        after: Code that it runs when it has the server, as ``server``.
        env: Its environment.
        group: Make it the leader of a process group, as a shell does.
    """

    def __init__(
        self,
        data: Path,
        *,
        before: str = "",
        after: str = "",
        env: dict[str, str] | None = None,
        group: bool = False,
    ) -> None:
        program = STARTER.format(package=PACKAGE, before=before, after=after)
        self._begun = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            process_group=0 if group else None,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def begun(self) -> None:
        """Return when it is about to call ``start``."""
        self._begun = self._begun or self.line() == "begin"
        assert self._begun

    def ready(self) -> tuple[int, str]:
        """Wait until it has the server: its pid and its socket."""
        self.begun()
        pid, _, path = self.line().partition(" ")
        return int(pid), path

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to its whole process group."""
        os.killpg(self._process.pid, signal.SIGINT)
        self._end()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._end()

    def leave(self) -> None:
        """Let it end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0
        self._end()

    def _end(self) -> None:
        self._process.wait(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
