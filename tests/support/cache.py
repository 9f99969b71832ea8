"""A cache under the hand: its region without a client, actors for plays and for the explorer, altered scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from fencepost._core import commands
from fencepost._core.codec import Codec
from fencepost._core.keys import CacheKeys, cache_prefix
from fencepost._core.port import Port
from fencepost.cache import Loaded, protocol, write
from fencepost.cache.entry import Entry, Header, Stored, decode, encode, revision_text
from fencepost.cache.judge import GONE, STALE
from fencepost.cache.options import CacheOptions
from fencepost.cache.region import PLAIN, Ask, Region
from fencepost.cache.scripts import SCRIPTS, Published, Scripts
from fencepost.testing import Cell, SimPort, View

Actor = Callable[[SimPort], Coroutine[Any, Any, Any]]
KEY = "k"
FAR_MS = 9_999_999_999_999


def altered(verb: str, old: str, new: str, scripts: Scripts = SCRIPTS) -> Scripts:
    """The scripts with one line of one of them changed: a guard taken out."""
    script = getattr(scripts, verb)
    assert script.plain.count(old) == 1, f"{verb}.lua has {script.plain.count(old)} × {old!r}"
    change = {verb: script.with_text(script.plain.replace(old, new))}
    return dataclasses.replace(scripts, **change)


def make_region(
    namespace: str = "t", name: str = "c", *, scripts: Scripts = SCRIPTS, **options: Any
) -> Region:
    """A cache without a client: no renewal, no gate, early refresh only where it is asked for."""
    settings = CacheOptions(**{"beta": 0.0, **options})
    prefix = cache_prefix(namespace, name)
    return Region(name, prefix, settings, Codec(), scripts=scripts, renews=False)


def packed(
    value: Any,
    *,
    key: str = KEY,
    token: str = "old",
    revision: int | None = None,
    fresh_until: int = FAR_MS,
    cost_ms: int = 0,
    stale_ms: int = 0,
    stamps: dict[str, str] | None = None,
) -> bytes:
    """An entry as it is stored."""
    letter, payload = Codec[Any]().encode(value)
    header = Header(key, 0, cost_ms, stale_ms, value is None, letter, stamps or {})
    return encode(token.ljust(22, "_"), revision_text(revision), fresh_until, header, payload)


def unpacked(raw: bytes | str | None, key: str = KEY) -> Stored[Any] | None:
    """A stored entry, read."""
    if isinstance(raw, str):
        raw = raw.encode(errors="surrogateescape")
    return None if raw is None else decode(raw, key, Codec())


async def read_through(
    io: Port, region: Region, load: Callable[..., Any], ask: Ask = PLAIN, key: str = KEY
) -> Entry[Any]:
    """What a face does, without flights: look, then refresh."""
    found = await protocol.look(io, region, key, ask)
    if found.stored is not None and found.state not in (GONE, STALE):
        return found.stored.shown("hit", io.now())
    entry = await protocol.refresh(io, region, key, load, ask, found)
    assert entry is not None
    return entry


@dataclasses.dataclass
class Patience:
    """A clock that stands still for so many looks, and then it is late."""

    looks: int

    def __call__(self) -> float:
        self.looks = max(self.looks - 1, 0)
        return 0.0 if self.looks else 1e6


class Truth(NamedTuple):
    """What every read that begins now must at least see, and how often the source was asked."""

    floor: int = 1
    loads: int = 0
    short: bool = False  # a writer announced itself since the entry was written


class Source(NamedTuple):
    """The source: its value, and what a lagging replica of it shows."""

    value: int = 1
    lagging: int = 1


class CacheWorld:
    """One key, its source, and actors on it for the explorer.

    Args:
        region: The cache.
    """

    def __init__(self, region: Region | None = None, **options: Any) -> None:
        self.region = region or make_region(**options)
        self.keys: CacheKeys = self.region.keys(KEY)
        self.source = Cell(Source())
        self.truth = Cell(Truth())

    @property
    def cells(self) -> tuple[Any, ...]:
        return (self.source, self.truth)

    # -- actors

    def reads(
        self,
        times: int = 1,
        *,
        ask: Ask = PLAIN,
        lagging: bool = False,
        revisions: bool = False,
        patience: int = 0,
    ) -> Actor:
        """Reads, and objects to anything older than what was known to be there when it began."""
        source, truth = self.source, self.truth

        def begin() -> int:
            return truth.state.floor

        def load() -> Any:
            truth.state = truth.state._replace(loads=truth.state.loads + 1)
            value = source.state.lagging if lagging else source.state.value
            return _loaded(value, revisions)

        async def work(io: SimPort) -> tuple[Any, ...]:
            if patience:
                io.clock = Patience(patience)
            seen = []
            for _ in range(times):
                floor = await io.call(begin)
                entry = await read_through(io, self.region, load, ask)
                assert entry.value >= floor, f"read {entry.value}, {floor} was known before"
                seen.append((entry.value, entry.status, entry.published))
            return tuple(seen)

        return work

    def refreshes(self, seen: bytes, *, ask: Ask = PLAIN) -> Actor:
        """A background refresh of an entry that was found early or stale."""
        source, truth = self.source, self.truth

        def load() -> int:
            truth.state = truth.state._replace(loads=truth.state.loads + 1)
            return source.state.value

        quiet = dataclasses.replace(ask, background=True)

        async def work(io: SimPort) -> Any:
            old = protocol.Look("early", unpacked(seen))
            entry = await protocol.refresh(io, self.region, KEY, load, quiet, old)
            return None if entry is None else (entry.value, entry.published)

        return work

    def changes(self, value: int = 2, *, revision: bool = False, replicated: bool = False) -> Actor:
        """Saves a value, then invalidates; from then on nothing older may be read."""
        source = self.source

        def save() -> None:
            lagging = value if replicated else source.state.lagging
            source.state = Source(value, lagging)

        async def work(io: SimPort) -> None:
            await io.call(save)
            number = value if revision else None
            await write.invalidate(io, self.region, (KEY,), hard=True, revision=number)
            await io.call(self.known(value))

        return work

    def renews(self, token: str, times: int = 1) -> Actor:
        """Renews the lease of an actor (whose first token is ``a.1``, say), which may be lost by then."""

        async def work(io: SimPort) -> tuple[Any, ...]:
            keys, said = self.keys, []
            for _ in range(times):
                call = self.region.scripts.renew(
                    (keys.entry, keys.lease, keys.marks), (token.ljust(22, "_"), 5_000, "")
                )
                said.append(type(await io.run(call)).__name__)
            return tuple(said)

        return work

    def sets(self, value: int = 2) -> Actor:
        """Saves a value, then sets it."""
        source = self.source

        def save() -> None:
            source.state = source.state._replace(value=value)

        async def work(io: SimPort) -> None:
            await io.call(save)
            await write.set_value(io, self.region, KEY, value, PLAIN)
            await io.call(self.known(value))

        return work

    def known(self, value: int) -> Callable[[], None]:
        """A step that makes a value known."""
        truth = self.truth

        def known() -> None:
            truth.state = truth.state._replace(floor=max(truth.state.floor, value))

        return known

    def writes_through(self) -> Actor:
        """Counts the source up, in a write that announces itself."""
        source = self.source

        def save(value: Any) -> Any:
            up = source.state.value + 1
            source.state = Source(up, source.state.lagging)
            return _loaded(up, False, always=True)

        async def work(io: SimPort) -> tuple[bool, str]:
            written = await write.write_through(io, self.region, KEY, None, save, PLAIN)
            return (written.published, written.reason)

        return work

    def writes_around(self) -> Actor:
        """Counts the source up, and forgets the entry."""
        source = self.source

        def save() -> None:
            source.state = Source(source.state.value + 1, source.state.lagging)

        async def work(io: SimPort) -> str:
            return (await write.write_around(io, self.region, KEY, save)).reason

        return work

    def dies_after_save(self) -> Actor:
        """Announces a write, saves, and never comes back; then its announcement runs out."""
        source = self.source

        def save() -> None:
            source.state = Source(source.state.value + 1, source.state.lagging)

        async def work(io: SimPort) -> None:
            await write._begin(io, self.region, KEY)
            await io.call(save)
            await io.run(commands.delete(self.keys.intents))

        return work

    # -- checks

    def shortened(self, actor: str, call: Any, answer: Any) -> None:
        """An entry that is there now ends with the announcement."""
        self.truth.state = self.truth.state._replace(short=True)

    def lengthened(self, actor: str, call: Any, answer: Any) -> None:
        """An entry was written, for its whole life."""
        if isinstance(answer, Published):
            self.truth.state = self.truth.state._replace(short=False)

    def stored(self, view: View) -> Stored[Any] | None:
        """The entry there."""
        return unpacked(view.value(self.keys.entry))

    def not_stale(self, view: View) -> str | None:
        """Once all have ended, the cache holds what the source has, or nothing that lasts: an entry
        beside an announced write ends with it."""
        stored = self.stored(view)
        if stored is None or self.truth.state.short:
            return None
        carried = stored.header.stamps
        if any(view.value(self.region.stamp(tag)) != stamp for tag, stamp in carried.items()):
            return None  # a miss for every reader
        if stored.value != self.source.state.value:
            return f"the cache holds {stored.value}, the source {self.source.state.value}"
        return None


def _loaded(value: int, revisions: bool, *, always: bool = False) -> Any:
    return Loaded(value, revision=value if revisions else None) if revisions or always else value
