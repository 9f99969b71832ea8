"""The supervisor: parent of one server, and the one who stops it when nobody uses it any more.

It runs as a plain file (``python -I -S supervisor.py``), so that it needs neither the package nor
its dependencies: 30 ms to start, 10 MB. Four locks (flock: the kernel drops them with their last
holder, SIGKILL included) say all that must be known; no pid or socket file is ever trusted:

    start.lock       exclusive: whoever starts, joins or stops a server. A starter hands its own to
                     its supervisor, which lets go when the server is ready, so a starter that is
                     killed half-way leaves no half-started server to a second supervisor.
    users.lock       shared, one a user. Nobody holds it: nobody uses the server.
    supervisor.lock  exclusive, the supervisor alone: free means that nobody would stop the server.
    server.lock      exclusive, inherited by the server: free means that nobody writes the data.

Stopping: wait until users.lock is free, *let go of it*, take start.lock, look again. Whoever starts
takes start.lock before users.lock, so keeping users.lock while waiting would be a deadlock, and
deciding without start.lock would stop the server under a user who has just joined.

A supervisor that is killed takes its server along (PR_SET_PDEATHSIG, Linux): with SIGTERM, so that
the append-only file is flushed. Elsewhere the server stays until the next supervisor, which finds
server.lock taken, asks it to shut down. Either way the next server waits for server.lock: two
never write to one append-only file.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import time

SILENCE_LIMIT = 60.0  # seconds a starting server may give no answer at all; LOADING is an answer
STOP_LIMIT = 60.0  # seconds from SIGTERM to SIGKILL
STEP = 0.01  # seconds between two looks at a server that starts


def probe(path: str) -> str:
    """Ask a server whether it is ready.

    Args:
        path: Its socket.

    Returns:
        ``ready``: it answers and its data is loaded; ``loading``; ``absent``: nobody listens;
        ``silent``: somebody listens and does not answer within a second.
    """
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(1.0)
        try:
            link.connect(path)
            link.sendall(b"PING\r\n")
            reply = link.recv(64)
        except (FileNotFoundError, ConnectionRefusedError):
            return "absent"
        except OSError:
            return "silent"
    if not reply:
        return "silent"
    # Any other error (NOAUTH, BUSY, too many clients) comes from a server that has its data.
    return "loading" if reply.startswith(b"-LOADING") else "ready"


def _lock_file(name: str) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _take(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _claim_data() -> int:
    """Take server.lock; a server that was orphaned is asked to end, and waited for."""
    server = _lock_file("server.lock")
    deadline = time.monotonic() + STOP_LIMIT
    asked = False
    while not _take(server):
        if not asked:
            asked = True
            with contextlib.suppress(OSError):  # it is ending already
                _ask_to_end()
        if time.monotonic() > deadline:
            raise TimeoutError("a server without a supervisor uses this data and does not end")
        time.sleep(STEP)
    return server


def _ask_to_end() -> None:
    with open("running", "rb") as file:
        path = os.fsdecode(file.read().partition(b"\n")[2])
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(1.0)
        link.connect(path)
        link.sendall(b"SHUTDOWN\r\n")
        link.recv(64)


def _die_with_parent(parent: int) -> None:
    """Runs in the child between fork and exec; survives the exec."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _spawn(binary: str, path: str, lock: int) -> int:
    """Start the server as a child of the calling thread, whose end would end the server too."""
    settings = {
        "port": "0",
        "unixsocket": path,
        "unixsocketperm": "700",
        "dir": os.getcwd(),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-load-truncated": "yes",
        "save": "",
        "daemonize": "no",
        "logfile": "",
    }
    words = [binary, *(word for key, value in settings.items() for word in (f"--{key}", value))]
    me = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        _die_with_parent(me)
        os.set_inheritable(lock, True)
        # A locale that this machine lacks keeps Redis 7 from starting.
        os.execve(binary, words, {**os.environ, "LC_ALL": "C"})  # noqa: S606
    except BaseException as error:
        os.write(2, f"cannot run {binary}: {error}\n".encode())
    finally:
        os._exit(127)


def _await_ready(child: int, path: str) -> None:
    heard = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            raise ChildProcessError(f"the server ended with {code} while starting")
        state = probe(path)
        if state == "ready":
            return
        if state == "loading":
            heard = time.monotonic()
        elif time.monotonic() > heard + SILENCE_LIMIT:
            raise TimeoutError(f"the server gave no answer for {SILENCE_LIMIT:.0f} s")
        time.sleep(STEP)


def _record(child: int, path: str) -> None:
    with open("running.new", "wb") as file:
        file.write(b"%d\n%s" % (child, os.fsencode(path)))
    os.replace("running.new", "running")


def _until_unused(users: int, start: int) -> None:
    """Block until nobody uses the server, and return with nobody able to join or start one."""
    while True:
        fcntl.flock(users, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_UN)  # before start.lock: see the top
        fcntl.flock(start, fcntl.LOCK_EX)
        if _take(users):
            return
        fcntl.flock(start, fcntl.LOCK_UN)


def _watch(child: int) -> None:
    """Return when the server has ended: by itself, or because nobody uses it any more."""
    users, start = _lock_file("users.lock"), _lock_file("start.lock")
    news, tell = os.pipe()

    def unused() -> None:
        _until_unused(users, start)
        os.write(tell, b"unused")

    def ended() -> None:
        os.waitpid(child, 0)
        os.write(tell, b"ended")

    _thread.start_new_thread(unused, ())
    _thread.start_new_thread(ended, ())
    if os.read(news, 6) != b"unused":
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)
    if not select.select([news], [], [], STOP_LIMIT)[0]:
        os.kill(child, signal.SIGKILL)
    os.read(news, 6)


def _shed_inheritance(*ours: int) -> None:
    """Let go of what a starter may have set: what we inherit, the server would too."""
    for fd in ours:
        os.set_inheritable(fd, False)
    os.umask(0o077)
    # Ignored SIGCHLD loses the server's exit status; blocked SIGTERM would never reach the server.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main(binary: str, path: str, start: int, report: int) -> None:
    """Supervise one server from its start to its end; the working directory is its data.

    Args:
        binary: The server's binary.
        path: The socket it shall listen on.
        start: The starter's own start.lock, held.
        report: A pipe: ``ready``, or why not.
    """
    _shed_inheritance(start, report)
    if os.fork():
        os._exit(0)  # the starter must not have to reap us
    supervisor = _lock_file("supervisor.lock")
    child = 0
    try:
        if not _take(supervisor):
            raise BlockingIOError("another supervisor runs here")
        lock = _claim_data()
        child = _spawn(binary, path, lock)
        _await_ready(child, path)
        _record(child, path)
    except OSError as error:
        if child:
            with contextlib.suppress(OSError):  # it has ended already
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(report, str(error).encode())
        os._exit(1)
    with contextlib.suppress(BrokenPipeError):
        # A starter that was killed reads nothing; if nobody else comes, the server stops again.
        os.write(report, b"ready")
    os.close(report)
    fcntl.flock(start, fcntl.LOCK_UN)  # not only close: a fork of the starter may hold a copy
    os.close(start)
    _watch(child)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
