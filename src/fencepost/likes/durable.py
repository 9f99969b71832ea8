"""Likes that are in SQL before they are answered: group commit.

What is guaranteed: ``DONE`` means that a COMMIT which held this user's change, at this version or a
newer one, was seen to succeed; or that the row was read after the journal had let go of the change,
and says what was wanted. Everything else is told apart: refused by the database, no such item, not known.

Four holes that look like success, and what closes them. A like that changes nothing waits too: its
first caller's change may still be in the journal. "Not in the journal any more" is not a commit: the
journal may have been lost, so the row is read. An older entry of the same user in the batch is not
this one: versions are compared. And a journal that comes back after a failover can't undo what was
committed: SQL skips what its item has gone past (``like_ver``), and then the row is read as well.

What is not: that the row stays. The same user may unlike it the moment after, and other writers may
do what they like.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from fencepost._core.keys import field_of
from fencepost._core.port import Port
from fencepost.errors import FencepostError, OutcomeUnknown, Refused
from fencepost.likes.protocol import (
    Flush,
    FlushReport,
    Known,
    LikeResult,
    Shard,
    flush_batch,
    set_like,
    unknown_item,
)
from fencepost.likes.scripts import read_version
from fencepost.likes.store import Poisoned, Snapshot


class Fate(Enum):
    """What became of a change."""

    DONE = "in SQL"
    GONE = "there is no such item"
    REFUSED = "the database refuses it"
    OTHERWISE = "the row says otherwise: superseded, or lost"
    UNSURE = "not known"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One caller's change; ``version`` is '' where nothing of the user was waiting."""

    item: str
    user: str
    liked: bool
    version: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a caller is told, and why."""

    fate: Fate
    why: str = ""


DONE = Verdict(Fate.DONE)
Join = Callable[[Wanted], Awaitable[Verdict]]


async def set_committed(
    io: Port, shard: Shard, known: Known | None, item: str, user: str, liked: bool, join: Join
) -> tuple[LikeResult, Known | None]:
    """Like or unlike, and answer when it is in SQL; ``join`` waits for the group's commit.

    Raises:
        UnknownItem: There is no such item.
        Refused: The database refuses this one; it was set aside, and nothing is liked.
        OutcomeUnknown: It was applied here, and whether it is in SQL is not known.
        Overloaded: The shard kept changing under the call; nothing was applied by it.
    """
    for _ in range(3):
        result, known = await set_like(io, shard, known, item, user, liked)
        verdict = await join(Wanted(item, user, liked, result.version))
        match verdict.fate:
            case Fate.DONE:
                return result, known
            case Fate.GONE:
                raise unknown_item(item)
            case Fate.REFUSED:
                raise Refused(f"the database refuses this like, it was set aside: {verdict.why}")
            case Fate.OTHERWISE if not result.version:
                # Somebody wrote past us: the cache said that it was so already, and SQL does not.
                await io.run(
                    shard.scripts.invalidate((shard.keys.header(item), shard.keys.tokens(item)))
                )
            case _:
                break
    raise OutcomeUnknown(
        f"applied in the cache; whether it is in SQL is not known: {verdict.why or verdict.fate.value}. "
        "Repeating it is harmless"
    )


class Lately:
    """What the last commit of a shard held: some of its callers come to wait a moment after it."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[str, str]] = {}

    def note(self, flush: Flush) -> None:
        """Remember a commit that succeeded, and forget the one before."""
        done = flush.done
        plain = not (done.skipped or done.orphans or done.poison)
        self._versions = flush.versions if plain else {}

    def verdict(self, one: Wanted) -> Verdict | None:
        """``DONE`` if it held this change, at this version or a newer one; else nothing is said."""
        held = self._versions.get(one.item, {}).get(field_of(one.user))
        if held is None or not one.version:
            return None
        return DONE if _reaches(held, one.version) else None


def _reaches(entry: str, version: str) -> bool:
    """Whether a journal's entry is at this version of the same user, or at a newer one."""
    return entry == version or read_version(entry)[1] >= read_version(version)[1]


async def commit_group(
    io: Port,
    shard: Shard,
    known: Known | None,
    wanted: Sequence[Wanted],
    committed: Callable[[Flush], None] = lambda _: None,
) -> tuple[list[Verdict], FlushReport, Known | None]:
    """Commit what a group of callers waits for, in as few transactions as can hold it.

    Args:
        io: The port.
        shard: The shard.
        known: What is known of it.
        wanted: What each waits for.
        committed: Called with each commit, before its changes leave the journal.

    Returns:
        A verdict each, in order; what was flushed; and what is known of the shard.
    """
    verdicts: dict[int, Verdict] = {}
    to_read = {n for n, one in enumerate(wanted) if not one.version}
    waiting = [n for n, one in enumerate(wanted) if one.version]
    report = FlushReport()
    for _ in range(shard.options.rounds):
        items = list(dict.fromkeys(wanted[n].item for n in waiting))[: shard.options.batch_items]
        if not items:
            break
        try:
            flush, known = await flush_batch(io, shard, known, items, committed)
        except FencepostError as error:
            # Committed or not: nothing left the journal, a later flush finds out.
            verdicts.update({n: Verdict(Fate.UNSURE, str(error)) for n in waiting})
            waiting = []
            break
        report += flush.report
        for n in waiting:
            if wanted[n].item in flush.journals:
                verdict = judge(shard, wanted[n], flush)
                if isinstance(verdict, Verdict):
                    verdicts[n] = verdict
                elif verdict is _READ:
                    to_read.add(n)
        waiting = [n for n in waiting if n not in verdicts and n not in to_read]
    for n in waiting:
        verdicts[n] = Verdict(Fate.UNSURE, "many older changes wait for SQL before it")
    for n in sorted(to_read):
        verdicts[n] = await read_row(io, shard, wanted[n])
    return [verdicts[n] for n in range(len(wanted))], report, known


class _Next(Enum):
    READ = "read the row"
    LATER = "it may be in the rest of the journal"


_READ, _LATER = _Next.READ, _Next.LATER


def judge(shard: Shard, one: Wanted, flush: Flush) -> Verdict | _Next:
    """What a committed batch says of one caller's change."""
    store, done, journal = shard.store, flush.done, flush.journals[one.item]
    entry = flush.versions[one.item].get(field_of(one.user))
    if done.orphans and one.item in map(store.item_key, done.orphans):
        return Verdict(Fate.GONE)
    if entry is None:
        return _READ if journal.whole else _LATER
    if not _reaches(entry, one.version):
        return _READ  # of an older time: ours was lost
    for poison in done.poison:
        if store.item_key(poison.item) == one.item and store.user_key(poison.user) == one.user:
            return Verdict(Fate.REFUSED if poison.kept else Fate.UNSURE, poison.reason)
    return _READ if done.skipped else DONE


async def read_row(io: Port, shard: Shard, one: Wanted) -> Verdict:
    """What SQL says of a change that the journal does not hold."""
    store = shard.store
    item, user = store.item_id(one.item), store.user_id(one.user)
    try:
        found: Snapshot = await io.call(store.snapshot, shard.place, item, user, 0)
        if found.count is None:
            return Verdict(Fate.GONE)
        if found.liked == one.liked:
            return DONE
        # Another flush may have met it first, and set it aside.
        aside: Sequence[Poisoned] = (
            await io.call(store.poison, shard.place, 1, (item, user)) if one.version else ()
        )
    except FencepostError as error:
        return Verdict(Fate.UNSURE, str(error))
    if aside and aside[0].version >= read_version(one.version)[1]:
        return Verdict(Fate.REFUSED, aside[0].reason)
    return Verdict(Fate.OTHERWISE)


__all__ = ["Fate", "Join", "Lately", "Verdict", "Wanted", "commit_group", "set_committed"]
