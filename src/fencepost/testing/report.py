"""What an exploration says: which search it was, how far it went, and what it found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fencepost.testing.world import View


class Found(AssertionError):
    """An exploration found a schedule in which something is wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and how to see it again.

    Args:
        message: What is wrong.
        schedule: The shortest schedule known that leads there; ``replay(scenario, schedule)``.
        view: The state that it leads to.
    """

    message: str
    schedule: str
    view: View

    def __str__(self) -> str:
        results = "".join(f"\n  {name}: {result!r}" for name, result in self.view.results.items())
        return f"{self.message}\n  schedule: {self.schedule or '(the first state)'}{results}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How far an exploration went.

    Args:
        search: ``graph``, ``graph, then walks``, or ``re-execution``.
        states: Different states of everything that were judged (0 for re-execution).
        transitions: Steps taken between them.
        schedules: Whole runs (re-execution, walks).
        asked: Calls that a real server was asked.
        bounded_by: What ended the search before it was exhausted, or restricts it; '' if all was seen.
        seconds: How long it took.
        finding: What was found, or None.
        endings: For comparisons, if asked for: every ending, as (server's words, results).
    """

    search: str
    states: int = 0
    transitions: int = 0
    schedules: int = 0
    asked: int = 0
    bounded_by: str = ""
    seconds: float = 0.0
    finding: Finding | None = None
    endings: frozenset[Any] = frozenset()

    @property
    def complete(self) -> bool:
        """Whether every order was covered, with nothing left out."""
        return not self.bounded_by

    @property
    def rate(self) -> float:
        """Transitions (or schedules, for re-execution) a second."""
        return (self.transitions or self.schedules) / max(self.seconds, 1e-9)

    def check(self) -> Report:
        """Return itself if nothing is wrong.

        Raises:
            Found: With the schedule to replay.
        """
        if self.finding is not None:
            raise Found(f"{self.finding}\n  {self}")
        return self

    def __str__(self) -> str:
        what = f"{self.states:,} states, {self.transitions:,} transitions" if self.states else ""
        runs = f"{self.schedules:,} schedules" if self.schedules else ""
        size = ", ".join(part for part in (what, runs) if part) or "nothing"
        how = "stopped at a finding" if self.finding else self.bounded_by or "exhausted"
        return f"{self.search}: {size}; {how}; {self.asked:,} calls of the server, {self.seconds:.1f} s"
