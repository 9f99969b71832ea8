"""Both clients under one async face, so that one test holds for loops and for threads.

@every_face
async def test_something(face: Face): ...
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fencepost import AsyncClient, Client
from support.loops import ASYNCIO, UVLOOP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost._core.script import Call

every_face = pytest.mark.parametrize(
    ("anyio_backend", "kind"),
    [
        pytest.param(ASYNCIO, "async", id="asyncio"),
        pytest.param(UVLOOP, "async", id="uvloop"),
        pytest.param(ASYNCIO, "threads", id="threads"),
    ],
)


class Face:
    """A client; the sync one runs in threads."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.kind = kind
        self.client: Any = (AsyncClient if kind == "async" else Client).from_url(url, **options)

    async def command(self, *words: Any) -> Any:
        if self.kind == "async":
            return await self.client.command(*words)
        return await asyncio.to_thread(self.client.command, *words)

    async def run(self, call: Call[Any]) -> Any:
        if self.kind == "async":
            return await self.client.port.run(call)
        return await asyncio.to_thread(self.client._server.run, call)

    async def all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        if self.kind == "async":
            result: list[Any] = await self.client.port.all(calls)
            return result
        return await asyncio.to_thread(self.client._server.all, calls)

    async def close(self) -> None:
        if self.kind == "async":
            await self.client.aclose()
        else:
            await asyncio.to_thread(self.client.close)
