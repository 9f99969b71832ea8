"""What the answers of several servers come to."""

from __future__ import annotations

from collections import Counter
from typing import Final

from fencepost._core.backoff import Backoff
from fencepost.errors import (
    ClientClosed,
    ConfigMismatch,
    FencepostError,
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    Overloaded,
    Refused,
    Unavailable,
)
from fencepost.lock.protocol import RETRY, STAY, Ask, Place, timed_out
from fencepost.lock.quorum.place import Answers, Polls
from fencepost.lock.quorum.scripts import Denial, Joined, Kept, Mismatch, Nameless, Newborn, Vote
from fencepost.lock.scripts import Ended, Held, Holder, Lost, Nobody, Renewed

SPLIT: Final = Backoff(0.002, 0.1)
"""Between two rounds in which several have some votes and nobody enough."""
MANY: Final = 6
"""Rounds after which a try comes to nothing no more often than it did."""
_SOON: Final = 0.001
_SILENT: Final = (Unavailable, OutcomeUnknown, Overloaded)


def count(answers: Answers, kind: type) -> int:
    """How many servers answered so."""
    return sum(isinstance(one, kind) for one in answers)


def everybody(answers: Answers) -> bool:
    """Whether each server has answered, or been silent for too long."""
    return None not in answers


def decided(answers: Answers, majority: int) -> bool:
    """Whether a round is won, or can't be."""
    votes = count(answers, Vote)
    return votes >= majority or votes + answers.count(None) < majority


def refuse_twins(answers: Answers) -> None:
    """Refuse two addresses that lead to one server: it would vote twice.

    Raises:
        Refused: There are two.
    """
    seen: dict[str, int] = {}
    for number, answer in enumerate(answers):
        who = getattr(answer, "server", None) if not isinstance(answer, Exception) else None
        if who is not None and seen.setdefault(who, number) != number:
            raise Refused(
                f"the addresses {seen[who] + 1} and {number + 1} of the quorum lead to one server, "
                "which would vote twice; nothing is held. Give independent servers"
            )


def pause(majority: int, answers: Answers, rounds: int, left: float, chance: float) -> float:
    """Seconds until a waiter tries again by itself: never beyond the end of the holder's lease."""
    free: list[float] = []
    for one in answers:
        if isinstance(one, Denial):
            free.append(max(one.held.left_ms, 0) / 1000)
        elif isinstance(one, Newborn):
            free.append(one.left_ms / 1000)
        elif isinstance(one, Vote):
            free.append(0.0)
    if len(free) < majority:
        return min(left, RETRY.delay(rounds, chance))
    soonest = sorted(free)[majority - 1]
    if leader(answers)[1] < majority and count(answers, Newborn) == 0:
        # Several have some votes each: apart, or they meet again.
        return min(left, SPLIT.delay(rounds, chance), soonest + _SOON + 0.1)
    return max(min(left, STAY / 3, soonest + _SOON + 0.005 * chance), _SOON)


def defeat(place: Place, polls: Polls, ask: Ask, answers: Answers) -> FencepostError:
    """Why a lock was not taken."""
    servers, majority = len(answers), polls.majority
    for one in answers:
        if isinstance(one, Mismatch):
            return ConfigMismatch(
                f"the servers were born with max_ttl {one.max_ttl_ms / 1000:g} s, and this quorum "
                f"has {polls.max_ttl:g} s; give it alike everywhere"
            )
        if isinstance(one, Nameless):
            return Refused(
                "a server forbids INFO: it could come back empty and nobody would know. Allow +info"
            )
        if isinstance(one, ClientClosed):
            return one
        if isinstance(one, Ended):
            return LeaseLost(f"this attempt on {place.name!r} was given up before")
        if isinstance(one, Exception) and not isinstance(one, _SILENT):
            return one if isinstance(one, FencepostError) else Unavailable(str(one))
    said = count(answers, Vote) + count(answers, Denial)
    if said >= majority:
        held, has = leader(answers)
        if held is None:
            return LockTimeout(
                f"{place.name!r}: the servers' replies are lost, or take longer than ttl {ask.ttl:g} s; raise ttl"
            )
        if has >= majority or servers == 1:
            return timed_out(place, ask, held)
        return LockTimeout(
            f"{place.name!r}: several try for it, and none of them had a majority of {servers} servers",
            owner=held.owner,
            fence=held.fence,
            remaining=max(held.left_ms, 0) / 1000,
        )
    young = [one for one in answers if isinstance(one, Newborn)]
    if said + len(young) >= majority:
        left = sorted(one.left_ms for one in young)[majority - said - 1] / 1000
        return Unavailable(
            f"{place.name!r} is not held: {len(young)} of {servers} servers came back and may have "
            f"forgotten votes; they give none for {left:.3g} s more"
        )
    errors = [one for one in answers if isinstance(one, Exception)]
    failed = Unavailable(
        f"{place.name!r} is not held: {said} of {servers} servers answered, {majority} are needed"
        + (f": {errors[0]}" if errors else "")
    )
    failed.__cause__ = errors[0] if errors else None
    return failed


def leader(answers: Answers) -> tuple[Held | None, int]:
    """Who has the most votes, and how many."""
    denials = [one.held for one in answers if isinstance(one, Denial)]
    if not denials:
        return None, 0
    [((owner, fence), count)] = Counter((one.owner, one.fence) for one in denials).most_common(1)
    mine = [one for one in denials if (one.owner, one.fence) == (owner, fence)]
    return max(mine, key=lambda one: one.left_ms), count


def ripe(answer: object) -> bool:
    """Whether a newborn has waited long enough."""
    return isinstance(answer, Newborn) and answer.left_ms <= 0


def prolonged(answers: Answers, majority: int) -> Renewed | Lost | FencepostError:
    """What became of a lease, by what each server said."""
    # Two addresses may have come to lead to one server since they voted: it counts once.
    kept = len({one.server for one in answers if isinstance(one, Kept)})
    # What is joined does not count: between the loss of that vote and now others may have had it.
    joined = count(answers, Joined)
    silent = [one for one in answers if one is None or isinstance(one, Exception)]
    if kept >= majority:
        return Renewed(sure=not joined and not silent)
    if kept + len(silent) < majority:
        return Lost(f"{kept} of {len(answers)} servers still know it, {majority} are needed")
    why = next((f": {one}" for one in silent if one is not None), "")
    return Unavailable(
        f"{kept} of {len(answers)} servers prolonged it and {len(silent)} did not answer, "
        f"{majority} are needed{why}"
    )


def holder(answers: Answers, majority: int) -> Holder | None:
    """Who has a majority.

    Raises:
        Unavailable: Too few servers answered.
    """
    told = count(answers, Holder) + count(answers, Nobody)
    if told < majority:
        error = next((f": {one}" for one in answers if isinstance(one, Exception)), "")
        raise Unavailable(
            f"{told} of {len(answers)} servers answered, {majority} are needed{error}"
        )
    held = [one for one in answers if isinstance(one, Holder)]
    for owner, fence in {(one.owner, one.fence) for one in held}:
        votes = [one for one in held if (one.owner, one.fence) == (owner, fence)]
        if len(votes) >= majority:
            left = sorted((one.remaining for one in votes), reverse=True)[majority - 1]
            since, waiters = min(one.since for one in votes), max(one.waiters for one in votes)
            return Holder(owner, fence, since, left, waiters)
    return None
