"""Terms: what a leader has in hand. Plain objects, on top of a lock's lease.

A term ends before its lease: ``renew_deadline`` after the last renewal that came through was sent. The
time between the two is what work has to stop in. A term that was seen to be over stays over, and its
lease is prolonged no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fencepost._core.aio import clock
from fencepost.errors import FencepostError, LeaseLost

_LONG: Final = 3600.0

if TYPE_CHECKING:
    from fencepost.election.leader import Leader
    from fencepost.election.options import ElectionOptions


class _Term:
    """What both faces share.

    Args:
        lease: What it stands on.
        leader: How others see it.
        options: Of the election.
    """

    def __init__(self, lease: Any, leader: Leader, options: ElectionOptions) -> None:
        self.lease = lease
        self.leader = leader
        self.ended = False
        self.holder: Any = None  # the task or thread that would wait for itself
        self._options = options
        self._over = ""
        self._stop_by: float | None = None
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []
        lease.renew_every(options.retry)
        lease._watch(self._tell)  # noqa: SLF001  # a part of the lock, on top

    # -- what a leader asks

    @property
    def name(self) -> str:
        """Of the election."""
        return self.leader.name

    @property
    def identity(self) -> str:
        """What the leader calls itself."""
        return self.leader.identity

    @property
    def fence(self) -> int:
        """Greater than that of every term before: give it to what the leader writes."""
        return int(self.lease.fence)

    @property
    def token(self) -> str:
        """Who drew the fence; gates compare it, too."""
        return str(self.lease.token)

    @property
    def deadline(self) -> float:
        """Until when it may be trusted if it is not renewed, on the clock that runs in suspend."""
        return float(self.lease.until) - self._options.slack

    def remaining(self) -> float:
        """Seconds for which it may still be trusted, by the local clock and without I/O; 0 if it is over."""
        if self._over or self.lease.released:
            return 0.0
        left = float(self.lease.remaining()) - self._options.slack
        if left > 0:
            return left
        if not self.lease.released:  # it may have been meanwhile
            self._end()
        return 0.0

    @property
    def lost(self) -> bool:
        """Whether it ended before it was given back; asked of the clock each time."""
        return bool(self.why)

    @property
    def why(self) -> str:
        """How it was lost; empty if it was not."""
        self.remaining()
        return self._over

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return not self._over and bool(self.lease.released)

    @property
    def stopping(self) -> bool:
        """Whether the work is told to end by itself: begin nothing new."""
        return self._stop_by is not None

    def check(self, at_least: float = 0.0) -> float:
        """Make sure that the term stands, just before an act that rests on it; no I/O.

        Args:
            at_least: Seconds that must be left.

        Returns:
            Seconds that are left.

        Raises:
            LeaseLost: It is over, or has less than that left.
        """
        left = self.remaining()
        if left <= 0:
            raise LeaseLost(
                f"the term of {self.identity!r} in the election {self.name!r} is over: "
                f"{self._over or 'it was given back'}"
            )
        if left < at_least:
            raise LeaseLost(
                f"the term of {self.identity!r} in the election {self.name!r} has {left:.3g} s left, "
                f"{at_least:g} s were asked for"
            )
        return left

    # -- what the election says

    def tell_stop(self) -> None:
        """The work shall end by itself, within ``drain``; a lease whose work never ends runs out."""
        if self._stop_by is None:
            self._stop_by = clock() + self._options.drain
            self.lease.let_run_out(self._options.drain + self._options.ttl)
        self._tell()

    def until_stopped(self) -> float:
        """Seconds until the work, which was told to stop, has used up its time."""
        return float("inf") if self._stop_by is None else max(self._stop_by - clock(), 0.0)

    def mark_ended(self) -> None:
        """Its work has stopped, and it was given back."""
        self.ended = True
        self.lease._unwatch(self._tell)  # noqa: SLF001
        self._tell()

    def abandon(self) -> None:
        """Give it back in the background, whatever became of it."""
        self.remaining()  # a loss stays a loss
        self.lease._abandon()  # noqa: SLF001

    def _end(self) -> None:
        why = self.lease.why
        if self._stop_by is not None:
            why = f"it was told to stop, and its work did not: {why}"
        elif not why:
            why = f"it was not renewed for {self._options.renew_deadline:g} s"
            why += f": {self.lease.trouble}" if self.lease.trouble else ""
        self._over = self._over or why
        # Never to life again: what the work has left of the lease is for it to stop in.
        self.lease.let_run_out(0.0)

    def _moment(self, end: float) -> float:
        """Seconds until it must be looked at again by itself."""
        left = self.remaining()
        return min(end - clock(), left + 0.0005 if left else _LONG)

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

    def __repr__(self) -> str:
        state = "released" if self.released else "lost" if self.lost else "leads"
        return f"<{type(self).__name__} {self.name!r} {state} fence={self.fence} identity={self.identity!r}>"


class AsyncTerm(_Term):
    """A term of office, for work on a loop.

    Attributes:
        name: Of the election.
        identity: What the leader calls itself.
        fence: Greater than that of every term before; ``term`` can be given to every gate.
        deadline: Until when it may be trusted if it is not renewed.
        lost: Whether it ended before it was given back, by the clock.
        stopping: Whether the work is told to end by itself.
    """

    async def sleep(self, seconds: float) -> bool:
        """Wait, but no longer than the term lasts: ``while await term.sleep(60): …``.

        Returns:
            True if the time has passed and the term stands; False if the work shall end by itself.

        Raises:
            LeaseLost: The term is over.
        """
        await self.until(lambda: self.stopping or self.remaining() <= 0, clock() + seconds)
        self.check()
        return not self.stopping

    async def until(self, holds: Callable[[], bool], end: float) -> None:
        """Return when this holds, or at a time; looked at when something is said, and when the term ends."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        self._watch(told)  # first watch, then look: what is said between the two counts
        try:
            while not holds() and (moment := self._moment(end)) > 0:
                timer = loop.call_later(moment, changed.set)
                try:
                    await changed.wait()
                finally:
                    timer.cancel()
                changed.clear()
        finally:
            self._unwatch(told)

    async def _give_back(self) -> bool:
        """Whether the server has confirmed it; if not, it is done in the background."""
        if self.lost:
            self.abandon()  # no await: our cancel of its work may still be on its way
            return False
        try:
            return bool(await self.lease.release())
        except FencepostError:
            return False


class Term(_Term):
    """A term of office, for work in a thread, which can't be cancelled; see ``AsyncTerm``."""

    def sleep(self, seconds: float) -> bool:
        self.until(lambda: self.stopping or self.remaining() <= 0, clock() + seconds)
        self.check()
        return not self.stopping

    def until(self, holds: Callable[[], bool], end: float) -> None:
        changed = threading.Event()
        self._watch(changed.set)
        try:
            while not holds() and (moment := self._moment(end)) > 0:
                changed.wait(moment)
                changed.clear()
        finally:
            self._unwatch(changed.set)

    def _give_back(self) -> bool:
        if self.lost:
            self.abandon()
            return False
        try:
            return bool(self.lease.release())
        except FencepostError:
            return False
