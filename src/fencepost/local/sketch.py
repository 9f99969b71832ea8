"""How often keys were seen lately, those too that are not held, in four small counters a key.

A count-min sketch (Cormode, Muthukrishnan 2005) as in TinyLFU: each key has a counter in each of four
rows, and was seen as often as the least of them says. Counters end at 15. When ten times as many keys as
fit were seen, all are halved: that is how it forgets. Left out: the doorkeeper, and packing two counters
into a byte (``bytes.translate`` halves whole rows at once).
"""

from __future__ import annotations

from typing import Final

Places = tuple[int, int, int, int]
_HALVED: Final = bytes(n >> 1 for n in range(256))
_CEILING: Final = 15
_SAMPLE: Final = 10
_MULTIPLIERS: Final = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
)


class Sketch:
    """See the module.

    Args:
        capacity: About how many keys the cache holds.
    """

    __slots__ = ("_mask", "_row", "_rows", "_sample", "_seen")

    def __init__(self, capacity: int) -> None:
        self._row = 4 << max(capacity - 1, 15).bit_length()
        self._mask = self._row - 1
        self._rows = bytearray(4 * self._row)
        self._sample = _SAMPLE * max(capacity, 16)
        self._seen = 0

    def places(self, key: object) -> Places:
        """Where the four counters of a key stand; whoever asks often keeps them."""
        # The high half of a product depends on all bits of the hash, which for ints is the int itself.
        number = hash(key) & 0xFFFFFFFFFFFFFFFF
        number ^= number >> 32
        row, mask = self._row, self._mask
        one, two, three, four = _MULTIPLIERS
        return (
            (number * one >> 32) & mask,
            row + ((number * two >> 32) & mask),
            2 * row + ((number * three >> 32) & mask),
            3 * row + ((number * four >> 32) & mask),
        )

    def count(self, places: Places) -> int:
        """How often a key was seen lately, at most 15."""
        rows = self._rows
        a, b, c, d = places
        return min(rows[a], rows[b], rows[c], rows[d])

    def see(self, places: Places) -> None:
        """A key was asked for."""
        rows = self._rows
        a, b, c, d = places  # written out: this is most of what a hit of `wtinylfu` costs
        if rows[a] < _CEILING:
            rows[a] += 1
        if rows[b] < _CEILING:
            rows[b] += 1
        if rows[c] < _CEILING:
            rows[c] += 1
        if rows[d] < _CEILING:
            rows[d] += 1
        self._seen += 1
        if self._seen >= self._sample:
            self._rows = rows.translate(_HALVED)
            self._seen //= 2
