"""The keeper: one thread a client that prolongs leases and ends attempts, whatever the callers do.

It is a thread for both faces: a loop that is held up by its tasks, or closed, renews nothing. It has
a connection of its own, so that it never stands in a queue behind the callers. What it does is
bounded by each lease's own deadline: errors do not end it, and a lease it could not prolong in time
is over by the clock, whether it notices or not.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from fencepost._core.aio import clock
from fencepost._core.observe import LeaseEnded, RenewalLate, log
from fencepost.errors import OutcomeUnknown, Unavailable
from fencepost.lock.protocol import RETRY, STRAGGLER, Ending, Renewal
from fencepost.lock.scripts import Lost, Renewed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost._core.observe import Event, Hook
    from fencepost.lock.lease import Held

_LEAST: Final = 0.05
_LATE: Final = 0.1  # of a lease: a renewal that is later is told
_TOGETHER: Final = 0.1  # of the time between two renewals: what is due soon goes in the same write


class _Undone:
    """An attempt to end, and when to try."""

    __slots__ = ("due", "ending", "tries", "until")

    def __init__(self, ending: Ending, now: float, last: float) -> None:
        self.ending = ending
        self.due = now
        self.until = now + last
        self.tries = 0


class Tender(Protocol):
    """The keeper's way to the server, or to several."""

    def tend(
        self, renewals: Sequence[Renewal], endings: Sequence[Ending], within: float
    ) -> list[Any]:
        """Prolong leases and end attempts; an answer each, in order, or its error.

        Raises:
            Exception: Nothing is known of any of them.
        """

    def close(self) -> None:
        """Close the connections."""

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""


class Keeper:
    """See the module.

    Args:
        tender: The way to the server.
        budget: Seconds that a turn may take.
        hook: Where events go.
    """

    def __init__(self, tender: Tender, budget: float, hook: Hook) -> None:
        self._tender = tender
        self._hook = hook
        self._budget = budget
        self._changed = threading.Condition()
        self._held: set[Held] = set()
        self._endings: dict[str, _Undone] = {}
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self._busy = False
        self._closed = False
        self._pid = os.getpid()
        _keepers.add(self)
        self.lateness = 0.0
        """Seconds by which the latest renewal began too late, at most."""
        self.counts: Counter[str] = Counter()

    # -- what callers say

    def keep(self, lease: Held) -> None:
        """Prolong a lease from now on."""
        with self._changed:
            self._held.add(lease)
            self._stir(lease.due)

    def drop(self, lease: Held) -> None:
        """Prolong it no more."""
        with self._changed:
            self._held.discard(lease)

    def hurry(self, lease: Held, due: float) -> None:
        """It is due by then, if it is still kept."""
        with self._changed:
            lease.due = min(lease.due, due)
            if lease in self._held:
                self._stir(lease.due)

    def end(self, ending: Ending, last: float) -> None:
        """End an attempt in the background.

        Args:
            ending: Which.
            last: Seconds after which what it may have left is gone by itself.
        """
        with self._changed:
            self._endings[ending.attempt] = _Undone(ending, clock(), last)
            self._stir(0.0)

    def settle(self, within: float) -> bool:
        """Wait until every attempt that must be ended is; whether that was so in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._endings or self._closed, within)

    def close(self) -> None:
        """End what must be ended, within the budget, and stop; leases run out by themselves."""
        self.settle(self._budget)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._budget)
        self._tender.close()

    def at_exit(self) -> None:
        """The process ends, and nobody has closed the client: what was given up is ended first."""
        if self._pid == os.getpid() and self._endings:
            self.settle(self._budget)

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""
        self._tender.forget()

    def _stir(self, due: float) -> None:
        if self._thread is None:
            if self._closed:
                return
            self._next = due
            self._thread = threading.Thread(target=self._main, name="fencepost-keeper", daemon=True)
            self._thread.start()
        elif due < self._next:
            self._next = due
            self._changed.notify_all()

    # -- the thread

    def _main(self) -> None:
        while self._wait():
            leases, endings, events = self._take()
            if self._hook.listener is not None:
                for event in events:
                    self._hook.listener(event)
            if leases or endings:
                self._turn(leases, endings)
            with self._changed:
                self._changed.notify_all()

    def _wait(self) -> bool:
        """Sleep until something is due; False if there is nothing left to do."""
        with self._changed:
            while True:
                if self._closed or not (self._held or self._endings):
                    # The last look and the end of the thread are one step: who comes now starts another.
                    self._thread = None
                    return False
                dues = [lease.due for lease in self._held]
                dues += [one.due for one in self._endings.values()]
                self._next = min(dues)
                left = self._next - clock()
                if left <= 0:
                    return True
                self._changed.wait(left)

    def _take(self) -> tuple[list[Held], list[_Undone], list[Event]]:
        """What is due, and what there is to tell of it."""
        now = clock()
        events: list[Event] = []
        with self._changed:
            for lease in [one for one in self._held if one.until <= now]:
                self._held.discard(lease)
                self.counts["expired"] += 1
                lease.told_by_clock()
                events.append(_ended(lease))
            for attempt in [name for name, one in self._endings.items() if one.until <= now]:
                del self._endings[attempt]  # what it left has ended by itself
            due = [one for one in self._held if one.due <= now]
            if due:
                self.lateness = max(self.lateness, *(now - one.due for one in due))
                events += [
                    RenewalLate(one.name, one.owner, one.fence, now - one.due, one.remaining())
                    for one in due
                    if now - one.due > one.ttl * _LATE
                ]
                soon = [one for one in self._held if now < one.due <= now + one.every * _TOGETHER]
                due += soon
            for lease in [one for one in due if one.prolonged_by(now) <= 0]:
                # ``max_hold`` is reached: it runs out, and is looked at once more then.
                lease.due = lease.until
                due.remove(lease)
            return due, [one for one in self._endings.values() if one.due <= now], events

    def _turn(self, leases: list[Held], endings: list[_Undone]) -> None:
        sent = clock()
        with self._changed:
            # A link that is frozen must not take the time that another lease has left.
            shortest = min((one.ttl / 4 for one in self._held), default=self._budget)
        within = max(min(self._budget, shortest), _LEAST)
        spans = [lease.prolonged_by(sent) for lease in leases]
        renewals = [lease.renewal(span) for lease, span in zip(leases, spans, strict=True)]
        try:
            answers = self._tender.tend(renewals, [one.ending for one in endings], within)
        except (Unavailable, OutcomeUnknown) as error:
            self._failed(leases, endings, error)
            return
        except Exception as error:  # whatever it is, the other leases must not end by it
            if len(leases) + len(endings) == 1:
                log.warning("a lease could not be prolonged, or an attempt not be ended: %s", error)
                self._failed(leases, endings, error)
                return
            # One of them is what the server objects to: each by itself.
            for lease in leases:
                self._turn([lease], [])
            for one in endings:
                self._turn([], [one])
            return
        for lease, span, answer in zip(leases, spans, answers[: len(leases)], strict=True):
            self._told(lease, sent, span, answer)
        for one, answer in zip(endings, answers[len(leases) :], strict=True):
            if isinstance(answer, Exception):
                self._failed([], [one], answer)
                continue
            with self._changed:
                if self._endings.get(one.ending.attempt) is one:
                    del self._endings[one.ending.attempt]

    def _told(self, lease: Held, sent: float, span: float, answer: Any) -> None:
        """What became of a lease."""
        if isinstance(answer, Lost):
            self.counts["lost"] += 1
            self.drop(lease)
            lease.lose(answer.why)
            if lease.lost and self._hook.listener is not None:
                self._hook.listener(_ended(lease))
        elif isinstance(answer, Renewed):
            self.counts["renewed"] += 1
            lease.renewed(sent, span)
            if not answer.sure:
                lease.unsure()
        else:
            lease.unsure()
            self._failed([lease], [], answer)

    def _failed(self, leases: list[Held], endings: list[_Undone], error: Exception) -> None:
        self.counts["failed"] += 1
        now = clock()
        for lease in leases:
            lease.trouble = str(error)
            again = min(max(lease.ttl / 20, 0.02), 0.5, lease.every)
            lease.due = min(now + again, lease.until)
        for one in endings:
            one.due = now + RETRY.delay(one.tries, 0.5)
            one.tries += 1


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


@atexit.register
def _settle_all() -> None:
    for keeper in list(_keepers):
        keeper.at_exit()


def _ended(lease: Held) -> LeaseEnded:
    return LeaseEnded(lease.name, lease.owner, lease.fence, lease.why)


def straggling(ttl: float) -> float:
    """Seconds for which it is worth while to end an attempt."""
    return max(ttl, STRAGGLER)
