"""The two faces of the like cache, side by side; the docstrings stand on the async one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from fencepost._core import commands, keys
from fencepost._core.group import AsyncGroup, Group
from fencepost._core.port import OtherServer, Port, run_sync
from fencepost.errors import FencepostError, Refused, UnknownItem
from fencepost.likes import audit, durable, lists, lives, protocol
from fencepost.likes.audit import Difference
from fencepost.likes.durable import Fate, Verdict, Wanted
from fencepost.likes.flusher import FlushStats, drain_all, flush_forever
from fencepost.likes.ledger import Knowledge, Ledger, report_lost
from fencepost.likes.lists import Page
from fencepost.likes.options import LikeOptions
from fencepost.likes.pressure import Level, Pressure, look, score_of
from fencepost.likes.protocol import Known, LikeResult, LikeStatus, Shard, dirty_items
from fencepost.likes.store import Id, LikeStore, Place, Poisoned
from fencepost.wire.barrier import Copies

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client

log = logging.getLogger("fencepost.likes")
ItemT = TypeVar("ItemT", int, str)
Durability = Literal["behind", "replicated", "committed"]
"""When a like is answered; see ``AsyncLikes.set``."""
DURABILITIES: Final = ("behind", "replicated", "committed")
_GROUP_MAX: Final = 1000  # callers who share a transaction


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is not in SQL yet: how many items, and for how many seconds the oldest waits."""

    items: int
    oldest: float


@dataclass(frozen=True, slots=True)
class AuditReport:
    """How many items were compared, and what was not as it should be (before a repair)."""

    items: int
    differences: tuple[Difference, ...]


class _Likes:
    """What both faces share: where an item lives, and what is known of its shard."""

    def __init__(
        self,
        client: AsyncClient | Client,
        name: str,
        *,
        store: LikeStore,
        options: LikeOptions | None,
    ) -> None:
        self.name = name
        self.options = options or LikeOptions()
        self._namespace = client.namespace
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
        self._known = Knowledge(count, self._reopened)
        self._ledger = Ledger(count)
        self._reports: set[Any] = set()
        self._flushing = FlushStats()
        self._sets = self._changes = self._groups = 0
        self._pressure = Pressure(self.options, count)
        self._copies = Copies(
            self.options.replicas, self.options.replicated, self.options.replicated_wait
        )

    def _reopened(self, number: int) -> None:
        """A shard was opened at a new epoch: what was told and is lost shall be reported."""
        raise NotImplementedError

    def _find(self, item: Any) -> tuple[str, int]:
        key = self._store.item_key(item)
        return key, keys.shard_number(key, len(self._shards))

    def stats(self) -> dict[str, Any]:
        """Counters of this process since it began: sets, changes, flush passes, rows, failures."""
        flat = asdict(self._flushing)
        mine = {
            "sets": self._sets,
            "changes": self._changes,
            "groups": self._groups,
            "lost": self._ledger.lost,
        }
        pressure = {
            "dirty": self._pressure.dirty,
            "oldest": self._pressure.oldest,
            "pressure": self._pressure.level.name.lower(),
        }
        return {**mine, **flat.pop("done"), **flat, **pressure}

    async def _set(
        self, io: Port, item: Any, user: Any, liked: bool, durability: Durability
    ) -> LikeResult:
        if not isinstance(liked, bool):
            raise Refused(f"liked is True or False, got {liked!r}")
        key, number = self._find(item)
        who = self._store.user_key(user)
        if durability not in DURABILITIES:
            raise Refused(f"durability is one of {', '.join(DURABILITIES)}, got {durability!r}")
        shard = self._shards[number]
        known: Known | None = await self._opened(io, number)
        if self._pressure.level is Level.REFUSE:
            await self._look(io)
            if self._pressure.level is Level.REFUSE:
                raise self._pressure.refusal()
        if durability == "behind":
            result, known = await protocol.set_like(io, shard, known, key, who, liked)
            if self._pressure.level >= Level.JOIN and result.changed:
                await self._slow_down(io, number, Wanted(key, who, liked, result.version))
        elif durability == "replicated":
            await self._can_replicate()
            result, known = await protocol.set_like(io, shard, known, key, who, liked)
            self._known[number] = known
            await self._replicated(known.server)
        else:
            result, known = await durable.set_committed(
                io, shard, known, key, who, liked, partial(self._committed, number)
            )
        self._known[number] = known
        if self.options.hints and result.changed and liked:
            await io.all(lists.hint(self._hint(who), key, time.time()))
        self._sets += 1
        if result.changed:
            self._changes += 1
            self._ledger.note(number, key, who, result.version)
        await self._look(io)
        return result

    async def _opened(self, io: Port, number: int) -> Known:
        """What is known of a shard, and kept, whatever the call that asks for it ends with."""
        known = self._known[number]
        if known is None:
            known = await protocol.opened(io, self._shards[number])
            self._known[number] = known
        return known

    async def _look(self, io: Port) -> None:
        """See now and then how much waits for SQL."""
        if io.now() >= self._pressure.next_look:
            with contextlib.suppress(FencepostError):  # what this is beside will tell
                await look(io, self._shards, self._pressure)

    async def _slow_down(self, io: Port, number: int, wanted: Wanted) -> None:
        """Under pressure a caller waits for its commit, unless there is none to be had."""
        if io.now() >= self._pressure.no_join_before:
            verdict = await self._committed(number, wanted)
            if verdict.fate is Fate.UNSURE:
                self._pressure.no_join_before = io.now() + 1.0

    async def _can_replicate(self) -> None:
        """Refuse what can't be replicated as it is asked for, before anything is changed."""
        raise NotImplementedError

    async def _replicated(self, server: str) -> None:
        """Return when what ``server`` answered is where it shall be."""
        raise NotImplementedError

    async def _joined(self, number: int, wanted: Wanted) -> Verdict:
        """Wait for the group commit of a shard."""
        raise NotImplementedError

    async def _committed(self, number: int, wanted: Wanted) -> Verdict:
        try:
            return await self._joined(number, wanted)
        except Exception as error:
            return Verdict(Fate.UNSURE, f"{type(error).__name__}: {error}")

    async def _commit_group(
        self, io: Port, number: int, wanted: Sequence[Wanted]
    ) -> Sequence[Verdict]:
        verdicts, report, self._known[number] = await durable.commit_group(
            io, self._shards[number], self._known[number], wanted
        )
        self._groups += 1
        self._flushing.done += report
        return verdicts

    async def _poison(self, io: Port, limit: int) -> list[Poisoned]:
        return list(await io.call(self._store.poison, self._shards[0].place, limit))

    async def _status(self, io: Port, item: Any, user: Any) -> LikeStatus:
        key, number = self._find(item)
        who = None if user is None else self._store.user_key(user)
        known = await self._opened(io, number)
        result, self._known[number] = await protocol.status(
            io, self._shards[number], known, key, who
        )
        return result

    async def _status_many(
        self, io: Port, items: Iterable[ItemT], user: Any
    ) -> dict[ItemT, LikeStatus]:
        who = None if user is None else self._store.user_key(user)
        wanted = {item: self._find(item) for item in items}
        open_now = [(item, key, n, await self._opened(io, n)) for item, (key, n) in wanted.items()]
        found: dict[ItemT, LikeStatus] = {}
        missing: set[ItemT] = set()
        try:
            replies = await io.all(
                [protocol.peek(self._shards[n], known, key, who) for _, key, n, known in open_now]
            )
        except OtherServer:
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

    async def _likers(self, io: Port, item: Any, limit: int, after: str | None) -> Page[Id]:
        key, number = self._find(item)
        return await lists.likers(
            io, self._shards[number], key, limit, lists.read_cursor(after, limit)
        )

    async def _liked_by(self, io: Port, user: Any, limit: int, after: str | None) -> Page[Id]:
        cursor = lists.read_cursor(after, limit)
        who = self._store.user_key(user)
        rows = await io.call(self._store.liked_by, self._store.user_id(who), limit + 1, cursor)
        page = rows[:limit]
        hinted: list[str] = []
        if after is None and self.options.hints:
            hinted = await lists.hinted(io, self._hint(who), limit)
        candidates = list(
            dict.fromkeys([*map(self._store.item_id, hinted), *(row.id for row in page)])
        )
        statuses = await self._status_many(io, candidates, user)
        liked = [item for item in candidates if item in statuses and statuses[item].liked]
        return Page(liked, lists.write_cursor(page[-1]) if len(rows) > limit else None)

    def _hint(self, user: str) -> str:
        return keys.like_hint(self._namespace, self.name, user)

    async def _forget_item(self, io: Port, item: Any, remove: Callable[[], Any] | None) -> None:
        key, number = self._find(item)
        self._known[number] = await lives.forget_item(
            io, self._shards[number], self._known[number], key, remove
        )

    async def _forget_user(self, io: Port, user: Any) -> int:
        who = self._store.user_key(user)
        removed, after = 0, None
        for shard in self._shards:  # what is owed becomes rows, so that the list below is whole
            for item in await lives.owed_by(io, shard, who):
                _, number = self._find(self._store.item_id(item))
                await protocol.flush_items(io, shard, self._known[number], (item,))
        while True:
            rows = await io.call(self._store.liked_by, self._store.user_id(who), 100, after)
            for row in rows:
                key, number = self._find(row.id)
                gone, self._known[number] = await lives.forget_pair(
                    io, self._shards[number], self._known[number], key, who
                )
                removed += gone
            if len(rows) < 100:
                return removed
            after = rows[-1]

    async def _audit(
        self,
        io: Port,
        sample: int | None,
        repair: bool,
        progress: Callable[[int], None] | None,
    ) -> AuditReport:
        seen, found = 0, []
        owed = [
            self._store.item_id(item) for one in self._shards for item in await dirty_items(io, one)
        ]
        after, more = None, True
        done = set()
        while more:
            if sample is not None:
                page, more = [*await io.call(self._store.sample, sample), *owed], False
            else:
                page = list(await io.call(self._store.items, 200, after))
                more = len(page) == 200
                after = page[-1] if page else None
                page += owed if not more else ()
            for item in page:
                if item in done:
                    continue
                if item in owed:
                    done.add(item)
                key, number = self._find(item)
                differences, self._known[number] = await audit.audit_item(
                    io, self._shards[number], self._known[number], key, repair=repair
                )
                found += differences
                seen += 1
                if progress is not None:
                    progress(seen)
        return AuditReport(seen, tuple(found))

    async def _backlog(self, io: Port) -> Backlog:
        sizes = await io.all([commands.read("ZCARD", one.keys.due) for one in self._shards])
        firsts = await io.all(
            [commands.read("ZRANGE", one.keys.since, 0, 0, "WITHSCORES") for one in self._shards]
        )
        seconds, micros = await io.run(commands.read("TIME"))
        now = int(seconds) + int(micros) / 1e6
        since = [float(score_of(first)) / 1000 for first in firsts if first]
        return Backlog(sum(sizes), max(0.0, now - min(since)) if since else 0.0)

    def _left(self, left: int) -> None:
        if left:
            log.warning(
                "likes %r: %d items are still in the journal; they are safe there and the next flusher takes them",
                self.name,
                left,
            )


class AsyncLikes(_Likes):
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
            AsyncGroup(partial(self._commit_group, self._io, number), _GROUP_MAX)
            for number in range(len(self._shards))
        ]

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
        return await drain_all(self._io, self._shards, self._known, self._flushing, within)

    @contextlib.asynccontextmanager
    async def flusher(self, *, drain: float = 5.0) -> AsyncIterator[FlushStats]:
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
                self._known,
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
            self._left(await self.drain(drain) if drain else (await self.backlog()).items)


class Likes(_Likes):
    """The sync face of ``AsyncLikes``, for threads. Make it with ``Client.likes``."""

    def __init__(
        self, client: Client, name: str, *, store: LikeStore, options: LikeOptions | None = None
    ) -> None:
        super().__init__(client, name, store=store, options=options)
        self._io, self._client = client.port, client
        self._groups_of = [
            Group(partial(self._commit_now, number), _GROUP_MAX)
            for number in range(len(self._shards))
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
        return run_sync(drain_all(self._io, self._shards, self._known, self._flushing, within))

    @contextlib.contextmanager
    def flusher(self, *, drain: float = 5.0) -> Iterator[FlushStats]:
        """See ``AsyncLikes.flusher``; here it is a thread."""
        stopping = threading.Event()
        thread = threading.Thread(
            target=lambda: run_sync(
                flush_forever(
                    self._io,
                    self._shards,
                    self._known,
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
            self._left(self.drain(drain) if drain else self.backlog().items)


__all__ = ["AsyncLikes", "AuditReport", "Backlog", "Likes"]
