"""How a leader is found, leads and steps down, and how others learn who leads.

What holds, whatever pauses, crashes or loses a reply, while the server keeps its data and its clock:

1. At most one candidate has a valid term: a term stands on a lock's lease, and ends before it, by
   the local clock, ``renew_deadline`` after the last renewal that came through was *sent*.
2. Fences increase from term to term, as the lock's do.
3. A term is given back only when the work under it has stopped. Work that does not stop is not
   waited for without end: from then on the lease runs out by itself.
4. ``started`` and ``stopped`` come in pairs, and nothing that work or a callback raises leaves
   anybody leading: what is raised is kept until the term is given back.
5. After a crash somebody leads within the dead leader's ttl, as it is stored with the lease, and one
   ``retry``: each candidate tries by itself at least every ``retry``, and when that lease would end.
6. A word on the channel is a hint, and nothing rests on its arrival.

Where it ends: as for any lease, between ``term.check()`` and the act that it allows lies time, and a
process may be paused there. Give the resource ``term.fence``; only a gate can refuse what comes late.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

from fencepost._core.observe import log
from fencepost._core.port import Port
from fencepost._core.script import Call
from fencepost.election.leader import Leader
from fencepost.errors import (
    ClientClosed,
    Denied,
    FenceRefused,
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from fencepost.lock.options import MAX_FENCE
from fencepost.lock.protocol import RETRY, Bell

_SOON: Final = 0.001
_APART: Final = 0.005
PASSING: Final = (Unavailable, OutcomeUnknown, Overloaded)
"""Errors that a candidate or an observer outlasts, but for those of ``for_good``."""


class Reign(Protocol):
    """A term, as the protocol sees it."""

    @property
    def lost(self) -> bool:
        """Whether it ended before it was given back."""


class Seat(Protocol):
    """A candidate: what the faces do differently."""

    told: int
    """The fence of whom ``new_leader`` was told last."""

    @property
    def stopping(self) -> bool:
        """Whether it shall stand no more."""

    async def take(self, floor: int) -> Reign:
        """Try once.

        Raises:
            LockTimeout: Somebody else leads.
        """

    async def look(self) -> Leader | None:
        """Who leads."""

    async def tell(self, leader: Leader) -> None:
        """Call ``new_leader``."""

    async def reign(self, term: Any) -> BaseException | None:
        """Begin, work, stop; raises nothing, but returns what was raised."""

    async def resign(self, term: Any) -> None:
        """Give the term back."""


def for_good(error: Exception) -> bool:
    """Whether no later try helps."""
    return isinstance(error, ClientClosed | Denied)


def pause(remaining: float, retry: float, chance: float) -> float:
    """Seconds until who does not lead looks again: never beyond the *leader's* lease, nor one retry."""
    return max(min(max(remaining, 0.0) + _SOON + chance * _APART, retry), _SOON)


async def campaign(
    io: Port, seat: Seat, bell: Bell, retry: float, until: float = math.inf, floor: int = 0
) -> Any:
    """Try until it leads.

    Args:
        io: The port.
        seat: Whose.
        bell: Hears of the end of a term, and when the candidate shall stop.
        retry: Seconds between two tries at most.
        until: When to give up.
        floor: The fence is at least this.

    Returns:
        The term; None if it was told to stop.

    Raises:
        LockTimeout: Somebody else led until then.
        Unavailable: The server could not be reached until then, or never will be.
        OutcomeUnknown: Replies were lost until then; nothing is left behind.
    """
    listening, failures = False, 0
    try:
        while not seat.stopping:
            try:
                return await seat.take(floor)
            except LockTimeout as held:
                failures = 0
                again = pause(held.remaining, retry, io.chance())
                if io.now() >= until:
                    raise
                if held.fence not in (0, seat.told):
                    await introduce(seat)
            except PASSING as error:
                if for_good(error) or io.now() >= until:
                    raise
                failures += 1
                again = min(RETRY.delay(failures, io.chance()), retry)
            if not listening:
                # Listen, then try again: a term that ends between the two would never be heard of.
                listening = True
                await io.call(bell.listen)
                continue
            await io.call(bell.hear, min(again, max(until - io.now(), _SOON)))
    finally:
        if listening:
            bell.close()
    return None


async def introduce(seat: Seat) -> None:
    """Tell a candidate who leads, if that can be learned now."""
    try:
        leader = await seat.look()
    except PASSING as error:
        if for_good(error):
            raise
        return
    if leader is not None and leader.fence != seat.told:
        seat.told = leader.fence
        await seat.tell(leader)


async def announce(io: Any, word: Call[Any], servers: int) -> None:
    """Tell those who listen to look: at the server, or at each of a quorum.

    Raises:
        FencepostError: The server did not answer; whoever listens looks by itself.
    """
    if servers == 1:
        await io.run(word)
        return
    most = servers // 2 + 1
    await io.each([word] * servers, lambda answers: sum(one is not None for one in answers) >= most)


async def run(io: Port, seat: Seat, bell: Bell, retry: float) -> None:
    """Campaign for ever: lead, stop, resign, and stand again.

    Returns:
        When it was told to stop.

    Raises:
        BaseException: What work or a callback raised; nobody leads by it any more.
    """
    floor = 0
    while True:
        term = await campaign(io, seat, bell, retry, floor=floor)
        if term is None:
            return
        error = await seat.reign(term)
        lost = term.lost
        # Only now that the work has stopped may somebody else be let in.
        await seat.resign(term)
        if isinstance(error, FenceRefused):
            # A server that lost its data, and whose clock is behind, draws fences that were drawn before.
            floor = min(max(floor, error.fence + 1), MAX_FENCE)
            log.warning("a gate has seen a newer leader, so the term is over: %s", error)
        elif error is not None and not (lost and isinstance(error, LeaseLost)):
            raise error
        if not seat.stopping and not lost:
            # Who steps down lets others go first.
            await io.call(bell.hear, retry)


async def next_leader(
    io: Port, seat: Seat, bell: Bell, retry: float, known: Leader | None, first: bool
) -> Leader | None:
    """Wait until somebody leads, or nobody, that was not known.

    Args:
        io: The port.
        seat: Looks.
        bell: Listens already: what is said between two looks is heard.
        retry: Seconds between two looks at most.
        known: Who led when it was last looked.
        first: It was never looked.
    """
    while True:
        try:
            found = await seat.look()
        except PASSING as error:
            if for_good(error):
                raise
            again = retry
        else:
            if first or fence_of(found) != fence_of(known):
                return found
            again = pause(retry if found is None else found.remaining, retry, io.chance())
        await io.call(bell.hear, again)


def fence_of(leader: Leader | None) -> tuple[int, str]:
    """What tells two terms apart."""
    return (0, "") if leader is None else (leader.fence, leader.identity)
