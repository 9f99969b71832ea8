"""Caches on the shared server, in a namespace of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.cachefaces import CacheFace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture
async def make(
    kind: str, server_url: str, namespace: str
) -> AsyncIterator[Callable[..., CacheFace]]:
    """Makes caches of either face; each of its own client, all on the same keys."""
    made: list[CacheFace] = []

    def one(name: str = "products", **options: Any) -> CacheFace:
        made.append(CacheFace(kind, server_url, namespace, name, **options))
        return made[-1]

    yield one
    for face in made:
        await face.close()
