"""A near cache for hot keys alone: what the fleet asks for most is held in the process while it does.

It is a ``Near`` with all its rules; only who may leave a mark differs: a key that is hot. So what is held is
kept right likewise, and a key that cools is dropped with its mark. An answer that was under way then may be
held once more: for its ``ttl``, kept right, and counted for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fencepost.cache.near import NOW, Near, NearOptions
from fencepost.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class HotOptions:
    """What a cache does about its hot keys, while ``client.hotkeys`` counts; keyword-only and frozen.

    Args:
        near: How they are held in the process.
        read_share: Of a hot key's calls, how many are reads at least: one that is written all the time would
            be dropped all the time.

    Raises:
        Refused: A value that can't work.
    """

    near: NearOptions = field(default_factory=lambda: NearOptions(maxsize=1_000))
    read_share: float = 0.8

    def __post_init__(self) -> None:
        if not isinstance(self.near, NearOptions):
            raise Refused(f"near is a NearOptions, got {self.near!r}")
        share = self.read_share
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise Refused(f"read_share is a share, 0 to 1, got {share!r}")


class HotNear(Near):
    """Holds hot keys; none at first.

    Args:
        options: See ``HotOptions``.
        entry: As for ``Near``.
        start: As for ``Near``.
        now: As for ``Near``.
    """

    __slots__ = ("_hot", "_read_share")

    def __init__(
        self,
        options: HotOptions,
        entry: Callable[[str], str],
        start: Callable[[], None] = lambda: None,
        now: Callable[[], float] = NOW,
    ) -> None:
        self._read_share = options.read_share
        super().__init__(options.near, entry, start, now)

    def _reset(self) -> None:
        super()._reset()
        self._hot: frozenset[str] = frozenset()

    def mark(self, key: str) -> object | None:
        """As ``Near.mark``, if the key is hot."""
        return super().mark(key) if key in self._hot else None

    def heat(self, calls: dict[str, tuple[int, int]]) -> tuple[set[str], set[str]]:
        """These are hot now, with their reads and writes a second; which came, and which went."""
        share = self._read_share
        hot = frozenset(
            key for key, (reads, writes) in calls.items() if reads >= share * (reads + writes)
        )
        before, self._hot = self._hot, hot
        # After the change: a reader who looks now leaves no mark.
        for key in before - hot:
            self.drop(key)
        return set(hot - before), set(before - hot)
