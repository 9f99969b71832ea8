"""Exponential back-off with full jitter (Marc Brooker, "Exponential Backoff And Jitter", 2015)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before try ``n``.

    Args:
        base: Seconds, the ceiling of the first wait.
        cap: Seconds, the ceiling of every wait.
    """

    base: float = 0.05
    cap: float = 2.0

    def delay(self, tries: int, chance: float) -> float:
        """Seconds to wait after ``tries`` failures; ``chance`` is a number in [0, 1)."""
        ceiling = min(self.cap, self.base * 2.0 ** min(tries, 30))
        return ceiling * (0.5 + chance / 2)
