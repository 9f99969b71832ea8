"""Fixtures that any test may ask for; the machinery stands in ``tests/support``."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports them: their asserts say what they saw, like those of a test.
pytest.register_assert_rewrite(
    "support.likes",
    "support.faces",
    "support.cache",
    "support.cachefaces",
    "support.behind",
    "likes.schedules",
)

from support.loops import ASYNCIO, UVLOOP, Backend, has_uvloop
from support.postgres import PostgresProcess, has_postgres
from support.require import require, required
from support.servers import ServerProcess, find_binary

if TYPE_CHECKING:
    from collections.abc import Iterator


# Fuzzing is bounded by examples, not by time: machines that are shared are slow at times.
settings.register_profile(
    "suite",
    deadline=None,
    max_examples=60,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    required()  # a promise that nothing can hold stops the run here


def pytest_runtest_setup(item: pytest.Item) -> None:
    callspec = getattr(item, "callspec", None)
    if callspec is not None and callspec.params.get("anyio_backend") == UVLOOP:
        require("uvloop", has_uvloop())


@pytest.fixture(scope="session")
def anyio_backend() -> Backend:
    """Plain asyncio; parametrise with ``support.loops.BOTH_LOOPS`` to run on uvloop too."""
    return ASYNCIO


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """One real server for the whole run. Share it: use ``namespace``, never FLUSHALL or kill it."""
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey") as server:
        yield server


@pytest.fixture(scope="session")
def server_url(server: ServerProcess) -> str:
    """The URL of the shared server."""
    return server.url


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    """One real PostgreSQL for the whole run, fsync on. Share it: never kill this one."""
    require("postgres", has_postgres())
    with PostgresProcess(deadlock_timeout="100ms") as postgres:
        yield postgres


@pytest.fixture
def postgres_url(postgres: PostgresProcess) -> Iterator[str]:
    """A new empty database, as a SQLAlchemy URL."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def namespace() -> str:
    """A short string that no other test has: what keeps tests on one server apart."""
    return f"t{secrets.token_hex(4)}"
