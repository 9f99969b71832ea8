"""A like store in memory whose whole state is one immutable value, for the state graph.

It stands for the database in explorations, so it must do what ``SqlLikes`` does: a test runs both
side by side. Reads are snapshots and writes are atomic, as transactions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fencepost._core.keys import bounded, unescape
from fencepost.journal.protocol import Place
from fencepost.likes.store import (
    Change,
    Committed,
    Id,
    Inspected,
    ItemBatch,
    Poisoned,
    Snapshot,
)

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One item: its count column, its rows, and the version of its last whole commit."""

    count: int
    likers: frozenset[Id]
    version: Version = (0, 0)


class ShardRow(NamedTuple):
    """One shard's fence row."""

    epoch: int
    fence: int


class LikeTables(NamedTuple):
    """All tables."""

    items: tuple[tuple[Id, ItemRow], ...] = ()
    shards: tuple[tuple[str, ShardRow], ...] = ()
    aside: tuple[tuple[tuple[Id, Id], Poisoned], ...] = ()

    def item(self, item: Id) -> ItemRow | None:
        """A row, or None."""
        return dict(self.items).get(item)

    def shard(self, scope: str) -> ShardRow | None:
        """A fence row, or None."""
        return dict(self.shards).get(scope)


class ModelLikes:
    """A ``LikeStore`` over an immutable ``state``; ids are all numbers, or all text.

    Args:
        items: Who likes each item at first.
        epochs: Shards that were opened before: scope (``likes:NAME:000``) to epoch.
    """

    def __init__(self, items: dict[Id, Sequence[Id]], epochs: dict[str, int] | None = None) -> None:
        rows = {
            item: ItemRow(len(set(likers)), frozenset(likers)) for item, likers in items.items()
        }
        shards = {scope: ShardRow(epoch, 0) for scope, epoch in (epochs or {}).items()}
        self._type: type[Any] = type(next(iter(rows))) if rows else int
        self.state = LikeTables(_sorted(rows), _sorted(shards))

    # -- ids

    def item_key(self, item: Any) -> str:
        return bounded(str(item))

    def user_key(self, user: Any) -> str:
        return bounded(str(user))

    def item_id(self, key: str) -> Id:
        found: Id = self._type(unescape(key))
        return found

    def user_id(self, key: str) -> Id:
        return self.item_id(key)

    # -- transactions

    def epoch(self, place: Place) -> int:
        shard = self.state.shard(_scope(place))
        return shard.epoch if shard else 0

    def raise_epoch(self, place: Place, seen: int, epoch: int) -> bool:
        if self.epoch(place) != seen:
            return False
        self._put_shard(place, ShardRow(epoch, 0))
        return True

    def snapshot(self, place: Place, item: Id, user: Id | None, full_max: int) -> Snapshot:
        epoch, row = self.epoch(place), self.state.item(item)
        if row is None:
            return Snapshot(epoch, None, None, False)
        likers = (
            tuple(sorted(row.likers, key=str)) if len(row.likers) <= full_max >= row.count else None
        )
        return Snapshot(epoch, row.count, likers, user in row.likers)

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        shard = self.state.shard(_scope(place)) or ShardRow(0, 0)
        if refused := self.refuses(shard, epoch, fence):
            return Committed(refused=refused)
        self._put_shard(place, ShardRow(shard.epoch, max(shard.fence, fence)))
        changed = skipped = 0
        orphans = []
        poison: list[Poisoned] = []
        for batch in sorted(batches, key=lambda one: one.item):
            row = self.state.item(batch.item)
            if row is None:
                orphans.append(batch.item)
                continue
            fresh = [one for one in batch.changes if self.is_fresh(row, one)]
            skipped += len(batch.changes) - len(fresh)
            likers = set(row.likers)
            for one in fresh:
                if reason := self.objects(batch.item, one):
                    poison.append(Poisoned(batch.item, one.user, one.liked, one.version, reason))
                    continue
                (likers.add if one.liked else likers.discard)(one.user)
            changed += len(likers ^ row.likers)
            count = row.count + len(likers) - len(row.likers)
            self.put_item(batch.item, ItemRow(count, frozenset(likers), self.remembers(row, batch)))
        if poison:
            aside = {**dict(self.state.aside), **{(one.item, one.user): one for one in poison}}
            self.state = self.state._replace(aside=_sorted(aside))
        return Committed("", changed, skipped, tuple(orphans), tuple(poison))

    def inspect(
        self,
        place: Place,
        epoch: int,
        fence: int | None,
        item: Id,
        users: Sequence[Id],
        repair: bool,
    ) -> Inspected:
        shard = self.state.shard(_scope(place)) or ShardRow(0, 0)
        if fence is not None:
            if refused := self.refuses(shard, epoch, fence):
                return Inspected(refused)
            self._put_shard(place, ShardRow(shard.epoch, max(shard.fence, fence)))
        row = self.state.item(item)
        if row is None:
            return Inspected()
        rows = len(row.likers)
        if repair:
            self.put_item(item, ItemRow(rows, row.likers, row.version))
        liked = tuple(user for user in users if user in row.likers)
        return Inspected("", row.count, rows, liked, row.version)

    def poison(
        self, place: Place, limit: int, pair: tuple[Id, Id] | None = None
    ) -> Sequence[Poisoned]:
        found = [one for key, one in self.state.aside if pair in (None, key)]
        return tuple(found[:limit])

    def objects(self, item: Id, change: Change) -> str:
        """Why it refuses a row by itself, as a constraint does; '' for every row: see ``poison``."""
        return ""

    # -- the guards, one method each: a test takes one away to see it matter

    def refuses(self, shard: ShardRow, epoch: int, fence: int) -> str:
        """Who stands higher: '', ``epoch`` or ``fence``."""
        if shard.epoch != epoch:
            return "epoch"
        return "fence" if shard.fence > fence else ""

    def is_fresh(self, row: ItemRow, change: Change) -> bool:
        """Whether a change is newer than the item's last whole commit."""
        return change.version > row.version

    def remembers(self, row: ItemRow, batch: ItemBatch) -> Version:
        """The item's version after a commit: only a whole journal moves it."""
        newest = max((one.version for one in batch.changes), default=(0, 0))
        return max(row.version, newest) if batch.whole else row.version

    # -- outside writers

    def put_item(self, item: Id, row: ItemRow | None) -> None:
        """Write an item's row as an outside writer would; None deletes it and its likes."""
        rows = dict(self.state.items)
        if row is None:
            rows.pop(item, None)
        else:
            rows[item] = row
        self.state = self.state._replace(items=_sorted(rows))

    def _put_shard(self, place: Place, row: ShardRow) -> None:
        self.state = self.state._replace(
            shards=_sorted({**dict(self.state.shards), _scope(place): row})
        )


def _scope(place: Place) -> str:
    return f"{place.scope}:{place.shard:03d}"


def _sorted(rows: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(sorted(rows.items(), key=lambda one: str(one[0])))
