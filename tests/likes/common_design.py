"""The design everybody begins with, over the same port: what the races are told for.

A set of likers with a sentinel, a counter and a list of events, each changed by one script; when the
set is missing it is rebuilt from SQL; a consumer takes events off the list and applies them. It
looks right, and in quiet it is. The tests show where it is not.

    click   SADD or SREM; if that changed something INCR or DECR, and RPUSH an event
    refill  the rows of a SELECT become the set, and its length the count
    pop     takes the oldest event (with ``reliable``: reads it, and ``remove`` takes it later)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select, update

from fencepost._core.script import Contract, Script
from support.likes import activities, count_of, likes_table, rows_of

if TYPE_CHECKING:
    from fencepost.testing import SimPort
    from support.likes import Actor, Lab

SENTINEL = "~"
Row = tuple[set[str], int]  # who likes an item, and its like_count


def script(verb: str, keys: tuple[str, ...], text: str) -> Script[Any]:
    contract = Contract(verb, "", keys, ("words…",), ("reply",))
    return Script(contract, text, lambda reply: reply)


_LOOK = script(
    "look",
    ("likers", "count"),
    """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
return {redis.call('SISMEMBER', KEYS[1], ARGV[1]), redis.call('GET', KEYS[2])}""",
)
_CLICK = script(
    "click",
    ("likers", "count", "queue"),
    """
local user, want = ARGV[1], ARGV[2]
if ARGV[3] == 'warm' and redis.call('EXISTS', KEYS[1]) == 0 then return false end
if redis.call(want == '1' and 'SADD' or 'SREM', KEYS[1], user) == 0 then return 0 end
redis.call('INCRBY', KEYS[2], want == '1' and 1 or -1)
redis.call('RPUSH', KEYS[3], user .. ':' .. want)
return 1""",
)
_REFILL = script(
    "refill",
    ("likers", "count"),
    """
if ARGV[1] == 'anew' then redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[2], #ARGV - (ARGV[2] == '~' and 2 or 1))
for i = 2, #ARGV do redis.call('SADD', KEYS[1], ARGV[i]) end
return 1""",
)
_POP = script("pop", ("queue",), "return redis.call('LPOP', KEYS[1])")
_PEEK = script("peek", ("queue",), "return redis.call('LINDEX', KEYS[1], 0)")
_REMOVE = script("remove", ("queue",), "return redis.call('LREM', KEYS[1], 1, ARGV[1])")


@dataclass(slots=True)
class CommonDesign:
    """One item of it.

    Args:
        lab: Whose server and database to use.
        item: Which item.
        sentinel: Whether a member that is no user keeps an empty set from vanishing.
        anew: Whether a rebuild deletes the set before it fills it.
    """

    lab: Lab
    item: int
    sentinel: bool = True
    anew: bool = True

    def _key(self, part: str) -> str:
        return f"{self.lab.keys.tag}:{part}:{self.item}"

    @property
    def likers(self) -> str:
        return self._key("L")

    def warm(self) -> CommonDesign:
        """Rebuild it now."""
        self.lab.do(self._rebuild)
        return self

    def expire(self) -> None:
        assert self.lab.delete(self.likers, self._key("C")) > 0

    # -- users

    def click(self, user: str, liked: bool) -> Actor:
        async def protocol(io: SimPort) -> Any:
            while (reply := await io.run(self._click(user, liked, "warm"))) is None:
                await self._rebuild(io)
            return bool(reply)

        return protocol

    def blind_click(self, user: str, liked: bool) -> Actor:
        """The same without the look whether the set is there."""
        return lambda io: io.run(self._click(user, liked, "blind"))

    def _click(self, user: str, liked: bool, mode: str) -> Any:
        keys = (self.likers, self._key("C"), self._key("Q"))
        return _CLICK(keys, (user, "1" if liked else "0", mode))

    def details(self, user: str) -> Actor:
        """Whether a user likes it, and how many do."""

        async def protocol(io: SimPort) -> tuple[bool, int]:
            look = _LOOK((self.likers, self._key("C")), (user,))
            while (found := await io.run(look)) is None:
                await self._rebuild(io)
            return found[0] == 1, int(found[1])

        return protocol

    def blind_details(self, user: str) -> Actor:
        """The same by a plain SISMEMBER: what is missing is "no"."""

        async def protocol(io: SimPort) -> bool:
            reply = await io.run(
                script(
                    "sismember", ("likers",), "return redis.call('SISMEMBER', KEYS[1], ARGV[1])"
                )((self.likers,), (user,))
            )
            return bool(reply == 1)

        return protocol

    def rebuild(self) -> Actor:
        return self._rebuild

    async def _rebuild(self, io: Any) -> None:
        rows = await io.call(self.select)
        members = [*((SENTINEL,) if self.sentinel else ()), *sorted(rows)]
        mode = "anew" if self.anew else "onto"
        await io.run(_REFILL((self.likers, self._key("C")), (mode, *members)))

    # -- the consumer

    def consume(self, *, reliable: bool = False, apart: bool = False, blind: bool = False) -> Actor:
        """Take one event to SQL.

        Args:
            reliable: Remove the event after it was applied, not before.
            apart: Read the old state in one transaction and write in another.
            blind: Move the counter by the event, whatever the row was.
        """

        async def protocol(io: SimPort) -> None:
            event = await io.run((_PEEK if reliable else _POP)((self._key("Q"),)))
            if event is None:
                return
            user, want = event.decode().split(":")
            liked = want == "1"
            if apart:
                before = await io.call(self.read)
                await io.call(self.write_row, user, liked)
                await io.call(self.write_count, before[1] + (liked - (user in before[0])))
            elif blind:
                await io.call(self.apply_blindly, user, liked)
            else:
                await io.call(self.apply, user, liked)
            if reliable:
                await io.run(_REMOVE((self._key("Q"),), (event,)))

        return protocol

    # -- SQL

    def select(self) -> set[str]:
        return rows_of(self.lab.engine, self.item)

    def read(self) -> Row:
        return self.select(), count_of(self.lab.engine, self.item)

    def apply(self, user: str, liked: bool) -> None:
        """Row and counter in one transaction, from the row's old state."""
        delta = liked - (user in self.select())
        self._write(user, liked, activities.c.like_count + delta)

    def apply_blindly(self, user: str, liked: bool) -> None:
        self._write(user, liked, activities.c.like_count + (1 if liked else -1))

    def write_row(self, user: str, liked: bool) -> None:
        self._write(user, liked, None)

    def write_count(self, count: int) -> None:
        with self.lab.engine.begin() as connection:
            connection.execute(
                update(activities).where(activities.c.id == self.item).values(like_count=count)
            )

    def _write(self, user: str, liked: bool, count: Any) -> None:
        with self.lab.engine.begin() as connection:
            of_user = (likes_table.c.activity_id == self.item, likes_table.c.user_id == user)
            there = connection.execute(select(likes_table).where(*of_user)).first()
            if liked and there is None:
                connection.execute(insert(likes_table).values(activity_id=self.item, user_id=user))
            elif not liked:
                connection.execute(delete(likes_table).where(*of_user))
            if count is not None:
                of_item = activities.c.id == self.item
                connection.execute(update(activities).where(of_item).values(like_count=count))
