"""A module of ``support`` in a process of its own: it says lines, and is told to go on."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent


@cache
def bytecode() -> dict[str, str]:
    """Environment in which processes that must not write bytecode beside the sources share theirs.

    Without it each of them compiles all its imports again, which takes longer than most tests.
    """
    if not sys.dont_write_bytecode:
        return {}
    home = tempfile.mkdtemp(prefix="bytecode-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return {"PYTHONPYCACHEPREFIX": home, "PYTHONDONTWRITEBYTECODE": ""}


class Told:
    """A process that prints a line at each step, and waits for one.

    Args:
        module: Of ``support``.
        *words: Its arguments.
    """

    def __init__(self, module: str, *words: str) -> None:
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"support.{module}", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **bytecode(), "PYTHONPATH": path},
        )

    def says(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        """Tell it to go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
