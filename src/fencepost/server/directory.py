"""The data directory, where its socket goes, and who may be trusted with either.

What lies in it: ``start.lock users.lock supervisor.lock server.lock`` (never deleted: a lock is
its inode), ``running`` (pid and socket of the server, for those who join), ``server.log``, the
socket unless its path is too long, and the server's own ``appendonlydir``.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from fencepost.errors import Refused

MAX_SOCKET_BYTES: Final = 103
"""``sun_path`` holds 104 bytes with its NUL on macOS and 108 on Linux."""


def default_data() -> Path:
    """The user's own data directory: ``fencepost/embedded`` under ``XDG_DATA_HOME``."""
    home = os.environ.get("XDG_DATA_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share"
    return base / "fencepost" / "embedded"


def claim(path: Path, *, closed_to: int = 0o022) -> None:
    """Create a directory for us alone, or check that an existing one can be trusted.

    Checking before use is enough: once the entry is known to be a directory of ours, only
    somebody who may write to its parent could replace it.

    Args:
        path: The directory; created with mode 0700, its parents with the usual mode.
        closed_to: The permission bits that others must not have.

    Raises:
        Refused: It is a symlink, no directory, another user's, open to others, or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    except FileExistsError:
        info = path.lstat()
    except OSError as error:
        raise Refused(f"cannot make the directory {path}: {error.strerror}") from error
    if stat.S_ISLNK(info.st_mode):
        raise Refused(f"{path} is a symlink, and where it leads could change: name its target")
    if not stat.S_ISDIR(info.st_mode):
        raise Refused(f"{path} is not a directory")
    if info.st_uid != os.geteuid():
        raise Refused(f"{path} belongs to uid {info.st_uid}, and we are uid {os.geteuid()}")
    if info.st_mode & closed_to:
        mode = stat.S_IMODE(info.st_mode)
        raise Refused(f"{path} has mode {mode:04o}, others can get at it: chmod 700 it")


def socket_for(data: Path) -> Path:
    """Where the server of a data directory listens.

    Args:
        data: The data directory, absolute.

    Returns:
        ``data/socket``, or a short path in a runtime directory of ours where that is over 103
        bytes. The name comes from the directory's path, so a restart listens at the same place.

    Raises:
        Refused: The runtime directory cannot be trusted.
    """
    if _fits(data / "socket"):
        return data / "socket"
    digest = hashlib.blake2b(os.fsencode(os.path.realpath(data)), digest_size=12).hexdigest()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        home = Path(runtime, "fencepost")
        if _fits(home / digest):
            claim(home, closed_to=0o077)
            return home / digest
    home = Path(f"/tmp/fencepost-{os.geteuid()}")  # noqa: S108 - checked by `claim`
    claim(home, closed_to=0o077)
    return home / digest


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_BYTES


def open_private(path: Path, *, append: bool = False) -> int:
    """Open or create a file of ours, mode 0600, closed on exec.

    Args:
        path: The file; a symlink is not followed.
        append: Write at its end, as logs do.

    Raises:
        Refused: It cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | (os.O_APPEND if append else 0), 0o600)
    except OSError as error:
        raise Refused(f"cannot open {path}: {error.strerror}") from error
