"""How an election behaves; checked at birth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fencepost.election.leader import write_card
from fencepost.errors import Refused
from fencepost.lock.options import MAX_TTL, MIN_TTL
from fencepost.lock.protocol import drift


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionOptions:
    """Options of an election; keyword-only and frozen.

    Args:
        ttl: Seconds that the leader's lease lasts without a sign of life, 0.1 to a day: how long
            nobody leads after a leader has died. It is stored with the lease, so candidates and
            observers with another ttl go by the leader's.
        renew_deadline: Seconds without a successful renewal after which a leader steps down. What
            lies between this and ``ttl`` is the time that its work has to stop.
        retry: Seconds between two renewals at most, and between two looks of those who do not lead.
        drain: Seconds that work may go on to end by itself once it is told to stop.
        identity: What a candidate calls itself, for people; None is ``host:pid``.
        metadata: What else others shall know of it: an address, a version; text by name.

    Raises:
        Refused: A value that can't work, and what to do.
    """

    ttl: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0
    drain: float = 5.0
    identity: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("ttl", "renew_deadline", "retry", "drain"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise Refused(f"{name} is in seconds, got {value!r}")
        if not MIN_TTL <= self.ttl <= MAX_TTL:
            raise Refused(f"ttl is {MIN_TTL:g} to {MAX_TTL:g} seconds, got {self.ttl!r}")
        if not self.slack > 0:
            raise Refused(
                f"renew_deadline {self.renew_deadline:g} s is not shorter than what ttl {self.ttl:g} s can be "
                f"trusted for ({self.ttl - drift(self.ttl):g} s): a leader that can't reach the server must "
                "step down before its lease ends; raise ttl, or lower renew_deadline"
            )
        if not 0 < self.retry < self.renew_deadline:
            raise Refused(
                f"retry {self.retry:g} s is not between 0 and renew_deadline {self.renew_deadline:g} s: a "
                "leader must have time for a second try; lower retry"
            )
        if not 0 <= self.drain <= MAX_TTL:
            raise Refused(f"drain is 0 to {MAX_TTL:g} seconds, got {self.drain!r}")
        if not isinstance(self.metadata, Mapping):
            raise Refused(f"metadata is text by name, got {self.metadata!r}")
        write_card("x" if self.identity is None else self.identity, self.ttl, self.metadata)

    @property
    def slack(self) -> float:
        """Seconds between the end of a term that is not renewed, and the end of its lease."""
        return self.ttl - drift(self.ttl) - self.renew_deadline
