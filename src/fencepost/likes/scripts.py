"""The scripts of the like cache: what each answers, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fencepost._core.script import Script, load_script
from fencepost.journal import scripts as journal
from fencepost.journal.scripts import Claimed, Closed, Due, Opened, Other, Seen

HEADER_FIELD: Final = "#"
"""The token field of a load of the whole header; every other field is a user."""


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
    **journal.ANSWERS,
    "GONE": Gone,
    "COLD": Cold,
    "SAME": Same,
    "DONE": Done,
    "DIRTY": Dirty,
    "TOKEN": Token,
    "REFUSED": Refused,
    "FILLED": Filled,
    "ACKED": Acked,
    "INVALIDATED": Invalidated,
    "EVICTED": Evicted,
}


def read_version(version: str) -> tuple[bool, tuple[int, int]]:
    """A journal entry ``state:epoch.seq``: liked or not, and its place in the order of changes."""
    epoch, seq = version[2:].split(".")
    return version[0] == "1", (int(epoch), int(seq))


_answer: Final = journal.reader(_ANSWERS)


def _set(reply: list[Any]) -> Any:
    if reply[0] == b"DONE":  # nearly always
        return Done(reply[1], reply[2].decode())
    return _answer(reply)


def _inspected(reply: list[Any]) -> Any:
    if reply[0] != b"INSPECTED":
        return _answer(reply)
    halves = [[word.decode() for word in flat] for flat in reply[2:4]]
    return Inspection(reply[1], *(tuple(zip(h[::2], h[1::2], strict=True)) for h in halves))


_claim: Final = journal.claim_reader(bytes.decode)


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
    return load_script(__package__, verb, parse, journal.PACKAGE)


SCRIPTS: Final = Scripts(
    look=journal.LOOK,
    open=journal.OPEN,
    set=_load("set", _set),
    begin=_load("begin"),
    fill=_load("fill"),
    due=journal.DUE,
    claim=load_script(journal.PACKAGE, "claim", _claim),
    ack=_load("ack"),
    invalidate=_load("invalidate"),
    forget=_load("forget"),
    evict=_load("evict"),
    inspect=_load("inspect", _inspected),
)
