"""What an exploration says: which search it was, how far it went, and what it found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fencepost.testing.world import View


class Found(AssertionError):
    """An exploration found a schedule in which something is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an exploration is; ``explore(…, progress=…)`` is told a few times a second.

    Args:
        search: Which search it is; see ``Report``.
        states: Different states met so far.
        transitions: Steps taken so far.
        schedules: Whole runs so far.
        frontier: States that were met and not looked at yet (graph), or choices on the current
            schedule that have something untried (re-execution). The search ends when none is left.
        bound: The limit of states, schedules or walks.
        seconds: Since its beginning.
    """

    search: str
    states: int = 0
    transitions: int = 0
    schedules: int = 0
    frontier: int = 0
    bound: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Transitions (or schedules, where whole runs are counted) a second."""
        return (self.schedules or self.transitions) / max(self.seconds, 1e-9)

    @property
    def share(self) -> float:
        """How much of its bound is used up, 0 to 1."""
        return min(1.0, (self.schedules or self.states) / self.bound) if self.bound else 0.0

    def __str__(self) -> str:
        what = f"{self.schedules:,} schedules" if self.schedules else f"{self.states:,} states"
        unit = "schedules" if self.schedules else "transitions"
        ahead = f", {self.frontier:,} ahead" if self.frontier else ""
        return f"{what}{ahead}, {self.share:.0%} of the bound, {self.rate:,.0f} {unit}/s"


Told = Callable[[Progress], None]
_EVERY = 0.2  # seconds between two words of progress


class Telling:
    """Tells somebody of the progress of a search, from time to time.

    Args:
        told: Who is told; None: nobody.
        search: Which search it is.
        bound: Its limit.
    """

    def __init__(self, told: Told | None, search: str, bound: int) -> None:
        self._told, self._search, self._bound = told, search, bound
        self.started = self._last = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def due(self, last: bool = False) -> bool:
        """Whether to say something: it was not said just now, or it is the last word."""
        return self._told is not None and (last or time.perf_counter() - self._last >= _EVERY)

    def tell(self, **sizes: int) -> None:
        """Say how far it is, in the words of ``Progress``."""
        self._last = time.perf_counter()
        progress = Progress(search=self._search, bound=self._bound, seconds=self.seconds, **sizes)
        if self._told is not None:
            self._told(progress)


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
