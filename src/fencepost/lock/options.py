"""How a lock behaves; checked at birth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from fencepost._core.keys import escape
from fencepost.errors import Refused

MIN_TTL: Final = 0.1
MAX_TTL: Final = 86_400.0
MAX_FENCE: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """Options of a lock; keyword-only and frozen.

    Args:
        ttl: Seconds that a lease lasts without a sign of life of its holder, 0.1 to a day. It is
            renewed three times in that time.
        wait: Seconds that a caller waits for the lock; 0 tries once, ``math.inf`` waits for ever.
        max_hold: Seconds after which a lease is renewed no more, so that a holder that hangs does
            not keep the lock for ever; ``math.inf`` renews for ever.
        fair: First come, first served. Otherwise a newcomer may be quicker than who waits, but no
            more than 16 times in a row. Give it alike wherever the lock is used.
        reentrant: Whoever holds the lock through this lock object may enter it again.
        owner: What the holder calls itself, for people; None is ``host:pid``.

    Raises:
        Refused: A value that can't work, and what to do.
    """

    ttl: float = 10.0
    wait: float = 10.0
    max_hold: float = 3600.0
    fair: bool = False
    reentrant: bool = False
    owner: str | None = None

    def __post_init__(self) -> None:
        if not _number(self.ttl) or not MIN_TTL <= self.ttl <= MAX_TTL:
            raise Refused(
                f"ttl is in seconds, {MIN_TTL:g} to {MAX_TTL:g}, got {self.ttl!r}: a lease always ends, "
                "and is renewed while its holder lives"
            )
        check_wait(self.wait)
        if not _number(self.max_hold) or not self.max_hold >= self.ttl:
            raise Refused(f"max_hold is at least ttl {self.ttl:g} s, got {self.max_hold!r}")
        for name in ("fair", "reentrant"):
            if type(getattr(self, name)) is not bool:
                raise Refused(f"{name} is True or False, got {getattr(self, name)!r}")
        if self.owner is not None:
            escape(self.owner)  # refused now, not at the first call


def check_wait(value: object) -> None:
    """Refuse what is no time to wait.

    Raises:
        Refused: It is no number, NaN or negative.
    """
    if not _number(value) or not value >= 0:  # type: ignore[operator]
        raise Refused(f"wait is in seconds, 0 (try once) to math.inf, got {value!r}")


def check_floor(value: object) -> None:
    """Refuse what is no fence.

    Raises:
        Refused: It is no whole number from 0 to 2^53.
    """
    if type(value) is not int or not 0 <= value <= MAX_FENCE:
        raise Refused(f"floor is a whole number from 0 to 2^53, got {value!r}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
