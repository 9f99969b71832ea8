"""What every journal does alike: open a shard, claim some items, drain.

What is guaranteed: a shard is open only while its opening record stands, which is born from an epoch
that the source raised first; so what is lost is lost together, is noticed, and no flusher of the time
before can save any more. Fences are drawn where the journal is read, in one script, so that their
order is the order of readings; the source refuses an older one.

What is not: where the source can't hold an epoch (``Epochs.epoch`` gives None), it is born from the
server's clock. A clock that goes back *and* a server that loses its data may then let a flusher of
the time before save once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from fencepost._core import commands
from fencepost._core.observe import Hook, ShardOpened
from fencepost._core.port import OtherServer, Port
from fencepost._core.script import SERVER, Call, Script
from fencepost.errors import OutcomeUnknown, Overloaded, Refused, Unavailable
from fencepost.journal.scripts import Closed, Due, Opened, Other, Seen

R = TypeVar("R")
_CLOCK_BEGAN: Final = 1_735_689_600  # 2025: epochs that are born from a clock count from here
TROUBLE: Final = (Unavailable, OutcomeUnknown, Overloaded)


@dataclass(frozen=True, slots=True)
class Known:
    """What a caller knows of a shard: it is open at this epoch, on this server."""

    epoch: str
    server: str


@dataclass(frozen=True, slots=True)
class Place:
    """A shard's place at the source: ``scope`` names the journal, ``shard`` is one of ``shards``."""

    scope: str
    shard: int
    shards: int


class Epochs(Protocol):
    """The source's part of an opening; coroutine functions, or plain ones."""

    @property
    def epoch(self) -> Callable[[Place], Any]:
        """A shard's epoch, 0 if it was never opened; None if the source can't hold one."""

    @property
    def raise_epoch(self) -> Callable[[Place, int, int], Any]:
        """Set a shard's epoch if it still is the one that was seen; whether it was."""


class Keys(Protocol):
    """The keys of a shard."""

    @property
    def opening(self) -> str: ...
    @property
    def due(self) -> str: ...
    @property
    def since(self) -> str: ...


class Limits(Protocol):
    """How a journal behaves."""

    @property
    def rounds(self) -> int: ...
    @property
    def flush_delay(self) -> float: ...
    @property
    def claim_time(self) -> float: ...
    @property
    def batch_items(self) -> int: ...
    @property
    def batch_changes(self) -> int: ...
    @property
    def max_dirty(self) -> int: ...
    @property
    def max_age_dirty(self) -> float: ...


class Scripts(Protocol):
    """What a shard is asked."""

    @property
    def look(self) -> Script[Seen]: ...
    @property
    def open(self) -> Script[Opened | Other]: ...
    @property
    def due(self) -> Script[Due]: ...


class Shard(Protocol):
    """One shard of one journal: where it is, and how it behaves."""

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str:
        """The word for what it holds, in messages."""

    @property
    def keys(self) -> Keys: ...
    @property
    def place(self) -> Place: ...
    @property
    def store(self) -> Epochs: ...
    @property
    def options(self) -> Limits: ...
    @property
    def hook(self) -> Hook: ...
    @property
    def scripts(self) -> Scripts: ...


def gave_up(shard: Shard, what: str) -> Overloaded:
    return Overloaded(
        f"{what} met a changing shard {shard.options.rounds} times; nothing was changed by this call, try again",
        retry_after=shard.options.flush_delay + 0.1,
    )


# -- open: a shard is born from the source, and only from there


async def open_shard(io: Port, shard: Shard) -> Known | None:
    """Make sure that the shard is open on this server; None if another process is at it: try again."""
    # The source first: an opening record is right only if it equals what that said *before* it was read.
    epoch: int | None = await io.call(shard.store.epoch, shard.place)
    seen = await io.run(shard.scripts.look((shard.keys.opening,), (SERVER,)))
    if seen.policy.startswith("allkeys"):
        raise Refused(
            f"the server's maxmemory-policy is {seen.policy}: it may evict {shard.what} that are not in SQL yet; "
            "set it to volatile-lru or noeviction"
        )
    last = int(seen.epoch or 0)
    if seen.identity == seen.server and (epoch is None or seen.epoch == str(epoch)):
        return Known(seen.epoch, seen.server)
    if epoch is None:
        epoch = max(last, int(io.server_ms() / 1000) - _CLOCK_BEGAN)
    # Raised there before the server is told: a flusher of the time before is refused from here on.
    # Above what was seen, too: the database may be the one that was replaced by an older copy.
    fresh = max(epoch, last) + 1
    if not await io.call(shard.store.raise_epoch, shard.place, epoch, fresh):
        await io.sleep(0.02 + io.chance() * 0.08)  # somebody else is opening
        return None
    answer = await io.run(
        shard.scripts.open((shard.keys.opening,), (seen.epoch, fresh, seen.server), seen.server)
    )
    if isinstance(answer, Other):
        return None
    if shard.hook.listener is not None:
        shard.hook.listener(ShardOpened(shard.name, shard.place.shard, fresh, seen.epoch))
    return Known(str(fresh), seen.server)


async def opened(io: Port, shard: Shard) -> Known:
    """The same, until it is.

    Raises:
        Overloaded: Other processes kept opening it.
    """
    for _ in range(shard.options.rounds):
        known = await open_shard(io, shard)
        if known is not None:
            return known
    raise gave_up(shard, "an opening")


# -- claim, drain


async def claim(
    io: Port,
    shard: Shard,
    known: Known,
    script: Script[Closed | R],
    journals: Sequence[str],
    items: Sequence[str],
    claim_ms: int,
    limit: int,
) -> R | None:
    """Draw the next fence and read some items' journals; None if the shard must be opened anew."""
    try:
        claimed = await io.run(
            script(
                (shard.keys.opening, shard.keys.due, *journals),
                (known.epoch, known.server, claim_ms, limit, *items),
                known.server,
            )
        )
    except OtherServer:
        return None
    return None if isinstance(claimed, Closed) else claimed


def look_due(shard: Shard) -> Call[Due]:
    """The call that asks which items of a shard are due, a batch at most."""
    options = shard.options
    longest_ms = max(1, round(max(options.flush_delay, options.claim_time) * 1000))
    return shard.scripts.due((shard.keys.due,), (options.batch_items, longest_ms))


async def dirty_items(io: Port, shard: Shard, limit: int = 1000) -> list[str]:
    """Items with changes that the source does not have yet, the earliest due first."""
    reply = await io.run(commands.read("ZRANGE", shard.keys.due, 0, limit - 1))
    return [item.decode() for item in reply]


Flush = Callable[[int, Sequence[str]], Awaitable[Any]]
"""Flushes some items of a shard, by its number; what was done is told in its report."""


async def drain(io: Port, shard: Shard, flush: Flush, until: float) -> int:
    """Flush a shard until its journal is empty or ``io.now()`` passes ``until``; how many items are left."""
    while items := await dirty_items(io, shard, shard.options.batch_items):
        if io.now() >= until:
            left: int = await io.run(commands.read("ZCARD", shard.keys.due))
            return left
        try:
            await flush(shard.place.shard, items)
        except TROUBLE:
            await io.sleep(0.05 + io.chance() * 0.05)
    return 0
