"""The two faces of write-behind, side by side; the docstrings stand on the async one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from fencepost._core import commands, keys
from fencepost._core.group import AsyncGroup, Group
from fencepost._core.port import Port, run_sync
from fencepost.cache import behind, flush
from fencepost.cache.behind import Batch, NoGate, Writes
from fencepost.cache.entry import decode
from fencepost.cache.flush import SaveReport
from fencepost.cache.options import BehindOptions
from fencepost.errors import FencepostError, Refused, Unavailable
from fencepost.journal.flusher import FlushStats, drain_all, flush_forever, log_of, note, tell_left
from fencepost.journal.pressure import Level, Pressure, look, score_of
from fencepost.journal.protocol import Epochs, Known, Place

if TYPE_CHECKING:
    from fencepost.cache.api import AsyncCache, Cache
    from fencepost.cache.base import CacheBase

T = TypeVar("T")
_JOIN: Final = 10.0
"""Seconds that a writer waits for its own flush, where too much waits for the source."""


@dataclass(frozen=True, slots=True)
class SetAside(Generic[T]):
    """A value that the source refuses.

    Args:
        key: Its key.
        value: The value; None is a deletion, or can't be read any more.
        version: As in ``Unsaved``.
        reason: What was said when it was tried last.
    """

    key: str
    value: T | None
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the source does not have yet: how many values, and for how many seconds the oldest waits."""

    values: int
    oldest: float


class BehindBase(ABC, Generic[T]):
    """What both faces share: where a key's journal is, and what is known of its shard."""

    def __init__(
        self,
        cache: CacheBase[T],
        save_many: Callable[[Batch[T]], Any],
        gate: Epochs | None,
        options: BehindOptions,
    ) -> None:
        region = cache._region  # noqa: SLF001  # one part, two files
        shards = region.options.shards
        if not shards:
            raise Refused(
                f"values of {cache.name!r} can't be written behind: entries and journal must share "
                "slots; make the cache with shards=16, in every process"
            )
        scope = region.prefix[
            1:-1
        ]  # namespace and name: nobody else's versions are compared with ours
        self.options = options
        self._cache = cache
        self._io: Port = cache._io  # noqa: SLF001
        self._shards = [
            Writes(
                region,
                keys.cache_shard(region.prefix, number),
                Place(scope, number, shards),
                gate or NoGate(),
                save_many,
                options,
                region.told.hook,
            )
            for number in range(shards)
        ]
        self._known: list[Known | None] = [None] * shards
        self._flushing = FlushStats(SaveReport())
        self._pressure = Pressure(options, shards, "the source")
        self._writes = 0

    def stats(self) -> dict[str, Any]:
        """Counters of this process since it began: writes, flush passes, values saved, failures."""
        flat = asdict(self._flushing)
        return {
            "writes": self._writes,
            **flat.pop("done"),
            **flat,
            "dirty": self._pressure.dirty,
            "oldest": self._pressure.oldest,
            "pressure": self._pressure.level.name.lower(),
        }

    async def _set(self, key: str, value: Any, tags: Iterable[str], ttl: float | None) -> int:
        ask = self._cache._asked(key, tags, ttl)  # noqa: SLF001
        io, shard = self._io, keys.shard_number(key, len(self._shards))
        if self._pressure.level is Level.REFUSE:
            await self._look()
            if self._pressure.level is Level.REFUSE:
                raise self._pressure.refusal()
        try:
            version, self._known[shard] = await behind.put(
                io, self._shards[shard], self._known[shard], key, value, ask
            )
        finally:
            self._cache._forget_here(key)  # noqa: SLF001  # a flight may have read before
        self._writes += 1
        if self._pressure.level >= Level.JOIN and io.now() >= self._pressure.no_join_before:
            try:  # which slows this writer to what the source can take
                await self._joined(shard, key)
            except Exception:
                self._pressure.no_join_before = io.now() + 1.0  # the flusher tells of it
        if io.now() >= self._pressure.next_look:
            await self._look()
        return version

    @abstractmethod
    async def _joined(self, number: int, key: str) -> None:
        """Wait for a flush that holds the key; all who wait share it."""

    async def _flush_group(self, number: int, names: Sequence[str]) -> list[None]:
        await self._flush(number, list(dict.fromkeys(names)))
        return [None] * len(names)

    async def _look(self) -> None:
        with contextlib.suppress(FencepostError):  # what this is beside will tell
            await look(self._io, self._shards, self._pressure)

    async def _flush(self, number: int, names: Sequence[str]) -> SaveReport:
        report, self._known[number] = await flush.flush_keys(
            self._io, self._shards[number], self._known[number], names
        )
        self._flushing.done += report
        return report

    async def _drain(self, within: float) -> int:
        return await drain_all(self._io, self._shards, self._flush_or_wait, within)

    async def _flush_or_wait(self, number: int, names: Sequence[str]) -> SaveReport:
        """A drain has until its deadline: whatever a save raises, it is tried again until then."""
        try:
            return await self._flush(number, names)
        except Exception as error:
            note(log_of(self._shards[number]), self._flushing, error)
            raise Unavailable(f"save_many failed: {error}") from error

    async def _waiting(self) -> Waiting:
        io = self._io
        sizes = await io.all([commands.read("ZCARD", one.keys.due) for one in self._shards])
        firsts = await io.all(
            [commands.read("ZRANGE", one.keys.since, 0, 0, "WITHSCORES") for one in self._shards]
        )
        seconds, micros = await io.run(commands.read("TIME"))
        now = int(seconds) + int(micros) / 1e6
        since = [float(score_of(first)) / 1000 for first in firsts if first]
        return Waiting(sum(sizes), max(0.0, now - min(since)) if since else 0.0)

    async def _aside(self, limit: int) -> list[SetAside[T]]:
        found: list[SetAside[T]] = []
        for shard in self._shards:
            cursor = b"0"
            while len(found) < limit:
                cursor, flat = await self._io.run(
                    commands.read("HSCAN", shard.keys.aside, cursor, "COUNT", 100)
                )
                found += [
                    self._read_aside(key.decode(), packed)
                    for key, packed in zip(flat[::2], flat[1::2], strict=True)
                ]
                if int(cursor) == 0:
                    break
        return found[:limit]

    def _read_aside(self, key: str, packed: bytes) -> SetAside[T]:
        version, reason, entry = packed.split(b"\n", 2)
        try:
            value = decode(entry, key, self._cache._region.codec).value  # noqa: SLF001
        except Exception:
            value = None
        at = behind.number(version.decode())
        return SetAside(key, value, at, reason.decode(errors="replace"))

    async def _retry(self, names: Sequence[str]) -> int:
        again = 0
        for key in names:
            shard = self._shards[keys.shard_number(key, len(self._shards))]
            packed = await self._io.run(commands.read("HGET", shard.keys.aside, key))
            if packed is not None:
                await self._set(key, self._read_aside(key, packed).value, (), None)
                again += 1
        return again


class AsyncBehind(BehindBase[T]):
    """Writes a cache's values behind. Made by ``AsyncCache.behind``.

    A ``set`` is in the cache for every reader when it returns; a flusher brings it to the source.
    Where these promises end is written in ``docs/guarantees.md``.
    """

    def __init__(
        self,
        cache: AsyncCache[T],
        save_many: Callable[[Batch[T]], Any],
        gate: Epochs | None,
        options: BehindOptions,
    ) -> None:
        super().__init__(cache, save_many, gate, options)
        self._groups = [
            AsyncGroup(partial(self._flush_group, number), options.batch_items)
            for number in range(len(self._shards))
        ]

    async def _joined(self, number: int, key: str) -> None:
        await self._groups[number].join(key, _JOIN)

    async def set(
        self, key: str, value: Any, *, tags: Iterable[str] = (), ttl: float | None = None
    ) -> int:
        """Write a value: every read from now on gives it or a newer one, and it is saved soon.

        Args:
            key: Its key.
            value: The value; None deletes: readers see that there is none.
            tags: What the entry depends on, once it is saved.
            ttl: Seconds that it is fresh, from its saving on.

        Returns:
            Its version, as ``save_many`` will see it unless a newer value comes before.

        Raises:
            Unavailable: Nothing was written.
            OutcomeUnknown: The reply was lost: read it, or write it again.
            Overloaded: More waits for the source than ``max_dirty`` and ``max_age_dirty`` allow.
        """
        return await self._set(key, value, tags, ttl)

    async def waiting(self) -> Waiting:
        """How many values the source does not have yet, and for how long the oldest waits."""
        return await self._waiting()

    async def aside(self, limit: int = 100) -> list[SetAside[T]]:
        """Values that the source refuses, with its words. Readers see what the source has."""
        return await self._aside(limit)

    async def retry(self, *names: str) -> int:
        """Write values that were set aside once more, as if they came now; how many there were."""
        return await self._retry(names)

    async def drain(self, within: float = 10.0) -> int:
        """Save everything now; how many values are left after ``within`` seconds."""
        return await self._drain(within)

    @contextlib.asynccontextmanager
    async def flusher(self, *, drain: float = 5.0) -> AsyncIterator[FlushStats[SaveReport]]:
        """Save in the background while the block runs; any number of processes may.

        Args:
            drain: Seconds that the end of the block may take to save what is left; what is left
                then is logged, safe in the journal, and taken by the next flusher.
        """
        stopping = False
        task = asyncio.create_task(
            flush_forever(
                self._io,
                self._shards,
                self._flush,
                self._flushing,
                self._pressure,
                lambda: stopping,
            ),
            name=f"fencepost-flusher-{self._cache.name}",
        )
        try:
            yield self._flushing
        finally:
            stopping = True
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            left = await self.drain(drain) if drain else (await self.waiting()).values
            tell_left(self._shards[0], left)


class Behind(BehindBase[T]):
    """Writes a cache's values behind, for threads; see ``AsyncBehind``. Made by ``Cache.behind``."""

    def __init__(
        self,
        cache: Cache[T],
        save_many: Callable[[Batch[T]], Any],
        gate: Epochs | None,
        options: BehindOptions,
    ) -> None:
        super().__init__(cache, save_many, gate, options)
        self._groups = [
            Group(partial(self._flush_now, number), options.batch_items)
            for number in range(len(self._shards))
        ]

    def _flush_now(self, number: int, names: Sequence[str]) -> list[None]:
        return run_sync(self._flush_group(number, names))

    async def _joined(self, number: int, key: str) -> None:
        self._groups[number].join(key, _JOIN)

    def set(
        self, key: str, value: Any, *, tags: Iterable[str] = (), ttl: float | None = None
    ) -> int:
        return run_sync(self._set(key, value, tags, ttl))

    def waiting(self) -> Waiting:
        return run_sync(self._waiting())

    def aside(self, limit: int = 100) -> list[SetAside[T]]:
        return run_sync(self._aside(limit))

    def retry(self, *names: str) -> int:
        return run_sync(self._retry(names))

    def drain(self, within: float = 10.0) -> int:
        return run_sync(self._drain(within))

    @contextlib.contextmanager
    def flusher(self, *, drain: float = 5.0) -> Iterator[FlushStats[SaveReport]]:
        """See ``AsyncBehind.flusher``; here it is a thread."""
        stopping = threading.Event()
        work = partial(
            flush_forever,
            self._io,
            self._shards,
            self._flush,
            self._flushing,
            self._pressure,
            stopping.is_set,
        )
        thread = threading.Thread(
            target=lambda: run_sync(work()),
            name=f"fencepost-flusher-{self._cache.name}",
            daemon=True,
        )
        thread.start()
        try:
            yield self._flushing
        finally:
            stopping.set()
            thread.join()
            left = self.drain(drain) if drain else self.waiting().values
            tell_left(self._shards[0], left)
