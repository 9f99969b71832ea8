"""What happened, as frozen events through one hook; free when nobody listens.

    hook = Hook()
    if hook.listener is not None:              # one attribute, one comparison
        hook.listener(Reconnected(...))

Every event is a frozen dataclass. A listener is called where the event happens (the event loop or
the calling thread): it must be quick and must not raise; an error in it is logged, once a kind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("fencepost")


@dataclass(frozen=True, slots=True)
class Event:
    """Root of all events."""


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """A connection is ready. ``reconnect`` tells the first from the later ones."""

    server: str
    identity: str
    protocol: int
    reconnect: bool


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """A connection ended; ``unanswered`` requests became ``OutcomeUnknown``."""

    server: str
    reason: str
    unanswered: int


@dataclass(frozen=True, slots=True)
class ShardOpened(Event):
    """A shard was opened at a new epoch; ``seen`` is what the server held before."""

    likes: str
    shard: int
    epoch: int
    seen: str


@dataclass(frozen=True, slots=True)
class ColdLoad(Event):
    """An item was loaded from SQL; ``verdict`` is what the server said of the fill."""

    likes: str
    item: str
    verdict: str


@dataclass(frozen=True, slots=True)
class DirtyDrain(Event):
    """A caller found an item without its header and with changes that SQL lacks: it flushed them."""

    likes: str
    item: str


@dataclass(frozen=True, slots=True)
class Flushed(Event):
    """A batch of the journal went to SQL. ``verdict``: done, refused or orphaned rows inside."""

    likes: str
    shard: int
    items: int
    entries: int
    changed: int
    orphans: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LikesLost(Event):
    """A server lost data: at least ``count`` changes that this process had answered are gone.

    ``items`` names up to a hundred of the items they were of.
    """

    likes: str
    shard: int
    count: int
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlushRefused(Event):
    """The source refused a batch: a newer fence or a newer epoch stands there."""

    likes: str
    shard: int
    reason: str


@dataclass(frozen=True, slots=True)
class SetAside(Event):
    """The database refused one change by itself: ``kept`` in its table of poison, or in the journal."""

    likes: str
    item: int | str
    user: int | str
    reason: str
    kept: bool


@dataclass(frozen=True, slots=True)
class Refresh(Event):
    """A cache tried to refresh an entry.

    ``verdict``: ``published``, ``rejected`` (``reason``: ``invalidated``, ``expired`` alone,
    ``successor``, ``writing``, ``older``), ``failed`` (the loader raised ``reason``), ``unpublished``
    (there was no lease) or ``unreachable`` (nobody knows whether it was published). Times are in
    seconds of the server's clock; ``owner`` is the lease's token.
    """

    cache: str
    key: str
    read_began: float
    read_ended: float
    verdict: str
    reason: str = ""
    revision: int | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class EntryDiscarded(Event):
    """A cache found something that is no entry of its own: ``corrupt``, ``foreign``, ``oversized``."""

    cache: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class CacheBypassed(Event):
    """A cache stopped asking its server (``open``), or found it again."""

    cache: str
    open: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WritesSaved(Event):
    """A batch of values that were written behind went to the source."""

    cache: str
    shard: int
    entries: int
    saved: int
    deferred: int
    aside: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WriteSetAside(Event):
    """The source refuses a value: ``kept`` beside the journal with the reason, or in it still (no room)."""

    cache: str
    key: str
    reason: str
    kept: bool


@dataclass(frozen=True, slots=True)
class LeaseEnded(Event):
    """A lease was lost before it was released; ``reason`` says how."""

    lock: str
    owner: str
    fence: int
    reason: str


@dataclass(frozen=True, slots=True)
class RenewalLate(Event):
    """A renewal began ``late`` seconds after it was due; ``left`` is what the lease had left then.

    The process, or its machine, has too much to do: with more of it, leases are lost.
    """

    lock: str
    owner: str
    fence: int
    late: float
    left: float


@dataclass(frozen=True, slots=True)
class KeyHot(Event):
    """A key became hot for the whole fleet: ``reads`` and ``writes`` a second, as far as they were seen."""

    name: str
    reads: int
    writes: int
    error: int
    since: float


@dataclass(frozen=True, slots=True)
class KeyCooled(Event):
    """A key is hot no more; it was for ``seconds``."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HotHeld(Event):
    """A cache holds a hot key in this process from now on (``held``), or holds it no more."""

    cache: str
    key: str
    held: bool


class Hook:
    """One place to listen."""

    __slots__ = ("_failed", "listener")

    def __init__(self, listener: Callable[[Event], None] | None = None) -> None:
        self._failed: set[type[Event]] = set()
        self.listener: Callable[[Event], None] | None = None
        if listener is not None:
            self.listen(listener)

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Add a listener; those before it go on."""
        before = self.listener

        def safely(event: Event) -> None:
            if before is not None:
                before(event)
            try:
                listener(event)
            except Exception:
                if type(event) not in self._failed:
                    self._failed.add(type(event))
                    log.exception("a listener failed on %s", type(event).__name__)

        self.listener = safely
