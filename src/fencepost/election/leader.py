"""Who leads, and the card that a leader leaves in its lease: who it is, and how long its lease lasts.

The card is the *owner* of the lock that an election rests on, so whoever can read that, on one server
or on a quorum, can tell the leader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost._core.keys import escape
from fencepost.errors import Refused

if TYPE_CHECKING:
    from fencepost.lock.scripts import Holder

LOCK: Final = "election:"
"""What the name of the lock begins with that an election rests on."""
MAX_CARD: Final = 4096
"""Bytes that a card may have: it goes over the wire with every look."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as it was seen.

    Args:
        name: Of the election.
        identity: What the leader calls itself.
        metadata: What else it says of itself.
        fence: Of its term; greater than those of all terms before.
        since: When the term began, in seconds since 1970 by the server's clock.
        ttl: Seconds that its lease lasts without renewal, whatever others have as their ttl; 0 if
            it does not say.
        remaining: Seconds that were left of the lease when this was seen.
    """

    name: str
    identity: str
    metadata: Mapping[str, str]
    fence: int
    since: float
    ttl: float
    remaining: float


def write_card(identity: str, ttl: float, metadata: Mapping[str, str]) -> str:
    """The card of a candidate.

    Raises:
        Refused: The identity or the metadata is no such thing, or too long.
    """
    escape(identity)
    for name, value in metadata.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise Refused(f"metadata is text by name, got {name!r}: {value!r}")
    card = json.dumps(
        {"identity": identity, "ttl": ttl, "metadata": dict(metadata)}, separators=(",", ":")
    )
    if len(card) > MAX_CARD:
        raise Refused(
            f"identity and metadata make {len(card)} bytes, at most {MAX_CARD} are allowed: give "
            "others an address where they can ask for more"
        )
    return card


def read_card(owner: str) -> tuple[str, float, dict[str, str]]:
    """Identity, ttl and metadata; somebody who holds the lock without a card is its owner, no more."""
    try:
        card: Any = json.loads(owner)
        metadata = {str(name): str(value) for name, value in card["metadata"].items()}
        return str(card["identity"]), float(card["ttl"]), metadata
    except (ValueError, TypeError, KeyError, AttributeError):
        return owner, 0.0, {}


def leader_of(name: str, holder: Holder) -> Leader:
    """Who leads, by the holder of the lock."""
    identity, ttl, metadata = read_card(holder.owner)
    return Leader(name, identity, metadata, holder.fence, holder.since, ttl, holder.remaining)
