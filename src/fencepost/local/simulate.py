"""What a policy would have hit: traces read, played, compared with the optimum, and judged."""

from __future__ import annotations

import csv
import gzip
import heapq
import io
import lzma
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, cast

from fencepost.errors import Refused
from fencepost.local.cache import POLICIES
from fencepost.local.entry import Entry

Format = Literal["text", "u32le", "csv"]
BELADY: Final = "belady"
_CLOSE: Final = 0.01  # of the requests: a policy this close to the best is as good
_ENOUGH: Final = 0.9  # of what the largest size hits: a size that reaches it is enough
_SHARES: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)  # of the keys


def read_trace(
    path: Path | str, kind: Format | None = None, column: str | None = None
) -> array[int]:
    """The keys of a trace in their order, as numbers (equal numbers are equal keys).

    Args:
        path: A file, also one that ends in ``.gz`` or ``.xz``; ``-`` is stdin.
        kind: ``text`` (one key a line), ``u32le`` (4 bytes a key) or ``csv``; None goes by the name.
        column: Of a CSV: its name in the first line, or its number from 0 where there are no names.

    Raises:
        Refused: It is empty, or not of that kind.
        OSError: It can't be read.
    """
    name = str(path)
    plain = name.removesuffix(".xz").removesuffix(".gz")
    kind = kind or (
        "u32le"
        if plain.endswith(".u32le")
        else "csv"
        if column or plain.endswith(".csv")
        else "text"
    )
    with _open(name) as stream:
        if kind == "u32le":
            found = _u32le(stream.read(), name)
        else:
            lines = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
            found = _numbered(_column(lines, column) if kind == "csv" else _lines(lines))
    if not found:
        raise Refused(f"{name} holds no keys")
    return found


def _open(name: str) -> IO[bytes]:
    if name == "-":
        return sys.stdin.buffer
    if name.endswith(".xz"):
        return lzma.open(name)
    if name.endswith(".gz"):
        return cast("IO[bytes]", gzip.open(name))
    return Path(name).open("rb")


def _u32le(data: bytes, name: str) -> array[int]:
    if len(data) % 4:
        raise Refused(f"{name} is no u32le trace: its {len(data)} bytes are no multiple of 4")
    found = array("I")
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def _lines(lines: Iterable[str]) -> Iterator[str]:
    return (key for line in lines if (key := line.rstrip("\r\n")))


def _column(lines: Iterable[str], column: str | None) -> Iterator[str]:
    rows = csv.reader(lines)
    first = next(rows, [])
    wanted = column if column is not None else "key" if "key" in first else "0"
    if wanted in first:
        at = first.index(wanted)
    elif wanted.isdecimal():
        at = int(wanted)
        if at >= len(first):
            raise Refused(f"there is no column {at}; the first row has {len(first)}")
        yield first[at]
    else:
        raise Refused(f"there is no column {wanted!r}; there are {', '.join(first)}")
    for row in rows:
        if at < len(row):
            yield row[at]


def _numbered(keys: Iterable[str]) -> array[int]:
    numbers: dict[str, int] = {}
    return array("Q", (numbers.setdefault(key, len(numbers)) for key in keys))


def play(policy: str, trace: Iterable[int], size: int) -> float:
    """Hits of all requests, by the code that a ``LocalCache`` of that policy runs."""
    made = POLICIES[policy](size)
    saturation, touched, admit = made.saturation, made.touched, made.admit
    table: dict[int, Entry] = {}
    hits = requests = 0
    for key in trace:
        requests += 1
        entry = table.get(key)
        if entry is None:
            entry = table[key] = Entry(key)
            for gone in admit(entry):
                del table[gone.key]  # type: ignore[arg-type]
        else:
            hits += 1
            if entry.freq < saturation:
                entry.freq += 1
            elif not saturation:
                touched((entry,))
    return hits / requests if requests else 0.0


def belady(trace: Sequence[int], size: int) -> float:
    """Hits of all requests if whoever is needed last goes: nothing that holds each new key does better.

    Belady: "A study of replacement algorithms for a virtual-storage computer" (1966).
    """
    never = len(trace)
    following = array("Q", bytes(8 * never))
    seen: dict[int, int] = {}
    for at in range(never - 1, -1, -1):
        following[at] = seen.get(trace[at], never)
        seen[trace[at]] = at
    held: dict[int, int] = {}  # key -> when it comes next
    latest: list[tuple[int, int]] = []
    hits = 0
    for at, key in enumerate(trace):
        if key in held:
            hits += 1
        elif len(held) >= size:
            while True:
                comes, victim = heapq.heappop(latest)
                if held.get(victim) == -comes:  # else: it was asked for since
                    del held[victim]
                    break
        held[key] = following[at]
        heapq.heappush(latest, (-following[at], key))
    return hits / never if never else 0.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """Hit ratios by size and policy, and what follows from them."""

    requests: int
    keys: int
    sampled: float
    ratios: dict[int, dict[str, float]]

    @property
    def ceiling(self) -> float:
        """Hits of all requests with room for everything: each key is missed once."""
        return 1 - self.keys / self.requests

    def recommend(self) -> tuple[str, int, str]:
        """Policy, size, and the reason in words."""
        sizes = sorted(self.ratios)

        def best(size: int) -> tuple[str, float]:
            online = {name: hit for name, hit in self.ratios[size].items() if name != BELADY}
            name = max(online, key=online.__getitem__)
            return name, online[name]

        largest = best(sizes[-1])[1]
        size = next(one for one in sizes if best(one)[1] >= _ENOUGH * largest)
        winner, reached = best(size)
        policy = winner
        found = self.ratios[size].get("s3fifo")
        if found is not None and reached - found <= _CLOSE:
            policy = "s3fifo"
        why = [f"{size:,} entries hit {self.ratios[size][policy]:.1%} of the requests"]
        if size != sizes[-1]:
            why.append(f"{sizes[-1]:,} would hit {largest:.1%}")
        else:
            why.append(
                "no smaller size that was tried comes near it, so a larger one may do better still"
            )
        if policy != winner:
            why.append(
                f"{winner} would hit {reached:.1%}, which its dearer hits and locks are not worth"
                if winner in ("lru", "wtinylfu")
                else f"{winner} would hit {reached:.1%}, which is no difference"
            )
        elif policy != "s3fifo" and found is not None:
            why.append(f"the default, s3fifo, {found:.1%}")
        optimum = self.ratios[size].get(BELADY)
        if optimum:
            why.append(f"whoever knew the future would hit {optimum:.1%}")
        why.append(
            f"{self.keys / self.requests:.1%} of the requests are first ones, which nothing can hit"
        )
        return policy, size, "; ".join(why)


def simulate(
    trace: Sequence[int],
    policies: Sequence[str] = (),
    sizes: Sequence[int] = (),
    sampled: float = 1.0,
    progress: Callable[[str, int], None] = lambda policy, size: None,
) -> Simulation:
    """Play a trace through policies at sizes.

    Args:
        trace: Keys, as ``read_trace`` gives them.
        policies: Of ``LocalCache``; none is all. The optimum is always there.
        sizes: In entries; none is some between 0.5 % and 40 % of the keys.
        sampled: The share of the keys that the trace holds (``fencepost record --rate``): a cache of
            1,000 entries is played as one of ``1,000 * sampled``.
        progress: Told what is played next.

    Raises:
        Refused: There is no such policy, or a size is too small for the sample.
    """
    if unknown := [name for name in policies if name not in POLICIES]:
        raise Refused(f"there is no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    if not 0 < sampled <= 1:
        raise Refused(f"the sampled share is above 0 and at most 1, got {sampled:g}")
    keys = len(set(trace))
    asked = sizes or sorted(
        {max(round(keys * share / sampled), round(1 / sampled)) for share in _SHARES}
    )
    ratios: dict[int, dict[str, float]] = {}
    for size in sorted(set(asked)):
        played = round(size * sampled)
        if played < 1:
            raise Refused(
                f"a cache of {size} entries is too small for a sample of {sampled:g} of the keys"
            )
        row = ratios[size] = {}
        for policy in policies or POLICIES:
            progress(policy, size)
            row[policy] = play(policy, trace, played)
        progress(BELADY, size)
        row[BELADY] = belady(trace, played)
    return Simulation(len(trace), keys, sampled, ratios)
