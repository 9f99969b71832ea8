"""The scripts that every journal shares: what each answers, as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from fencepost._core.script import Script, load_script

PACKAGE: Final = __package__
"""Where snippets stand that scripts of other parts splice in."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The shard is not open at this epoch on this server."""

    epoch: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A shard's opening record (``epoch`` and ``identity`` are '' where there is none), and who answers."""

    epoch: str
    identity: str
    server: str
    policy: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The opening record was written."""


@dataclass(frozen=True, slots=True)
class Other:
    """The opening record is not what was seen."""

    epoch: str


@dataclass(frozen=True, slots=True)
class Due:
    """Items to flush, and milliseconds until the next (-1: none waits)."""

    wait_ms: int
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Journal:
    """What one claim read of an item's journal, by field; ``whole`` if that is all of it."""

    whole: bool
    entries: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch under one fence, an item each in the order asked."""

    fence: int
    at_ms: int
    journals: tuple[Journal, ...]


ANSWERS: Final[dict[str, Any]] = {"CLOSED": Closed, "OPEN": Opened, "OTHER": Other}


def reader(answers: dict[str, Any]) -> Callable[[list[Any]], Any]:
    """Reads replies that begin with a word, as the record of that word."""
    kinds = {word.encode(): (kind, 1 + len(fields(kind))) for word, kind in answers.items()}

    def read(reply: list[Any]) -> Any:
        kind, end = kinds[reply[0]]
        return kind(*[word.decode() if type(word) is bytes else word for word in reply[1:end]])

    return read


_answer: Final = reader(ANSWERS)


def claim_reader(value: Callable[[bytes], Any]) -> Callable[[list[Any]], Closed | Claimed]:
    """Reads what a claim answers; ``value`` reads what stands in a journal's fields."""

    def read(reply: list[Any]) -> Closed | Claimed:
        if reply[0] != b"CLAIMED":
            closed: Closed = _answer(reply)
            return closed
        journals = []
        for whole, *flat in reply[3:]:
            pairs = zip(flat[::2], flat[1::2], strict=True)
            journals.append(
                Journal(
                    bool(whole), tuple(sorted((who.decode(), value(what)) for who, what in pairs))
                )
            )
        return Claimed(reply[1], reply[2], tuple(journals))

    return read


def _due(reply: list[Any]) -> Due:
    return Due(reply[0], tuple(item.decode() for item in reply[1:]))


def _seen(reply: list[Any]) -> Seen:
    return Seen(*(word.decode() for word in reply))


LOOK: Final[Script[Seen]] = load_script(PACKAGE, "look", _seen)
OPEN: Final[Script[Opened | Other]] = load_script(PACKAGE, "open", _answer)
DUE: Final[Script[Due]] = load_script(PACKAGE, "due", _due)
