"""The pytest plugin, in runs of its own: what a project that installs fencepost gets."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from support.require import require
from support.servers import find_binary
from support.until import until_sync

if TYPE_CHECKING:
    from collections.abc import Callable


SYNC = """
import sqlite3

import pytest
from sqlalchemy import text

from fencepost import OutcomeUnknown


def test_two_clients_share_a_namespace(fencepost_sync_client, fencepost_client):
    assert fencepost_sync_client.namespace == fencepost_client.namespace
    fencepost_sync_client.command("SET", f"{fencepost_sync_client.namespace}:k", "1")


@pytest.mark.parametrize("again", range(2))
def test_a_namespace_is_a_tests_own(fencepost_sync_client, again):
    client = fencepost_sync_client
    assert client.command("SET", f"{client.namespace}:k", "v", "NX") == b"OK"


@pytest.mark.parametrize("again", range(2))
def test_a_database_is_a_tests_own(fencepost_database, again):
    with fencepost_database.begin() as connection:
        connection.execute(text("CREATE TABLE t (a INTEGER PRIMARY KEY)"))


def test_the_proxy_loses_a_reply(fencepost_proxy, fencepost_sync_client):
    key = f"{fencepost_sync_client.namespace}:n"
    with type(fencepost_sync_client).from_url(fencepost_proxy.url) as client:
        fencepost_proxy.fault("reply", "INCR", "cut")
        with pytest.raises(OutcomeUnknown):
            client.command("INCR", key)
    assert fencepost_sync_client.command("GET", key) == b"1"
    assert fencepost_proxy.count("INCR") == 1
"""

ASYNC = """
async def test_a_client_in_the_loop(fencepost_client):
    key = f"{fencepost_client.namespace}:k"
    assert await fencepost_client.command("SET", key, "v", "NX") == b"OK"
    assert await fencepost_client.command("GET", key) == b"v"


async def test_another_test_in_a_loop(fencepost_client, fencepost_sync_client):
    key = f"{fencepost_client.namespace}:k"
    await fencepost_client.command("SET", key, "w")
    assert fencepost_sync_client.command("GET", key) == b"w"
"""

EXPLORED = """
from fencepost._core import commands
from fencepost.testing import Scenario


async def adds(io):
    seen = await io.run(commands.raw("GET", "n"))
    await io.run(commands.raw("SET", "n", int(seen or 0) + 1))


def counter(*names):
    return Scenario(
        actors={name: adds for name in names},
        final=lambda view: None if view.value("n") == str(len(names)) else f"n is {view.value('n')}",
    )


def test_one_adds(fencepost_explore):
    assert fencepost_explore(counter("a")).complete


def test_two_add(fencepost_explore):
    fencepost_explore(counter("a", "b"))


def test_reported(fencepost_explore):
    assert fencepost_explore(counter("a", "b"), check=False).finding is not None
"""

PIDS = """
import os
import pathlib

import pytest


@pytest.mark.parametrize("number", range(2))
def test_server(fencepost_server, fencepost_sync_client, number):
    assert fencepost_sync_client.command("PING") == b"PONG"
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    pathlib.Path(os.environ["PIDS"], worker).write_text(str(fencepost_server.pid))
"""


@pytest.fixture
def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pytest.RunResult]:
    """Run pytest as a project would that has fencepost installed and another server in use."""
    require("valkey", find_binary("valkey") is not None)
    monkeypatch.setenv("FENCEPOST_URL", "redis://127.0.0.1:1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def start(*options: str, ini: str = "", **files: str) -> pytest.RunResult:
        pytester.makeini(f"[pytest]\nfilterwarnings = error\n{ini}")
        pytester.makepyfile(**files)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-ra", *options)

    return start


def test_plain_tests_and_anyio(run: Callable[..., pytest.RunResult]) -> None:
    result = run("-p", "no:asyncio", ini="anyio_mode = auto", test_sync=SYNC, test_async=ASYNC)
    result.assert_outcomes(passed=8 + 2 * (importlib.util.find_spec("trio") is not None))


@pytest.mark.parametrize("scope", ["function", "session"])
def test_pytest_asyncio(run: Callable[..., pytest.RunResult], scope: str) -> None:
    if importlib.util.find_spec("pytest_asyncio") is None:
        pytest.skip("needs the package pytest-asyncio")
    ini = f"""asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
asyncio_default_test_loop_scope = {scope}
"""
    run(ini=ini, test_async=ASYNC).assert_outcomes(passed=2)


def test_xdist_gives_each_worker_a_server_and_leaves_none(
    run: Callable[..., pytest.RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("xdist") is None:
        pytest.skip("needs the package pytest-xdist")
    monkeypatch.setenv("PIDS", str(tmp_path))
    run("-n", "2", "--dist", "each", "-p", "no:asyncio", test_pids=PIDS).assert_outcomes(passed=4)
    pids = {int(path.read_text()) for path in tmp_path.glob("gw*")}
    assert len(pids) == 2
    until_sync(lambda: not any(map(psutil.pid_exists, pids)))


def test_the_server_ends_with_a_run_that_is_cut_off(
    run: Callable[..., pytest.RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # it is that of our own run
    killed = PIDS + "    os.kill(os.getpid(), 9)\n"
    assert run("-p", "no:asyncio", test_pids=killed).ret == -9
    pid = int((tmp_path / "alone").read_text())
    until_sync(lambda: not psutil.pid_exists(pid))


def test_exploring(run: Callable[..., pytest.RunResult]) -> None:
    result = run("-p", "no:asyncio", test_explored=EXPLORED)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*Found: n is 1", "*schedule: a.get b.get a.set b.set"])


def test_the_plugin_is_light() -> None:
    """It is loaded in every run of a project that has fencepost, whatever that run is about."""
    heavy = "{'redis', 'sqlalchemy', 'starlette', 'rich'} & set(sys.modules)"
    code = f"import sys, fencepost.testing.plugin; print({heavy} or 'light')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "light"
