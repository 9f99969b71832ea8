"""What may be true of one user's like of one item, after everything that its user was told.

One client speaks for a user, one request after the other, so a pair's history is a sequence, and
after an answer there is one thing that may be true. A request whose outcome is unknown may be
applied now, later or never: what it wanted *floats*. A calm moment ends that (the fault is over, and
every client has had answers since: what was in a socket then has been read).

Where data was declared lost, nothing is known from the loss to the next calm, and everything after.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

BOTH = frozenset({False, True})
Outcome = Literal["ok", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Op:
    """One request, as its client saw it end.

    Args:
        item: Of which item.
        user: For which user.
        want: What was asked for; None: it was a question.
        outcome: ``ok``, ``refused`` (nothing was changed, says the answer) or ``unknown``.
        liked: What the answer said.
        detail: Status and place, for people.
    """

    item: int
    user: str
    want: bool | None
    outcome: Outcome
    liked: bool | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment between requests: ``calm``, or the beginning of a ``loss``."""

    kind: Literal["calm", "loss"]


@dataclass(slots=True)
class Pair:
    """One user's like of one item."""

    possible: frozenset[bool] = frozenset({False})
    floating: frozenset[bool] = frozenset()
    lost: bool = False

    @property
    def may_be(self) -> frozenset[bool]:
        """What may be true."""
        return BOTH if self.lost else self.possible | self.floating

    def take(self, op: Op) -> str:
        """Go on by one request; what is wrong with its answer, '' if nothing is."""
        if op.outcome == "unknown" and op.want is not None:
            self.floating |= {op.want}
        if op.outcome != "ok":
            return ""
        if op.want is not None:
            self.possible = frozenset({op.want})
            return "" if op.liked == op.want else f"asked for {op.want}, told {op.liked}"
        if op.liked not in self.may_be:
            return f"told {op.liked}, can only be {set(self.may_be)}"
        assert op.liked is not None
        self.possible = frozenset({op.liked})
        return ""

    def mark(self, mark: Mark) -> None:
        """Go on by a moment."""
        if mark.kind == "loss":
            self.lost = True
        else:
            self.possible, self.floating, self.lost = self.may_be, frozenset(), False


@dataclass(slots=True)
class Truth:
    """All pairs, and every answer that can't have been right."""

    pairs: dict[tuple[int, str], Pair] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def follow(history: Iterable[Op | Mark], truth: Truth) -> Truth:
    """Go through one client's history."""
    mine: dict[tuple[int, str], Pair] = {}
    lost = False
    for number, event in enumerate(history):
        if isinstance(event, Mark):
            lost = event.kind == "loss"
            for pair in mine.values():
                pair.mark(event)
            continue
        key = (event.item, event.user)
        pair = mine.setdefault(key, Pair(lost=lost))
        if wrong := pair.take(event):
            truth.wrong.append(
                f"{event.user} of item {event.item}, request {number}: {wrong} ({event.detail})"
            )
    truth.pairs.update(mine)
    return truth
