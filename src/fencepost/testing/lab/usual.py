"""The like button that everybody begins with, in redis-py: a set of likers, and a queue to SQL.

A click changes the set and queues an event; a page that finds no set rebuilds it from SQL; a worker
takes events off the queue and applies them. The usual fix adds a member that is no user, so that the
set of nobody still exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencepost.testing.lab.stage import Stage, told
from fencepost.testing.lab.story import Scene, Verdict

if TYPE_CHECKING:
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor
    from fencepost.testing.simulated import SimPort

SENTINEL = "~"


class Usual:
    """One item of it.

    Args:
        stage: Where.
        users: Who likes it at first, says SQL.
        sentinel: Whether a member that is no user keeps an empty set alive.
        warm: Whether the set is there at first.
    """

    def __init__(
        self, stage: Stage, *users: str, sentinel: bool = False, warm: bool = True
    ) -> None:
        self.stage = stage
        self.redis = stage.redis
        self.sentinel = sentinel
        self.item = stage.item(*users)
        self.likers = f"{stage.namespace}:likers:{self.item}"
        self.queue = f"{stage.namespace}:queue"
        self.taken = f"{stage.namespace}:taken"
        if warm:
            self.fill(self.select())

    # -- users

    def click(self, user: str, liked: bool) -> Actor:
        """A user likes or unlikes it."""

        async def protocol(io: SimPort) -> None:
            await self._be_warm(io)
            await io.call(self.like if liked else self.unlike, user)

        return protocol

    def page(self, user: str) -> Actor:
        """A user's page: whether the heart is full, and the number beside it."""

        async def protocol(io: SimPort) -> tuple[bool, int]:
            await self._be_warm(io)
            shown: tuple[bool, int] = await io.call(self.show, user)
            return shown

        return protocol

    async def _be_warm(self, io: SimPort) -> None:
        if not await io.call(self.exists):
            await io.call(self.fill, await io.call(self.select))

    def exists(self) -> bool:
        """EXISTS likers: no set is a miss"""
        return bool(self.redis.exists(self.likers))

    def select(self) -> tuple[str, ...]:
        """SELECT user_id FROM activities_likes"""
        return tuple(sorted(self.stage.rows(self.item)))

    def fill(self, rows: tuple[str, ...]) -> None:
        """DEL likers, SADD likers … in one MULTI"""
        members = (*rows, *((SENTINEL,) if self.sentinel else ()))
        with self.redis.pipeline() as pipe:
            pipe.delete(self.likers)
            if members:
                pipe.sadd(self.likers, *members)
            pipe.execute()

    def like(self, user: str) -> None:
        """SADD likers, RPUSH queue in one MULTI"""
        self._change("sadd", user, 1)

    def unlike(self, user: str) -> None:
        """SREM likers, RPUSH queue in one MULTI"""
        self._change("srem", user, 0)

    def _change(self, verb: str, user: str, state: int) -> None:
        with self.redis.pipeline() as pipe:
            getattr(pipe, verb)(self.likers, user)
            pipe.rpush(self.queue, f"{user}:{state}")
            pipe.execute()

    def show(self, user: str) -> tuple[bool, int]:
        """SISMEMBER likers, SCARD likers in one MULTI"""
        with self.redis.pipeline() as pipe:
            pipe.sismember(self.likers, user).scard(self.likers)
            liked, count = pipe.execute()
        return bool(liked), max(0, count - self.sentinel)

    # -- the worker

    def worker(self, reliable: bool = False) -> Actor:
        """Takes one event to SQL; a reliable one forgets it only when that is done."""

        async def protocol(io: SimPort) -> None:
            event = await io.call(self.move if reliable else self.pop)
            if event is not None:
                await io.call(self.apply, event)
                if reliable:
                    await io.call(self.ack, event)

        return protocol

    def pop(self) -> str | None:
        """LPOP queue"""
        event: str | None = self.redis.lpop(self.queue)
        return event

    def move(self) -> str | None:
        """LMOVE queue taken: the event stays on the server"""
        event: str | None = self.redis.lmove(self.queue, self.taken, "LEFT", "RIGHT")
        return event

    def apply(self, event: str) -> None:
        """INSERT or DELETE the row, move like_count if that changed something, COMMIT"""
        user, _, state = event.partition(":")
        self.stage.write(self.item, user, state == "1")

    def ack(self, event: str) -> None:
        """LREM taken: it is done"""
        self.redis.lrem(self.taken, 1, event)

    # -- the world

    def world(self, *steps: str) -> Actor:
        """What happens to the server, one step after the other."""

        async def protocol(io: SimPort) -> None:
            for step in steps:
                await io.call(getattr(self, step))

        return protocol

    def expire(self) -> None:
        """the TTL of likers ends"""
        self.redis.delete(self.likers)

    def evict(self) -> None:
        """maxmemory is reached: allkeys-lru evicts the queue"""
        self.redis.delete(self.queue)

    def requeue(self) -> None:
        """a recovery puts back what a dead worker had taken"""
        while self.redis.lmove(self.taken, self.queue, "RIGHT", "LEFT"):
            pass

    # -- what there is

    def scene(self, verdict: Callable[[Play], Verdict], **actors: Actor) -> Scene:
        """Itself, with actors and a judge."""
        return Scene(actors=actors, picture=self.picture, verdict=verdict)

    def picture(self) -> dict[str, str]:
        """Server and database."""
        shown = {
            "likers": told(self.redis.smembers(self.likers))
            if self.redis.exists(self.likers)
            else "no key",
            "queue": self._list(self.queue),
        }
        if self.redis.exists(self.taken):
            shown["taken"] = self._list(self.taken)
        return shown | self.stage.in_sql(self.item)

    def _list(self, key: str) -> str:
        events: Any = self.redis.lrange(key, 0, -1)
        return "[" + ", ".join(events) + "]" if events else "∅"
