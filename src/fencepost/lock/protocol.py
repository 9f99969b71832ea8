"""How a lock is taken, held and given back.

What holds, whatever pauses, crashes or loses a reply, while the server keeps its data and its clock:

1. At most one attempt holds the lock: the script that takes it looks first, and only the attempt
   that is in it may prolong it or give it back.
2. Fences increase in the order in which the lock is taken: the greatest of the server's clock in
   microseconds, the last fence + 1 and the caller's floor. The clock carries them over a server that
   comes back empty, the counter over a clock that steps back. (Both at once: see where it ends.)
3. A holder stops trusting its lease before the server ends it: ``sent + ttl - drift``, ``sent`` taken
   *before* the request that took or prolonged it. Local time only ever makes it stop earlier.
4. A request that is repeated is the same request (it carries the attempt). An attempt that was given
   up leaves a mark, so that no duplicate of it that comes late takes the lock for nobody.
5. Who waits is called when the lock is given back, and looks by itself no later than the holder's
   lease ends: a call is a hint, and nothing rests on its arrival.
6. A waiter that dies holds up those behind it no longer than it may be silent.

Where it ends: between a check of the lease and the act that it allows lies time, and a process may
be paused there for longer than its lease lasts. Only the resource can refuse what comes too late: it
compares fences. A server that loses its data (a failover, a power cut under ``everysec``) lets a
second holder in while the first trusts its lease for up to one TTL. And a server that comes back
empty with its clock behind draws a fence again that was drawn before: gates compare who drew it,
too, and a holder that is refused acquires with ``floor``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fencepost._core.backoff import Backoff
from fencepost._core.keys import LockKeys
from fencepost._core.port import Port
from fencepost._core.script import Call, Word
from fencepost.errors import ClientClosed, LeaseLost, LockTimeout, OutcomeUnknown, Unavailable
from fencepost.lock.scripts import (
    SCRIPTS,
    Ended,
    Held,
    Holder,
    Lost,
    Renewed,
    Scripts,
    Taken,
    Undone,
)

STAY: Final = 1.5
"""Seconds that a waiter may be silent: what a dead one costs those behind it."""
REMEMBER: Final = 86_400.0
"""Seconds after its last use that a lock's counter of fences is kept, or a 24th less; then the clock
alone goes on."""
STRAGGLER: Final = 60.0
"""Seconds that an attempt that was given up is remembered: longer than a request may be on its way."""
OVERTAKES: Final = 16
"""How many newcomers in a row may take the lock before who waits longest."""
RETRY: Final = Backoff(0.02, 1.0)
_SOON: Final = 0.001
_APART: Final = 0.005


@dataclass(frozen=True, slots=True)
class Place:
    """One lock on one server, as its protocols see it; a quorum's has the same verbs."""

    name: str
    keys: LockKeys
    scripts: Scripts = SCRIPTS

    # -- what to ask the server: a share of several asks otherwise

    @property
    def weight(self) -> int:
        """How much of it a lease takes."""
        return 1

    def take(self, ask: Ask) -> Call[Any]:
        """The call that takes it; the same each time."""
        keys = self.keys
        return self.scripts.acquire(
            (keys.lock, keys.fences, keys.queue, keys.alive, keys.ended(ask.attempt)), words(ask)
        )

    def prolong(self, attempt: str, ttl: float) -> Call[Any]:
        """The call that prolongs a lease."""
        return self.scripts.renew((self.keys.lock,), (attempt, ms(ttl)))

    def give_back(self, attempt: str) -> Call[Any]:
        """The call that ends a lease."""
        keys = self.keys
        return self.scripts.release((keys.lock, keys.queue, keys.alive), (attempt, keys.channel))

    def end(self, attempt: str) -> Call[Any]:
        """The call that ends an attempt, whatever became of it."""
        keys = self.keys
        return self.scripts.undo(
            (keys.lock, keys.queue, keys.alive, keys.ended(attempt)),
            (attempt, keys.channel, ms(STRAGGLER)),
        )

    def full(self) -> str:
        """What stands in the way, before the name of a holder."""
        return "is held by"

    # -- what is done with it

    async def acquire(self, io: Any, ask: Ask, bell: Bell, tried: Tried) -> Grant:
        """Take it; see ``acquire``."""
        return await acquire(io, self, ask, bell, tried)

    async def release(self, io: Any, attempt: str, tried: Tried, end: Callable[[], None]) -> bool:
        """Give it back; see ``release``. ``end`` is called if something of it may be left."""
        kept = await release(io, self, attempt)
        if tried.doubt:
            end()
        return kept

    async def look(self, io: Any) -> Holder | None:
        """Who holds it, by the server."""
        found = await io.run(self.scripts.look((self.keys.lock, self.keys.queue)))
        return found if isinstance(found, Holder) else None

    async def force_release(self, io: Any) -> Holder | None:
        """Take it from whoever holds it."""
        keys = self.keys
        call = self.scripts.force_release((keys.lock, keys.queue, keys.alive), (keys.channel,))
        found = await io.run(call)
        return found if isinstance(found, Holder) else None

    def new_tried(self) -> Tried:
        """What an attempt begins with."""
        return Tried()


@dataclass(slots=True)  # not frozen, which would cost 2 µs a pair
class Ask:
    """What one attempt asks for.

    Args:
        attempt: Unpredictable, and never used again.
        owner: What the holder calls itself.
        ttl: Seconds that the lease lasts without renewal.
        wait: Seconds that the caller waits; 0 tries once.
        overtakes: How often a newcomer may take the lock before who waits longest; 0 is fair.
        floor: The fence is at least this.
        insists: Errors are tried again until ``wait`` is over; else only a lost reply is, once.
    """

    attempt: str
    owner: str
    ttl: float
    wait: float
    overtakes: int = OVERTAKES
    floor: int = 0
    insists: bool = True


@dataclass(slots=True)
class Tried:
    """What an attempt may have left behind; read by whoever stops it from outside.

    Args:
        open: It may hold the lock, or wait in the queue.
        doubt: A request of it went unanswered, so it may still be on its way.
    """

    open: bool = False
    doubt: bool = False

    def left(self, attempt: str) -> list[str]:
        """The attempts that must be ended if it is given up."""
        return [attempt] if self.open else []


@dataclass(slots=True)  # not frozen, which would cost 2 µs a pair
class Grant:
    """The lock was taken.

    Args:
        fence: Greater than every one drawn before.
        sent: When the request was sent.
        until: When the lease must not be trusted any more.
        attempt: Under which name, if not that of the ``Ask``.
    """

    fence: int
    sent: float
    until: float
    attempt: str = ""


class Bell(Protocol):
    """Hears when a waiter is called. A coroutine function each for loops, plain ones for threads."""

    def listen(self) -> Any:
        """Begin to listen; what is called after this is heard."""

    def hear(self, seconds: float) -> Any:
        """Return when called, or after so many seconds."""

    def close(self) -> None:
        """Listen no more."""


def drift(ttl: float) -> float:
    """Seconds by which a lease is trusted less long than it lasts: clocks run differently by up to 1 %."""
    return ttl * 0.01 + 0.002


def ms(seconds: float) -> int:
    """Whole milliseconds, at least one."""
    return max(int(seconds * 1000), 1)


# -- taking


async def acquire(io: Port, place: Place, ask: Ask, bell: Bell, tried: Tried) -> Grant:
    """Take a lock. If this raises and ``tried.open`` is set, ``undo`` the attempt.

    Args:
        io: The port.
        place: Which lock.
        ask: The attempt.
        bell: Hears calls.
        tried: Told what may be left behind.

    Returns:
        The grant; at that moment it may be trusted.

    Raises:
        LockTimeout: Somebody else held it for all of ``ask.wait``.
        Unavailable: The server could not be reached in that time.
        OutcomeUnknown: Replies were lost, and it could not be learned what became of them.
    """
    deadline = io.now() + ask.wait
    failures, listening = 0, False
    try:
        while True:
            # Taken before each request: time that a reply takes must not lengthen a lease.
            sent = io.now()
            tried.open = True
            try:
                answer = await io.run(place.take(ask))
            except (Unavailable, OutcomeUnknown) as error:
                unknown = isinstance(error, OutcomeUnknown)
                tried.doubt = tried.doubt or unknown
                failures += 1
                # Asked once more even without time: the same attempt learns what became of it.
                again = (ask.insists and io.now() < deadline) or (unknown and failures == 1)
                if isinstance(error, ClientClosed) or not again:
                    raise
                await io.sleep(RETRY.delay(failures, io.chance()))
                continue
            if isinstance(answer, Taken):
                until = sent + ask.ttl - drift(ask.ttl)
                if io.now() < until:
                    return Grant(answer.fence, sent, until)
                # The reply took longer than the lease lasts: never handed out, but asked for anew.
                failures += 1
                if io.now() >= deadline and failures > 1:
                    raise LockTimeout(
                        f"{place.name!r}: the server's replies take longer than ttl {ask.ttl:g} s; raise ttl"
                    )
                continue
            if isinstance(answer, Ended):
                raise LeaseLost(f"this attempt on {place.name!r} was given up before")
            if ask.wait <= 0 and not tried.doubt:
                tried.open = False  # it did not even queue
            left = deadline - io.now()
            if left <= 0:
                raise timed_out(place, ask, answer)
            if not listening:
                # Listen, then try again: a release between the two would never be heard.
                listening = True
                await io.call(bell.listen)
                continue
            await io.call(bell.hear, pause(answer, left))
    finally:
        if listening:
            bell.close()


def words(ask: Ask) -> tuple[Word, ...]:
    """What an attempt says to the script that takes a lock or a share."""
    stay = ms(STAY) if ask.wait > 0 else 0
    return (ask.attempt, ask.owner, ms(ask.ttl), ask.floor, ask.overtakes, stay, ms(REMEMBER))


def pause(held: Held, left: float) -> float:
    """Seconds until a waiter looks again by itself: never beyond the holder's lease."""
    # Those behind look a little later, so that the end of a lease sends no crowd to the server.
    apart = min(held.ahead, 20) * _APART
    return max(min(left, STAY / 3, max(held.left_ms, 0) / 1000 + _SOON + apart), _SOON)


def timed_out(place: Place, ask: Ask, held: Held) -> LockTimeout:
    """Says who holds the lock, and for how long."""
    remaining = max(held.left_ms, 0) / 1000
    who = (
        f"{place.full()} {held.owner!r} (fence {held.fence}), whose lease lasts {remaining:.3g} s if it is not renewed"
        if held.owner
        else "is kept free for who waits longer"
    )
    waited = f"was waited for {ask.wait:g} s; it " if ask.wait > 0 else ""
    return LockTimeout(
        f"{place.name!r} {waited}{who}", owner=held.owner, fence=held.fence, remaining=remaining
    )


# -- holding


@dataclass(frozen=True, slots=True)
class Renewal:
    """A lease that is due: prolong it to ``ttl`` seconds from now."""

    place: Place
    attempt: str
    ttl: float
    owner: str = ""
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """An attempt that must leave nothing behind."""

    place: Place
    attempt: str


async def tend(
    io: Port, renewals: Sequence[Renewal], endings: Sequence[Ending]
) -> list[Renewed | Lost | Undone]:
    """Prolong leases and end attempts, in one write.

    Returns:
        An answer each, in order.

    Raises:
        Unavailable: Nothing is known to be done; do it again, it is harmless.
        OutcomeUnknown: Likewise.
    """
    calls: list[Call[Any]] = [one.place.prolong(one.attempt, one.ttl) for one in renewals]
    calls += [one.place.end(one.attempt) for one in endings]
    return await io.all(calls)


# -- giving back


async def release(io: Port, place: Place, attempt: str) -> bool:
    """Give a lock back.

    Returns:
        False if it is sure that it had been lost before.

    Raises:
        Unavailable: It was not given back.
        OutcomeUnknown: It was given back or not.
    """
    unknown = False
    while True:
        try:
            answer = await io.run(place.give_back(attempt))
        except OutcomeUnknown:
            if unknown:
                raise
            unknown = True
            continue
        # After a lost reply "not yours" may be the work of the first request.
        return unknown or not isinstance(answer, Lost)


async def undo(io: Port, one: Ending, tries: int = 10) -> bool:
    """End an attempt, whatever became of it; tried a few times.

    Returns:
        Whether the server confirmed it; if not, what is left ends with its TTL.
    """
    for number in range(tries):
        try:
            await io.run(one.place.end(one.attempt))
        except (Unavailable, OutcomeUnknown):
            await io.sleep(RETRY.delay(number, io.chance()))
        else:
            return True
    return False
