"""Servers that a test may hurt, and clients that are closed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from support.faces import Face
from support.proxy import Proxy
from support.require import require
from support.servers import ServerProcess, find_binary


@pytest.fixture
def own() -> Iterator[ServerProcess]:
    """A server of this test alone."""
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey", port=0) as server:
        yield server


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    """A proxy before the shared server."""
    with Proxy(server) as proxy:
        yield proxy


OpenFace = Callable[..., Face]


@pytest.fixture
async def open_face(kind: str) -> AsyncIterator[OpenFace]:
    """Make clients; they are closed after the test."""
    opened: list[Face] = []

    def make(url: str, **options: Any) -> Face:
        face = Face(kind, url, **options)
        opened.append(face)
        return face

    yield make
    for face in opened:
        await face.close()
