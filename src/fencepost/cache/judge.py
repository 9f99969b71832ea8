"""Pure decisions: how fresh an entry is, what a loader said, how long an entry lives."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any, Final

from fencepost.cache.entry import Loaded, NotModified, Stored, revision_text
from fencepost.cache.options import seconds
from fencepost.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencepost.cache.options import CacheOptions
    from fencepost.cache.region import Ask

FRESH: Final = "fresh"
EARLY: Final = "early"
STALE: Final = "stale"
GONE: Final = "gone"
_LONGEST_TAG: Final = 1000
_LONGEST_EARLY: Final = 40.0  # -log of the smallest chance that can be drawn


def judge(stored: Stored[Any], now_ms: float, stale: float | None) -> str:
    """How fresh an entry is: ``fresh``, ``stale`` or ``gone``.

    Args:
        stored: The entry.
        now_ms: The server's clock.
        stale: Seconds of staleness that the caller takes; None is the entry's own.
    """
    if stored.fresh_until > now_ms:
        return FRESH
    allowed: float = stored.header.stale_ms
    if stored.fresh_until == 0:  # softly invalidated: how old it may be, its key's life says
        return STALE if allowed > 0 and stale is None else GONE
    if stale is not None:
        allowed = min(allowed, stale * 1000)
    return STALE if now_ms - stored.fresh_until < allowed else GONE


def may_be_early(stored: Stored[Any], now_ms: float, beta: float) -> bool:
    """Whether an early refresh is worth a throw of the dice."""
    return stored.fresh_until - now_ms < stored.header.cost_ms * beta * _LONGEST_EARLY


def is_early(stored: Stored[Any], now_ms: float, beta: float, chance: float) -> bool:
    """XFetch: earlier the longer a load takes, so that on average one reader refreshes in time."""
    return stored.fresh_until - now_ms <= -stored.header.cost_ms * beta * log(1.0 - chance)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a loader said, in one form."""

    value: Any
    revision: int | None = None
    ttl: float | None = None
    stale: float | None = None
    tags: tuple[str, ...] = ()
    unchanged: bool = False


def candidate(answer: Any) -> Candidate:
    """Read a loader's answer.

    Raises:
        Refused: Its revision, times or tags can't be.
    """
    if answer is NotModified or isinstance(answer, NotModified):
        return Candidate(None, unchanged=True)
    if not isinstance(answer, Loaded):
        return Candidate(answer)
    revision_text(answer.revision)
    if answer.ttl is not None:
        seconds("ttl", answer.ttl, least=0.001)
    if answer.stale is not None:
        seconds("stale", answer.stale, least=0)
    return Candidate(
        answer.value, answer.revision, answer.ttl, answer.stale, tag_names(answer.tags)
    )


def tag_names(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags, each once.

    Raises:
        Refused: One is no text, empty or very long.
    """
    if isinstance(tags, str):
        raise Refused(f"tags are a list of texts, got the text {tags!r}")
    names = tuple(dict.fromkeys(tags))
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_TAG:
            raise Refused(f"a tag is a text of 1 to {_LONGEST_TAG} characters, got {name!r}")
    return names


@dataclass(frozen=True, slots=True)
class Life:
    """How long an entry lives, in milliseconds of the server's clock."""

    fresh_until: int
    stale_ms: int
    ttl_ms: int


def life(
    options: CacheOptions, one: Candidate, ask: Ask, began_ms: float, now_ms: float, chance: float
) -> Life:
    """When an entry ends: counted from when its read *began*, so that age is never hidden."""
    if one.value is None and not one.unchanged:
        # Not cached at all: an entry that is gone at once drops the one before it, fenced as ever.
        ttl, stale = options.negative_ttl or 0.0, 0.0
        if one.ttl is not None:
            ttl = min(ttl, one.ttl)
    else:
        ttl = one.ttl or ask.ttl or options.ttl
        stale = options.stale if one.stale is None else one.stale
    ttl *= 1.0 - options.jitter * chance
    fresh_until = int(began_ms + ttl * 1000)
    stale_ms = int(stale * 1000)
    return Life(fresh_until, stale_ms, max(int(fresh_until + stale_ms - now_ms), 1))
