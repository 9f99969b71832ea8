"""Second lines of the like cache's scripts taken out, and one call each that then does what it must not.

No explored schedule needs one of them alone, since the script before or behind it refuses too. What
each is for, one call shows, on a server in the state that it guards against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fencepost._core.keys import like_shard
from fencepost._core.script import Call, Word
from fencepost.likes.scripts import Scripts
from likes.explored import IDENTITY, SCRIPTS, without
from likes.mutants import REFUSAL

OPENED: Sequence[Word] = ("HSET", "opening", "e", "1", "f", "0", "s", "0", "id", IDENTITY)
WARM: Sequence[Word] = ("HSET", "header", "#e", "1", "#n", "1", "#born", "1000000", "u1", "1")
TOMB: Sequence[Word] = ("HSET", "header", "#e", "1", "#gone", "1")
TOKEN: Sequence[Word] = ("HSET", "tokens", "#", "t", "u1", "t")
OWED: Sequence[Word] = ("HSET", "journal", "u1", "1:1.1")
DUE: Sequence[Word] = ("ZADD", "due", "1000000", "1")
SINCE: Sequence[Word] = ("ZADD", "since", "1000000", "1")
OLDER: Sequence[Word] = ("HSET", "header", "#e", "0", "#n", "5")

HERE = ("1", IDENTITY)
BEGIN = (*HERE, "1", "u1", "new", 100, 1000)
FILL = (*HERE, "t", "#", "1", "1", 1000, 1000, "u1", "1")
NO_ITEM = (*HERE, "t", "#", "", "1", 1000, 1000)
CLAIM = (*HERE, 1000, 10, "1")
ACK = (*HERE, "1", "", "1000000", 100, 1000, 1000, 1000, "u1", "1:1.1")
ACK_ORPHAN = (*HERE, "1", "1", *ACK[4:])
REFUSAL_CUT = ((REFUSAL, ""),)
ELSEWHERE_CUT = (("if elsewhere(server) then", "if false then"),)
GONE_CUT = (("if known[3] then return {'GONE'} end", ""),)
OLD_HEADER_CUT = (
    ("if known[1] and known[1] ~= epoch then redis.call('DEL', header) known = {} end", ""),
)


@dataclass(frozen=True, slots=True)
class Second:
    """A second line taken out, and one call that then does what it must not.

    Args:
        name: What is done wrong without it.
        verb: The script.
        cuts: See ``Mutant``.
        setup: What the server holds; keys by their role.
        args: Of the call.
        answer: The first word of the right reply.
        identity: Who the server is now.
    """

    name: str
    verb: str
    cuts: tuple[tuple[str, str], ...]
    setup: tuple[Sequence[Word], ...]
    args: tuple[Word, ...]
    answer: str
    identity: str = IDENTITY

    def call(self, scripts: Scripts) -> Call[Any]:
        """The call, of these scripts."""
        script = getattr(scripts, self.verb)
        return script(tuple(map(_key, _roles(self.verb))), self.args)

    @property
    def commands(self) -> list[tuple[Word, ...]]:
        """What makes the state."""
        return [(words[0], _key(str(words[1])), *words[2:]) for words in self.setup]

    @property
    def scripts(self) -> Scripts:
        return without(self.verb, *self.cuts)


def _key(role: str) -> str:
    keys = like_shard("t", "n", 0)
    of_item = {"header": keys.header, "journal": keys.journal, "tokens": keys.tokens}
    return of_item[role]("1") if role in of_item else str(getattr(keys, role))


def _roles(verb: str) -> list[str]:
    return [name.split()[0].rstrip("…") for name in getattr(SCRIPTS, verb).contract.keys]


SECOND = [
    Second("begin in a closed shard", "begin", REFUSAL_CUT, (WARM,), BEGIN, "CLOSED"),
    Second("fill in a closed shard", "fill", REFUSAL_CUT, (WARM, TOKEN), FILL, "CLOSED"),
    Second("claim in a closed shard", "claim", REFUSAL_CUT, (OWED, DUE), CLAIM, "CLOSED"),
    Second("ack in a closed shard", "ack", REFUSAL_CUT, (WARM, OWED, DUE), ACK, "CLOSED"),
    Second(
        "forget in a closed shard",
        "forget",
        REFUSAL_CUT,
        (WARM, OWED),
        (*HERE, "1", 1000),
        "CLOSED",
    ),
    Second("inspect in a closed shard", "inspect", REFUSAL_CUT, (WARM,), HERE, "CLOSED"),
    Second(
        "begin on another server", "begin", ELSEWHERE_CUT, (OPENED, WARM), BEGIN, "CLOSED", "a1:b1"
    ),
    Second(
        "claim on another server",
        "claim",
        ELSEWHERE_CUT,
        (OPENED, OWED, DUE),
        CLAIM,
        "CLOSED",
        "a1:b1",
    ),
    Second(
        "open on another server",
        "open",
        ((" or elsewhere(server) then", " then"),),
        (),
        ("", "1", IDENTITY),
        "OTHER",
        "a1:b1",
    ),
    Second(
        "open over somebody else's record",
        "open",
        (("current ~= seen or ", ""),),
        (OPENED,),
        ("0", "2", IDENTITY),
        "OTHER",
    ),
    Second(
        "set on an item that is gone",
        "set",
        (("if known[4] then return {'GONE'} end", ""),),
        (OPENED, TOMB),
        (*HERE, "1", "u1", "1", 100),
        "GONE",
    ),
    Second(
        "set on a header without a count",
        "set",
        (("if not count or not state then", "if not state then"),),
        (OPENED, ("HSET", "header", "#e", "1", "u1", "0")),
        (*HERE, "1", "u1", "1", 100),
        "COLD",
    ),
    Second(
        "set meets a foreign key half-way",
        "set",
        (
            (
                "if not waits then redis.call('HLEN', journal) redis.call('ZSCORE', since, item) end",
                "",
            ),
        ),
        (OPENED, WARM, ("SET", "since", "somebody else's")),
        (*HERE, "1", "u1", "0", 100),
        "an error",
    ),
    Second(
        "set leaves a lost due time lost",
        "set",
        (("if pending and not waits then", "if false then"),),
        (OPENED, WARM, OWED),
        (*HERE, "1", "u1", "1", 100),
        "SAME",
    ),
    Second(
        "begin a load of an item that is gone", "begin", GONE_CUT, (OPENED, TOMB), BEGIN, "GONE"
    ),
    Second("fill an item that is gone", "fill", GONE_CUT, (OPENED, TOMB, TOKEN), FILL, "GONE"),
    Second(
        "fill a header of an older epoch",
        "fill",
        OLD_HEADER_CUT,
        (OPENED, OLDER, TOKEN),
        FILL,
        "FILLED",
    ),
    Second(
        "fill a tombstone over a journal",
        "fill",
        (("if not clean then return {'DIRTY'} end -- the flush", "-- the flush"),),
        (OPENED, TOKEN, OWED),
        NO_ITEM,
        "DIRTY",
    ),
    Second(
        "fill a tombstone over a header",
        "fill",
        (("if known[2] and field == '#' then return {'REFUSED'} end", ""),),
        (OPENED, WARM, TOKEN),
        NO_ITEM,
        "REFUSED",
    ),
    Second(
        "fill of a pair claims to know all",
        "fill",
        (("if full == '1' and field == '#' then", "if full == '1' then"),),
        (OPENED, WARM, TOKEN),
        (*HERE, "t", "u1", "1", "1", 1000, 1000, "u1", "1"),
        "FILLED",
    ),
    Second(
        "claim pushes what it did not look at",
        "claim",
        (("if whole == 1 or taken > 0 then", "if true then"),),
        (OPENED, OWED, ("HSET", "journal", "u2", "1:1.2"), DUE),
        (*HERE, 1000, 0, "1"),
        "CLAIMED",
    ),
    Second(
        "ack of an orphan keeps its header",
        "ack",
        (("if gone == '1' then redis.call('DEL', header, tokens) end", ""),),
        (OPENED, WARM, OWED, ("HSET", "journal", "u2", "1:1.2"), DUE),
        ACK_ORPHAN,
        "ACKED",
    ),
    Second(
        "ack forgets since when the rest waits",
        "ack",
        (("if claimed_ms ~= '' then redis.call('ZADD', since, 'XX', claimed_ms, item) end", ""),),
        (OPENED, WARM, OWED, ("HSET", "journal", "u2", "1:1.2"), DUE, ("ZADD", "since", "5", "1")),
        ACK,
        "ACKED",
    ),
    Second(
        "ack takes a tombstone for an old header",
        "ack",
        (("if known[3] then return {'ACKED', 0, 0} end", ""),),
        (OPENED, TOMB, OWED, DUE),
        ACK,
        "ACKED",
    ),
    Second(
        "ack keeps a header that is too old",
        "ack",
        (("known[2] and now() - known[2] < tonumber(max_age_ms)", "true"),),
        (OPENED, ("HSET", "header", "#e", "1", "#n", "1", "#born", "1"), OWED, DUE),
        ACK,
        "ACKED",
    ),
]
