"""What both faces of the like cache share: each call, once, over a port.

Where an item lives, what is known of its shard, and what this process told its users.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from fencepost._core import commands, keys
from fencepost._core.port import OtherServer, Port
from fencepost._core.taps import Tap
from fencepost.errors import FencepostError, Refused, UnknownItem
from fencepost.journal.flusher import FlushStats
from fencepost.journal.pressure import Level, Pressure, look, score_of
from fencepost.journal.protocol import Place
from fencepost.likes import audit, durable, lists, lives, protocol
from fencepost.likes.audit import Difference
from fencepost.likes.durable import Fate, Verdict, Wanted
from fencepost.likes.figures import Figures
from fencepost.likes.ledger import Knowledge, Ledger
from fencepost.likes.lists import Page
from fencepost.likes.options import LikeOptions
from fencepost.likes.protocol import (
    FlushReport,
    Known,
    LikeResult,
    LikeStatus,
    Shard,
    dirty_items,
)
from fencepost.likes.scripts import read_version
from fencepost.likes.store import Id, LikeStore, Poisoned
from fencepost.wire.barrier import Copies

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client

log = logging.getLogger("fencepost.likes")
ItemT = TypeVar("ItemT", int, str)
Durability = Literal["behind", "replicated", "committed"]
"""When a like is answered; see ``AsyncLikes.set``."""
DURABILITIES: Final = ("behind", "replicated", "committed")


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is not in SQL yet.

    Args:
        items: How many items wait.
        oldest: For how many seconds the oldest of them does.
        changes: How many changes they are, counted over the first thousand items a shard.
    """

    items: int
    oldest: float
    changes: int = 0


@dataclass(frozen=True, slots=True)
class AuditReport:
    """How many items were compared, and what was not as it should be (before a repair)."""

    items: int
    differences: tuple[Difference, ...]


class LikesBase(ABC):
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
        self._figures = Figures(client.hook)
        hook = self._figures.hook()
        self._shards = [
            Shard(
                name,
                keys.like_shard(client.namespace, name, number),
                Place(f"likes:{keys.escape(name)}", number, count),
                store,
                self.options,
                hook,
            )
            for number in range(count)
        ]
        self._tap: Tap | None = client.taps.add(self, f"likes:{keys.escape(name)}")
        self._known = Knowledge(count, self._reopened)
        self._ledger = Ledger(count)
        self._lately = [durable.Lately() for _ in range(count)]
        self._reports: set[Any] = set()
        self._flushing = FlushStats(FlushReport())
        self._sets = self._changes = self._groups = 0
        self._pressure = Pressure(self.options, count)
        self._copies = Copies(
            self.options.replicas, self.options.replicated, self.options.replicated_wait
        )

    @abstractmethod
    def _reopened(self, number: int) -> None:
        """A shard was opened at a new epoch: what was told and is lost shall be reported."""

    def _heat(self, calls: dict[str, tuple[int, int]]) -> None:  # noqa: B027  # that is all
        """Hot items: nothing is done about them."""

    def _find(self, item: Any) -> tuple[str, int]:
        key = self._store.item_key(item)
        return key, keys.shard_number(key, len(self._shards))

    def stats(self) -> dict[str, Any]:
        """What this process counted since it began, and what it saw of the backlog last.

        Counters: ``sets`` and ``changes``; ``flushes`` (transactions), ``flush_seconds`` and
        ``flush_buckets`` (how many took at most so many seconds), ``entries`` and ``changed`` (what
        they read and the rows that changed), ``orphans``, ``poison``, ``flush_refused`` (an older
        fence or epoch), ``passes`` and ``failures`` of the flusher, ``groups`` of ``committed``;
        ``cold_loads``, ``dirty_drains`` (an item without header was flushed by who asked for it),
        ``differences`` (of audits), ``lost``. Seen: ``dirty`` items, ``oldest`` seconds, ``pressure``.
        """
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
        return {**mine, **flat.pop("done"), **flat, **pressure, **self._figures.told()}

    async def _set(
        self, io: Port, item: Any, user: Any, liked: bool, durability: Durability
    ) -> LikeResult:
        if not isinstance(liked, bool):
            raise Refused(f"liked is True or False, got {liked!r}")
        key, number = self._find(item)
        who = self._store.user_key(user)
        if durability not in DURABILITIES:
            raise Refused(f"durability is one of {', '.join(DURABILITIES)}, got {durability!r}")
        if self._tap is not None:
            self._tap.see(key, True)
        shard = self._shards[number]
        known: Known | None = self._known[number] or await self._opened(io, number)
        if self._pressure.level and self._pressure.level is Level.REFUSE:
            await self._look(io)
            if self._pressure.level is Level.REFUSE:
                raise self._pressure.refusal()
        if durability == "behind":
            result, known = await protocol.set_like(io, shard, known, key, who, liked)
            if result.changed and self._pressure.level and self._pressure.level >= Level.JOIN:
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
        if known is not self._known[number]:
            self._known[number] = known
        if self.options.hints and result.changed and liked:
            await io.all(lists.hint(self._hint(who), key, time.time()))
        self._sets += 1
        if result.changed:
            self._changes += 1
            self._ledger.note(number, key, who, result.version)
        if io.now() >= self._pressure.next_look:  # asked here, too: a call less
            await self._look(io)
        return result

    async def _check(self, io: Port) -> None:
        if self.options.replicated == "aof":
            await self._can_replicate()
        await self._opened(io, 0)

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

    @abstractmethod
    async def _can_replicate(self) -> None:
        """Refuse what can't be replicated as it is asked for, before anything is changed."""

    @abstractmethod
    async def _replicated(self, server: str) -> None:
        """Return when what ``server`` answered is where it shall be."""

    @abstractmethod
    async def _joined(self, number: int, wanted: Wanted) -> Verdict:
        """Wait for the group commit of a shard."""

    async def _committed(self, number: int, wanted: Wanted) -> Verdict:
        try:
            return await self._joined(number, wanted)
        except Exception as error:
            return Verdict(Fate.UNSURE, f"{type(error).__name__}: {error}")

    async def _flush(self, io: Port, number: int, items: Sequence[str]) -> FlushReport:
        report, self._known[number] = await protocol.flush_items(
            io, self._shards[number], self._known[number], items
        )
        self._flushing.done += report
        return report

    async def _commit_group(
        self, io: Port, number: int, wanted: Sequence[Wanted]
    ) -> Sequence[Verdict]:
        verdicts, report, self._known[number] = await durable.commit_group(
            io, self._shards[number], self._known[number], wanted, partial(self._in_sql, number)
        )
        self._groups += 1
        self._flushing.done += report
        return verdicts

    def _in_sql(self, number: int, flush: protocol.Flush) -> None:
        """A group's changes are in SQL; what follows is for the journal, and nobody waits for it."""
        self._lately[number].note(flush)

    async def _poison(self, io: Port, limit: int) -> list[Poisoned]:
        return list(await io.call(self._store.poison, self._shards[0].place, limit))

    async def _status(self, io: Port, item: Any, user: Any) -> LikeStatus:
        key, number = self._find(item)
        who = None if user is None else self._store.user_key(user)
        if self._tap is not None:
            self._tap.see(key)
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
        if self._tap is not None:
            for key, _ in wanted.values():
                self._tap.see(key)
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
        owed: list[Id] = []
        if after is None and self.options.hints:  # before the rows, as in ``lists``
            owed = await self._owed_likes(io, who, limit)
        rows = await io.call(self._store.liked_by, self._store.user_id(who), limit + 1, cursor)
        page = rows[:limit]
        shown = {row.id for row in page}
        new = [item for item in owed if item not in shown]
        if new:  # what SQL has already stands in the list at its own place
            rest = await io.call(self._store.liked_among, self._store.user_id(who), new)
            new = [item for item in new if item not in rest]
        candidates = [*new, *(row.id for row in page)]
        statuses = await self._status_many(io, candidates, user)
        liked = [item for item in candidates if item in statuses and statuses[item].liked]
        return Page(liked, lists.write_cursor(page[-1]) if len(rows) > limit else None)

    async def _owed_likes(self, io: Port, who: str, limit: int) -> list[Id]:
        """Items that a user's hint names and whose journal still holds the like, the newest first."""
        items = [self._store.item_id(key) for key in await lists.hinted(io, self._hint(who), limit)]
        places = [self._find(item) for item in items]
        versions = await io.all(
            [
                commands.hmget(self._shards[number].keys.journal(key), keys.field_of(who))
                for key, number in places
            ]
        )
        return [
            item
            for item, (version,) in zip(items, versions, strict=True)
            if version is not None and read_version(version)[0]
        ]

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
                self._figures.differences += len(differences)
                seen += 1
                if progress is not None:
                    progress(seen)
        return AuditReport(seen, tuple(found))

    async def _backlog(self, io: Port) -> Backlog:
        sizes = await io.all([commands.read("ZCARD", one.keys.due) for one in self._shards])
        firsts = await io.all(
            [commands.read("ZRANGE", one.keys.since, 0, 0, "WITHSCORES") for one in self._shards]
        )
        changes = 0
        for shard, size in zip(self._shards, sizes, strict=True):
            if size:
                items = await dirty_items(io, shard)
                journals = [commands.read("HLEN", shard.keys.journal(item)) for item in items]
                changes += sum(await io.all(journals))
        seconds, micros = await io.run(commands.read("TIME"))
        now = int(seconds) + int(micros) / 1e6
        since = [float(score_of(first)) / 1000 for first in firsts if first]
        return Backlog(sum(sizes), max(0.0, now - min(since)) if since else 0.0, changes)
