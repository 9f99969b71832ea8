"""An entry: what is stored of it, and what a caller sees of it.

Stored is one string: a prefix of ASCII at fixed places, which scripts read, then a small msgpack
header, then the value as the codec packed it.

    0  F1                 format
    2  token              of the lease that published it: which entry this is (22)
    24 revision           of the source: 19 digits, or 19 dashes for none
    43 fresh_until        milliseconds of the server's clock: 13 digits
    56 length             of the header: 4 hex digits
    60 header             [key, created_ms, cost_ms, stale_ms, negative, format, stamps]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from fencepost._core.codec import Codec, Undecodable
from fencepost.errors import FencepostError, Refused

T = TypeVar("T")
Status = Literal["hit", "stale", "loaded", "waited", "negative", "reread", "loaded_unpublished"]

TOKEN_CHARS: Final = 22
UNSAVED: Final = 9_999_999_999_999
"""The ``fresh_until`` of a value that the source does not have yet: nothing else is as right as it."""
NO_REVISION: Final = "-" * 19
MAX_REVISION: Final = 10**19 - 1
BIG: Final = 64 * 1024
HEAD_BYTES: Final = 100
"""So many first bytes tell one unreadable value from another."""


class Missing(FencepostError, LookupError):
    """Raised by a loader: the source has no such thing. It is remembered for ``negative_ttl``."""


class NotModified:
    """Returned by a conditional loader: what it was shown is still what the source has."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """Returned by a loader that has more to say than the value.

    Args:
        value: The value; None is a negative.
        revision: The source's own version of it, a whole number that only grows: an older one never
            replaces a newer, whoever owns the lease.
        ttl: Seconds that this entry is fresh.
        stale: Seconds beyond that it may be served.
        tags: What it depends on, beside the tags that the caller gave.
    """

    value: T | None
    revision: int | None = None
    ttl: float | None = None
    stale: float | None = None
    tags: Iterable[str] = ()


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A value with its story.

    Args:
        key: Its key.
        value: None if the source has none (``negative``).
        status: ``hit``; ``stale`` (served while it is refreshed, or since that failed); ``loaded``
            by this call's flight; ``waited`` (somebody else loaded it meanwhile); ``negative``;
            ``reread`` (our load was refused, this is what is there instead);
            ``loaded_unpublished`` (the server could not be reached).
        read_began: When the read of the source began, in seconds of the server's clock.
        fresh_until: Likewise; 0 if it was invalidated softly or is not stored.
        revision: The source's own version, if its loader gives one.
        published: Whether the cache holds it: False for an answer that is this caller's alone.
        reason: Why not, one word.
        tags: What it depends on.
        token: Which entry it is.
        as_of: When it was known to be right, by the clock of this process.
    """

    key: str
    value: T | None
    status: Status
    read_began: float = 0.0
    fresh_until: float = 0.0
    revision: int | None = None
    published: bool = True
    reason: str = ""
    tags: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    as_of: float = field(default=0.0, repr=False, compare=False)


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The part of a stored entry that only readers need."""

    key: str
    created_ms: int
    cost_ms: int
    stale_ms: int
    negative: bool
    format: str
    stamps: dict[str, str]


_read_header: Final = msgspec.msgpack.Decoder(Header).decode
_write_header: Final = msgspec.msgpack.Encoder().encode


class _Lengths(dict[bytes, int]):
    """Lengths by their hex digits: looked up, since reading hex costs more than a short header."""

    def __missing__(self, digits: bytes) -> int:
        length = int(digits, 16)
        if len(digits) == 4 and len(self) < 4096:
            self[digits] = length
        return length


_lengths: Final = _Lengths()


class Unreadable(Exception):
    """What is stored is no entry of this key: ``corrupt``, ``foreign`` or ``oversized``."""


@dataclass(slots=True, eq=False)
class Stored(Generic[T]):
    """An entry as it was read. Made by ``decode``."""

    raw: bytes
    fresh_until: int
    header: Header
    value: T | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    @property
    def token(self) -> str:
        """Which entry this is."""
        return self.raw[2:24].decode()

    @property
    def revision(self) -> int | None:
        """The source's version."""
        digits = self.raw[24:43]
        return int(digits) if digits.isdigit() else None

    def shown(self, status: Status, as_of: float = 0.0) -> Entry[T]:
        """It as a caller sees it."""
        header = self.header
        return Entry(
            header.key,
            self.value,
            "negative" if header.negative else status,
            header.created_ms / 1000,
            self.fresh_until / 1000,
            self.revision,
            tags=tuple(header.stamps),
            token=self.token,
            as_of=as_of,
        )


def decode(raw: bytes, key: str, codec: Codec[T]) -> Stored[T]:
    """Read a stored entry.

    Raises:
        Unreadable: It is none of ours, or of another key, or its value can't be decoded.
    """
    if raw[:2] != b"F1":
        raise Unreadable("foreign")
    if len(raw) > codec.max_bytes + 70_000:
        raise Unreadable("oversized")
    if not raw[2:56].isascii():  # read as text, later
        raise Unreadable("corrupt")
    try:
        fresh_until = int(raw[43:56])
        end = 60 + _lengths[raw[56:60]]
        header = _read_header(raw[60:end])
    except (ValueError, msgspec.MsgspecError) as error:
        raise Unreadable("corrupt") from error
    if header.key != key:
        raise Unreadable("foreign")
    if header.negative:
        return Stored(raw, fresh_until, header, None)
    try:
        if header.format == codec.plain:
            return Stored(raw, fresh_until, header, codec.decode_plain(raw[end:]))
        return Stored(raw, fresh_until, header, codec.decode(header.format, raw[end:]))
    except (Undecodable, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Unreadable("corrupt") from error


_UNSEEN: Final = (b"?", 0, 0.0)  # no entry begins so


class Known(Generic[T]):
    """What a process knows of an entry that it read: enough to see that it is still the same one.

    Prefix and header are the same bytes as long as the entry is the same, so they need not be read
    again: a hit compares them, looks at the clock, and decodes the value.

    Args:
        call: Its GET.
    """

    __slots__ = ("big", "call", "seen")

    def __init__(self, call: Any) -> None:
        self.call = call
        self.big = False  # its reply would hold up others on a connection that they share
        # The head, its length, and until when (of the server's clock) the entry is fresh and not
        # even early; replaced as one, since threads read it.
        self.seen: tuple[bytes, int, float] = _UNSEEN

    def learn(self, stored: Stored[T], codec: Codec[T], early: float) -> None:
        """Remember an entry, if nothing but its age has to be judged.

        Args:
            stored: The entry.
            codec: How its value is packed.
            early: So many times the cost of a load before its end somebody may refresh it.
        """
        header = stored.header
        self.big = len(stored.raw) > BIG
        if header.stamps or header.negative or header.format != codec.plain:
            self.seen = _UNSEEN
            return
        end = 60 + _lengths[stored.raw[56:60]]
        self.seen = (stored.raw[:end], end, stored.fresh_until - header.cost_ms * early)


def encode(token: str, revision: str, fresh_until: int, header: Header, packed: bytes) -> bytes:
    """Write an entry.

    Raises:
        Refused: Key and tags are too long together.
    """
    head = _write_header(header)
    if len(head) > 0xFFFF:
        raise Refused(f"the key and the tags of an entry take {len(head)} bytes; at most 65,535")
    return f"F1{token}{revision}{fresh_until:013d}{len(head):04x}".encode() + head + packed


def revision_text(revision: Any) -> str:
    """A revision as scripts compare it.

    Raises:
        Refused: It is no whole number from 0 on.
    """
    if revision is None:
        return NO_REVISION
    if type(revision) is not int or not 0 <= revision <= MAX_REVISION:
        raise Refused(f"a revision is a whole number, 0 to 10^19 - 1, got {revision!r}")
    return f"{revision:019d}"
