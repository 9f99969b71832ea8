"""fencepost as ``cache_worker.py`` drives it, in a process of its own like its peers."""

from __future__ import annotations

from typing import Any

from fencepost import AsyncClient


class Fencepost:
    """One cache."""

    def __init__(self, path: str, ttl: float, lease: float) -> None:
        self.cache: Any = AsyncClient.from_url(f"unix://{path}").cache("b", ttl=ttl, lease=lease)

    async def open(self) -> None:
        pass

    async def get(self, key: str, load: Any) -> Any:
        return await self.cache.get(key, load)

    async def get_many(self, keys: list[str]) -> Any:
        return await self.cache.get_many(keys, lambda missing: {})

    async def set(self, key: str, value: Any) -> None:
        await self.cache.set(key, value)

    async def peek(self, key: str) -> Any:
        entry = await self.cache.peek(key)
        return None if entry is None else entry.value

    async def forget(self, key: str) -> None:
        await self.cache.invalidate(key)


ADAPTERS = {"fencepost": Fencepost}
