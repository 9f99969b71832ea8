"""The scripts of a server that votes: what each answers, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fencepost._core.script import Script, load_script
from fencepost.lock import scripts as single
from fencepost.lock.scripts import Ended, Held, Holder, Lost, Nobody, Released, Undone


@dataclass(frozen=True, slots=True)
class Vote:
    """A server's vote is ours.

    Args:
        fence: Greater than each that this server knows.
        server: Who it is.
    """

    fence: int
    server: str


@dataclass(frozen=True, slots=True)
class Denial:
    """Somebody else has this server's vote.

    Args:
        held: Who, and for how long.
        server: Who says so.
    """

    held: Held
    server: str


@dataclass(frozen=True, slots=True)
class Newborn:
    """A server that may have forgotten a vote gives none.

    Args:
        left_ms: For so long.
        high: The greatest fence that it still knows.
        since: When it was born, in its own milliseconds.
        server: Who it is.
    """

    left_ms: int
    high: int
    since: int
    server: str


@dataclass(frozen=True, slots=True)
class Open:
    """A server that may vote.

    Args:
        high: The greatest fence that it knows.
        server: Who it is.
    """

    high: int
    server: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A server that was born with another longest lease."""

    max_ttl_ms: int


@dataclass(frozen=True, slots=True)
class Nameless:
    """A server that does not say who it is: it could come back empty, and nobody would know."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """A server knows the fence."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A vote was prolonged, by this server."""

    server: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A vote that was missing was given."""


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def _answer(reply: list[Any]) -> Any:
    match reply:
        case [b"TAKEN", fence, server]:
            return Vote(int(fence), _text(server))
        case [b"HELD", left_ms, owner, fence, ahead, server]:
            held = Held(int(left_ms), _text(owner), int(fence), int(ahead))
            return Denial(held, _text(server))
        case [b"NEWBORN", left_ms, high, since, server]:
            return Newborn(int(left_ms), int(high), int(since), _text(server))
        case [b"OPEN", high, server]:
            return Open(int(high), _text(server))
        case [b"KEPT", server]:
            return Kept(_text(server))
        case [b"MISMATCH", max_ttl_ms]:
            return Mismatch(int(max_ttl_ms))
        case [word]:
            return _SIMPLE[word]
    raise ValueError(f"a voter's script answered {reply!r}")


_SIMPLE: Final[dict[bytes, Any]] = {
    b"ENDED": Ended(),
    b"LOST": Lost(),
    b"NAMELESS": Nameless(),
    b"AGREED": Agreed(),
    b"JOINED": Joined(),
}


def _load(verb: str) -> Script[Any]:
    return load_script(__package__, verb, _answer, "fencepost.lock")


@dataclass(frozen=True, slots=True)
class VoteScripts:
    """All scripts of a server that votes; tests put others in their place to see a guard matter."""

    vote: Script[Vote | Denial | Ended | Newborn | Mismatch | Nameless]
    agree: Script[Agreed | Lost | Newborn | Mismatch | Nameless]
    prolong: Script[Kept | Joined | Lost | Newborn | Mismatch | Nameless]
    births: Script[Open | Newborn | Mismatch | Nameless]
    admit: Script[Open | Newborn | Mismatch | Nameless]
    init: Script[Open | Mismatch | Nameless]
    release: Script[Released | Lost] = single.SCRIPTS.release
    undo: Script[Undone] = single.SCRIPTS.undo
    force_release: Script[Holder | Nobody] = single.SCRIPTS.force_release
    look: Script[Holder | Nobody] = single.SCRIPTS.look


_VERBS: Final = ("vote", "agree", "prolong", "births", "admit", "init")
VOTE_SCRIPTS: Final = VoteScripts(**{verb: _load(verb) for verb in _VERBS})
