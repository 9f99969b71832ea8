"""What this process told its users, so that a loss can be reported by name.

When a server loses data, a shard is opened anew, and what SQL does not have is gone. Nobody knows
all of it any more; but each process remembers the last changes that it answered, and can ask what
became of them: still in a journal that survived, in SQL, gone past by a newer change, or lost.

It is bounded (``MEMORY`` changes a shard, the newest), so a report is a lower bound.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

from fencepost._core import commands
from fencepost._core.keys import field_of
from fencepost._core.observe import LikesLost
from fencepost._core.port import Port
from fencepost.errors import FencepostError
from fencepost.likes.protocol import Known, Shard
from fencepost.likes.scripts import read_version
from fencepost.likes.store import Inspected

log = logging.getLogger("fencepost.likes")
MEMORY: Final = 1_000
_NAMED: Final = 100  # items that a report names

Told = OrderedDict[tuple[str, str], str]
"""The newest version that was answered, by item and user."""


class Knowledge(list[Known | None]):
    """What is known of each shard; tells when one was opened at another epoch than before."""

    def __init__(self, shards: int, reopened: Callable[[int], None]) -> None:
        super().__init__([None] * shards)
        self._epochs = [""] * shards
        self._reopened = reopened

    def __setitem__(self, number: Any, known: Any) -> None:
        super().__setitem__(number, known)
        if known is None or known.epoch == self._epochs[number]:
            return
        before, self._epochs[number] = self._epochs[number], known.epoch
        if before:
            self._reopened(number)


class Ledger:
    """The last changes that this process answered, a shard each."""

    def __init__(self, shards: int) -> None:
        self._told: list[Told] = [OrderedDict() for _ in range(shards)]
        self.lost = 0

    def note(self, shard: int, item: str, user: str, version: str) -> None:
        """Remember an answered change."""
        told = self._told[shard]
        told[item, user] = version
        told.move_to_end((item, user))
        if len(told) > MEMORY:
            told.popitem(last=False)

    def take(self, shard: int) -> Told:
        """Everything remembered of a shard; it is forgotten here."""
        told, self._told[shard] = self._told[shard], OrderedDict()
        return told


async def report_lost(io: Port, shard: Shard, ledger: Ledger) -> None:
    """Find out what became of everything told, and report what is lost: an event and a line."""
    told = ledger.take(shard.place.shard)
    by_item: dict[str, list[tuple[str, str]]] = {}
    for (item, user), version in told.items():
        by_item.setdefault(item, []).append((user, version))
    lost: dict[str, int] = {}
    for item, changes in by_item.items():
        try:
            count = await lost_of(io, shard, item, changes)
        except FencepostError as error:
            log.warning(
                "likes %r: what was lost of item %s could not be found out: %s",
                shard.name,
                item,
                error,
            )
            continue
        if count:
            lost[item] = count
    total = sum(lost.values())
    if not total:
        return
    ledger.lost += total
    named = tuple(lost)[:_NAMED]
    log.error(
        "likes %r: the server lost data; at least %d answered changes of %d items are lost: %s",
        shard.name,
        total,
        len(lost),
        ", ".join(named[:10]) + (" …" if len(lost) > 10 else ""),
    )
    if shard.hook.listener is not None:
        shard.hook.listener(LikesLost(shard.name, shard.place.shard, total, named))


async def lost_of(io: Port, shard: Shard, item: str, changes: Iterable[tuple[str, str]]) -> int:
    """How many of an item's changes are neither owed nor in SQL, nor gone past by a newer one."""
    changes = list(changes)
    # The journal first: what is flushed between the two readings is then found in SQL.
    owed = await io.run(
        commands.hmget(shard.keys.journal(item), *(field_of(user) for user, _ in changes))
    )
    users = [shard.store.user_id(user) for user, _ in changes]
    sql: Inspected = await io.call(
        shard.store.inspect, shard.place, 0, None, shard.store.item_id(item), users, False
    )
    if sql.count is None:
        return 0  # the item was deleted, and its likes with it
    lost = 0
    for (_, version), user, pending in zip(changes, users, owed, strict=True):
        liked, order = read_version(version)
        if pending is None and order > sql.version and liked != (user in sql.liked):
            lost += 1
    return lost
