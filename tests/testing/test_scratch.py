"""A scratch server ends with its process, however that one ends, and takes nobody's data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fencepost import Client, Refused
from fencepost.testing import ScratchServer
from support.require import require
from support.servers import ServerProcess, find_binary
from support.until import until_sync

HOLDS_ONE = """
import sys
from fencepost.testing import ScratchServer
server = ScratchServer()
print(server._process.pid, server._home, flush=True)
sys.stdin.read()
"""


def need_valkey() -> None:
    require("valkey", find_binary("valkey") is not None)


def test_close_ends_it_and_removes_its_directory() -> None:
    need_valkey()
    with ScratchServer() as server:
        process, home = psutil.Process(server._process.pid), server._home
        assert "valkey" in process.name()
        assert home.is_dir()
    until_sync(lambda: not process.is_running() and not home.exists())


def test_sigkill_of_its_process_ends_it_too() -> None:
    need_valkey()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS_ONE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        pid, home = holder.stdout.readline().split()
        server = psutil.Process(int(pid))
        holder.kill()
    until_sync(lambda: not server.is_running() and not Path(home).exists())


@pytest.mark.parametrize("database", [0, 3])
def test_server_with_keys_is_refused_and_keeps_them(database: int) -> None:
    """In whichever database they are: what an exploration does is FLUSHALL."""
    need_valkey()
    with (
        ServerProcess("valkey") as server,
        Client.from_url(f"{server.url}?db={database}") as client,
    ):
        client.command("SET", "k", "v")
        with pytest.raises(Refused, match="an exploration would delete them"):
            ScratchServer(server.url)
        assert client.command("GET", "k") == b"v"


def test_empty_server_that_is_given_is_left_empty() -> None:
    need_valkey()
    with ServerProcess("valkey") as server, Client.from_url(server.url) as client:
        with ScratchServer(server.url):
            client.command("SET", "k", "v")
        assert client.command("DBSIZE") == 0
