"""Leases: what a holder has in hand. They are plain objects; any thread or task may use one.

Whether a lease still stands is never stored, it is asked of the clock: one that was not prolonged in
time is over, though nobody has said so.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from fencepost._core.aio import clock
from fencepost.errors import LeaseLost
from fencepost.lock.keeper import straggling
from fencepost.lock.protocol import Ending, Grant, Place, Renewal, Tried, drift

if TYPE_CHECKING:
    from fencepost._core.port import Port
    from fencepost.lock.keeper import Keeper


class Held:
    """What both faces share: the deadline, and what was said about the end.

    Args:
        keeper: Prolongs it.
        port: Gives it back.
        place: Which lock.
        attempt: Whose.
        owner: What the holder calls itself.
        ttl: Seconds that it lasts without renewal.
        max_hold: Seconds after which it is prolonged no more.
        grant: What the server said.
        tried: What of the attempt may still be on its way.
    """

    def __init__(
        self,
        keeper: Keeper,
        port: Any,
        place: Place,
        attempt: str,
        owner: str,
        ttl: float,
        max_hold: float,
        grant: Grant,
        tried: Tried,
    ) -> None:
        self._keeper = keeper
        self._port: Port = port
        self.place = place
        self.attempt = attempt
        self.owner = owner
        self.ttl = ttl
        self.fence = grant.fence
        self.until = grant.until
        self.every = ttl / 3
        self.due = grant.sent + self.every
        self.trouble = ""
        self._last = grant.sent + max_hold
        self._tried = tried
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ended = ""  # why it ended, if somebody said so: "released", or how it was lost
        self._watchers: list[Callable[[], None]] = []
        keeper.keep(self)

    # -- what a holder asks

    @property
    def name(self) -> str:
        """Of the lock."""
        return self.place.name

    @property
    def weight(self) -> int:
        """How many permits of a semaphore it holds; 1 of a lock."""
        return self.place.weight

    @property
    def token(self) -> str:
        """Who drew the fence: two holders never have the same, not even with equal fences."""
        return self.attempt

    def remaining(self) -> float:
        """Seconds for which it may still be trusted, by the local clock and without I/O; 0 if it is over."""
        if self._ended or self._pid != os.getpid():
            return 0.0
        return max(self.until - clock(), 0.0)

    @property
    def lost(self) -> bool:
        """Whether it ended before it was released; asked of the clock each time."""
        return bool(self._why())

    @property
    def why(self) -> str:
        """How it was lost; empty if it was not."""
        return self._why()

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self._ended == "released"

    def check(self, at_least: float = 0.0) -> float:
        """Make sure that the lease stands, just before an act that rests on it; no I/O.

        Args:
            at_least: Seconds that must be left.

        Returns:
            Seconds that are left.

        Raises:
            LeaseLost: It is over, or has less than that left.
        """
        left = self.remaining()
        if left <= 0:
            raise LeaseLost(f"the lease on {self.name!r} is over: {self._why() or self._ended}")
        if left < at_least:
            raise LeaseLost(
                f"the lease on {self.name!r} has {left:.3g} s left, {at_least:g} s were asked for"
            )
        return left

    def _why(self) -> str:
        """How it was lost; empty if it stands or was released."""
        if self._ended == "released":
            return ""
        if self._pid != os.getpid():
            return f"it belongs to process {self._pid}, of which this is a fork"
        if self._ended:
            return self._ended
        if clock() >= self.until:
            if not self.prolonged_by(self.until):
                return "max_hold is reached"
            return "it was not prolonged in time" + (f": {self.trouble}" if self.trouble else "")
        return ""

    # -- for who keeps it otherwise than the lock's options say

    def renew_every(self, seconds: float) -> None:
        """Prolong it so often, if that is more often than three times in its ttl."""
        self.every = min(self.every, seconds)
        self._keeper.hurry(self, clock() + self.every)

    def let_run_out(self, within: float) -> None:
        """Prolong it no further than so many seconds from now; what it has, it keeps."""
        self._last = min(self._last, clock() + within)

    # -- what the keeper says

    def renewal(self, span: float) -> Renewal:
        """What prolongs it by so many seconds."""
        return Renewal(self.place, self.attempt, span, self.owner, self.fence)

    def unsure(self) -> None:
        """A renewal went unanswered: it may still be on its way."""
        self._tried.doubt = True

    def prolonged_by(self, now: float) -> float:
        """Seconds from now that a renewal may ask for; 0 if that would not prolong it."""
        span = min(self.ttl, self._last - now)
        # Never to an earlier end than it has: if that reply were lost, we would trust it for too long.
        return span if span >= 0.001 and now + span - drift(self.ttl) > self.until else 0.0

    def renewed(self, sent: float, span: float) -> None:
        """The server prolonged it, by a request that was sent then."""
        self.until = max(self.until, sent + span - drift(self.ttl))
        self.due = sent + self.every
        self.trouble = ""

    def told_by_clock(self) -> None:
        """Its time is over."""
        self._tell()

    def lose(self, why: str) -> None:
        """Somebody who knows says that it is over."""
        with self._lock:
            if not self._ended:
                self._ended = why
        self._tell()

    def _watch(self, watcher: Callable[[], None]) -> None:
        with self._lock:
            self._watchers.append(watcher)

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._watchers.remove(watcher)

    def _tell(self) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()

    # -- giving it back

    async def _give_back(self) -> bool:
        """Release it; False if it had been lost.

        Raises:
            FencepostError: It is not known to be given back; it is tried on in the background.
        """
        if self._pid != os.getpid():
            return False  # the parent's: a child that leaves the block must not release it
        with self._lock:
            if self._ended == "released":
                return True
            self._ended = why = self._ended or self._why()
            if not why:
                self._ended = "released"
        self._keeper.drop(self)
        self._tell()
        if why:
            self._in_background()  # it may still stand on the server, and others wait for it
            return False
        try:
            kept = await self.place.release(
                self._port, self.attempt, self._tried, self._in_background
            )
        except BaseException:
            # Not known to be given back, or cut short: done by somebody who is not cancelled.
            self._in_background()
            raise
        if not kept:
            self._ended = "somebody took it away, or the server lost it"
        return kept

    def _abandon(self) -> None:
        """Give it back in the background, whatever became of it."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._ended == "released":
                return
            self._ended = self._ended or self._why() or "released"
        self._keeper.drop(self)
        self._tell()
        self._in_background()

    def _in_background(self) -> None:
        self._keeper.end(Ending(self.place, self.attempt), straggling(self.ttl))

    def __repr__(self) -> str:
        state = "released" if self.released else "lost" if self.lost else "held"
        return (
            f"<{type(self).__name__} {self.name!r} {state} fence={self.fence} owner={self.owner!r}>"
        )


class Guarded(Protocol):
    """What a body rests on: a lease, or several."""

    @property
    def name(self) -> str: ...

    @property
    def lost(self) -> bool: ...

    @property
    def released(self) -> bool: ...

    @property
    def why(self) -> str: ...

    def remaining(self) -> float: ...

    def _watch(self, watcher: Callable[[], None]) -> None: ...

    def _unwatch(self, watcher: Callable[[], None]) -> None: ...


def report(lease: Guarded, error: BaseException | None) -> None:
    """At the end of a body: tell a loss, without hiding what the body itself raised.

    Raises:
        LeaseLost: The lease was lost, and the body ended well.
    """
    text = f"the lease on {lease.name!r} was lost before its work had ended: {lease.why}"
    if error is None:
        raise LeaseLost(text)
    error.add_note(text)
