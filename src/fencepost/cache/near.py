"""A near cache: a ``LocalCache`` in front of the server's, kept right by what the server says of changes.

A tracker (``fencepost.wire.tracker``) hears of every change under the cache's prefix. Five rules make what
is held here right, or soon gone:

- **Marks.** Who asks the server first leaves a mark, and its answer is held only while that mark stands. A
  change that is heard of between the two takes the mark away: the answer may have been read before it, and
  nobody will tell again. (Clients that hold whatever they read keep such an answer for its whole life.)
- **Epochs.** While the tracker is not listening nothing is held. When it is lost, all goes at once, with all
  marks; what was asked before is not held after.
- **Own changes.** What this process sets, publishes or invalidates goes before and after the request: its
  own next read asks the server, whenever the server's word arrives.
- **Ends.** An entry lives ``ttl`` seconds from *before* it was asked for, whatever is heard or not: a value is
  never given that was not current within the last ``ttl`` seconds, though the network lies.
- **Only plain entries.** Tagged ones, stale ones, negatives and those that may be refreshed early are the
  server's to judge.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from fencepost.errors import Refused
from fencepost.local import LocalCache
from fencepost.local.cache import POLICIES, PolicyName

# It goes on while the machine sleeps: an entry does not outlive that.
NOW: Final[Callable[[], float]] = partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
NOTHING: Final[Any] = object()
_MARKS: Final = 65_536  # more are dropped: their answers are then not held
_all: weakref.WeakSet[Near] = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class NearOptions:
    """How a cache is held in the process too; keyword-only and frozen.

    Args:
        maxsize: Entries that are held.
        ttl: Seconds that one is held at most: the bound of its staleness when the server's word is lost.
        policy: Who has to go: see ``fencepost.local.LocalCache``.
        values: ``"copied"``: each caller gets its own, decoded anew. ``"shared"``: all get the same object,
            which nobody may change; a hit is several times as quick.

    Raises:
        Refused: A value that can't work.
    """

    maxsize: int = 10_000
    ttl: float = 5.0
    policy: PolicyName = "s3fifo"
    values: Literal["copied", "shared"] = "copied"

    def __post_init__(self) -> None:
        if type(self.maxsize) is not int or self.maxsize < 1:
            raise Refused(f"near maxsize is a whole number of at least 1, got {self.maxsize!r}")
        if isinstance(self.ttl, bool) or not isinstance(self.ttl, int | float):
            raise Refused(f"near ttl is in seconds, got {self.ttl!r}")
        if not 0.001 <= self.ttl <= 3600:
            raise Refused(f"near ttl is 0.001 to 3600 seconds, got {self.ttl!r}")
        if self.policy not in POLICIES:
            raise Refused(f"near policy is one of {', '.join(POLICIES)}, got {self.policy!r}")
        if self.values not in ("copied", "shared"):
            raise Refused(f"near values are copied or shared, got {self.values!r}")


class Near:
    """What one process holds of one cache; any thread or loop may use it.

    Args:
        options: How much, and for how long.
        entry: The server's name of a key's entry.
        start: Makes the tracker listen; called with the first mark.
        now: The clock of its lifetimes.
    """

    __slots__ = (
        "__weakref__", "_entry", "_lock", "_marks", "_names", "_now", "_start", "_started", "drops",
        "get", "held", "listening", "losses", "options",
    )  # fmt: skip

    def __init__(
        self,
        options: NearOptions,
        entry: Callable[[str], str],
        start: Callable[[], None] = lambda: None,
        now: Callable[[], float] = NOW,
    ) -> None:
        self.options = options
        self._entry, self._start, self._now = entry, start, now
        self.held: LocalCache[str, Any] = LocalCache(
            options.maxsize, options.policy, ttl=options.ttl, timer=now
        )
        self.get = self.held.get
        self.drops = self.losses = 0
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._marks: dict[str, object] = {}
        self._names: dict[str, str] = {}  # the server's names of what is marked or held
        self.listening = self._started = False

    # -- readers

    def mark(self, key: str) -> object | None:
        """Before the server is asked; None: its answer can't be held."""
        if not self._started:
            with self._lock:
                begun, self._started = self._started, True
            if not begun:  # one tracker, however many ask first
                self._start()
        if not self.listening:
            return None
        mark = object()
        with self._lock:
            if len(self._marks) >= _MARKS:
                self._marks.clear()  # of readers who never came back; others hold nothing, once
            self._marks[key] = mark
            self._names[self._entry(key)] = key
            if len(self._names) > 2 * (self.options.maxsize + len(self._marks)):
                self._names = {
                    name: one
                    for name, one in self._names.items()
                    if one in self._marks or one in self.held
                }
        return mark

    def keep(self, key: str, mark: object, value: Any, asked: float, fresh: float) -> bool:
        """Hold an answer, if its mark still stands.

        Args:
            key: Its key.
            mark: From before the server was asked.
            value: What it said.
            asked: When it was asked, on our clock.
            fresh: Seconds from now that the entry is fresh.
        """
        with self._lock:
            if self._marks.get(key) is not mark:
                return False
            del self._marks[key]
            left = min(asked + self.options.ttl - self._now(), fresh)
            if left <= 0:
                return False
            # Under the lock: a change that is heard of now waits, and then drops it.
            self.held.set(key, value, ttl=left)
            return True

    # -- changes

    def drop(self, key: str) -> None:
        """This process changes a key."""
        with self._lock:
            self._marks.pop(key, None)
            self.held.delete(key)

    def heard(self, names: Iterable[str] | None) -> None:
        """The server says that these changed, by its names; None: everything."""
        with self._lock:
            if names is None:
                self.drops += 1
                self._marks.clear()
                self.held.clear()
                return
            for name in names:
                key = self._names.get(name)
                if key is not None:
                    self.drops += 1
                    self._marks.pop(key, None)
                    self.held.delete(key)

    def found(self) -> None:
        """From now on changes are heard of."""
        with self._lock:
            self._marks.clear()
            self.held.clear()
            self.listening = True

    def lost(self) -> None:
        """Changes may go unheard."""
        with self._lock:
            self.losses += self.listening
            self.listening = False
            self._marks.clear()
            self._names.clear()
            self.held.clear()

    def stats(self) -> dict[str, Any]:
        """What is held, and how often changes were heard of, or the tracker was lost."""
        return {
            "entries": len(self.held),
            "listening": self.listening,
            "drops": self.drops,
            "losses": self.losses,
        }

    def forget(self) -> None:
        """In a forked child: nobody listens here, and the parent's locks may be held for ever."""
        self._reset()
        self.held = LocalCache(
            self.options.maxsize, self.options.policy, ttl=self.options.ttl, timer=self._now
        )
        self.get = self.held.get


def _after_fork() -> None:
    for near in list(_all):
        near.forget()


os.register_at_fork(after_in_child=_after_fork)
