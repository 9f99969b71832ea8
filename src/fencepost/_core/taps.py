"""Where hot keys are counted: one attribute on each cache, None until somebody counts.

    if (tap := self._tap) is not None:     # one attribute, one comparison
        tap.left = left = tap.left - 1
        if left < 0:
            tap.take(key)

A tap takes each call with the same chance, 1 in ``every``, and draws how many it lets pass until the next one
(a geometric number): a call that is let pass costs a subtraction. Threads that subtract at the same time may
lose one; the chance stays the same for all keys.
"""

from __future__ import annotations

import math
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Tapped(Protocol):
    """A cache, or likes."""

    _tap: Tap | None

    def _heat(self, calls: dict[str, tuple[int, int]]) -> None:
        """These keys of it are hot now, with their reads and writes a second; no others are."""


class Tap:
    """Samples the calls of one cache.

    Args:
        label: What its keys are called after: ``cache:products``.
        every: One call in so many is taken.
        note: Is told of a call that was taken: the label, the key, and whether it writes.
    """

    __slots__ = ("_note", "_scale", "label", "left")

    def __init__(self, label: str, every: int, note: Callable[[str, str, bool], None]) -> None:
        self.label, self._note = label, note
        self._scale = 1 / math.log1p(-1 / every) if every > 1 else 0.0
        self.left = self._draw()

    def _draw(self) -> int:
        return int(math.log1p(-random.random()) * self._scale)

    def take(self, key: Any, write: bool = False) -> None:
        """This call is one of the sample."""
        self.left = self._draw()
        if isinstance(key, str | int):
            self._note(self.label, str(key), write)

    def see(self, key: Any, write: bool = False) -> None:
        """A call, taken or not; what is inlined where it is hot."""
        self.left -= 1
        if self.left < 0:
            self.take(key, write)


class Taps:
    """All that can be tapped of one client, whenever it was made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._make: Callable[[str], Tap] | None = None

    def add(self, part: Tapped, label: str) -> Tap | None:
        """A part is made; the tap that it begins with."""
        with self._lock:
            self._parts[part] = label
            return None if self._make is None else self._make(label)

    def open(self, make: Callable[[str], Tap]) -> None:
        """From now on all parts are sampled."""
        self._set(make)

    def close(self) -> None:
        """No part is."""
        self._set(None)

    def _set(self, make: Callable[[str], Tap] | None) -> None:
        with self._lock:
            self._make = make
            for part, label in list(self._parts.items()):
                part._tap = None if make is None else make(label)  # noqa: SLF001  # what it is for

    def heat(self, hot: dict[str, dict[str, tuple[int, int]]]) -> None:
        """Tell each part which of its keys are hot now, by its label; none, if it is not named."""
        with self._lock:
            parts = list(self._parts.items())
        for part, label in parts:
            part._heat(hot.get(label, {}))  # noqa: SLF001

    def forget(self) -> None:
        """In a forked child: the parent's threads are not there, nor is who counted."""
        self._lock = threading.Lock()
        self.close()
