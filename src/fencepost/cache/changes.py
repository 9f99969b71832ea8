"""Changing what is cached: one text for loops and threads. What a change makes old, nobody joins any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost.cache import write
from fencepost.cache.base import CacheBase, must_be_key
from fencepost.cache.entry import Entry
from fencepost.cache.judge import tag_names
from fencepost.cache.loading import UNREACHABLE
from fencepost.cache.region import Ask, Load
from fencepost.cache.write import Written
from fencepost.errors import Overloaded, Refused, ServerError

if TYPE_CHECKING:
    pass

T = TypeVar("T")
DOWN: Final = (*UNREACHABLE, Overloaded, ServerError)
"""The server does not do what it should: it is away, full, out of memory, misconfigured."""
_FAILED_KEYS: Final = 1024
_KNOWN: Final = 8192


class Changes(CacheBase[T]):
    """A cache, as far as it is changed."""

    def _must_not_be_behind(self) -> None:
        if self.options.shards:
            raise Refused(
                f"values of {self.name!r} are written behind (it has shards), and two ways of writing "
                "would overtake each other; use what behind(save_many) gives"
            )

    async def _set(self, key: str, value: Any, ask: Ask) -> Entry[T]:
        must_be_key(key)
        self._must_not_be_behind()
        self._writes(key)
        self._forget_here(key)
        try:
            return await write.set_value(self._io, self._region, key, value, ask)
        finally:
            self._detach(key)

    async def _touch(self, key: str, ttl: float | None) -> bool:
        must_be_key(key)
        self._writes(key)
        self._ask((), ttl, None)
        try:
            return await write.touch(self._io, self._region, key, ttl)
        finally:
            self._detach(key)

    async def _invalidate(self, names: tuple[str, ...], hard: bool, revision: int | None) -> None:
        for name in names:
            must_be_key(name)
            self._writes(name)
            self._forget_here(name)
        try:
            if names:
                await write.invalidate(self._io, self._region, names, hard=hard, revision=revision)
        finally:
            for name in names:  # a flight that began meanwhile may have read before
                self._detach(name)

    async def _invalidate_tags(self, tags: tuple[str, ...]) -> None:
        await write.invalidate_tags(self._io, self._region, tag_names(tags))

    async def _write_through(self, key: str, value: Any, save: Load, ask: Ask) -> Written:
        must_be_key(key)
        self._must_not_be_behind()
        self._writes(key)
        self._forget_here(key)
        try:
            return await write.write_through(self._io, self._region, key, value, save, ask)
        finally:
            self._detach(key)

    async def _write_around(self, key: str, save: Load) -> Written:
        must_be_key(key)
        self._must_not_be_behind()
        self._writes(key)
        self._forget_here(key)
        try:
            return await write.write_around(self._io, self._region, key, save)
        finally:
            self._detach(key)
