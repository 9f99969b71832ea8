"""How a lock behaves; checked at birth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from fencepost._core.keys import escape
from fencepost.errors import Refused

MIN_TTL: Final = 0.1
MAX_TTL: Final = 86_400.0
MAX_FENCE: Final = 2**53
MAX_PERMITS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """What every lease has; keyword-only and frozen. Of a read/write lock these are all.

    Args:
        ttl: Seconds that a lease lasts without a sign of life of its holder, 0.1 to a day. It is
            renewed three times in that time.
        wait: Seconds that a caller waits; 0 tries once, ``math.inf`` waits for ever.
        max_hold: Seconds after which a lease is renewed no more, so that a holder that hangs does
            not keep others out for ever; ``math.inf`` renews for ever.
        owner: What the holder calls itself, for people; None is ``host:pid``.

    Raises:
        Refused: A value that can't work, and what to do.
    """

    ttl: float = 10.0
    wait: float = 10.0
    max_hold: float = 3600.0
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
            if type(getattr(self, name, False)) is not bool:
                raise Refused(f"{name} is True or False, got {getattr(self, name)!r}")
        if self.owner is not None:
            escape(self.owner)  # refused now, not at the first call


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions(LeaseOptions):
    """Options of a lock, beside those of every lease.

    Args:
        fair: First come, first served. Otherwise a newcomer may be quicker than who waits, but no
            more than 16 times in a row. Give it alike wherever the lock is used.
        reentrant: Whoever holds the lock through this lock object may enter it again.
        after_restart: ``trust``: a server that came back, perhaps without its last second, gives the
            lock at once. ``wait``: only after ``max_ttl``, when no lease can stand that it has
            forgotten; and it prolongs none. Give it alike wherever the lock is used.
        max_ttl: With ``wait``: seconds of the longest ttl of any lock on that server, alike everywhere.
    """

    fair: bool = False
    reentrant: bool = False
    after_restart: Literal["trust", "wait"] = "trust"
    max_ttl: float = 30.0

    def __post_init__(self) -> None:
        LeaseOptions.__post_init__(self)
        if self.after_restart not in ("trust", "wait"):
            raise Refused(f"after_restart is 'trust' or 'wait', got {self.after_restart!r}")
        check_max_ttl(self.max_ttl)
        if self.after_restart == "wait" and self.ttl > self.max_ttl:
            raise Refused(
                f"ttl {self.ttl:g} s is longer than max_ttl {self.max_ttl:g} s, for which a server that "
                "came back gives no lock; shorten ttl, or raise max_ttl everywhere"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SemaphoreOptions(LeaseOptions):
    """Options of a semaphore, beside those of every lease.

    Args:
        permits: How much may be out at once, 1 to 100,000. Where processes differ, a grant fits into
            the number of who asks and of everyone who holds.
        fair: As for a lock.
    """

    permits: int
    fair: bool = False

    def __post_init__(self) -> None:
        LeaseOptions.__post_init__(self)
        check_count("permits", self.permits, MAX_PERMITS)


def check_count(what: str, value: object, most: int) -> None:
    """Refuse what is no number of permits.

    Raises:
        Refused: It is no whole number from 1 to ``most``.
    """
    if type(value) is not int or not 1 <= value <= most:
        raise Refused(f"{what} is a whole number from 1 to {most:,}, got {value!r}")


def check_max_ttl(value: object) -> None:
    """Refuse what is no longest lease.

    Raises:
        Refused: It is no number of seconds that a lease can last.
    """
    if not _number(value) or not MIN_TTL <= value <= MAX_TTL:  # type: ignore[operator]
        raise Refused(f"max_ttl is in seconds, {MIN_TTL:g} to {MAX_TTL:g}, got {value!r}")


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


def check_fence(value: object) -> None:
    """Refuse what is no fence of a holder; None is nobody's.

    Raises:
        Refused: It is neither None nor a whole number from 0 to 2^53.
    """
    if value is not None and (type(value) is not int or not 0 <= value <= MAX_FENCE):
        raise Refused(f"fence is a whole number from 0 to 2^53, or None, got {value!r}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
