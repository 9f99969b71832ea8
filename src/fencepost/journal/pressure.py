"""Pressure: what a journal does when the source can't keep up, or is away.

Two figures say how much waits: for how long the oldest item does, and how many items do. Below half
of a limit nothing happens. From there the flusher no longer waits for items to be due; from three
quarters callers who change something wait for their commit, which slows them to what the source can take;
at the limit they are refused before anything is sent, so that the journal stays bounded and nothing
that was answered is ever lost.

The figures are read a few times a second and process, beside the calls; the hit path compares one
number. They are of all processes, since they stand on the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from fencepost._core import commands
from fencepost._core.port import Port
from fencepost.errors import Overloaded
from fencepost.journal.protocol import Limits, Shard

LOOK_EVERY: Final = 0.25
"""Seconds between two looks of a process."""
_SHARDS_A_LOOK: Final = 32


class Level(IntEnum):
    """What is done about it."""

    CALM = 0
    EAGER = 1
    JOIN = 2
    REFUSE = 3


@dataclass(slots=True)
class Pressure:
    """What a process last saw.

    Args:
        options: The limits.
        shards: How many shards there are.
        source: The word for what it waits for, in messages.
    """

    options: Limits
    shards: int
    source: str = "SQL"
    level: Level = Level.CALM
    dirty: int = 0
    oldest: float = 0.0
    next_look: float = 0.0
    no_join_before: float = 0.0
    _next_shard: int = 0
    _seen: dict[int, tuple[int, float]] = field(default_factory=dict)  # items, and since when

    def note(self, number: int, items: int, since: float | None) -> None:
        """One shard's figures; ``since`` in seconds of the server's clock."""
        if items and since is not None:
            self._seen[number] = (items, since)
        else:
            self._seen.pop(number, None)

    def judge(self, now: float) -> None:
        """Set the level from what was noted; ``now`` by the server's clock."""
        self.dirty = sum(items for items, _ in self._seen.values())
        self.oldest = max((now - since for _, since in self._seen.values()), default=0.0)
        full = max(self.dirty / self.options.max_dirty, self.oldest / self.options.max_age_dirty)
        self.level = (
            Level.REFUSE
            if full >= 1
            else Level.JOIN
            if full >= 0.75
            else Level.EAGER
            if full >= 0.5
            else Level.CALM
        )

    def refusal(self) -> Overloaded:
        limits = self.options
        return Overloaded(
            f"{self.source} does not keep up: {self.dirty} items wait (max_dirty {limits.max_dirty}), the oldest for "
            f"{self.oldest:.1f} s (max_age_dirty {limits.max_age_dirty:g} s). Nothing was sent, and what was "
            "answered before is safe in the journal",
            retry_after=min(max(self.oldest / 10, 0.5), 30.0),
        )

    def some(self) -> range:
        """The shards to look at next: all of a few, a part of many."""
        begin = self._next_shard if self._next_shard < self.shards else 0
        self._next_shard = begin + _SHARDS_A_LOOK
        return range(begin, min(begin + _SHARDS_A_LOOK, self.shards))


async def look(io: Port, shards: Sequence[Shard], pressure: Pressure) -> None:
    """Read the figures of some shards, and judge anew."""
    pressure.next_look = io.now() + LOOK_EVERY  # before it is awaited: one look at a time
    numbers = pressure.some()
    replies: list[Any] = await io.all(
        [
            commands.read("TIME"),
            *(commands.read("ZCARD", shards[n].keys.due) for n in numbers),
            *(commands.read("ZRANGE", shards[n].keys.since, 0, 0, "WITHSCORES") for n in numbers),
        ]
    )
    seconds, micros = replies[0]
    for place, number in enumerate(numbers):
        first = replies[1 + len(numbers) + place]
        since = float(score_of(first)) / 1000 if first else None
        pressure.note(number, replies[1 + place], since)
    pressure.judge(int(seconds) + int(micros) / 1e6)


def score_of(first: Any) -> Any:
    """The score of a ZRANGE WITHSCORES reply, nested in RESP3 and flat in RESP2."""
    return first[0][1] if isinstance(first[0], list) else first[1]
