"""Clients that live in a venv of their own, driven over pipes: one ``<group>.txt`` a venv.

A group that can't be installed here is left out, by name.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Self

from benches.runner import Spent, say

HERE = Path(__file__).parent
VENVS = HERE.parent / ".venvs"


class NotHere(Exception):
    """A group can't be measured on this machine."""


def groups(part: str) -> list[str]:
    """The groups whose file's first line names a part of the benchmarks."""
    files = sorted(HERE.glob("*.txt"))
    return [file.stem for file in files if file.read_text().startswith(f"# {part}:")]


@cache
def python_of(group: str) -> Path:
    """The interpreter of a group's venv, made if need be.

    Raises:
        NotHere: Its packages can't be installed.
    """
    wanted = HERE / f"{group}.txt"
    home = VENVS / group
    stamp = home / "stamp"
    text = f"{sys.version}\n{wanted.read_text()}"
    python = home / "bin" / "python"
    with contextlib.suppress(OSError):
        if stamp.read_text() == text:
            return python
    say(f"  making a venv for {group}")
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--only-binary",
            ":all:",
            "-r",
            str(wanted),
        ],
    )
    for words in steps:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise NotHere(f"{group} is not installable here: {' '.join(last)}")
    stamp.write_text(text)
    return python


class Piped:
    """A contestant in another process; see ``worker.py``."""

    def __init__(self, group: str, path: str, op: str, size: int, width: int) -> None:
        self._words = [
            str(python_of(group)),
            str(HERE / "worker.py"),
            group,
            path,
            op,
            str(size),
            str(width),
        ]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # it ends with its input
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, number: int) -> list[str]:
        """What it says to a number.

        Raises:
            NotHere: It has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words: list[str] = []
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{number}\n")
            words = self._process.stdout.readline().split()
        if not words:
            raise NotHere(f"{Path(self._words[0]).parents[1].name} ended: see above")
        return words

    def round(self, calls: int) -> Spent:
        words = self.ask(calls)
        return Spent(int(words[0]), float(words[1]), float(words[2]))
