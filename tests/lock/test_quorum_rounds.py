"""What the answers of several servers come to: when a round is won, for how long, and what is asked next."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost._core.port import run_sync
from fencepost.errors import LockTimeout, OutcomeUnknown, Refused, Unavailable
from fencepost.lock.protocol import STAY, Ask, Grant, drift
from fencepost.lock.quorum import protocol
from fencepost.lock.quorum.guarded import place_of
from fencepost.lock.quorum.scripts import (
    Agreed,
    Denial,
    Joined,
    Kept,
    Newborn,
    Open,
    Vote,
)
from fencepost.lock.quorum.tally import decided, pause, prolonged
from fencepost.lock.scripts import Held, Lost, Released, Renewed
from support.lock import Deaf

SILENT = Unavailable("silent")
MAYBE = OutcomeUnknown("maybe")


class Answering:
    """Servers that say what a test chose, each round some seconds later."""

    def __init__(self, *rounds: tuple[list[Any], float]) -> None:
        self.at, self.rounds, self.last = 1000.0, list(rounds), ()
        self.asked: list[list[str]] = []

    async def each(self, calls: Any, enough: Any, late: Any = None) -> list[Any]:
        self.asked.append(["" if call is None else call.verb for call in calls])
        answers, takes = self.rounds.pop(0)
        self.at += takes
        return answers

    async def call(self, fn: Any, *args: Any) -> Any:
        return fn(*args)

    def now(self) -> float:
        return self.at

    def server_ms(self) -> float:
        return 0.0

    def token(self) -> str:
        return "another"

    def chance(self) -> float:
        return 0.5


def votes(*fences: int) -> list[Any]:
    return [Vote(fence, f"s{n}") for n, fence in enumerate(fences)]


def acquire(io: Any, servers: int = 3, **more: Any) -> Grant:
    place: Any = place_of("t", "x", servers, 30.0)
    ask = Ask("a", "me", **{"ttl": 10.0, "wait": 0.0, **more})
    return run_sync(protocol.acquire(io, place, ask, Deaf(), place.new_tried()))


def test_validity_of_a_round_counts_from_before_its_first_request() -> None:
    """Neither the votes nor the writing back lengthen the lease; drift is taken off."""
    io = Answering((votes(5, 7, 6), 2.0), ([None, None, Agreed()], 3.0))
    assert acquire(io) == Grant(7, 1000.0, 1010.0 - drift(10.0), "a")
    assert io.asked == [["vote"] * 3, ["agree", "", "agree"]]
    assert io.at == 1005.0


def test_a_fence_that_a_majority_knows_needs_no_second_round() -> None:
    io = Answering((votes(7, 7, 6), 0.0))
    assert acquire(io).fence == 7
    assert io.asked == [["vote"] * 3]


def test_what_took_too_long_is_given_back_and_never_handed_out() -> None:
    io = Answering((votes(7, 7, 7), 20.0), ([Released()] * 3, 0.0))
    with pytest.raises(LockTimeout, match="raise ttl"):
        acquire(io)
    assert io.asked[-1] == ["release"] * 3


def test_a_fence_that_too_few_wrote_down_is_never_handed_out() -> None:
    io = Answering((votes(5, 6, 7), 0.0), ([Lost(), SILENT, None], 0.0), ([Released()] * 3, 0.0))
    with pytest.raises(LockTimeout):
        acquire(io)


def test_two_servers_that_are_one_are_found_out_by_their_votes() -> None:
    io = Answering(([Vote(7, "same"), Vote(7, "same"), None], 0.0))
    with pytest.raises(Refused, match="addresses 1 and 2"):
        acquire(io)


def test_a_newborn_is_told_the_greatest_fence_of_a_majority_of_the_others() -> None:
    """Of five: three of the four others; fewer are not enough while they could answer."""
    young = Newborn(0, 0, 9, "s0")
    others = [Open(fence, f"s{n}") for n, fence in enumerate((11, 14, 12), 1)]
    place: Any = place_of("t", "x", 5, 30.0)
    io = Answering(
        ([young, *others, SILENT], 0.0), ([None] * 5, 0.0), ([Open(14, "s0"), *[None] * 4], 0.0)
    )
    assert run_sync(protocol.admit(io, place, [young] + [None] * 4)) == 1
    assert io.asked == [["births"] * 5, ["config", "", "", "", ""], ["admit", "", "", "", ""]]
    io = Answering(([young, *others[:2], SILENT, SILENT], 0.0))
    assert run_sync(protocol.admit(io, place, [young] + [None] * 4)) == 0


@pytest.mark.parametrize(
    ("answers", "over"),
    [
        ([None] * 5, False),
        ([*votes(1, 2), None, None, None], False),
        ([*votes(1, 2, 3), None, None], True),
        ([SILENT, SILENT, None, None, None], False),
        ([SILENT, SILENT, MAYBE, None, None], True),
    ],
)
def test_a_round_is_over_when_it_is_won_or_lost(answers: list[Any], over: bool) -> None:
    assert decided(answers, 3) is over


def kept(servers: int) -> list[Any]:
    return [Kept(f"s{n}") for n in range(servers)]


@pytest.mark.parametrize(
    ("answers", "became"),
    [
        (kept(5), Renewed()),
        ([*kept(3), SILENT, Lost()], Renewed(sure=False)),
        ([*kept(3), Joined(), Lost()], Renewed(sure=False)),
        ([*kept(2), Joined(), Joined(), Joined()], Lost),
        ([*kept(2), Lost(), Newborn(9, 0, 0, "s"), Lost()], Lost),
        ([*kept(2), SILENT, None, Lost()], Unavailable),
        ([*kept(2), *kept(1), Lost(), Lost()], Lost),  # two of the addresses lead to one server
    ],
)
def test_a_renewal_counts_who_still_had_the_vote(answers: list[Any], became: Any) -> None:
    found = prolonged(answers, 3)
    assert found == became if isinstance(became, Renewed) else isinstance(found, became)


def denied(left_ms: int, owner: str = "b") -> Denial:
    return Denial(Held(left_ms, owner, 7, 0), owner)


def test_a_waiter_looks_again_when_a_majority_may_be_free() -> None:
    held = [denied(200), denied(300), denied(5000)]
    assert 0.3 <= pause(2, held, 1, 60.0, 0.5) < 0.4  # the second of them decides
    assert pause(2, held, 1, 0.1, 0.5) == pytest.approx(0.1)
    assert pause(2, [denied(60_000)] * 3, 1, 60.0, 0.5) == STAY / 3
    split = [denied(60_000), denied(60_000, "c"), Vote(1, "s")]
    assert 0 < pause(2, split, 1, 60.0, 0.5) < 0.1
    assert 0 < pause(2, [SILENT, SILENT, denied(1)], 1, 60.0, 0.5) < 1.0
