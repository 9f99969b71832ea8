"""A cache that is written behind, under the hand: one key, its source with a gate, actors for plays
and for the explorer.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from fencepost._core.keys import cache_shard
from fencepost.cache import behind, flush, write
from fencepost.cache.behind import Batch, Unsaveable, Writes
from fencepost.cache.entry import Unreadable
from fencepost.cache.options import BehindOptions
from fencepost.cache.region import PLAIN
from fencepost.cache.scripts import BEHIND, SCRIPTS, BehindScripts, Put, Scripts
from fencepost.errors import OutcomeUnknown, Superseded, Unavailable
from fencepost.journal.protocol import Known, Place
from fencepost.testing import Cell, SimPort, View
from support.cache import KEY, make_region, read_through, unpacked

Actor = Callable[[SimPort], Coroutine[Any, Any, Any]]
IDENTITY = "a0:b0"  # of the server that an exploration begins with


class Db(NamedTuple):
    """What the source holds: one row, the newest fence, and which version was saved last."""

    value: int = 1
    epoch: int = 1
    fence: int = 0
    version: int = 0
    undone: str = ""


class Truth(NamedTuple):
    """Which version each value was written as, and which were answered to their writers."""

    versions: tuple[tuple[int, int], ...] = ((1, 0),)
    floor: int = 0


class Source:
    """The source, with the gate that it keeps beside the row.

    Args:
        db: Its state.
        fenced: It compares fences.
        epochs: It compares epochs.
        versioned: It compares the version of the row.
        poison: Values that it refuses.
    """

    def __init__(
        self,
        db: Cell[Db],
        *,
        fenced: bool = True,
        epochs: bool = True,
        versioned: bool = True,
        poison: tuple[int, ...] = (),
    ) -> None:
        self.db, self.fenced, self.epochs = db, fenced, epochs
        self.versioned, self.poison = versioned, poison

    def epoch(self, place: Place) -> int:
        return self.db.state.epoch

    def raise_epoch(self, place: Place, seen: int, epoch: int) -> bool:
        if self.db.state.epoch != seen:
            return False
        self.db.state = self.db.state._replace(epoch=epoch, fence=0)
        return True

    def save(self, batch: Batch[int]) -> None:
        db = self.db.state
        if self.epochs and batch.epoch != db.epoch:
            raise Superseded("another epoch", by="epoch")
        if self.fenced and batch.fence < db.fence:
            raise Superseded("a newer fence", by="fence")
        for one in batch:
            if one.value in self.poison:
                raise Unsaveable("no such value")
            if self.versioned and one.version <= db.version:
                continue
            if one.version < db.version:
                db = db._replace(undone=f"version {one.version} came after {db.version}")
            db = db._replace(value=one.value, version=one.version)
        self.db.state = db._replace(fence=batch.fence)


class BehindWorld:
    """One key of a cache that is written behind, and actors on it.

    Args:
        scripts: The scripts of the cache, one of them changed perhaps.
        behind_scripts: Those of the journal likewise.
        opened: Whether the shard is open at first.
        source: Options of the source.
        **options: Of the cache.
    """

    def __init__(
        self,
        *,
        scripts: Scripts = SCRIPTS,
        behind_scripts: BehindScripts = BEHIND,
        opened: bool = True,
        source: dict[str, Any] | None = None,
        gate: Any = None,
        rounds: int = 3,
        namespace: str = "t",
        **options: Any,
    ) -> None:
        self.region = make_region(
            namespace,
            scripts=scripts,
            **{"shards": 1, "on_down": "raise", "rounds": 2, "wait": 0, **options},
        )
        self.keys = self.region.keys(KEY)
        self.shard_keys = cache_shard(self.region.prefix, 0)
        self.db, self.truth = Cell(Db()), Cell(Truth())
        self.source = Source(self.db, **(source or {}))
        settings = BehindOptions()
        # Fewer than one would run with: a call that gives up is right too, and each round is a space.
        object.__setattr__(settings, "rounds", rounds)
        self.shard = Writes(
            self.region,
            self.shard_keys,
            Place("cache:c", 0, 1),
            gate or self.source,
            self.source.save,
            settings,
            scripts=behind_scripts,
        )
        self.known = Known("1", IDENTITY) if opened else None

    @property
    def cells(self) -> tuple[Any, ...]:
        return (self.db, self.truth)

    @property
    def setup(self) -> list[tuple[Any, ...]]:
        """The commands that open the shard."""
        record = ("e", "1", "f", "0", "s", "0", "id", IDENTITY)
        return [("HSET", self.shard_keys.opening, *record)] if self.known else []

    # -- actors

    def writes(self, *values: int) -> Actor:
        """Writes values, and remembers what was answered."""

        async def work(io: SimPort) -> tuple[int, ...]:
            known, versions = self.known, []
            for value in values:
                version, known = await behind.put(io, self.shard, known, KEY, value, PLAIN)
                await io.call(self.answered(version))
                versions.append(version)
            return tuple(versions)

        return work

    def answered(self, version: int) -> Callable[[], None]:
        truth = self.truth

        def answered() -> None:
            truth.state = truth.state._replace(floor=max(truth.state.floor, version))

        return answered

    def written(self, actor: str, call: Any, answer: Any) -> None:
        """Remember which version a value was written as, whoever heard of it."""
        if isinstance(answer, Put):
            stored = unpacked(call.args[3])
            assert stored is not None
            assert stored.value is not None
            version = behind.number(answer.version)
            pairs = dict(self.truth.state.versions) | {stored.value: version}
            self.truth.state = self.truth.state._replace(versions=tuple(sorted(pairs.items())))

    def reads(self, times: int = 1) -> Actor:
        """Reads, and objects to anything older than what was answered when it began."""
        truth, db = self.truth, self.db

        def begin() -> int:
            return truth.state.floor

        def load() -> int:
            return db.state.value

        def version_of(value: int) -> int:
            return dict(truth.state.versions)[value]

        async def work(io: SimPort) -> tuple[int, ...]:
            seen = []
            for _ in range(times):
                floor = await io.call(begin)
                entry = await read_through(io, self.region, load)
                version = await io.call(version_of, entry.value)
                assert version >= floor, f"read version {version}, {floor} was answered before"
                seen.append(entry.value)
            return tuple(seen)

        return work

    def flushes(self, times: int = 1, tries: int = 1) -> Actor:
        """Flushes the key."""

        async def work(io: SimPort) -> int:
            known, saved = self.known, 0
            for _ in range(times):
                for left in reversed(range(tries)):
                    try:
                        report, known = await flush.flush_keys(io, self.shard, known, (KEY,))
                    except (OutcomeUnknown, Unavailable):
                        if not left:
                            raise
                        continue
                    saved += report.saved
                    break
            return saved

        return work

    def invalidates(self) -> Actor:
        async def work(io: SimPort) -> None:
            await write.invalidate(io, self.region, (KEY,), hard=True, revision=None)

        return work

    # -- checks

    @property
    def newest(self) -> tuple[int, int]:
        """The newest value that was written, and its version."""
        return max(self.truth.state.versions, key=lambda pair: pair[1])

    def never_back(self, view: View) -> str | None:
        """The source never goes back to an older version."""
        return self.db.state.undone or None

    def healed(self, view: View) -> str | None:
        """After one more flush the source has the newest value, and so has the cache, if any."""
        value, version = self.newest
        if self.db.state.undone:
            return self.db.state.undone
        if view.value(self.keys.journal) is not None:
            return "the journal is not empty"
        if (self.db.state.value, self.db.state.version) != (value, version):
            return f"the source holds {self.db.state.value}, {value} was written last"
        try:
            stored = unpacked(view.value(self.keys.entry))
        except Unreadable as error:
            return f"the entry is {error}"
        if stored is not None and stored.value != value:
            return f"the cache holds {stored.value}, the source {value}"
        return None
