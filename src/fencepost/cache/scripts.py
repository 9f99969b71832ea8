"""The scripts of the cache: what each answers, as values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from fencepost._core.script import Script, load_script
from fencepost.journal import scripts as journal
from fencepost.journal.scripts import Claimed, Closed, Due, Opened, Other, Seen


@dataclass(frozen=True, slots=True)
class Won:
    """The right to refresh is ours."""


@dataclass(frozen=True, slots=True)
class Value:
    """There is another entry than was seen."""

    entry: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else (``owner``, a token) is loading, for ``left_ms`` without a sign of life."""

    left_ms: int
    owner: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease was prolonged."""


@dataclass(frozen=True, slots=True)
class Released:
    """The lease was given back."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is not ours any more; ``renew`` says why."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """Written; everybody reads it now."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not written: ``invalidated``, ``expired`` (alone), ``successor`` or ``writing``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Older:
    """Not written: the source has been seen at a newer revision."""

    revision: str


@dataclass(frozen=True, slots=True)
class Invalidated:
    """Forgotten, and every load that was under way is refused."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A write is announced: ``alone`` or ``shared`` with others."""

    state: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Written by several at once: nobody's value is published."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """What could not be read is gone."""


@dataclass(frozen=True, slots=True)
class Put:
    """Written, and in the journal, as ``version``: ``epoch.seq``."""

    version: str


@dataclass(frozen=True, slots=True)
class Acked:
    """What was saved has left the journal; ``left`` is 1 if a newer value came meanwhile."""

    left: int


@dataclass(frozen=True, slots=True)
class Deferred:
    """It could not be saved by itself, so many times by now."""

    tries: int


@dataclass(frozen=True, slots=True)
class Aside:
    """It is kept beside the journal."""


@dataclass(frozen=True, slots=True)
class Full:
    """As many as may be are kept beside the journal."""


@dataclass(frozen=True, slots=True)
class Touched:
    """The entry lives anew."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Something else is there than was seen, or nothing; it was left as it is."""


_ANSWERS: Final[dict[bytes, Any]] = {
    kind.__name__.upper().encode(): kind
    for kind in (
        *(Won, Value, Wait, Renewed, Released, Lost, Published, Rejected, Older),
        *(Invalidated, Begun, Forgotten, Discarded, Touched, Changed),
        *(Put, Acked, Deferred, Aside, Full, Closed),
    )
}


def _answer(reply: list[Any]) -> Any:
    kind = _ANSWERS[reply[0]]
    words = reply[1 : 1 + len(fields(kind))]
    if kind is Value:
        return Value(*words)
    return kind(*(word.decode() if isinstance(word, bytes) else word for word in words))


def _load(verb: str) -> Script[Any]:
    return load_script(__package__, verb, _answer, journal.PACKAGE)


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts of a cache; tests put others in their place to see a guard matter."""

    claim: Script[Won | Value | Wait]
    renew: Script[Renewed | Lost]
    release: Script[Released | Lost]
    publish: Script[Published | Rejected | Older]
    invalidate: Script[Invalidated]
    set: Script[Published | Older]
    touch: Script[Touched | Changed]
    discard: Script[Discarded | Changed]
    stamp: Script[str]
    write_begin: Script[Begun]
    write_end: Script[Published | Forgotten]


SCRIPTS: Final = Scripts(
    **{verb: _load(verb) for verb in Scripts.__dataclass_fields__ if verb != "stamp"},
    stamp=load_script(__package__, "stamp", lambda reply: reply.decode()),
)


@dataclass(frozen=True, slots=True)
class BehindScripts:
    """The scripts of a journal of writes; tests put others in their place to see a guard matter."""

    look: Script[Seen]
    open: Script[Opened | Other]
    due: Script[Due]
    claim: Script[Closed | Claimed]
    put: Script[Closed | Put]
    ack: Script[Closed | Acked]
    defer: Script[Closed | Deferred | Changed]
    set_aside: Script[Closed | Aside | Full | Changed]


BEHIND: Final = BehindScripts(
    look=journal.LOOK,
    open=journal.OPEN,
    due=journal.DUE,
    claim=load_script(journal.PACKAGE, "claim", journal.claim_reader(bytes)),
    **{verb: _load(verb) for verb in ("put", "ack", "defer", "set_aside")},
)
