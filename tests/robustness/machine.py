"""What may happen to the machine under a fleet: its clocks jump, its disk is full. One class each.

Clocks are libfaketime's: a file says by how much they are wrong. Only the time of day jumps; the
clocks that never go back do not, as on a machine whose time is set. A disk is a small tmpfs.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from robustness.faults import Fault
from support.require import require
from support.until import until_sync

if TYPE_CHECKING:
    from robustness.fleet import Fleet


def require_clocks() -> Path:
    """libfaketime, or a skip that names it."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    require("faketime", bool(found))
    return found[0]


class Clock:
    """The time of day of some processes, which a test may set.

    Args:
        file: Where libfaketime reads by how much it is wrong.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)
        self.env = {
            "LD_PRELOAD": str(require_clocks()),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, seconds: int) -> None:
        """Be wrong by so many seconds from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)  # a reader finds the one or the other


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int = 8) -> Iterator[Path]:
    """A disk of its own at ``path``, or a skip that says why there is none."""
    path.mkdir(parents=True, exist_ok=True)
    size = ("-o", f"size={megabytes}m,mode=700")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *size, "tmpfs", str(path)], capture_output=True, text=True
    )
    require("mount", done.returncode == 0, done.stderr.strip())
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class _Jump(Fault):
    """The time of day jumps, forward or back, by seconds, an hour or a day, and back again."""

    BY: ClassVar = (-86_400, -3_600, -7, 7, 3_600, 86_400)

    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        self._by = dice.choice(self.BY)

    @abstractmethod
    def clock(self, fleet: Fleet) -> Clock:
        """The clock that jumps."""

    def strike(self, fleet: Fleet) -> None:
        self.clock(fleet).jump(self._by)

    def heal(self, fleet: Fleet) -> None:
        self.clock(fleet).jump(0)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._by:+,} s)"


class JumpServerClock(_Jump):
    """The clock of the Valkey server: keys with a TTL expire at once, or live on for a day."""

    seconds = (0.5, 2.0)

    def clock(self, fleet: Fleet) -> Clock:
        return fleet.clocks[0]

    def strike(self, fleet: Fleet) -> None:
        super().strike(fleet)
        until_sync(lambda: abs(self._seen(fleet) - self._by) < 3)  # its event loop has seen it

    def heal(self, fleet: Fleet) -> None:
        super().heal(fleet)
        until_sync(lambda: abs(self._seen(fleet)) < 3)

    def _seen(self, fleet: Fleet) -> float:
        seconds, micros = fleet.command("TIME")
        return float(seconds) + float(micros) / 1e6 - time.time()


class JumpWorkerClocks(_Jump):
    """The clock of the services and flushers: nothing that they decide may rest on it."""

    def clock(self, fleet: Fleet) -> Clock:
        return fleet.clocks[1]


class FillDisk(Fault):
    """The disk under the SQLite file is full to the last byte: no COMMIT can be written."""

    seconds = (0.5, 2.0)

    def strike(self, fleet: Fleet) -> None:
        with contextlib.closing(fleet.sql()) as connection, contextlib.suppress(sqlite3.Error):
            # What the log has room for already would still be written.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._filler = fleet.settings.data / "filler"
        with self._filler.open("ab", buffering=0) as out, contextlib.suppress(OSError):
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while out.write(bytes(size)):
                        pass
        with (
            contextlib.closing(fleet.sql()) as connection,
            pytest.raises(sqlite3.OperationalError, match="disk is full"),
        ):
            connection.execute("CREATE TABLE does_not_fit (a)")

    def heal(self, fleet: Fleet) -> None:
        os.unlink(self._filler)


CLOCKS: tuple[type[Fault], ...] = (JumpServerClock, JumpWorkerClocks)
DISKS: tuple[type[Fault], ...] = (FillDisk,)
