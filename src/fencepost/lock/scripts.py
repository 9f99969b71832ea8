"""The scripts of a lock: what each answers, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fencepost._core.script import Script, load_script


@dataclass(frozen=True, slots=True)
class Taken:
    """The lock is ours. ``fence`` is greater than every one drawn before."""

    fence: int


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else has it, or it is kept free for who waits longer (then ``owner`` is empty).

    Args:
        left_ms: Until then it may last if nobody says a word.
        owner: Who has it.
        fence: Of that holder.
        ahead: How many wait longer.
    """

    left_ms: int
    owner: str
    fence: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The attempt was given up before."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lock was prolonged.

    Args:
        sure: Every request of this renewal was answered.
    """

    sure: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """The lock was given back."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The lock is not ours any more."""

    why: str = "the server does not know it any more"


@dataclass(frozen=True, slots=True)
class Undone:
    """The attempt holds nothing, and will not."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock or a share, by the server.

    Args:
        owner: What the holder calls itself.
        fence: Of its lease.
        since: When it was taken, in seconds of the server's clock.
        remaining: Seconds until it ends, if it is not renewed.
        waiters: How many wait.
        weight: How many permits it has.
        mode: ``read`` or ``write`` on a read/write lock, else empty.
    """

    owner: str
    fence: int
    since: float
    remaining: float
    waiters: int
    weight: int = 1
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Nobody:
    """The lock is free."""

    waiters: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Who holds shares, the first to end first, and how many wait."""

    holders: tuple[Holder, ...]
    waiters: int


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def _answer(reply: list[Any]) -> Any:
    match reply:
        case [b"TAKEN", fence]:
            return Taken(int(fence))
        case [b"HELD", left_ms, owner, fence, ahead]:
            return Held(int(left_ms), _text(owner), int(fence), int(ahead))
        case [b"HOLDER", owner, fence, since_ms, left_ms, waiters]:
            since, left = int(since_ms) / 1000, max(int(left_ms), 0) / 1000
            return Holder(_text(owner), int(fence), since, left, int(waiters))
        case [b"NOBODY", waiters]:
            return Nobody(int(waiters))
        case [b"SHARES", waiters, found]:
            return Shares(tuple([_share(one, int(waiters)) for one in found]), int(waiters))
        case [word]:
            return _SIMPLE[word]
    raise ValueError(f"a lock's script answered {reply!r}")


def _share(words: list[Any], waiters: int) -> Holder:
    owner, fence, since_ms, left_ms, weight, _ = words
    since, left = int(since_ms) / 1000, max(int(left_ms), 0) / 1000
    return Holder(_text(owner), int(fence), since, left, waiters, int(weight))


_SIMPLE: Final[dict[bytes, Any]] = {
    b"ENDED": Ended(),
    b"RENEWED": Renewed(),
    b"RELEASED": Released(),
    b"LOST": Lost(),
    b"UNDONE": Undone(),
}


def _load(verb: str) -> Script[Any]:
    return load_script(__package__, verb, _answer)


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts of a lock, or of shares; tests put others in their place to see a guard matter."""

    acquire: Script[Taken | Held | Ended]
    renew: Script[Renewed | Lost]
    release: Script[Released | Lost]
    undo: Script[Undone]
    force_release: Script[Any]
    look: Script[Any]


_VERBS: Final = tuple(Scripts.__dataclass_fields__)
SCRIPTS: Final = Scripts(**{verb: _load(verb) for verb in _VERBS})
SHARES: Final = Scripts(**{verb: _load(f"{verb}_share") for verb in _VERBS})
