"""The tools of the tests are held too: a skip that should fail, a server that should be gone."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support import loops
from support.require import require, required
from support.servers import ServerProcess, find_binary


def ask(server: ServerProcess, line: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(server.socket))
        sock.sendall(line.encode() + b"\r\n")
        return sock.recv(1000)


def gone(pid: int) -> bool:
    """No process, or one that only waits for its parent (an orphan's may be slow to look)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_missing_capability_skips_unless_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCEPOST_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="redis: no server here"):
        require("redis", False, "no server here")
    monkeypatch.setenv("FENCEPOST_REQUIRE", "browser, redis")
    with pytest.raises(pytest.fail.Exception, match="promised"):
        require("redis", False, "no server here")
    require("redis", True)


def test_promise_of_an_unknown_capability_stops_the_run() -> None:
    with pytest.raises(pytest.UsageError, match="reddis"):
        required("reddis")


def test_server_url_answers(server: ServerProcess, server_url: str) -> None:
    assert server_url == f"unix://{server.socket}"
    assert ask(server, "PING") == b"+PONG\r\n"


def test_append_only_file_survives_a_kill_and_nothing_survives_a_lost_disk() -> None:
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess(aof="always", port=0) as server:
        url = server.url
        assert ask(server, "SET k v") == b"+OK\r\n"
        server.restart()
        assert ask(server, "GET k") == b"$1\r\nv\r\n"
        server.restart(empty=True)
        assert ask(server, "GET k") == b"$-1\r\n"
        assert server.url == url
    assert not server.home.exists()


def test_paused_server_is_silent_and_can_be_killed() -> None:
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess() as server:
        pid = server.pid
        server.pause()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(0.1)
            sock.connect(str(server.socket))
            sock.sendall(b"PING\r\n")
            with pytest.raises(TimeoutError):
                sock.recv(1)
            server.resume()
            sock.settimeout(5)
            assert sock.recv(7) == b"+PONG\r\n"
        server.pause()
    assert gone(pid)


def test_server_that_cannot_start_says_why() -> None:
    require("valkey", find_binary("valkey") is not None)
    with (
        pytest.raises(RuntimeError, match="no-such-option"),
        ServerProcess("valkey", "--no-such-option", "1"),
    ):
        pass


def test_killed_test_run_leaves_no_server() -> None:
    require("valkey", find_binary("valkey") is not None)
    program = (
        "import os, signal; from support.servers import ServerProcess; s = ServerProcess().start();"
        "print(s.pid, s.home, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    pid, home = run.stdout.split()
    # The reaper holds our pipe for stderr until it has done its work, so `run` returned after it.
    assert gone(int(pid))
    assert not Path(home).exists()


@loops.on_both_loops
async def test_tests_that_ask_run_on_both_loops(anyio_backend: loops.Backend) -> None:
    on = type(asyncio.get_running_loop()).__module__
    assert on.startswith("uvloop") == (anyio_backend == loops.UVLOOP)


async def test_tests_that_do_not_ask_run_on_plain_asyncio() -> None:
    assert type(asyncio.get_running_loop()).__module__.startswith("asyncio")
