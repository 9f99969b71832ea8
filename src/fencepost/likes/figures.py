"""What a like cache counts in this process: flushes and what they took, loads, refusals, differences.

It listens where its client does, and passes every event on. Nothing here is on the way of a like that
is answered from the cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost._core.observe import ColdLoad, DirtyDrain, Event, Flushed, FlushRefused, Hook

FLUSH_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds in seconds; what took longer is in none of them."""


@dataclass(slots=True)
class Figures:
    """Counters since the process began.

    Args:
        client: The client's hook, to which all events go on.
    """

    client: Hook
    flushes: int = 0
    flush_seconds: float = 0.0
    flush_refused: int = 0
    cold_loads: int = 0
    dirty_drains: int = 0
    differences: int = 0
    _buckets: Counter[float] = field(default_factory=Counter)

    def hook(self) -> Hook:
        """The hook of the shards."""
        return Hook(self._note)

    def _note(self, event: Event) -> None:
        match event:
            case Flushed():
                self.flushes += 1
                self.flush_seconds += event.seconds
                fits = next((most for most in FLUSH_BUCKETS if event.seconds <= most), None)
                if fits is not None:
                    self._buckets[fits] += 1
            case FlushRefused():
                self.flush_refused += 1
            case ColdLoad():
                self.cold_loads += 1
            case DirtyDrain():
                self.dirty_drains += 1
        if self.client.listener is not None:
            self.client.listener(event)

    def told(self) -> dict[str, Any]:
        """For ``stats()``; ``flush_buckets`` holds how many flushes took at most so many seconds."""
        below, buckets = 0, {}
        for most in FLUSH_BUCKETS:
            below += self._buckets[most]
            buckets[most] = below
        return {
            "flushes": self.flushes,
            "flush_seconds": self.flush_seconds,
            "flush_buckets": buckets,
            "flush_refused": self.flush_refused,
            "cold_loads": self.cold_loads,
            "dirty_drains": self.dirty_drains,
            "differences": self.differences,
        }
