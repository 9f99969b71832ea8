"""The script of hot keys: what it answers, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fencepost._core.script import Script, load_script


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key and its calls a second, over all processes that count.

    Args:
        name: Cache and key, as the policy of names shows it: ``cache:products:42``.
        estimate: Calls a second that were seen: reads and writes.
        error: How many more there may have been that were seen, too, but counted for other keys: the
            truth of the *sample* is between ``estimate`` and ``estimate + error``. By chance a sample of one
            call in ``every`` is off by about the root of ``estimate · every`` besides.
        reads: Of the estimate.
        writes: Of the estimate.
        since: Since when it is hot, in seconds of the server's clock; None: it is not.
    """

    name: str
    estimate: int
    error: int
    reads: int
    writes: int
    since: float | None

    @property
    def hot(self) -> bool:
        """Whether it passed ``enter`` and did not fall below ``leave`` since."""
        return self.since is not None


@dataclass(frozen=True, slots=True)
class Merged:
    """The fleet's hottest keys, the hottest first, as of ``at`` (seconds of the server's clock)."""

    at: float
    processes: int
    keys: tuple[HotKey, ...]


def _merged(reply: Any) -> Merged:
    now_ms, processes, floor, *rows = reply
    keys = [
        HotKey(
            name.decode(),
            sure,
            max(floor, 0),
            sure - min(max(writes, 0), sure),
            min(max(writes, 0), sure),
            since / 1000 if since else None,
        )
        for name, sure, writes, since in zip(*[iter(rows)] * 4, strict=True)
    ]
    return Merged(now_ms / 1000, processes, tuple(keys))


MERGE: Final[Script[Merged]] = load_script(__package__, "merge", _merged)
