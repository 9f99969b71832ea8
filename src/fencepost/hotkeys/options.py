"""How hot keys are counted; checked at birth."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from fencepost.errors import Refused

Names = Literal["plain", "prefix", "hashed"]
_MAX_NAME = 256  # characters; a longer one is shown by its beginning and a hash


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKeysOptions:
    """Options of ``client.hotkeys.start``; keyword-only and frozen. Give each process the same.

    Args:
        every: One call in so many is counted. What is shown of a key with *c* calls a second is off by about
            the root of *c · every* by chance alone.
        counters: Keys that one process counts at once.
        rows: Of these, how many a process tells the fleet: what a merge costs the server.
        interval: Seconds between two merges.
        enter: Calls a second, over all processes, from which a key is hot.
        leave: Calls a second below which a hot key is hot no more; less than ``enter``, so that a key at the
            threshold does not come and go.
        names: What leaves the process, and is shown: the ``plain`` key; a ``prefix`` of it with a hash; or
            ``hashed`` wholly. The name of the cache is always shown.
        prefix: Characters of the key that are shown with ``names="prefix"``.
        secret: Of the hashes, the same in all processes. Without one, keys can be found by trying.

    Raises:
        Refused: A value that can't work.
    """

    every: int = 32
    counters: int = 512
    rows: int = 32
    interval: float = 1.0
    enter: float = 1_000.0
    leave: float = 500.0
    names: Names = "plain"
    prefix: int = 8
    secret: str = ""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("every", 1, 10_000),
            ("counters", 16, 65_536),
            ("rows", 1, 256),
            ("prefix", 0, 64),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise Refused(f"{name} is a whole number from {least} to {most:,}, got {value!r}")
        for name, low, high in (
            ("interval", 0.1, 60.0),
            ("enter", 1.0, 1e9),
            ("leave", 0.0, 1e9),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise Refused(f"{name} is a number, got {value!r}")
            if not low <= value <= high:
                raise Refused(f"{name} is {low:g} to {high:g}, got {value!r}")
        if self.leave >= self.enter:
            raise Refused(
                f"leave {self.leave:g} is not below enter {self.enter:g}: a key at the threshold would "
                "come and go with each merge; lower leave"
            )
        if self.rows > self.counters:
            raise Refused(f"rows {self.rows} is more than the {self.counters} counters")
        if self.names not in ("plain", "prefix", "hashed"):
            raise Refused(f"names are plain, prefix or hashed, got {self.names!r}")
        if not isinstance(self.secret, str):
            raise Refused("secret is a text")

    @property
    def keep_ms(self) -> int:
        """After this a process that said nothing is not counted any more."""
        return int(self.interval * 3000)

    def shown(self, label: str, key: str) -> str:
        """The name of a key as others see it."""
        sound = key.isascii() or _is_text(key)
        if self.names == "plain" and len(key) <= _MAX_NAME and sound:
            return f"{label}:{key}"
        digest = hashlib.blake2b(
            f"{label}:{key}".encode("utf-8", "surrogatepass"),
            digest_size=8,
            key=hashlib.sha256(self.secret.encode()).digest(),
        ).hexdigest()
        if not sound:
            key = ""
        begins = {"plain": _MAX_NAME // 4, "prefix": self.prefix, "hashed": 0}[self.names]
        return f"{label}:{key[:begins]}~{digest}"


def _is_text(key: str) -> bool:
    """Whether it can be sent: a lone surrogate can't."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
