"""Each guard of the like cache taken out, and a scenario that sees it.

``branches`` names every condition of every script; a test holds that each is cut here or in
``second_lines.py``, or is no guard and says why. ``proof.py`` writes what was found into ``docs/guarantees.md``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources

from fencepost.likes.store import Change, ItemBatch, Place
from fencepost.testing import Scenario
from fencepost.testing.model_likes import ItemRow, ModelLikes, ShardRow, Version
from likes.explored import SCRIPTS, without
from likes.scenarios import SCENARIOS


class AnyEpoch(ModelLikes):
    """A store that does not compare epochs."""

    def refuses(self, shard: ShardRow, epoch: int, fence: int) -> str:
        return "fence" if shard.fence > fence else ""


class AnyFence(ModelLikes):
    """A store that does not compare fences."""

    def refuses(self, shard: ShardRow, epoch: int, fence: int) -> str:
        return "" if shard.epoch == epoch else "epoch"


class AnyVersion(ModelLikes):
    """A store that does not know how far an item came."""

    def is_fresh(self, row: ItemRow, change: Change) -> bool:
        return True


class PartsCount(ModelLikes):
    """A store that notes the newest version of a part of the journal as if it were all."""

    def remembers(self, row: ItemRow, batch: ItemBatch) -> Version:
        return max(row.version, *(one.version for one in batch.changes), (0, 0))


class EpochStays(ModelLikes):
    """A store that does not raise the epoch where a shard is opened anew."""

    def raise_epoch(self, place: Place, seen: int, epoch: int) -> bool:
        return (
            self.epoch(place) == seen
            if self.epoch(place)
            else super().raise_epoch(place, seen, epoch)
        )


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard taken out, and a scenario that sees it.

    Args:
        name: What is done wrong without it.
        where: The scenario, and ``full`` or ``sparse``.
        verb: Which script is cut (or which, ``begin+fill``).
        cuts: Pieces of its text, each with what stands there instead.
        model: The store, one rule changed.
    """

    name: str
    where: str
    verb: str = ""
    cuts: tuple[tuple[str, str], ...] = ()
    model: type[ModelLikes] = ModelLikes

    def scenario(self) -> Scenario:
        name, _, kind = self.where.partition(" ")
        scripts = without(self.verb, *self.cuts) if self.verb else SCRIPTS
        return SCENARIOS[name](full=kind != "sparse", model=self.model, scripts=scripts)


REFUSAL = "if refusal then return refusal end"
DIRTY = "if not clean then return {'DIRTY'} end\n  if field"
ALL_OF_IT = "redis.call('DEL', header, journal, tokens)"
OWN_EPOCH = "local epoch, server, token, field = redis.call('HGET', opening, 'e') or ''"

MUTANTS = [
    # set
    Mutant("set in a closed shard", "opening_lost", "set", ((REFUSAL, ""),)),
    Mutant(
        "set at any epoch",
        "opening_lost",
        "set",
        (("record[1] ~= epoch or ", "not record[1] or "),),
    ),
    Mutant(
        "set on a header of an older epoch",
        "fails_over sparse",
        "set",
        (
            (
                "if known[1] and known[1] ~= epoch then redis.call('DEL', header) return {'COLD'} end",
                "",
            ),
        ),
    ),
    Mutant(
        "set takes unknown for no",
        "two_users sparse",
        "set",
        (("known[5] or (known[3] and '0')", "known[5] or '0'"),),
    ),
    Mutant("set leaves the TTL", "last_unlike", "set", (("redis.call('PERSIST', header)", ""),)),
    Mutant(
        "set forgets when it is due",
        "last_unlike",
        "set",
        (("redis.call('ZADD', due, at + delay_ms, item)", ""),),
    ),
    Mutant(
        "set forgets since when",
        "last_unlike",
        "set",
        (("redis.call('ZADD', since, 'NX', at, item)", ""),),
    ),
    Mutant(
        "set without an order",
        "back_and_forth",
        "set",
        (("redis.call('HINCRBY', opening, 's', 1)", "1"),),
    ),
    Mutant(
        "set counts the same click twice",
        "same_user",
        "set",
        (("if state == want then", "if false then"),),
    ),
    # load
    Mutant(
        "begin keeps a header of an older epoch",
        "opening_lost",
        "begin",
        (("if known[1] and known[1] ~= epoch then redis.call('DEL', header) known = {} end", ""),),
    ),
    Mutant(
        "begin gives a pair token where the header is lost",
        "last_unlike",
        "begin",
        (("field = '#'", ""),),
    ),
    Mutant(
        "a load over a journal",
        "header_lost",
        "begin+fill",
        (("if redis.call('HLEN', journal) > 0 then", "if false then"), (DIRTY, "if field")),
    ),
    Mutant("fill over a journal", "header_lost", "fill", ((DIRTY, "if field"),)),
    Mutant(
        "fill without its token",
        "last_unlike",
        "fill",
        (("if redis.call('HGET', tokens, field) ~= token then return {'REFUSED'} end", ""),),
    ),
    Mutant(
        "a pair makes a header",
        "forgotten sparse",
        "fill",
        (("if field ~= '#' then return {'REFUSED'} end", ""),),
    ),
    Mutant(
        "fill overwrites",
        "last_unlike",
        "fill",
        (("'HSETNX', header, ARGV[i]", "'HSET', header, ARGV[i]"),),
    ),
    Mutant(
        "a filled header never expires",
        "last_unlike",
        "fill",
        (("redis.call('PEXPIRE', header, ttl_ms)", ""),),
    ),
    # flush
    Mutant(
        "claim without a new fence",
        "flushers_part_by_part",
        "claim",
        (("redis.call('HINCRBY', opening, 'f', 1)", "1"),),
    ),
    Mutant(
        "claim calls a part whole",
        "flushers_part_by_part",
        "claim",
        (("return 0, found", "return 1, found"),),
    ),
    Mutant(
        "ack keeps the token of the header",
        "last_unlike",
        "ack",
        (("redis.call('HDEL', tokens, '#')", ""),),
    ),
    Mutant(
        "ack keeps the tokens of the users",
        "pair_beside_flush sparse",
        "ack",
        (("  redis.call('HDEL', tokens, unpack(users))\n", ""),),
    ),
    Mutant(
        "ack removes what is newer",
        "back_and_forth",
        "ack",
        (("if stands[n] == ARGV[i + 2 * n - 1] then", "if true then"),),
    ),
    Mutant(
        "ack cleans what is left", "back_and_forth", "ack", (("if left > 0 then", "if false then"),)
    ),
    Mutant(
        "ack leaves the header for ever",
        "back_and_forth",
        "ack",
        (("redis.call('PEXPIRE', header, ttl_ms)", ""),),
    ),
    Mutant(
        "ack of an orphan buries what came meanwhile",
        "deleted",
        "ack",
        (("if gone == '1' and left == 0 then", "if gone == '1' then"),),
    ),
    # open
    Mutant(
        "fill takes the shard's epoch for its own",
        "late_opener sparse",
        "fill",
        (("local epoch, server, token, field = ARGV[1]", OWN_EPOCH),),
    ),
    Mutant(
        "look through a link of an earlier life",
        "fails_over_unseen",
        "look",
        (("if elsewhere(greeted) then", "if false then"),),
    ),
    # the life of an item
    Mutant(
        "evict keeps a header full",
        "evicted",
        "evict",
        (("redis.call('HDEL', header, '#full')", ""),),
    ),
    Mutant(
        "evict takes what is owed",
        "evicted",
        "evict",
        ((" and redis.call('HEXISTS', journal, ARGV[i]) == 0", ""),),
    ),
    Mutant(
        "invalidate keeps the tokens",
        "written_outside",
        "invalidate",
        (("redis.call('DEL', header, tokens)", "redis.call('DEL', header)"),),
    ),
    Mutant(
        "forget keeps the tokens",
        "forgotten",
        "forget",
        ((ALL_OF_IT, "redis.call('DEL', header, journal)"),),
    ),
    Mutant(
        "forget keeps the journal",
        "forgotten",
        "forget",
        ((ALL_OF_IT, "redis.call('DEL', header, tokens)"),),
    ),
    # SQL
    Mutant("SQL takes any epoch", "emptied_twice", model=AnyEpoch),
    Mutant("SQL takes any fence", "flushers_part_by_part", model=AnyFence),
    Mutant("an audit reads under any fence", "lost_reply_of_inspect", model=AnyFence),
    Mutant("SQL takes any version", "fails_over", model=AnyVersion),
    Mutant("a failover undoes what was committed", "committed_and_failed_over", model=AnyVersion),
    Mutant("SQL notes a part as the whole", "flushers_part_by_part", model=PartsCount),
    Mutant("SQL does not raise the epoch", "emptied_twice", model=EpochStays),
]


# -- what decides, and guards nothing

NO_GUARD = {
    ("look", "local whole = record[1] and record[2] and record[3] and record[4]"): "a reply's form",
    (
        "look",
        "local policy = type(memory) == 'string' and memory:match('maxmemory_policy:([%w-]+)') or ''",
    ): "a reply's form",
    (
        "look",
        "return {record[1] or '', whole and record[2] or '', greeted, policy}",
    ): "a reply's form",
    ("open", "local current = redis.call('HGET', opening, 'e') or ''"): "a value's form",
    ("set", "return {'SAME', tonumber(count), pending or ''}"): "a reply's form",
    ("set", "count = count + (want == '1' and 1 or -1)"): "what a like is",
    (
        "set",
        "if not waits then -- it was clean: from here on until its ack",
    ): "saves writes of a dirty item; each that it holds is cut above",
    ("begin", "if not known[2] then"): "header or pair: both sides are cut above",
    ("fill", "if count == '' then"): "tombstone or header: both sides are cut above",
    ("fill", "if not known[2] then"): "header or pair: both sides are cut above",
    (
        "due",
        "if #items < limit then",
    ): "a bound; what is not due is flushed early, which is harmless",
    ("due", "local wait_ms = later[2] and later[2] - at or -1"): "how long to sleep",
    (
        "claim",
        "if redis.call('HLEN', journal) <= left then return 1, redis.call('HGETALL', journal) end",
    ): "a bound; that a part is not called whole is cut above",
    ("claim", "while #found == 0 and left > 0 do"): "a bound",
    ("claim", "if cursor == '0' then break end"): "a bound",
    (
        "ack",
        "if #done > 0 then redis.call('HDEL', journal, unpack(done)) end",
    ): "HDEL wants a field at least",
}


def branches() -> list[tuple[str, str]]:
    """Every line of every script that decides something: (verb, line)."""
    found = []
    for field in fields(SCRIPTS):
        places = [resources.files(f"fencepost.{part}") for part in ("likes", "journal")]
        files = [place.joinpath(f"{field.name}.lua") for place in places]
        (text,) = [file.read_text("utf-8") for file in files if file.is_file()]
        lines = [line.strip() for line in text.splitlines()]
        decides = [line for line in lines if re.search(r"^(?!--).*\b(if|and|or)\b", line)]
        found += [(field.name, line) for line in decides]
    return found


def cut_by(verb: str, cuts: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """The lines of ``branches`` that cuts change."""
    verbs = set(verb.split("+")) if verb else set()
    scripts = without(verb, *cuts) if verb else SCRIPTS
    left = {
        (verb, line.strip()) for verb in verbs for line in getattr(scripts, verb).plain.splitlines()
    }
    return {(verb, line) for verb, line in branches() if verb in verbs and (verb, line) not in left}
