"""What one process counts between two merges."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from typing import Final, NamedTuple

from fencepost._core.taps import Tap
from fencepost.hotkeys.options import HotKeysOptions
from fencepost.hotkeys.sketch import SpaceSaving

_BATCH: Final = 1024


class Row(NamedTuple):
    """One key's calls a second, in one process: ``calls`` is sure, ``writes`` are some of them."""

    name: str
    calls: int
    writes: int


class Report(NamedTuple):
    """What a process says: no key has more than ``floor`` calls a second beyond what is said of it."""

    floor: int
    rows: tuple[Row, ...]

    def text(self) -> str:
        """As it is sent."""
        return json.dumps([self.floor, *(word for row in self.rows for word in row)])


class Meter:
    """Counts what the taps take; any thread may.

    Args:
        options: How.
        now: Its clock, when the counting begins.
    """

    def __init__(self, options: HotKeysOptions, now: float) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._began = now
        self._sketch = SpaceSaving(options.counters)
        self._pending: list[tuple[str, str, bool]] = []
        self._own: dict[str, tuple[str, str]] = {}

    def tap(self, label: str) -> Tap:
        """A tap for a part."""
        return Tap(label, self.options.every, self.note)

    def note(self, label: str, key: str, write: bool) -> None:
        """A call that was taken. No lock: what a thread adds to a list that was just fed is lost, for any key
        alike."""
        pending = self._pending
        pending.append((label, key, write))
        if len(pending) >= _BATCH:
            self._feed()

    def _feed(self) -> None:
        """Count what was taken, equal ones at once: that is several times as quick."""
        with self._lock:
            pending, self._pending = self._pending, []
            for (label, key, write), times in Counter(pending).items():
                # NUL ends the label: names in it are escaped, so none holds one.
                self._sketch.add(f"{label}\0{key}", write, times)

    def harvest(self, now: float) -> Report:
        """What was counted since the last harvest, as calls a second; counting begins anew."""
        options = self.options
        self._feed()
        with self._lock:
            sketch, self._sketch = self._sketch, SpaceSaving(options.counters)
            began, self._began = self._began, now
        # A harvest that comes at once after another one says nothing of a second.
        scale = options.every / max(now - began, options.interval / 4)
        top, rest = sketch.top(options.rows)
        rows, own = [], {}
        for key, one in top:
            label, _, name = key.partition("\0")
            shown = options.shown(label, name)
            own[shown] = (label, name)
            if calls := math.floor(one.sure * scale):
                rows.append(Row(shown, calls, math.floor(one.writes * scale)))
        self._own = own
        return Report(math.ceil(rest * scale) + bool(sketch.events), tuple(rows))

    def own(self, shown: str) -> tuple[str, str] | None:
        """Label and key of a name, if this process told it at the last harvest."""
        return self._own.get(shown)
