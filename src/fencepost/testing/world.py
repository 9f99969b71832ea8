"""What an exploration moves through: the server's state as a value, and cells beside it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Stored(NamedTuple):
    """One key: its type, whether it will expire, and what it holds (text; sets as frozensets)."""

    kind: str
    volatile: bool
    value: Any


class ServerState(NamedTuple):
    """Everything that a script can see of its server.

    Args:
        words: All keys, sorted, a flat tuple: key, type, 1 if it has a TTL, number of words, words.
        clock_ms: What ``TIME`` says.
        identity: Who the server is, ``run_id:replication_id``, hex digits both.
        greeted: Whom the connections believe they talk to; the same but behind a proxy that hides
            a failover.
        policy: The eviction policy.
    """

    words: tuple[bytes, ...] = ()
    clock_ms: int = 1_000_000
    identity: str = "a0:b0"
    greeted: str = "a0:b0"
    policy: str = "noeviction"

    def by_name(self) -> dict[str, Stored]:
        """All keys by name."""
        return {
            name: Stored(kind, volatile, _value(kind, some))
            for name, kind, volatile, some in self._entries()
        }

    def without(self, *names: str) -> ServerState:
        """The same without some keys."""
        words: list[bytes] = []
        for name, kind, volatile, some in self._entries():
            if name not in names:
                words += (
                    name.encode(),
                    kind.encode(),
                    b"1" if volatile else b"0",
                    str(len(some)).encode(),
                    *some,
                )
        return self._replace(words=tuple(words))

    def _entries(self) -> Iterable[tuple[str, str, bool, tuple[bytes, ...]]]:
        at, words = 0, self.words
        while at < len(words):
            size = int(words[at + 3])
            yield (
                words[at].decode(),
                words[at + 1].decode(),
                words[at + 2] == b"1",
                words[at + 4 : at + 4 + size],
            )
            at += 4 + size


def _value(kind: str, words: tuple[bytes, ...]) -> Any:
    texts = [word.decode(errors="surrogateescape") for word in words]
    match kind:
        case "string":
            return texts[0]
        case "hash":
            return dict(zip(texts[::2], texts[1::2], strict=True))
        case "zset":
            return {
                member: float(score) for score, member in zip(texts[::2], texts[1::2], strict=True)
            }
        case "set":
            return frozenset(texts)
        case _:
            return texts


class Restorable(Protocol):
    """What may hold state beside the server: it is set back to any earlier value at any time."""

    state: Any


@dataclass(slots=True)
class Cell(Generic[T]):
    """A variable of a scenario: the source of a cache, what a test knows to be true …

    Args:
        state: Immutable and hashable; replaced, never changed.
    """

    state: T

    def get(self) -> T:
        """Its value; as a step, ``await io.call(cell.get)``."""
        return self.state

    def set(self, state: T) -> None:
        """Replace it; as a step, ``await io.call(cell.set, 2)``."""
        self.state = state


@dataclass(slots=True)
class View:
    """What a check sees: the server here, the cells as they are set back to here, and the results.

    Args:
        server: The server's state.
        results: What each actor that has ended returned, or the error that it raised.
        ended: Whether every actor has.
    """

    server: ServerState
    results: Mapping[str, Any] = field(default_factory=dict)
    ended: bool = False
    _keys: dict[str, Stored] | None = None

    @property
    def keys(self) -> dict[str, Stored]:
        """All keys of the server by name."""
        if self._keys is None:
            self._keys = self.server.by_name()
        return self._keys

    def value(self, key: str, default: Any = None) -> Any:
        """What a key holds."""
        found = self.keys.get(key)
        return default if found is None else found.value


def frozen(value: Any) -> Hashable:
    """A reply as something hashable."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value
