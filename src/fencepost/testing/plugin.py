"""Fixtures for pytest: a real server of one's own, clients, a database, a proxy, the explorer.

    async def test_likes(fencepost_client, fencepost_database): ...

Installed with fencepost, for plain tests and for async ones under anyio or pytest-asyncio, one
server a worker under xdist. The server is started by the run and ends with it, however it ends; it
is never the one that ``FENCEPOST_URL`` names. Tests share it and are kept apart by a namespace each,
so nothing is ever emptied between them.
"""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Engine

    from fencepost import AsyncClient, Client
    from fencepost.server import EmbeddedServer
    from fencepost.testing import Report, Scenario, ScratchServer
    from fencepost.testing.proxy import Proxy

# Everything of ours is imported where it is used: the plugin is loaded in runs that need none of it.


@pytest.fixture(scope="session")
def fencepost_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server of this run alone (of this worker, under xdist); ``.url`` is for any client.

    It writes an append-only file as the embedded server always does, in a temporary directory.
    """
    from fencepost.server import start

    with start(tmp_path_factory.mktemp("fencepost-server")) as server:
        yield server


@pytest.fixture
def fencepost_namespace() -> str:
    """What no other test has: the first part of every key of this test's clients."""
    return f"t{secrets.token_hex(5)}"


@pytest.fixture
def fencepost_client(
    fencepost_server: EmbeddedServer, fencepost_namespace: str
) -> Iterator[AsyncClient]:
    """An ``AsyncClient`` in a namespace of this test; closed after it."""
    from fencepost import AsyncClient

    # A plain fixture, so that no plugin's event loop need be known: a client opens its link in the
    # loop that uses it, and is closed from a loop of its own.
    client = AsyncClient.from_url(fencepost_server.url, namespace=fencepost_namespace)
    yield client
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, client.aclose()).result()


@pytest.fixture
def fencepost_sync_client(
    fencepost_server: EmbeddedServer, fencepost_namespace: str
) -> Iterator[Client]:
    """A ``Client`` in the same namespace; closed after the test."""
    from fencepost import Client

    with Client.from_url(fencepost_server.url, namespace=fencepost_namespace) as client:
        yield client


@pytest.fixture
def fencepost_database(tmp_path: Path) -> Iterator[Engine]:
    """A SQLAlchemy ``Engine`` on a new SQLite file, WAL, safe to use from threads."""
    try:
        from fencepost.testing.database import open_sqlite
    except ImportError:
        pytest.fail("fencepost_database needs SQLAlchemy: install 'fencepost[sql]'", pytrace=False)
    engine = open_sqlite(tmp_path / "fencepost.sqlite3")
    yield engine
    engine.dispose()


@pytest.fixture
def fencepost_proxy(fencepost_server: EmbeddedServer) -> Iterator[Proxy]:
    """A proxy before the server that passes, holds, drops and cuts on command; see ``Proxy``.

    ``fencepost_proxy.url`` is for the clients that shall meet its faults.
    """
    from fencepost.testing.proxy import Proxy

    with Proxy(fencepost_server.url) as proxy:
        yield proxy


class Explore(Protocol):
    """Explores a scenario; see ``fencepost.testing.explore``."""

    def __call__(self, scenario: Scenario, /, *, check: bool = True, **options: Any) -> Report:
        """Raise what was found, with the schedule to replay; or only report it (``check=False``)."""


@pytest.fixture(scope="session")
def _fencepost_scratch() -> Iterator[ScratchServer]:
    from fencepost.testing import ScratchServer

    with ScratchServer() as server:
        yield server


@pytest.fixture
def fencepost_explore(_fencepost_scratch: ScratchServer) -> Explore:
    """``explore`` on a server that the run keeps for explorations, and checked at once."""
    from fencepost.testing import explore

    def run(scenario: Scenario, /, *, check: bool = True, **options: Any) -> Report:
        report = explore(scenario, server=_fencepost_scratch, **options)
        return report.check() if check else report

    return run
