"""The two faces of the like cache, side by side; the docstrings stand on the async one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fencepost._core import commands, keys
from fencepost._core.port import Port, run_sync
from fencepost.errors import Refused, UnknownItem
from fencepost.likes import protocol
from fencepost.likes.flusher import FlushStats, drain_all, flush_forever
from fencepost.likes.options import LikeOptions
from fencepost.likes.protocol import Known, LikeResult, LikeStatus, Shard
from fencepost.likes.store import LikeStore, Place

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client

log = logging.getLogger("fencepost.likes")
ItemT = TypeVar("ItemT", int, str)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is not in SQL yet: how many items, and for how many seconds the oldest waits."""

    items: int
    oldest: float


class _Likes:
    """What both faces share: where an item lives, and what is known of its shard."""

    def __init__(
        self, client: AsyncClient | Client, name: str, *, store: LikeStore, options: LikeOptions | None
    ) -> None:
        self.name = name
        self.options = options or LikeOptions()
        self._store = store
        count = self.options.shards
        self._shards = [
            Shard(
                name,
                keys.like_shard(client.namespace, name, number),
                Place(f"likes:{keys.escape(name)}", number, count),
                store,
                self.options,
                client.hook,
            )
            for number in range(count)
        ]
        self._known: list[Known | None] = [None] * count
        self._flushing = FlushStats()
        self._sets = self._changes = 0

    def _find(self, item: Any) -> tuple[str, int]:
        key = self._store.item_key(item)
        return key, keys.shard_number(key, len(self._shards))

    def stats(self) -> dict[str, Any]:
        """Counters of this process since it began: sets, changes, flush passes, rows, failures."""
        flat = asdict(self._flushing)
        return {"sets": self._sets, "changes": self._changes, **flat.pop("done"), **flat}

    async def _set(self, io: Port, item: Any, user: Any, liked: bool) -> LikeResult:
        if not isinstance(liked, bool):
            raise Refused(f"liked is True or False, got {liked!r}")
        key, number = self._find(item)
        who = self._store.user_key(user)
        result, self._known[number] = await protocol.set_like(
            io, self._shards[number], self._known[number], key, who, liked
        )
        self._sets += 1
        self._changes += result.changed
        return result

    async def _status(self, io: Port, item: Any, user: Any) -> LikeStatus:
        key, number = self._find(item)
        who = None if user is None else self._store.user_key(user)
        result, self._known[number] = await protocol.status(
            io, self._shards[number], self._known[number], key, who
        )
        return result

    async def _status_many(self, io: Port, items: Iterable[ItemT], user: Any) -> dict[ItemT, LikeStatus]:
        who = None if user is None else self._store.user_key(user)
        wanted = {item: self._find(item) for item in items}
        # What was never opened by this process, or belongs to a server that is gone, goes the slow way.
        open_now = [(item, key, n, known) for item, (key, n) in wanted.items() if (known := self._known[n])]
        found: dict[ItemT, LikeStatus] = {}
        missing: set[ItemT] = set()
        try:
            replies = await io.all([protocol.peek(self._shards[n], known, key, who) for _, key, n, known in open_now])
        except protocol.OtherServer:
            replies = []
        for (item, key, _, known), fields in zip(open_now, replies, strict=False):
            try:
                status = protocol.read_header(fields, known, key)
            except UnknownItem:
                missing.add(item)
                continue
            if status is not None:
                found[item] = status
        for item, (key, n) in wanted.items():
            if item not in found and item not in missing:
                with contextlib.suppress(UnknownItem):
                    found[item], self._known[n] = await protocol.status(
                        io, self._shards[n], self._known[n], key, who
                    )
        return {item: found[item] for item in wanted if item in found}

    async def _backlog(self, io: Port) -> Backlog:
        sizes = await io.all([commands.raw("ZCARD", one.keys.due) for one in self._shards])
        firsts = await io.all([commands.raw("ZRANGE", one.keys.since, 0, 0, "WITHSCORES") for one in self._shards])
        seconds, micros = await io.run(commands.raw("TIME"))
        now = int(seconds) + int(micros) / 1e6
        since = [float(_score(first)) / 1000 for first in firsts if first]
        return Backlog(sum(sizes), max(0.0, now - min(since)) if since else 0.0)

    def _left(self, left: int) -> None:
        if left:
            log.warning(
                "likes %r: %d items are still in the journal; they are safe there and the next flusher takes them",
                self.name,
                left,
            )


def _score(first: Any) -> Any:
    """The score of a ZRANGE WITHSCORES reply, nested in RESP3 and flat in RESP2."""
    return first[0][1] if isinstance(first[0], list) else first[1]


class AsyncLikes(_Likes):
    """Likes of one kind of item. Make it with ``AsyncClient.likes``.

    Args:
        client: Whose server and namespace to use.
        name: Names this like cache on the server and in the database.
        store: The database side, ``fencepost.likes.SqlLikes`` or your own ``LikeStore``.
        options: See ``LikeOptions``.
    """

    def __init__(
        self, client: AsyncClient, name: str, *, store: LikeStore, options: LikeOptions | None = None
    ) -> None:
        super().__init__(client, name, store=store, options=options)
        self._io = client.port

    async def set(self, item: int | str, user: int | str, *, liked: bool) -> LikeResult:
        """Like (or unlike) an item; absolute, so repeating it is harmless.

        Args:
            item: The item's id, of the type of its column.
            user: The user's id likewise.
            liked: What shall be.

        Returns:
            ``LikeResult(liked, count, changed)``, as of this change.

        Raises:
            UnknownItem: There is no such item; nothing was written.
            Refused: An id is not of its column's type, empty, or longer than 200 bytes.
            Unavailable: Nothing was applied.
            OutcomeUnknown: The reply was lost; repeating it is harmless.
            Overloaded: The server is out of memory, or the shard kept changing.
        """
        return await self._set(self._io, item, user, liked)

    async def like(self, item: int | str, user: int | str) -> LikeResult:
        """``set(item, user, liked=True)``."""
        return await self._set(self._io, item, user, True)

    async def unlike(self, item: int | str, user: int | str) -> LikeResult:
        """``set(item, user, liked=False)``."""
        return await self._set(self._io, item, user, False)

    async def status(self, item: int | str, user: int | str | None = None) -> LikeStatus:
        """One user's state of one item, and its count. What the cache does not know is loaded.

        Returns:
            ``LikeStatus(liked, count)``; ``liked`` is False without a user.

        Raises:
            UnknownItem: There is no such item.
            Refused, Unavailable, Overloaded: As for ``set``; nothing was changed.
        """
        return await self._status(self._io, item, user)

    async def status_many(
        self, items: Iterable[ItemT], user: int | str | None = None
    ) -> dict[ItemT, LikeStatus]:
        """The same of many items, in their order: one write and one round trip when all are warm.

        Items that do not exist are left out.
        """
        return await self._status_many(self._io, items, user)

    async def backlog(self) -> Backlog:
        """How many items wait for their flush, and for how many seconds the oldest does."""
        return await self._backlog(self._io)

    async def drain(self, within: float = 10.0) -> int:
        """Flush everything now; how many items are left after ``within`` seconds."""
        return await drain_all(self._io, self._shards, self._known, within)

    @contextlib.asynccontextmanager
    async def flusher(self, *, drain: float = 5.0) -> AsyncIterator[FlushStats]:
        """Flush in the background while the block runs; any number of processes may.

        Args:
            drain: Seconds that the end of the block may take to flush what is left; what is left
                then is logged, safe in the journal, and taken by the next flusher.
        """
        stopping = False
        task = asyncio.create_task(
            flush_forever(self._io, self._shards, self._known, self._flushing, lambda: stopping),
            name=f"fencepost-flusher-{self.name}",
        )
        try:
            yield self._flushing
        finally:
            stopping = True
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._left(await self.drain(drain) if drain else (await self.backlog()).items)


class Likes(_Likes):
    """The sync face of ``AsyncLikes``, for threads. Make it with ``Client.likes``."""

    def __init__(
        self, client: Client, name: str, *, store: LikeStore, options: LikeOptions | None = None
    ) -> None:
        super().__init__(client, name, store=store, options=options)
        self._io = client.port

    def set(self, item: int | str, user: int | str, *, liked: bool) -> LikeResult:
        """See ``AsyncLikes.set``."""
        return run_sync(self._set(self._io, item, user, liked))

    def like(self, item: int | str, user: int | str) -> LikeResult:
        """See ``AsyncLikes.like``."""
        return run_sync(self._set(self._io, item, user, True))

    def unlike(self, item: int | str, user: int | str) -> LikeResult:
        """See ``AsyncLikes.unlike``."""
        return run_sync(self._set(self._io, item, user, False))

    def status(self, item: int | str, user: int | str | None = None) -> LikeStatus:
        """See ``AsyncLikes.status``."""
        return run_sync(self._status(self._io, item, user))

    def status_many(self, items: Iterable[ItemT], user: int | str | None = None) -> dict[ItemT, LikeStatus]:
        """See ``AsyncLikes.status_many``."""
        return run_sync(self._status_many(self._io, items, user))

    def backlog(self) -> Backlog:
        """See ``AsyncLikes.backlog``."""
        return run_sync(self._backlog(self._io))

    def drain(self, within: float = 10.0) -> int:
        """See ``AsyncLikes.drain``."""
        return run_sync(drain_all(self._io, self._shards, self._known, within))

    @contextlib.contextmanager
    def flusher(self, *, drain: float = 5.0) -> Iterator[FlushStats]:
        """See ``AsyncLikes.flusher``; here it is a thread."""
        stopping = threading.Event()
        thread = threading.Thread(
            target=lambda: run_sync(
                flush_forever(self._io, self._shards, self._known, self._flushing, stopping.is_set)
            ),
            name=f"fencepost-flusher-{self.name}",
            daemon=True,
        )
        thread.start()
        try:
            yield self._flushing
        finally:
            stopping.set()
            thread.join()
            self._left(self.drain(drain) if drain else self.backlog().items)


__all__ = ["AsyncLikes", "Backlog", "Likes"]
