"""A circuit breaker: a server that does not answer is not asked by every caller, each for its budget.

After some failures in a row it opens: callers are told at once. Now and then one of them is let
through to probe; when the server answers, everybody asks it again.
"""

from __future__ import annotations

import threading
from typing import Final

from fencepost._core.backoff import Backoff

_PROBES: Final = Backoff(0.2, 5.0)
FAILURES: Final = 3


class Breaker:
    """Counts failures in a row; thread-safe.

    Args:
        failures: So many open it.
    """

    def __init__(self, failures: int = FAILURES) -> None:
        self._most = failures
        self._lock = threading.Lock()
        self.failures = 0
        self._probe_at = 0.0

    @property
    def open(self) -> bool:
        """Whether callers are told at once."""
        return self.failures >= self._most

    def admits(self, now: float) -> bool:
        """Whether a call may go to the server; a probe is one that may while it is open."""
        if self.failures < self._most:
            return True
        with self._lock:
            if self.failures >= self._most:
                if now < self._probe_at:
                    return False
                self.failures += 1
                self._probe_at = now + _PROBES.delay(self.failures - self._most, 0.5)
        return True

    def failed(self, now: float, chance: float) -> bool:
        """A call could not reach the server; whether it opened the breaker."""
        with self._lock:
            if self.failures >= self._most:
                return False  # a caller from before, or a probe
            self.failures += 1
            self._probe_at = now + _PROBES.delay(0, chance)
            return self.failures == self._most

    def answered(self) -> bool:
        """The server answered; whether that closed the breaker."""
        with self._lock:
            was_open, self.failures = self.open, 0
        return was_open
