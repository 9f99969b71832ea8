"""Locks on the shared server, in a namespace of their own, and behind a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.lock import protocol
from support.lockfaces import LockFace
from support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from support.servers import ServerProcess


@pytest.fixture
async def open_face(server_url: str, namespace: str) -> AsyncIterator[Callable[..., LockFace]]:
    """Makes clients of either face, all on the same keys."""
    made: list[LockFace] = []

    def one(kind: str = "async", url: str = server_url, **wire: Any) -> LockFace:
        made.append(LockFace(kind, url, namespace, **wire))
        return made[-1]

    yield one
    for face in made:
        await face.close()


@pytest.fixture
def face(kind: str, open_face: Callable[..., LockFace]) -> LockFace:
    """A client of the face under test."""
    return open_face(kind)


@pytest.fixture
def rival(open_face: Callable[..., LockFace]) -> LockFace:
    """Somebody else."""
    return open_face()


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    """A proxy before the shared server."""
    with Proxy(server) as proxy:
        yield proxy


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter may be silent for as long as any test takes, and looks by itself as seldom: what
    happens sooner, happens because it was called."""
    monkeypatch.setattr(protocol, "STAY", 600.0)
