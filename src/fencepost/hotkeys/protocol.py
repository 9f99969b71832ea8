"""Hot keys of a fleet: each process counts a sample of its calls, and once a second they are merged.

What is promised, and why:

- *A key is hot only if it is proven to be.* What counts is what was seen of it, never what it may have
  inherited from another key's counter (``sketch``).
- *Nothing is counted twice.* A process says how many calls a second it saw, and that takes the place of what
  it said before: the script takes the old report away and adds the new one in one step. Sent again after a lost
  reply it changes nothing; a report that never arrived is followed by the next one.
- *Who is gone is forgotten.* A process that is silent for three intervals is taken away by the others; when
  all are, the five keys expire.
- *All see the same.* Thresholds are compared in the script, so a key enters and leaves for the whole fleet at
  once; between ``leave`` and ``enter`` it stays what it was.
- *A burst is seen by the second merge.* Each process's first merge after it began may cover a part of a second,
  its second one covers a whole one. The last process's second merge sees it, and ``top`` from then on.

What is not: figures of one instant. They are sums of the last second of each process, seconds that began at
different times.
"""

from __future__ import annotations

from dataclasses import dataclass

from fencepost._core.keys import escape
from fencepost._core.port import Port
from fencepost._core.script import Script
from fencepost.hotkeys.meter import Meter, Report
from fencepost.hotkeys.options import HotKeysOptions
from fencepost.hotkeys.scripts import MERGE, HotKey, Merged


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fleet's hot keys are: five keys in one slot."""

    keys: tuple[str, ...]
    script: Script[Merged] = MERGE

    async def merge(
        self, io: Port, process: str, report: Report, options: HotKeysOptions, most: int
    ) -> Merged:
        """Say what this process saw, and hear what the fleet saw."""
        asked = (options.enter, options.leave, options.keep_ms, most)
        return await io.run(self.script(self.keys, (process, report.text(), *asked)))

    async def look(self, io: Port, most: int) -> Merged:
        """Hear it, and change nothing."""
        return await io.run(self.script(self.keys, ("", "", 0, 0, 0, most)))


def place_of(namespace: str) -> Place:
    """Where the hot keys of a namespace are."""
    tag = f"{{{escape(namespace)}:hotkeys}}"
    return Place(tuple(f"{tag}:{letter}" for letter in "nwrah"))


async def tick(
    io: Port, place: Place, process: str, meter: Meter, most: int
) -> tuple[Report, Merged]:
    """One merge of one process: what it saw, and what the fleet did.

    Raises:
        Unavailable, OutcomeUnknown: The second is lost, or was counted; the next one takes its place.
    """
    report = meter.harvest(io.now())
    return report, await place.merge(io, process, report, meter.options, most)


def changed(
    before: dict[str, HotKey], merged: Merged
) -> tuple[dict[str, HotKey], list[HotKey], list[HotKey]]:
    """What is hot now; of this, what was not before; and what was and is not any more."""
    now = {one.name: one for one in merged.keys if one.hot}
    came = [one for name, one in now.items() if name not in before]
    went = [one for name, one in before.items() if name not in now]
    return now, came, went
