"""Elections on the shared server, in a namespace of their own, and behind a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.election import ElectionFace
from support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from support.servers import ServerProcess


@pytest.fixture
async def open_face(server_url: str, namespace: str) -> AsyncIterator[Callable[..., ElectionFace]]:
    """Makes clients of either face, all on the same keys."""
    made: list[ElectionFace] = []

    def one(kind: str = "async", url: str = server_url, **wire: Any) -> ElectionFace:
        made.append(ElectionFace(kind, url, namespace, **wire))
        return made[-1]

    yield one
    for face in made:
        await face.close()


@pytest.fixture
def face(kind: str, open_face: Callable[..., ElectionFace]) -> ElectionFace:
    """A client of the face under test."""
    return open_face(kind)


@pytest.fixture
def rival(open_face: Callable[..., ElectionFace]) -> ElectionFace:
    """Somebody else."""
    return open_face()


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    """A proxy before the shared server."""
    with Proxy(server) as proxy:
        yield proxy
