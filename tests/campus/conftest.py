"""campus for tests: in this process on the shared server, or as processes of its own."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from campus.running import Serve, open_app
from fencepost.campus.settings import Settings
from support.require import require
from support.servers import find_binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    import httpx


@pytest.fixture
def settings(tmp_path: Path, server_url: str, namespace: str) -> Settings:
    """A campus of this test alone, on the shared server."""
    return Settings(
        data=tmp_path / "data", url=server_url, namespace=namespace, drain=5.0, duties=False
    )


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a campus in this process, which holds the sample activities."""
    async with open_app(settings) as client:
        yield client


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    """Start ``fencepost serve`` with an embedded server; what still runs is killed at the end."""
    require("valkey", find_binary("valkey") is not None)
    with ExitStack() as stack:

        def start(*options: str, data: Path = tmp_path / "data", **env: str) -> Serve:
            process = Serve("--data", str(data), *options, env=env)
            stack.callback(process.kill)
            return process

        yield start
