"""Shares: what several may hold at once, permits of a semaphore or the reading of a read/write lock.

A share is a lease like that on a lock: taken, prolonged, given back and undone by the same protocols
(``protocol.py``), with scripts of its own. What holds while the server keeps its data and its clock:

1. The weight that is out never exceeds the ``permits`` of anybody who holds some of it: the script
   that grants adds up what stands and compares, for who asks and for everyone who is in.
2. A share whose lease has ended counts no more: each end stands with the server, by its clock, and
   the next one that asks takes it out. Nobody has to live for that.
3. A read/write lock is the same with as many permits as there are readers at most: a reader takes
   one, a writer all, so they exclude each other by (1).
4. Who waits stands in a queue by rank: writers before readers. While a writer waits and lives, no
   reader is let in, and a dead one costs its refresh interval. Within a rank newcomers pass at most
   ``OVERTAKES`` times in a row, none if it is fair; readers are in nobody's way among themselves.
5. Whoever waits longest is called when there is room; who gets in calls the next while room is left.

Where it ends: as for a lock. And a steady stream of writers keeps readers out for as long as it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from fencepost._core.keys import lock_keys
from fencepost._core.script import Call
from fencepost.lock.protocol import STRAGGLER, Ask, Place, ms, words
from fencepost.lock.scripts import SHARES, Holder, Scripts

ALL: Final = 1_000_000
"""The permits of a read/write lock: more than a semaphore may have, and than there are readers."""
WRITERS: Final = 0
READERS: Final = 1
"""The ranks in which a queue is served."""


@dataclass(frozen=True, slots=True)
class SharePlace(Place):
    """A share of one semaphore or read/write lock, as the protocols see it.

    Args:
        share: How much of it a lease takes.
        permits: How much there is.
        rank: Whom it waits behind: those of a lower rank are served first.
    """

    scripts: Scripts = SHARES
    share: int = 1
    permits: int = 1
    rank: int = WRITERS

    @property
    def weight(self) -> int:
        return self.share if self.permits < ALL else 1

    def take(self, ask: Ask) -> Call[Any]:
        keys = self.keys
        return self.scripts.acquire(
            (keys.lock, keys.fences, keys.queue, keys.alive, keys.ended(ask.attempt), keys.ends),
            (*words(ask), self.share, self.permits, self.rank, keys.channel),
        )

    def prolong(self, attempt: str, ttl: float) -> Call[Any]:
        return self.scripts.renew((self.keys.lock, self.keys.ends), (attempt, ms(ttl)))

    def give_back(self, attempt: str) -> Call[Any]:
        keys = self.keys
        return self.scripts.release(
            (keys.lock, keys.queue, keys.alive, keys.ends), (attempt, keys.channel)
        )

    def end(self, attempt: str) -> Call[Any]:
        keys = self.keys
        return self.scripts.undo(
            (keys.lock, keys.queue, keys.alive, keys.ended(attempt), keys.ends),
            (attempt, keys.channel, ms(STRAGGLER)),
        )

    def full(self) -> str:
        if self.permits == ALL:
            return (
                "can't be read: it is held by" if self.rank else "can't be written: it is held by"
            )
        return f"has no room for {self.share} of {self.permits}; the first of its holders to end is"

    async def holders(self, io: Any) -> tuple[Holder, ...]:
        """Who is in, the first to end first."""
        keys = self.keys
        found = await io.run(self.scripts.look((keys.lock, keys.queue, keys.ends)))
        return self._named(found.holders)

    async def put_out(self, io: Any, fence: int | None) -> tuple[Holder, ...]:
        """Take it from the holder of a fence, or from all."""
        keys = self.keys
        call = self.scripts.force_release(
            (keys.lock, keys.queue, keys.alive, keys.ends),
            (keys.channel, "" if fence is None else fence),
        )
        return self._named((await io.run(call)).holders)

    def _named(self, holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
        if self.permits < ALL:
            return holders
        modes = ["write" if one.weight == ALL else "read" for one in holders]
        return tuple(
            [replace(one, weight=1, mode=mode) for one, mode in zip(holders, modes, strict=True)]
        )

    async def look(self, io: Any) -> Holder | None:
        return next(iter(await self.holders(io)), None)

    async def force_release(self, io: Any) -> Holder | None:
        return next(iter(await self.put_out(io, None)), None)


def permits_of(namespace: str, name: str, permits: int) -> SharePlace:
    """One permit of a semaphore."""
    return SharePlace(name, lock_keys(namespace, name, "semaphore"), permits=permits)


def reading(namespace: str, name: str) -> SharePlace:
    """The reading of a read/write lock."""
    keys = lock_keys(namespace, name, "rwlock")
    return SharePlace(name, keys, permits=ALL, rank=READERS)


def writing(namespace: str, name: str) -> SharePlace:
    """The writing of a read/write lock: all there is of it."""
    return replace(reading(namespace, name), share=ALL, rank=WRITERS)
