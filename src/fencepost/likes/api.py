"""The two faces of the like cache, side by side; the docstrings stand on the async one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost._core.group import AsyncGroup, Group
from fencepost._core.port import run_sync
from fencepost.journal.flusher import FlushStats, drain_all, flush_forever, tell_left
from fencepost.likes import lives
from fencepost.likes.base import AuditReport, Backlog, Durability, ItemT, LikesBase
from fencepost.likes.durable import Verdict, Wanted
from fencepost.likes.ledger import report_lost
from fencepost.likes.lists import Page
from fencepost.likes.options import LikeOptions
from fencepost.likes.protocol import Flush, FlushReport, LikeResult, LikeStatus
from fencepost.likes.store import Id, LikeStore, Poisoned

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client

_GROUP_MAX: Final = 1000  # callers who share a transaction
_PATIENCE: Final = (
    0.25  # of a transaction's time: how long the next one waits for callers who come back
)


class AsyncLikes(LikesBase):
    """Likes of one kind of item. Make it with ``AsyncClient.likes``.

    Args:
        client: Whose server and namespace to use.
        name: Names this like cache on the server and in the database.
        store: The database side, ``fencepost.likes.SqlLikes`` or your own ``LikeStore``.
        options: See ``LikeOptions``.
    """

    def __init__(
        self,
        client: AsyncClient,
        name: str,
        *,
        store: LikeStore,
        options: LikeOptions | None = None,
    ) -> None:
        super().__init__(client, name, store=store, options=options)
        self._io, self._client = client.port, client
        self._groups_of = [
            AsyncGroup(
                partial(self._commit_group, self._io, number), _GROUP_MAX, _PATIENCE, lately.verdict
            )
            for number, lately in enumerate(self._lately)
        ]

    async def check(self) -> None:
        """Find out when a service starts, and not at its first like, whether this can work.

        Nothing is sent when a client or a like cache is made, so this is where what can't be done
        is refused: an eviction policy that takes what is not in SQL yet, another number of shards
        than the database knows, ``replicated="aof"`` on a server without an append-only file or
        WAITAOF (Redis 7.2, Valkey).

        Raises:
            Refused, ConfigMismatch: It can't work; the message says what to change.
            Unavailable: Server or database can't be reached.
        """
        await self._check(self._io)

    async def set(
        self,
        item: int | str,
        user: int | str,
        *,
        liked: bool,
        durability: Durability = "behind",
    ) -> LikeResult:
        """Like (or unlike) an item; absolute, so repeating it is harmless.

        Args:
            item: The item's id, of the type of its column.
            user: The user's id likewise.
            liked: What shall be.
            durability: When to answer. ``behind``: when the server has it; the flusher brings it
                into SQL. ``replicated``: when its replicas (or disks, see ``LikeOptions``) have it
                too. ``committed``: when it is in SQL; all who wait share one transaction. What
                changes nothing waits likewise.

        Returns:
            ``LikeResult(liked, count, changed)``, as of this change.

        Raises:
            UnknownItem: There is no such item; nothing was written.
            Refused: An id is not of its column's type, empty, or longer than 200 bytes; or the
                database refuses the like and was waited for: then it was undone in the cache.
            Unavailable: Nothing was applied.
            OutcomeUnknown: The reply was lost, or it is applied and what was waited for did not
                come in time; repeating it is harmless.
            Overloaded: The server is out of memory, or the shard kept changing.
        """
        return await self._set(self._io, item, user, liked, durability)

    async def like(
        self, item: int | str, user: int | str, *, durability: Durability = "behind"
    ) -> LikeResult:
        """``set(item, user, liked=True)``."""
        return await self._set(self._io, item, user, True, durability)

    async def unlike(
        self, item: int | str, user: int | str, *, durability: Durability = "behind"
    ) -> LikeResult:
        """``set(item, user, liked=False)``."""
        return await self._set(self._io, item, user, False, durability)

    def _in_sql(self, number: int, flush: Flush) -> None:
        super()._in_sql(number, flush)
        self._groups_of[number].settle()

    def _reopened(self, number: int) -> None:
        task = self._io.spawn(report_lost(self._io, self._shards[number], self._ledger))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _can_replicate(self) -> None:
        await self._client.barrier(self._copies).ready()

    async def _replicated(self, server: str) -> None:
        await self._client.barrier(self._copies).confirm(server)

    async def _joined(self, number: int, wanted: Wanted) -> Verdict:
        return await self._groups_of[number].join(wanted, self.options.commit_wait)

    async def poison(self, limit: int = 100) -> list[Poisoned]:
        """Changes that the database refuses, set aside with its words, the newest first.

        They stopped nobody else and left the journal; the cache shows what SQL has. Mend the cause,
        then like again or delete the rows of ``fencepost_like_poison``.
        """
        return await self._poison(self._io, limit)

    async def status(self, item: int | str, user: int | str | None = None) -> LikeStatus:
        """One user's state of one item, and its count. What the cache does not know is loaded.

        Returns:
            ``LikeStatus(liked, count)``; ``liked`` is False without a user.

        Raises:
            UnknownItem: There is no such item.
            Refused, Unavailable, OutcomeUnknown, Overloaded: As for ``set``; no like was changed.
        """
        return await self._status(self._io, item, user)

    async def status_many(
        self, items: Iterable[ItemT], user: int | str | None = None
    ) -> dict[ItemT, LikeStatus]:
        """The same of many items, in their order: one write and one round trip when all are warm.

        Items that do not exist are left out.
        """
        return await self._status_many(self._io, items, user)

    async def likers(self, item: int | str, limit: int = 50, after: str | None = None) -> Page[Id]:
        """Who likes an item, the newest first.

        What is not in SQL yet leads the first page, so that one may be longer than ``limit``.

        Args:
            item: The item's id.
            limit: 1 to 1,000 rows.
            after: The cursor of the page before; None begins.

        Returns:
            ``Page(items, after)``; ``after`` is None on the last page. Rows that come meanwhile
            move nothing below the cursor.

        Raises:
            Refused: The limit or the cursor is wrong.
            Unavailable: The database or the server can't be reached.
        """
        return await self._likers(self._io, item, limit, after)

    async def liked_by(
        self, user: int | str, limit: int = 50, after: str | None = None
    ) -> Page[Id]:
        """What a user likes, the newest first; each is verified, so none is shown that is not liked.

        What is not in SQL yet is shown where a hint tells of it (``LikeOptions(hints=True)``), and
        after its flush otherwise. Args, Returns and Raises as for ``likers``; a page may be shorter
        than ``limit`` where likes were just taken back.
        """
        return await self._liked_by(self._io, user, limit, after)

    async def invalidate(self, item: int | str) -> None:
        """Call this after somebody wrote an item's rows past fencepost: they are read anew.

        What is owed to SQL is kept, and flushed before the item is read.
        """
        key, number = self._find(item)
        await lives.invalidate(self._io, self._shards[number], key)

    async def forget_item(self, item: int | str, remove: Callable[[], Any] | None = None) -> None:
        """Delete an item with its likes, so that nothing brings them back.

        Args:
            item: The item's id.
            remove: Deletes the item's row and its likes in your own way (a plain or a coroutine
                function); None lets the store do it.

        Raises:
            Unavailable, OutcomeUnknown: It may be half done; call it again, that is harmless.
        """
        await self._forget_item(self._io, item, remove)

    async def forget_user(self, user: int | str) -> int:
        """Take back all likes of a user who leaves, in the cache and in SQL; how many there were.

        A like of this user that comes meanwhile stays: stop those first.
        """
        return await self._forget_user(self._io, user)

    async def audit(
        self, sample: int | None = None, *, progress: Callable[[int], None] | None = None
    ) -> AuditReport:
        """Compare cache, journal, rows and counts, each item at one moment, while traffic runs.

        Args:
            sample: How many items, chosen by chance, beside those that are owed to SQL; None is all.
            progress: Called after each item with how many were compared.

        Returns:
            ``AuditReport(items, differences)``; each ``Difference`` says where it comes from, as far
            as that shows.

        Raises:
            Unavailable: The database or the server can't be reached.
            Overloaded: Flushers kept coming between.
        """
        return await self._audit(self._io, sample, False, progress)

    async def repair(
        self, sample: int | None = None, *, progress: Callable[[int], None] | None = None
    ) -> AuditReport:
        """The same, and mend what is found: counts are set to their rows, wrong headers are dropped.

        Each is mended in the transaction that found it, so no flusher comes between. The report says
        what was found.
        """
        return await self._audit(self._io, sample, True, progress)

    async def backlog(self) -> Backlog:
        """How many items wait for their flush, and for how many seconds the oldest does."""
        return await self._backlog(self._io)

    async def drain(self, within: float = 10.0) -> int:
        """Flush everything now; how many items are left after ``within`` seconds."""
        return await drain_all(self._io, self._shards, partial(self._flush, self._io), within)

    @contextlib.asynccontextmanager
    async def flusher(self, *, drain: float = 5.0) -> AsyncIterator[FlushStats[FlushReport]]:
        """Flush in the background while the block runs; any number of processes may.

        Args:
            drain: Seconds that the end of the block may take to flush what is left; what is left
                then is logged, safe in the journal, and taken by the next flusher.
        """
        stopping = False
        task = asyncio.create_task(
            flush_forever(
                self._io,
                self._shards,
                partial(self._flush, self._io),
                self._flushing,
                self._pressure,
                lambda: stopping,
            ),
            name=f"fencepost-flusher-{self.name}",
        )
        try:
            yield self._flushing
        finally:
            stopping = True
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            tell_left(
                self._shards[0], await self.drain(drain) if drain else (await self.backlog()).items
            )


class Likes(LikesBase):
    """The sync face of ``AsyncLikes``, for threads. Make it with ``Client.likes``."""

    def __init__(
        self, client: Client, name: str, *, store: LikeStore, options: LikeOptions | None = None
    ) -> None:
        super().__init__(client, name, store=store, options=options)
        self._io, self._client = client.port, client
        self._groups_of = [
            Group(partial(self._commit_now, number), _GROUP_MAX, _PATIENCE, lately.verdict)
            for number, lately in enumerate(self._lately)
        ]

    def _commit_now(self, number: int, wanted: Sequence[Wanted]) -> Sequence[Verdict]:
        return run_sync(self._commit_group(self._io, number, wanted))

    def _reopened(self, number: int) -> None:
        self._io.spawn(report_lost(self._io, self._shards[number], self._ledger))

    async def _can_replicate(self) -> None:
        self._client.barrier(self._copies).ready()

    async def _replicated(self, server: str) -> None:
        self._client.barrier(self._copies).confirm(server)

    async def _joined(self, number: int, wanted: Wanted) -> Verdict:
        return self._groups_of[number].join(wanted, self.options.commit_wait)

    def check(self) -> None:
        """See ``AsyncLikes.check``."""
        run_sync(self._check(self._io))

    def set(
        self,
        item: int | str,
        user: int | str,
        *,
        liked: bool,
        durability: Durability = "behind",
    ) -> LikeResult:
        """See ``AsyncLikes.set``."""
        return run_sync(self._set(self._io, item, user, liked, durability))

    def like(
        self, item: int | str, user: int | str, *, durability: Durability = "behind"
    ) -> LikeResult:
        """See ``AsyncLikes.like``."""
        return run_sync(self._set(self._io, item, user, True, durability))

    def unlike(
        self, item: int | str, user: int | str, *, durability: Durability = "behind"
    ) -> LikeResult:
        """See ``AsyncLikes.unlike``."""
        return run_sync(self._set(self._io, item, user, False, durability))

    def poison(self, limit: int = 100) -> list[Poisoned]:
        """See ``AsyncLikes.poison``."""
        return run_sync(self._poison(self._io, limit))

    def status(self, item: int | str, user: int | str | None = None) -> LikeStatus:
        """See ``AsyncLikes.status``."""
        return run_sync(self._status(self._io, item, user))

    def status_many(
        self, items: Iterable[ItemT], user: int | str | None = None
    ) -> dict[ItemT, LikeStatus]:
        """See ``AsyncLikes.status_many``."""
        return run_sync(self._status_many(self._io, items, user))

    def likers(self, item: int | str, limit: int = 50, after: str | None = None) -> Page[Id]:
        """See ``AsyncLikes.likers``."""
        return run_sync(self._likers(self._io, item, limit, after))

    def liked_by(self, user: int | str, limit: int = 50, after: str | None = None) -> Page[Id]:
        """See ``AsyncLikes.liked_by``."""
        return run_sync(self._liked_by(self._io, user, limit, after))

    def invalidate(self, item: int | str) -> None:
        """See ``AsyncLikes.invalidate``."""
        key, number = self._find(item)
        run_sync(lives.invalidate(self._io, self._shards[number], key))

    def forget_item(self, item: int | str, remove: Callable[[], Any] | None = None) -> None:
        """See ``AsyncLikes.forget_item``."""
        run_sync(self._forget_item(self._io, item, remove))

    def forget_user(self, user: int | str) -> int:
        """See ``AsyncLikes.forget_user``."""
        return run_sync(self._forget_user(self._io, user))

    def audit(
        self, sample: int | None = None, *, progress: Callable[[int], None] | None = None
    ) -> AuditReport:
        """See ``AsyncLikes.audit``."""
        return run_sync(self._audit(self._io, sample, False, progress))

    def repair(
        self, sample: int | None = None, *, progress: Callable[[int], None] | None = None
    ) -> AuditReport:
        """See ``AsyncLikes.repair``."""
        return run_sync(self._audit(self._io, sample, True, progress))

    def backlog(self) -> Backlog:
        """See ``AsyncLikes.backlog``."""
        return run_sync(self._backlog(self._io))

    def drain(self, within: float = 10.0) -> int:
        """See ``AsyncLikes.drain``."""
        return run_sync(drain_all(self._io, self._shards, partial(self._flush, self._io), within))

    @contextlib.contextmanager
    def flusher(self, *, drain: float = 5.0) -> Iterator[FlushStats[FlushReport]]:
        """See ``AsyncLikes.flusher``; here it is a thread."""
        stopping = threading.Event()
        thread = threading.Thread(
            target=lambda: run_sync(
                flush_forever(
                    self._io,
                    self._shards,
                    partial(self._flush, self._io),
                    self._flushing,
                    self._pressure,
                    stopping.is_set,
                )
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
            tell_left(self._shards[0], self.drain(drain) if drain else self.backlog().items)
