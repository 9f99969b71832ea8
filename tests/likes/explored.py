"""A like cache as the explorer sees it: one shard, the real scripts, a database in memory, and the truth.

The truth is what the users were told: it changes in the same step as the server does. The cache may
not know something, but it must never say something else; and from every state, if everybody dies
there, the next flusher must bring SQL to the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fencepost._core.keys import like_shard
from fencepost.errors import OutcomeUnknown, Unavailable
from fencepost.likes import audit, durable, lives, protocol
from fencepost.likes.options import LikeOptions
from fencepost.likes.protocol import Known, Shard
from fencepost.likes.scripts import SCRIPTS, Done, Same, Scripts
from fencepost.likes.store import Committed, ItemBatch, Place
from fencepost.testing import Cell, Faults, Move, Scenario, SimPort, View
from fencepost.testing.model_likes import ItemRow, ModelLikes

Protocol = Callable[[SimPort], Coroutine[Any, Any, Any]]
SCOPE = "likes:n:000"
IDENTITY = "a0:b0"


class Truth(NamedTuple):
    """What users were told: who likes what; after a loss of data, only what they were told since."""

    likes: frozenset[tuple[int, int]]
    lost: bool = False
    told: tuple[tuple[tuple[int, int], bool], ...] = ()
    wrong: str = ""
    deleted: bool = False
    forgotten: bool = False
    committed: tuple[
        tuple[tuple[int, int], bool], ...
    ] = ()  # told to be in SQL, and not changed since
    outside: bool = False  # SQL was written past us, and nobody told us yet

    @property
    def exempt(self) -> bool:
        """Whether the cache may differ from this for now."""
        return self.lost or self.deleted or self.outside


class Witness(ModelLikes):
    """A store that remembers the newest version applied of each pair, and says when an older one follows."""

    applied: Cell[Any]
    undone: Cell[str]

    def commit(
        self, place: Place, epoch: int, fence: int, batches: Sequence[ItemBatch]
    ) -> Committed:
        done = super().commit(place, epoch, fence, batches)
        newest = dict(self.applied.state)
        for batch in batches if not done.refused else ():
            for one in batch.changes:
                pair, row = (batch.item, one.user), self.state.item(batch.item)
                if row is None or one.version >= newest.get(pair, (0, 0)):
                    newest[pair] = one.version
                elif (one.user in row.likers) == one.liked and not done.skipped:
                    self.undone.state = f"{one} came after {newest[pair]}"
        self.applied.state = tuple(sorted(newest.items()))
        return done


class Objecting(ModelLikes):
    """A store with a constraint that user 3 does not meet."""

    def objects(self, item: Any, change: Any) -> str:
        return "no such user" if change.liked and change.user == 3 else ""


class LikesWorld:
    """One shard, and actors on it.

    Args:
        items: Who likes each item at first; nothing of it is in the cache.
        full: Whether items are loaded whole, or pair by pair.
        scripts: The scripts, one of them changed perhaps.
        model: The store, one guard taken away perhaps.
        opened: Whether the shard is open at first.
        witness: Whether to see that SQL never goes back to an older version of a pair.
        **options: Of the like cache.
    """

    def __init__(
        self,
        items: Mapping[int, Sequence[int]] | None = None,
        *,
        full: bool = True,
        scripts: Scripts = SCRIPTS,
        model: type[ModelLikes] = ModelLikes,
        opened: bool = True,
        witness: bool = False,
        **options: Any,
    ) -> None:
        self.items = {1: (1,)} if items is None else dict(items)
        self.applied: Cell[Any] = Cell(())
        self.undone = Cell("")
        if witness:
            model = type(model.__name__, (Witness, model), {})
        self.store = model(dict(self.items), {SCOPE: 1} if opened else None)
        if isinstance(self.store, Witness):
            self.store.applied, self.store.undone = self.applied, self.undone
        keys = like_shard("t", "n", 0)
        rounds = options.pop("rounds", 3)
        settings = LikeOptions(**{"shards": 1, "full_max": 100 if full else 0, **options})
        # Fewer than one would run with: a call that gives up is right too, and each round is a space.
        object.__setattr__(settings, "rounds", rounds)
        self.shard = Shard(
            "n",
            keys,
            Place("likes:n", 0, 1),
            self.store,
            settings,
            scripts=scripts,
        )
        self.keys = keys
        self.known = Known("1", IDENTITY) if opened else None
        self.opened = opened
        self.truth = Cell(
            Truth(frozenset((item, user) for item, users in self.items.items() for user in users))
        )

    # -- actors

    def sets(
        self, *wanted: tuple[int, int, bool], tries: int = 1, known: Known | None = None
    ) -> Protocol:
        """One client that likes and unlikes, one after the other; a lost reply is tried again."""

        async def work(io: SimPort) -> tuple[bool, ...]:
            knows, answers = known or self.known, []
            for item, user, liked in wanted:
                for left in reversed(range(tries)):
                    try:
                        result, knows = await protocol.set_like(
                            io, self.shard, knows, str(item), str(user), liked
                        )
                    except (OutcomeUnknown, Unavailable):
                        if not left:
                            raise
                        continue
                    answers.append(result.changed)
                    break
            return tuple(answers)

        return work

    def status(self, user: int | None = 1, item: int = 1, tries: int = 1) -> Protocol:
        """One reader."""

        async def work(io: SimPort) -> Any:
            for left in reversed(range(tries)):
                try:
                    who = None if user is None else str(user)
                    result, _ = await protocol.status(io, self.shard, self.known, str(item), who)
                    return (result.liked, result.count)
                except (OutcomeUnknown, Unavailable):
                    if not left:
                        raise
            return None

        return work

    def flush(self, times: int = 1, items: Sequence[int] = (), tries: int = 1) -> Protocol:
        """One flusher: so many passes over some items, those of the world by default."""
        names = [str(item) for item in items or self.items]

        async def work(io: SimPort) -> tuple[int, ...]:
            knows, entries = self.known, []
            for _ in range(times):
                for left in reversed(range(tries)):
                    try:
                        report, knows = await protocol.flush_items(io, self.shard, knows, names)
                    except (OutcomeUnknown, Unavailable):
                        if not left:
                            raise
                        continue
                    entries.append(report.entries)
                    break
            return tuple(entries)

        return work

    def flush_due(self, times: int = 1, tries: int = 1) -> Protocol:
        """One flusher that asks what is due: so many rounds, each until nothing is."""

        async def work(io: SimPort) -> int:
            knows, entries = self.known, 0
            for _ in range(times):
                for left in reversed(range(tries)):
                    try:
                        report, _, knows = await protocol.flush_due(io, self.shard, knows)
                    except (OutcomeUnknown, Unavailable):
                        if not left:
                            raise
                        continue
                    entries += report.entries
                    break
            return entries

        return work

    def audits(self, item: int = 1, tries: int = 1) -> Protocol:
        """One audit of an item: where nobody writes past us, it finds nothing."""

        def alarm() -> None:
            self.truth.state = self.truth.state._replace(wrong="an audit gave a false alarm")

        async def work(io: SimPort) -> int:
            for left in reversed(range(tries)):
                try:
                    found, _ = await audit.audit_item(io, self.shard, self.known, str(item))
                except (OutcomeUnknown, Unavailable):
                    if not left:
                        raise
                    continue
                if found:
                    await io.call(alarm)
                return len(found)
            return 0

        return work

    def commits(self, item: int, user: int, liked: bool) -> Protocol:
        """One client that waits until its like is in SQL, in a group of one."""
        pair = (item, user)

        def told() -> None:
            truth, row = self.truth.state, self.store.state.item(item)
            there = row is not None and user in row.likers
            refused = liked and pair in dict(self.store.state.aside)
            if ((pair in truth.likes) == liked or refused) and liked != there:
                truth = truth._replace(
                    wrong=f"told that {pair}={liked} is in SQL, which says {there}"
                )
            elif (pair in truth.likes) == liked:
                committed = tuple(sorted({**dict(truth.committed), pair: liked}.items()))
                truth = truth._replace(committed=committed)
            self.truth.state = truth

        async def work(io: SimPort) -> bool:
            async def join(one: durable.Wanted) -> durable.Verdict:
                verdicts, _, _ = await durable.commit_group(io, self.shard, self.known, [one])
                return verdicts[0]

            result, _ = await durable.set_committed(
                io, self.shard, self.known, str(item), str(user), liked, join
            )
            await io.call(told)
            return result.changed

        return work

    def late_opener(self, user: int = 1, item: int = 1) -> Protocol:
        """Who looked at an empty server, raised the epoch, and was overtaken by others before it opened."""

        async def work(io: SimPort) -> Any:
            await io.run(self.shard.scripts.open((self.keys.opening,), ("", 0, IDENTITY), IDENTITY))
            older = Known("0", IDENTITY)
            result, _ = await protocol.status(io, self.shard, older, str(item), str(user))
            return (result.liked, result.count)

        return work

    def delete_item(self, item: int = 1) -> Protocol:
        """The application deletes an item in SQL."""

        def delete() -> None:
            self.store.put_item(item, None)
            told = self.truth.state
            self.truth.state = told._replace(deleted=True)

        async def work(io: SimPort) -> None:
            await io.call(delete)

        return work

    def forget(self, item: int = 1, tries: int = 1) -> Protocol:
        """The application deletes an item as it should: tombstone, SQL, tombstone."""

        def delete() -> None:
            self.store.put_item(item, None)

        def begun() -> None:
            self.truth.state = self.truth.state._replace(deleted=True)

        def forgotten() -> None:
            self.truth.state = self.truth.state._replace(forgotten=True)

        async def work(io: SimPort) -> None:
            await io.call(begun)
            for left in reversed(range(tries)):
                try:
                    await lives.forget_item(io, self.shard, self.known, str(item), delete)
                except (OutcomeUnknown, Unavailable):
                    if not left:
                        raise
                    continue
                await io.call(forgotten)
                break

        return work

    def evict(self, user: int = 1, item: int = 1, tries: int = 1) -> Protocol:
        """A process drops a clean state to bound the header's memory."""

        async def work(io: SimPort) -> None:
            keys = (self.keys.header(str(item)), self.keys.journal(str(item)))
            for left in reversed(range(tries)):
                try:
                    await io.run(self.shard.scripts.evict(keys, [f"u{user}"]))
                except (OutcomeUnknown, Unavailable):
                    if not left:
                        raise
                    continue
                break

        return work

    def outside(self, user: int = 9, item: int = 1, tries: int = 1) -> Protocol:
        """Somebody inserts a row past the like cache, then invalidates the item."""

        def insert() -> None:
            row = self.store.state.item(item)
            if row is None:  # it was deleted before
                return
            self.store.put_item(item, ItemRow(row.count + 1, row.likers | {user}, row.version))
            truth = self.truth.state
            self.truth.state = truth._replace(likes=truth.likes | {(item, user)}, outside=True)

        async def work(io: SimPort) -> None:
            await io.call(insert)
            for left in reversed(range(tries)):
                try:
                    await lives.invalidate(io, self.shard, str(item))
                except (OutcomeUnknown, Unavailable):
                    if not left:
                        raise
                    continue
                break

        return work

    # -- the truth

    def _on_invalidate(self, name: str, call: Any, answer: Any) -> None:
        self.truth.state = self.truth.state._replace(outside=False)

    def _on_commit(self, name: str, call: Any, done: Any) -> None:
        """What SQL refuses is set aside: nobody likes it any more, and the cache is about to forget it."""
        if done.poison:
            truth, gone = self.truth.state, {(one.item, one.user) for one in done.poison}
            self.truth.state = truth._replace(likes=truth.likes - gone, outside=True)

    def _on_set(self, name: str, call: Any, answer: Any) -> None:
        item, user, liked = int(call.args[2]), int(call.args[3][1:]), call.args[4] == "1"
        truth = self.truth.state
        pair = (item, user)
        if isinstance(answer, Done):
            likes = truth.likes | {pair} if liked else truth.likes - {pair}
            committed = tuple(one for one in truth.committed if one[0] != pair)
            truth = truth._replace(likes=likes, committed=committed)
        elif isinstance(answer, Same) and not truth.exempt and (pair in truth.likes) != liked:
            truth = truth._replace(
                wrong=f"told {pair} was {liked} before, truth {sorted(truth.likes)}"
            )
        if isinstance(answer, (Done, Same)) and truth.lost:
            truth = truth._replace(told=tuple(sorted({**dict(truth.told), pair: liked}.items())))
        if isinstance(answer, (Done, Same)) and not truth.exempt:
            count = sum(one == item for one, _ in truth.likes)
            if answer.count != count:
                truth = truth._replace(
                    wrong=f"told a count of {answer.count}, truth {sorted(truth.likes)}"
                )
        self.truth.state = truth

    def _on_read(self, name: str, call: Any, fields: Any) -> None:
        truth = self.truth.state
        if truth.exempt:
            return
        item, who = int(call.args[1].rpartition(":")[2]), call.args[6:]
        said = protocol.read_header(fields, Known("1", IDENTITY), str(item))
        if said is None:
            return
        liked = bool(who) and (item, int(who[0][1:])) in truth.likes
        count = sum(one == item for one, _ in truth.likes)
        if (said.liked, said.count) != (liked, count):
            self.truth.state = truth._replace(
                wrong=f"{name} read {said}, truth {sorted(truth.likes)}"
            )

    def on_journal_lost(self, name: str, call: Any, answer: Any) -> None:
        """A journal alone was lost: until the header expires, the cache knows more than SQL ever will."""
        self.truth.state = self.truth.state._replace(lost=True, outside=True, told=())

    def _on_loss(self, name: str, call: Any, answer: Any) -> None:
        self.truth.state = self.truth.state._replace(lost=True, told=())

    # -- what must hold

    def headers(self, view: View, likes: frozenset[tuple[int, int]]) -> str | None:
        """Whether a header that counts says something else than these likes."""
        record = view.value(self.keys.opening, {})
        for item in self.items:
            header = view.value(self.keys.header(str(item)))
            if header is None or header.get("#e") != record.get("e") or "#gone" in header:
                continue
            if record.get("id") != view.server.identity:
                continue
            likers = {user for one, user in likes if one == item}
            if "#n" not in header:
                return f"a header without a count: {header}"
            if int(header["#n"]) != len(likers):
                return f"count of item {item} is {header['#n']}, likers are {sorted(likers)}"
            known = {
                int(name[1:]): state == "1" for name, state in header.items() if name[0] == "u"
            }
            for user, liked in known.items():
                if liked != (user in likers):
                    return f"item {item} says {user}={liked}, likers are {sorted(likers)}"
            if "#full" in header and (
                missing := likers - {user for user, liked in known.items() if liked}
            ):
                return f"item {item} is full and lacks {sorted(missing)}"
        return None

    def owed(self, view: View) -> frozenset[tuple[int, int]]:
        """What SQL has, and over it what the journal holds."""
        tables = self.store.state
        likes = {(item, user) for item, row in tables.items for user in row.likers}
        for item in self.items:
            for name, version in view.value(self.keys.journal(str(item)), {}).items():
                pair = (item, int(name[1:]))
                (likes.add if version[0] == "1" else likes.discard)(pair)
        return frozenset(likes)

    def invariant(self, view: View) -> str | None:
        truth = self.truth.state
        if truth.wrong or self.undone.state:
            return truth.wrong or self.undone.state
        if truth.deleted or truth.outside:
            return None
        if wrong := self.headers(view, self.owed(view)):
            return f"cache against SQL and journal: {wrong}"
        if truth.lost:
            return None
        if wrong := self.headers(view, truth.likes):
            return f"cache: {wrong}"
        for item in self.items:
            header = view.keys.get(self.keys.header(str(item)))
            journal = view.keys.get(self.keys.journal(str(item)))
            if journal is None:
                if header is not None and not header.volatile:
                    return f"item {item} is clean and its header never expires: {header.value}"
                continue
            if journal.volatile:
                return f"the journal of item {item} can expire"
            if header is not None and header.volatile and header.value.get("#n"):
                return f"item {item} is dirty and its header can expire"
            if str(item) not in view.value(self.keys.due, {}):
                return f"item {item} is dirty and not due: nobody would flush it"
            if str(item) not in view.value(self.keys.since, {}):
                return f"item {item} is dirty and nobody knows since when"
        record = view.keys.get(self.keys.opening)
        if record is not None and record.volatile:
            return "the opening record can expire"
        return None

    def forgot_what_was_refused(self, view: View) -> str | None:
        """At the end: a refused row that met a flush is not in the cache any more."""
        if self.truth.state.outside and view.value(self.keys.header("1")):
            return f"the cache still shows what SQL refused: {view.value(self.keys.header('1'))}"
        return None

    async def heal(self, io: SimPort) -> tuple[Any, ...]:
        """What the next process does: flush until nothing is left, then look."""
        knows = None
        for _ in range(12):
            items = await protocol.dirty_items(io, self.shard)
            if not items:
                break
            _, knows = await protocol.flush_items(io, self.shard, knows, items)
        seen = []
        for item in self.items:
            try:
                result, knows = await protocol.status(io, self.shard, knows, str(item), "1")
            except LookupError:
                seen.append((item, None, 0))
            else:
                seen.append((item, result.liked, result.count))
        return tuple(seen)

    def healed(self, view: View) -> str | None:
        truth, tables = self.truth.state, self.store.state
        for item in self.items:
            if journal := view.value(self.keys.journal(str(item))):
                return f"item {item} is not drained: {journal}"
        if left := view.value(self.keys.due):
            return f"due, and nothing to flush: {left}"
        rows = frozenset((item, user) for item, row in tables.items for user in row.likers)
        for item, row in tables.items:
            if row.count != len(row.likers):
                return f"like_count of item {item} is {row.count}, rows are {sorted(row.likers)}"
        if truth.deleted:
            # Who deletes in SQL alone is seen when the header expires; nothing may bring rows back.
            if tables.item(1) is not None and truth.forgotten:
                return f"rows of a deleted item: {sorted(rows)}"
            shown = "#n" in view.value(self.keys.header("1"), {})
            return "a forgotten item is shown" if truth.forgotten and shown else None
        owed = truth.likes - {pair for pair, _ in tables.aside}
        if not truth.lost and rows != owed:
            return f"SQL has {sorted(rows)}, truth is {sorted(owed)}"
        for (item, user), liked in truth.committed:
            if ((item, user) in rows) != liked:
                return f"committed {user} on {item} {liked} was undone; SQL has {sorted(rows)}"
        for (item, user), liked in truth.told:
            if (item, user) in dict(tables.aside):
                continue
            if ((item, user) in rows) != liked:
                return f"told since the loss: {user} on {item} {liked}; SQL has {sorted(rows)}"
        if truth.outside:
            return None
        if wrong := self.headers(view, rows):
            return f"cache: {wrong}"
        for item, liked, count in view.results["heal"]:
            likers = {user for one, user in rows if one == item}
            if (liked, count) != (1 in likers, len(likers)):
                return f"a reader saw {liked}, {count}; SQL has {sorted(rows)}"
        return None

    def scenario(
        self,
        environment: Mapping[str, Move] | None = None,
        *,
        faults: Faults | None = None,
        crashes: Sequence[str] = (),
        setup: Sequence[Sequence[Any]] = (),
        preemptions: int | None = None,
        **actors: Protocol,
    ) -> Scenario:
        """A scenario over this world, with all that must hold."""
        opening = (
            [("HSET", self.keys.opening, "e", 1, "f", 0, "s", 0, "id", IDENTITY)]
            if self.opened
            else []
        )
        return Scenario(
            actors=actors,
            environment=environment or {},
            cells=[self.store, self.truth, self.applied, self.undone],
            setup=[*opening, *setup],
            faults=faults or Faults(times=0),
            crashes=frozenset(crashes),
            preemptions=preemptions,
            invariant=self.invariant,
            heal=self.heal,
            healed=self.healed,
            observe={
                "set": self._on_set,
                "commit": self._on_commit,
                "hmget": self._on_read,
                "invalidate": self._on_invalidate,
                "flushall": self._on_loss,
                "restart": self._on_loss,
                "failover": self._on_loss,
                "delete": self._on_loss,
            },
        )


def without(verbs: str, *cuts: tuple[str, str]) -> Scripts:
    """The scripts with pieces of text replaced.

    Args:
        verbs: Of which script, or of which scripts (``begin+fill``).
        *cuts: Pieces, each with what stands in its place; one that is in none of them is an error.
    """
    scripts, left = SCRIPTS, set(cuts)
    for verb in verbs.split("+"):
        script = getattr(SCRIPTS, verb)
        text = script.plain
        for old, new in cuts:
            if old in text:
                left.discard((old, new))
                text = text.replace(old, new)
        scripts = replace(scripts, **{verb: script.with_text(text)})
    assert not left, f"{verbs} do not hold {left}"
    return scripts


__all__ = ["IDENTITY", "SCOPE", "SCRIPTS", "LikesWorld", "Truth", "without"]
