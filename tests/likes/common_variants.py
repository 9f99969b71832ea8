"""What people make of the common design when it meets trouble: each mends one thing, and no race.

A large set is filled chunk by chunk, or in a staging key that is renamed at the end; a count that
was lost falls back to ``like_count``; the consumer takes many events at once, or puts back what
failed. The tests show what each of them still gets wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from likes.common_design import SENTINEL, CommonDesign, script

if TYPE_CHECKING:
    from fencepost._core.script import Call
    from fencepost.testing import SimPort
    from support.likes import Actor

_CHUNK = script(
    "chunk",
    ("set",),
    "for i = 1, #ARGV do redis.call('SADD', KEYS[1], ARGV[i]) end return redis.call('SCARD', KEYS[1])",
)
_SWAP = script("swap", ("staging", "likers"), "redis.call('RENAME', KEYS[1], KEYS[2]) return 1")
_COUNTED = script("counted", ("count",), "redis.call('SET', KEYS[1], ARGV[1]) return 1")
_COUNT = script("count", ("count",), "return redis.call('GET', KEYS[1])")
_EXISTS = script("exists", ("likers",), "return redis.call('EXISTS', KEYS[1])")
_SISMEMBER = script("sismember", ("likers",), "return redis.call('SISMEMBER', KEYS[1], ARGV[1])")
_CLICK = script(
    "click",
    ("likers", "count", "queue"),
    """
local user, want, fallback = ARGV[1], ARGV[2], ARGV[3]
if redis.call(want == '1' and 'SADD' or 'SREM', KEYS[1], user) == 0 then return 0 end
if fallback ~= '' then redis.call('SET', KEYS[2], fallback) end
redis.call('INCRBY', KEYS[2], want == '1' and 1 or -1)
redis.call('RPUSH', KEYS[3], user .. ':' .. want)
return 1""",
)
_TAKE = script(
    "take",
    ("queue",),
    "local all = redis.call('LRANGE', KEYS[1], 0, -1) redis.call('DEL', KEYS[1]) return all",
)
_REQUEUE = script("requeue", ("queue",), "return redis.call('RPUSH', KEYS[1], ARGV[1])")


class CommonVariant(CommonDesign):
    """One item of it; see ``CommonDesign``."""

    @property
    def counter(self) -> str:
        return self._key("C")

    @property
    def queue(self) -> str:
        return self._key("Q")

    @property
    def staging(self) -> str:
        return self._key("S")

    # -- rebuilds in pieces

    def rebuild_in_chunks(self, size: int) -> Actor:
        """Fill the set chunk by chunk where readers look."""

        async def protocol(io: SimPort) -> None:
            rows = await io.call(self.select)
            await io.run(_COUNTED((self.counter,), (str(len(rows)),)))
            for some in _chunks([SENTINEL, *sorted(rows)], size):
                await io.run(_CHUNK((self.likers,), some))

        return protocol

    def rebuild_staged(self, size: int) -> Actor:
        """Fill another key chunk by chunk, and rename it."""

        async def protocol(io: SimPort) -> None:
            rows = await io.call(self.select)
            for some in _chunks([SENTINEL, *sorted(rows)], size):
                await io.run(_CHUNK((self.staging,), some))
            await io.run(_SWAP((self.staging, self.likers)))
            await io.run(_COUNTED((self.counter,), (str(len(rows)),)))

        return protocol

    # -- a count that may be lost

    def details_or_what_sql_says(self, user: str) -> Actor:
        """Heart from the set; the count, where it is lost, from ``like_count``."""

        async def protocol(io: SimPort) -> tuple[bool, int]:
            heart = await io.run(_SISMEMBER((self.likers,), (user,)))
            count = await io.run(_COUNT((self.counter,)))
            return heart == 1, int(count) if count is not None else (await io.call(self.read))[1]

        return protocol

    def click_or_what_sql_says(self, user: str, liked: bool) -> Actor:
        """A click that begins a lost count anew from ``like_count``."""

        async def protocol(io: SimPort) -> int:
            fallback = ""
            if await io.run(_COUNT((self.counter,))) is None:
                fallback = str((await io.call(self.read))[1])
            keys = (self.likers, self.counter, self.queue)
            await io.run(_CLICK(keys, (user, "1" if liked else "0", fallback)))
            return int(await io.run(_COUNT((self.counter,))))

        return protocol

    def details_of_two_readings(self) -> Actor:
        """Rows and counter, read one after the other: the set and the number that would be cached."""

        async def protocol(io: SimPort) -> tuple[set[str], int]:
            rows = await io.call(self.select)
            return rows, (await io.call(self.read))[1]

        return protocol

    def details_in_three_calls(self, user: str) -> Actor:
        """Is the set there, is the user in it, how many are there."""

        async def protocol(io: SimPort) -> tuple[bool, int]:
            while await io.run(_EXISTS((self.likers,))) == 0:
                await self._rebuild(io)
            heart = await io.run(_SISMEMBER((self.likers,), (user,)))
            count = await io.run(_COUNT((self.counter,)))
            return heart == 1, int(count or 0)

        return protocol

    # -- consumers

    def consume_by_kind(self) -> Actor:
        """Take all events; run the deletes as one statement, then the inserts as another."""

        async def protocol(io: SimPort) -> None:
            events = [event.decode().split(":") for event in await io.run(_TAKE((self.queue,)))]
            for wanted in ("0", "1"):
                for user, want in events:
                    if want == wanted:
                        await io.call(self.apply, user, want == "1")

        return protocol

    def consume_or_requeue(self) -> Actor:
        """Take one event; put it back at the end where it fails."""

        async def protocol(io: SimPort) -> None:
            event = await io.run(self._pop())
            user, want = event.decode().split(":")
            try:
                await io.call(self.apply, user, want == "1")
            except Exception:
                await io.run(_REQUEUE((self.queue,), (event,)))

        return protocol

    def _pop(self) -> Call[Any]:
        return script("pop", ("queue",), "return redis.call('LPOP', KEYS[1])")((self.queue,))

    def queued(self) -> list[str]:
        """The events that wait, the oldest first."""
        return [event.decode() for event in self.lab.command("LRANGE", self.queue, 0, -1)]


def _chunks(members: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(members), size):
        yield members[start : start + size]
