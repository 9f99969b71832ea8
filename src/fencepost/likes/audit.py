"""Audit and repair: is what is shown what SQL says, plus what is still owed to it?

While traffic runs, two readings of two systems prove nothing, unless they are of one moment. So an
audit draws a fence where it reads header and journal, then reads SQL in a transaction that raises
the fence there. A flusher that had read before can't commit any more; one that read after has a
greater fence, and then the audit is refused and begins again. So SQL's rows, with the journal laid
over them, are the truth of the moment at which the header was read.
"""

from __future__ import annotations

from dataclasses import dataclass

from fencepost._core.keys import field_of, user_of
from fencepost._core.port import OtherServer, Port
from fencepost.journal.scripts import Closed
from fencepost.likes import scripts as s
from fencepost.likes.protocol import Known, Shard, gave_up, open_shard
from fencepost.likes.store import Inspected


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as it should be.

    Args:
        item: Of which item (its key).
        kind: ``rows`` (like_count is not the number of rows), ``count`` or ``heart`` (the cache shows
            something else than SQL and the journal say), ``orphan`` (changes of an item that does not
            exist), ``superseded`` (the journal holds what SQL has gone past).
        expected: What should be there.
        found: What is.
        explanation: Where this comes from, as far as it shows.
    """

    item: str
    kind: str
    expected: str
    found: str
    explanation: str


@dataclass(frozen=True, slots=True)
class _Reading:
    """One moment of one item: the server's side, and SQL's."""

    epoch: int
    header: dict[str, str]
    journal: dict[str, str]
    sql: Inspected


async def audit_item(
    io: Port, shard: Shard, known: Known | None, item: str, *, repair: bool = False
) -> tuple[list[Difference], Known]:
    """Compare one item; with ``repair`` also mend it, in the same transaction and under the same fence.

    Repair sets ``like_count`` to the number of rows, and drops the cached header where it was wrong.
    What is owed to SQL stays owed.

    Raises:
        Overloaded: Flushers kept coming between.
    """
    reading, known = await read_moment(io, shard, known, item, repair)
    differences = compare(shard, item, reading)
    if repair and any(one.kind in ("count", "heart") for one in differences):
        await io.run(shard.scripts.invalidate((shard.keys.header(item), shard.keys.tokens(item))))
    return differences, known


async def read_moment(
    io: Port, shard: Shard, known: Known | None, item: str, repair: bool
) -> tuple[_Reading, Known]:
    """Both sides of one item at one moment."""
    keys = shard.keys
    for _ in range(shard.options.rounds):
        if known is None:
            known = await open_shard(io, shard)
            continue
        try:
            found = await io.run(
                shard.scripts.inspect(
                    (keys.opening, keys.header(item), keys.journal(item)),
                    (known.epoch, known.server),
                    known.server,
                )
            )
        except OtherServer:
            known = None
            continue
        if isinstance(found, Closed):
            known = None
            continue
        header, journal = dict(found.header), dict(found.journal)
        users = [user_of(one) for one in {*header, *journal} if not one.startswith("#")]
        sql: Inspected = await io.call(
            shard.store.inspect,
            shard.place,
            int(known.epoch),
            found.fence,
            shard.store.item_id(item),
            [shard.store.user_id(user) for user in users],
            repair,
        )
        if not sql.refused:
            return _Reading(int(known.epoch), header, journal, sql), known
        if sql.refused == "epoch":
            known = None
    raise gave_up(shard, "an audit")


def compare(shard: Shard, item: str, reading: _Reading) -> list[Difference]:
    """What is not as it should be in one reading."""
    header, journal, sql = reading.header, reading.journal, reading.sql
    found: list[Difference] = []

    def differ(kind: str, expected: object, got: object, explanation: str) -> None:
        found.append(Difference(item, kind, str(expected), str(got), explanation))

    if sql.count is None:
        if journal:
            differ(
                "orphan",
                "no changes",
                f"{len(journal)} changes",
                "the item was deleted past fencepost",
            )
        if "#n" in header and header.get("#e") == str(reading.epoch):
            differ("count", "no such item", header["#n"], "the item was deleted past fencepost")
        return found
    if sql.count != sql.rows:
        differ("rows", sql.rows, sql.count, "rows or like_count were written past fencepost")
    liked = {field_of(shard.store.user_key(user)) for user in sql.liked}
    changes = {who: s.read_version(version) for who, version in journal.items()}
    # What was committed and is not acknowledged yet is old too, but then the row agrees with it.
    superseded = [
        who
        for who, (want, version) in changes.items()
        if version <= sql.version and want != (who in liked)
    ]
    if superseded:
        differ(
            "superseded",
            "newer changes only",
            f"{len(superseded)} that SQL has gone past",
            "the server came back with an older journal; a flush skips them",
        )
    if header.get("#e") != str(reading.epoch) or "#n" not in header:
        return found  # nothing is shown from it: it is loaded anew
    owed = {who: want for who, (want, _) in changes.items() if who not in superseded}
    truth = sql.rows + sum(want - (who in liked) for who, want in owed.items())
    past = "rows were written past fencepost since the item was loaded: call invalidate() after such writes"
    if int(header["#n"]) != truth:
        differ("count", truth, header["#n"], past)
    for who, state in sorted(header.items()):
        if who.startswith("#"):
            continue
        want = owed.get(who, who in liked)
        if (state == "1") != want:
            differ("heart", f"{user_of(who)}: {want}", f"{state == '1'}", past)
    if (
        not found
        and "#full" in header
        and sum(state == "1" for who, state in header.items() if who[0] != "#") != truth
    ):
        differ(
            "heart", f"{truth} likers", "another number in a header that claims to hold all", past
        )
    return found
