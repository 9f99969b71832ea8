"""Which servers may vote, and an operator's word that they may."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost._core.script import SERVER
from fencepost.errors import FencepostError, Refused
from fencepost.lock.protocol import ms
from fencepost.lock.quorum.place import Fan
from fencepost.lock.quorum.protocol import QuorumPlace, lasting
from fencepost.lock.quorum.scripts import Mismatch, Nameless, Newborn, Open
from fencepost.lock.quorum.tally import everybody, refuse_twins


@dataclass(frozen=True, slots=True)
class Standing:
    """What a server of a quorum says of itself.

    Args:
        votes: Whether it gives votes.
        left: Seconds for which it still gives none; None if it votes, or is not known.
        high: The greatest fence that it knows.
        trouble: Why it does not vote, or did not answer; empty if it votes.
    """

    votes: bool
    left: float | None = None
    high: int = 0
    trouble: str = ""


async def standing(io: Fan, place: QuorumPlace) -> list[Standing]:
    """Ask every server whether it votes.

    Raises:
        Refused: Two of them are one.
    """
    answers = await io.each(place.polls.births(), everybody)
    refuse_twins(answers)
    return [_standing(one) for one in answers]


async def init(io: Fan, place: QuorumPlace, anew: bool) -> list[Standing]:
    """Let every server vote at once. Nobody may hold a lock of this quorum.

    Args:
        io: The port to the servers.
        place: Any lock of it.
        anew: Also where they were born with another ``max_ttl``.

    Raises:
        Refused: Two of them are one. Nothing was changed.
    """
    polls, servers = place.polls, len(place.polls.born)
    if not anew:
        refuse_twins(await io.each(polls.births(), everybody))
    floor, calls = int(io.server_ms() * 1000), []
    for number, born in enumerate(polls.born):
        durable = await lasting(io, number, servers)
        words = (floor, int(durable), int(anew), ms(polls.max_ttl), SERVER)
        calls.append(polls.scripts.init((born,), words))
    answers = await io.each(calls, everybody)
    refuse_twins(answers)
    return [_standing(one) for one in answers]


def _standing(answer: object) -> Standing:
    match answer:
        case Open(high):
            return Standing(True, None, high)
        case Newborn(left_ms, high):
            if left_ms <= 0:
                return Standing(False, 0.0, high, "votes as soon as others tell it the last fence")
            return Standing(False, left_ms / 1000, high, "came back and may have forgotten votes")
        case Mismatch(max_ttl_ms):
            return Standing(False, trouble=f"was born with max_ttl {max_ttl_ms / 1000:g} s")
        case Nameless():
            return Standing(False, trouble="forbids INFO, so that nobody could tell it came back")
        case FencepostError():
            return Standing(False, trouble=str(answer))
    raise Refused(f"a server answered {answer!r}")
