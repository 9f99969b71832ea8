"""The scripts of the like cache: what each answers, as values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from fencepost._core.script import Script, load_script

HEADER_FIELD: Final = "#"
"""The token field of a load of the whole header; every other field is a user."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The shard is not open at this epoch on this server."""

    epoch: str


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no such item."""


@dataclass(frozen=True, slots=True)
class Cold:
    """The count or the user's state is not known here."""


@dataclass(frozen=True, slots=True)
class Same:
    """Nothing to change; ``version`` is '' when nothing of the user waits in the journal."""

    count: int
    version: str


@dataclass(frozen=True, slots=True)
class Done:
    """Changed, and in the journal as ``version``."""

    count: int
    version: str


@dataclass(frozen=True, slots=True)
class Dirty:
    """The header is lost and the journal is not empty: flush first."""


@dataclass(frozen=True, slots=True)
class Token:
    """A load may fill ``field`` while ``token`` stands."""

    token: str
    field: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The token was withdrawn: a flush or an invalidation came between."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Written, where nothing was known; the header has so many ``fields`` now."""

    fields: int


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
    """What one claim read of an item's journal: versions by user; ``whole`` if that is all of it."""

    whole: bool
    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch under one fence, an item each in the order asked."""

    fence: int
    at_ms: int
    journals: tuple[Journal, ...]


@dataclass(frozen=True, slots=True)
class Acked:
    """Removed; ``left`` entries came meanwhile, and the header has so many ``fields`` now."""

    left: int
    fields: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """One item's header and journal at one fence."""

    fence: int
    header: tuple[tuple[str, str], ...]
    journal: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The header is dropped; the journal is kept."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """So many clean states were dropped."""

    count: int


_ANSWERS: Final[dict[str, Any]] = {
    "CLOSED": Closed,
    "GONE": Gone,
    "COLD": Cold,
    "SAME": Same,
    "DONE": Done,
    "DIRTY": Dirty,
    "TOKEN": Token,
    "REFUSED": Refused,
    "FILLED": Filled,
    "OPEN": Opened,
    "OTHER": Other,
    "ACKED": Acked,
    "INVALIDATED": Invalidated,
    "EVICTED": Evicted,
}


def read_version(version: str) -> tuple[bool, tuple[int, int]]:
    """A journal entry ``state:epoch.seq``: liked or not, and its place in the order of changes."""
    state, _, order = version.partition(":")
    epoch, _, seq = order.partition(".")
    return state == "1", (int(epoch), int(seq))


_READERS: Final = {name.encode(): (kind, 1 + len(fields(kind))) for name, kind in _ANSWERS.items()}


def _answer(reply: list[Any]) -> Any:
    kind, end = _READERS[reply[0]]
    return kind(*[word.decode() if type(word) is bytes else word for word in reply[1:end]])


def _claim(reply: list[Any]) -> Any:
    if reply[0] != b"CLAIMED":
        return _answer(reply)
    journals = []
    for whole, *flat in reply[3:]:
        words = [word.decode() for word in flat]
        journals.append(
            Journal(bool(whole), tuple(sorted(zip(words[::2], words[1::2], strict=True))))
        )
    return Claimed(reply[1], reply[2], tuple(journals))


def _inspected(reply: list[Any]) -> Any:
    if reply[0] != b"INSPECTED":
        return _answer(reply)
    halves = [[word.decode() for word in flat] for flat in reply[2:4]]
    return Inspection(reply[1], *(tuple(zip(h[::2], h[1::2], strict=True)) for h in halves))


def _due(reply: list[Any]) -> Due:
    return Due(reply[0], tuple(item.decode() for item in reply[1:]))


def _seen(reply: list[Any]) -> Seen:
    return Seen(*(word.decode() for word in reply))


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts of a like cache; tests put others in their place to see a guard matter."""

    look: Script[Seen]
    open: Script[Opened | Other]
    set: Script[Closed | Gone | Cold | Same | Done]
    begin: Script[Closed | Gone | Dirty | Token]
    fill: Script[Closed | Refused | Dirty | Gone | Filled]
    due: Script[Due]
    claim: Script[Closed | Claimed]
    ack: Script[Closed | Gone | Acked]
    invalidate: Script[Invalidated]
    forget: Script[Closed | Gone]
    evict: Script[Evicted]
    inspect: Script[Closed | Inspection]


def _load(verb: str, parse: Any = _answer) -> Script[Any]:
    return load_script(__package__, verb, parse)


SCRIPTS: Final = Scripts(
    look=_load("look", _seen),
    open=_load("open"),
    set=_load("set"),
    begin=_load("begin"),
    fill=_load("fill"),
    due=_load("due", _due),
    claim=_load("claim", _claim),
    ack=_load("ack"),
    invalidate=_load("invalidate"),
    forget=_load("forget"),
    evict=_load("evict"),
    inspect=_load("inspect", _inspected),
)
