"""Starting and joining the embedded server; ``supervisor.py`` has the argument and the locks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fencepost.errors import Unavailable
from fencepost.server.binary import find_binary
from fencepost.server.directory import claim, default_data, open_private, socket_for

if sys.platform != "win32":  # there `find_binary` says that there is no embedded server
    import fcntl

    from fencepost.server import supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

ANSWER_LIMIT: Final = 60.0
"""Seconds that a server which runs may take to answer somebody who joins."""

LOG_LIMIT: Final = 4 << 20
"""Bytes after which the log becomes ``server.log.old`` at the next start."""


class EmbeddedServer:
    """One user's hold on the embedded server of a data directory.

    The server lives while anybody holds it. A hold ends with ``close`` or with the process,
    whatever ends that; an object that is merely forgotten keeps its hold. A forked child shares
    the hold of its parent and counts as a user until it closes its copy or ends; a child that is
    exec'ed does not.
    """

    def __init__(self, data: Path, path: Path, pid: int, hold: int) -> None:
        self.data = data
        """The data directory."""
        self.path = path
        """The socket the server listens on."""
        self.pid = pid
        """The server's process id."""
        self._hold: int | None = hold

    @property
    def url(self) -> str:
        """``unix:///…``, for any client."""
        return "unix://" + quote(os.fsencode(self.path))

    def close(self) -> None:
        """End this hold; the server stops if it was the last. Closing twice is harmless."""
        hold, self._hold = self._hold, None
        if hold is not None:
            # Close, not LOCK_UN: that would take the hold from forked children as well.
            os.close(hold)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.url} pid={self.pid}{' closed' * (self._hold is None)}>"


def start(data: Path | None = None) -> EmbeddedServer:
    """Start the server of a data directory, or join the one that runs; returns when it is ready.

    Blocks while the data loads, and while another process starts or stops this server.

    Args:
        data: The data directory, made if need be; None is ``fencepost/embedded`` under
            ``XDG_DATA_HOME``.

    Returns:
        A hold on the server; close it, or let the process end.

    Raises:
        Refused: The directory is not ours alone: a symlink, another user's, writable by others.
        Unavailable: There is no server binary, or the server did not start (with its last words).
    """
    binary = find_binary()
    data = (data or default_data()).absolute()
    claim(data)
    with _starting(data) as start_lock:
        hold = open_private(data / "users.lock")
        try:
            fcntl.flock(hold, fcntl.LOCK_SH)
            if not _answers(data):
                _launch(binary, data, start_lock)
            pid, path = _running(data)
            return EmbeddedServer(data, path, pid, hold)
        except BaseException:
            os.close(hold)
            raise


@contextmanager
def _starting(data: Path) -> Iterator[int]:
    lock = open_private(data / "start.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
        # Unlocked, not only closed: a fork of this process, from another thread and at this very
        # moment, has a copy. Not when interrupted: a supervisor may be starting under it.
        fcntl.flock(lock, fcntl.LOCK_UN)
    except Exception:
        fcntl.flock(lock, fcntl.LOCK_UN)
        raise
    finally:
        os.close(lock)


def _supervised(data: Path) -> bool:
    lock = open_private(data / "supervisor.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        fcntl.flock(lock, fcntl.LOCK_UN)
        return False
    finally:
        os.close(lock)


def _running(data: Path) -> tuple[int, Path]:
    pid, _, path = (data / "running").read_bytes().partition(b"\n")
    return int(pid), Path(os.fsdecode(path))


def _answers(data: Path) -> bool:
    """Wait until the supervised server answers; False if there is no supervisor (any more)."""
    deadline = time.monotonic() + ANSWER_LIMIT
    while _supervised(data):
        try:
            pid, path = _running(data)
        except FileNotFoundError:
            continue  # a first start has just failed, and its supervisor is about to end
        if supervisor.probe(os.fspath(path)) == "ready":
            return True
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the server in {data} runs (pid {pid}) but does not answer at {path}"
            )
        time.sleep(supervisor.STEP)  # it has died, and its supervisor is about to end
    return False


def _launch(binary: Path, data: Path, start_lock: int) -> None:
    path = socket_for(data)
    log = _open_log(data)
    said_before = os.fstat(log).st_size
    report, tell = os.pipe()
    try:
        try:
            command = [sys.executable, "-I", "-S", supervisor.__file__, str(binary), str(path)]
            # Ends at once: the supervisor forks itself off.
            subprocess.run(  # noqa: S603 - our interpreter, our file
                [*command, str(start_lock), str(tell)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=data,
                pass_fds=(start_lock, tell),
                start_new_session=True,
                check=False,
            )
        finally:
            os.close(tell)
        with open(report, "rb", closefd=False) as pipe:
            verdict = pipe.read().decode() or "its supervisor ended without a word"
        if verdict != "ready":
            said = os.pread(log, 1 << 16, max(said_before, os.fstat(log).st_size - (1 << 16)))
            lines = said.decode(errors="replace").strip().splitlines()[-10:]
            raise Unavailable(
                "\n  ".join([f"the embedded server did not start: {verdict}", *lines])
            )
    except OSError as error:
        raise Unavailable(f"the embedded server did not start: {error}") from error
    finally:
        os.close(report)
        os.close(log)


def _open_log(data: Path) -> int:
    log = open_private(data / "server.log", append=True)
    if os.fstat(log).st_size > LOG_LIMIT:
        os.close(log)
        os.replace(data / "server.log", data / "server.log.old")
        log = open_private(data / "server.log", append=True)
    return log
