"""What a like cache asks of its database: small enough to write your own.

Every method is one transaction. A store that is given to the async face may have coroutine
functions or plain functions (run in threads); the sync face needs plain ones. A method raises
``Unavailable`` when nothing was applied, ``OutcomeUnknown`` when a COMMIT lost its reply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fencepost.journal.protocol import Place

Id = int | str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent reading.

    Args:
        epoch: The shard's epoch in the same reading.
        count: How many like the item; None if there is no such item.
        likers: All who do, where there are few enough; else None.
        liked: Whether the user asked about does.
    """

    epoch: int
    count: int | None
    likers: tuple[Id, ...] | None
    liked: bool


class Change(NamedTuple):  # made by the thousand: a third of the cost of a frozen dataclass
    """One user's newest state of one item, as version (epoch, seq)."""

    user: Id
    liked: bool
    version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """What a claim read of one item; ``whole`` if that was all of its journal."""

    item: Id
    whole: bool
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A change that the database refuses, whatever else is in its batch.

    Args:
        item: The item's id.
        user: The user's id.
        liked: What the user wanted.
        version: Its place in the order of changes, (epoch, seq).
        reason: The database's own words, shortened.
        kept: It was set aside, in the same transaction; else there was no room for it, and it stays
            in the journal.
        at: When, in seconds since 1970.
    """

    item: Id
    user: Id
    liked: bool
    version: tuple[int, int]
    reason: str
    kept: bool = True
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did.

    Args:
        refused: '' if it was applied; ``epoch`` or ``fence`` if somebody newer had been there.
        changed: Rows inserted or deleted.
        skipped: Changes that the database had already gone past.
        orphans: Items that do not exist (any more); their changes were dropped.
        poison: Changes that the database refuses by themselves; set aside where a reason was kept.
    """

    refused: str = ""
    changed: int = 0
    skipped: int = 0
    orphans: tuple[Id, ...] = ()
    poison: tuple[Poisoned, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspected:
    """SQL's side of one item, at a fence.

    Args:
        refused: '' if it could be read; ``epoch`` or ``fence`` if somebody newer had been there.
        count: The item's own count; None if there is no such item.
        rows: How many rows it has.
        liked: Which of the users asked about have a row.
        version: The item's last whole commit, (epoch, seq).
    """

    refused: str = ""
    count: int | None = None
    rows: int = 0
    liked: tuple[Id, ...] = ()
    version: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Like:
    """A row of a list: who (or what), and when in whole microseconds (0 without a time column)."""

    id: Id
    at_us: int


Cursor = Like
"""The last row of a page: the next page begins below it."""


class Ids(Protocol):
    """How ids become text and back."""

    def item_key(self, item: Any) -> str:
        """An item's id as it stands in keys: escaped text (``fencepost._core.keys.bounded``).

        Raises:
            Refused: It can't be an id of this store.
        """
        ...

    def user_key(self, user: Any) -> str:
        """A user's id likewise."""
        ...

    def item_id(self, key: str) -> Id:
        """The inverse of ``item_key``."""
        ...

    def user_id(self, key: str) -> Id:
        """The inverse of ``user_key``."""
        ...


class LikeStore(Ids, Protocol):
    """The database side of a like cache; ``fencepost.sql.SqlLikes`` is one."""

    def epoch(self, place: Place) -> int | Awaitable[int]:
        """The shard's epoch; 0 if it was never opened.

        Raises:
            ConfigMismatch: Somebody set this scope up with another number of shards.
        """
        ...

    def raise_epoch(self, place: Place, seen: int, epoch: int) -> bool | Awaitable[bool]:
        """Set the shard's epoch, and its fence to 0, if it still is ``seen``; whether it was."""
        ...

    def snapshot(
        self, place: Place, item: Id, user: Id | None, full_max: int
    ) -> Snapshot | Awaitable[Snapshot]:
        """Read epoch, count, the user's row and (up to ``full_max``) all likers in one snapshot.

        From where ``commit`` writes, never from a replica that may lag behind it: what has left the
        journal must be seen.
        """
        ...

    def likers(
        self, item: Id, limit: int, after: Cursor | None
    ) -> Sequence[Like] | Awaitable[Sequence[Like]]:
        """Who likes an item, the newest first, below a cursor."""
        ...

    def liked_by(
        self, user: Id, limit: int, after: Cursor | None
    ) -> Sequence[Like] | Awaitable[Sequence[Like]]:
        """What a user likes, the newest first, below a cursor."""
        ...

    def liked_among(self, user: Id, items: Sequence[Id]) -> Sequence[Id] | Awaitable[Sequence[Id]]:
        """Which of some items a user likes."""
        ...

    def items(self, limit: int, after: Id | None) -> Sequence[Id] | Awaitable[Sequence[Id]]:
        """Ids of items in their order, above ``after``."""
        ...

    def sample(self, count: int) -> Sequence[Id] | Awaitable[Sequence[Id]]:
        """Some items' ids, chosen by chance."""
        ...

    def inspect(
        self,
        place: Place,
        epoch: int,
        fence: int | None,
        item: Id,
        users: Sequence[Id],
        repair: bool,
    ) -> Inspected | Awaitable[Inspected]:
        """Read one item under a fence; with ``repair`` set its count to the number of its rows.

        Without a fence it is a plain reading.

        What is returned is what was found, before the repair.
        """
        ...

    def remove_item(self, place: Place, item: Id) -> int | Awaitable[int]:
        """Delete an item's likes and its row; how many likes it had."""
        ...

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed | Awaitable[Committed]:
        """Apply a claimed batch in one transaction, unless a newer fence or epoch stands there.

        The fence is compared and raised first. Then, a row of each item locked before its likes are
        read: changes not newer than the item's last whole commit are skipped, rows are inserted or
        deleted, and the count moves by the rows *really* changed. A change that the database
        refuses by itself must not stop the others: it is set aside, up to a bound.
        """
        ...

    def poison(
        self, place: Place, limit: int, pair: tuple[Id, Id] | None = None
    ) -> Sequence[Poisoned] | Awaitable[Sequence[Poisoned]]:
        """What was set aside of a like cache (of all its shards), the newest first.

        ``pair`` asks for one item and user.
        """
        ...
