"""A lock on several servers, as it is usually built and as ours is; one server plays them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencepost._core.keys import birth_record, lock_keys
from fencepost._core.port import run_sync
from fencepost._core.script import SERVER
from fencepost.errors import FencepostError, FenceRefused
from fencepost.lock.protocol import Ask, Grant, Renewal
from fencepost.lock.quorum import protocol
from fencepost.lock.quorum.place import Polls
from fencepost.lock.quorum.protocol import QuorumPlace
from fencepost.lock.scripts import Lost
from fencepost.testing.lab.story import Scene, Verdict
from fencepost.testing.several import SimFan

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor
    from fencepost.testing.simulated import SimPort

MAX_TTL = 30.0


class _Deaf:
    """Nobody waits in these stories."""

    def listen(self) -> None: ...
    def hear(self, seconds: float) -> None: ...
    def close(self) -> None: ...


class UsualVoters:
    """SET NX PX at each server, a counter beside it; the highest of a majority is the fence.

    Args:
        stage: Where.
        servers: How many.
        drawn: The counter of each at first.
    """

    def __init__(self, stage: Stage, servers: int, drawn: tuple[int, ...]) -> None:
        self.redis, self.servers = stage.redis, servers
        self.locks = [f"{stage.namespace}:{n}:lock" for n in range(servers)]
        self.counters = [f"{stage.namespace}:{n}:fence" for n in range(servers)]
        for counter, fence in zip(self.counters, drawn, strict=True):
            self.redis.set(counter, fence)
        self.holders: dict[str, int] = {}
        self.gate = 0
        self.written: list[str] = []

    def holds(self, name: str, reach: tuple[int, ...]) -> Actor:
        """Somebody who reaches these servers."""

        def ask(server: int) -> int:
            """SET lock NX PX, INCR fence at one server"""
            if self.redis.set(self.locks[server], name, nx=True, px=600_000):
                return int(self.redis.incr(self.counters[server]))
            return 0

        def enter(votes: list[int]) -> None:
            """it counts its votes, and believes them"""
            if sum(map(bool, votes)) > self.servers // 2:
                self.holders[name] = max(votes)

        def write() -> None:
            """it writes; the resource refuses a fence below the greatest that it has seen"""
            fence = self.holders.get(name, 0)
            if fence and fence >= self.gate:
                self.gate = fence
                self.written.append(name)

        async def actor(io: SimPort) -> None:
            votes = [await io.call(ask, server) for server in reach]
            await io.call(enter, votes)
            await io.call(write)

        return actor

    def world(self, server: int) -> Actor:
        """A server restarts without its data."""

        def empty() -> None:
            """a server comes back without its data"""
            self.redis.delete(self.locks[server], self.counters[server])

        async def actor(io: SimPort) -> None:
            await io.call(empty)

        return actor

    def picture(self) -> dict[str, str]:
        """Who has whose vote, and who believes to hold the lock."""
        votes = [self.redis.get(lock) or "–" for lock in self.locks]
        held = ", ".join(f"{who} (fence {fence})" for who, fence in self.holders.items())
        return {"votes": " ".join(votes), "holds": held or "nobody"}

    def scene(self, verdict: Callable[[Play], Verdict], **actors: Actor) -> Scene:
        return Scene(actors=actors, picture=self.picture, verdict=verdict)


class OurVoters:
    """The same with fencepost's quorum; its servers may vote at first, and know these fences."""

    def __init__(self, stage: Stage, servers: int) -> None:
        spaces = [f"{stage.namespace}s{n}" for n in range(servers)]
        keys = tuple(lock_keys(space, "x") for space in spaces)
        born = tuple(birth_record(space) for space in spaces)
        self.stage, self.redis = stage, stage.redis
        self.polls = Polls(keys, born, MAX_TTL)
        self.place = QuorumPlace("x", keys[0], polls=self.polls)
        for one in born:
            run_sync(stage.port.run(self.polls.scripts.init((one,), (0, 0, 0, 30_000, SERVER))))
        self.holders: dict[str, Any] = {}
        self.said: dict[str, str] = {}
        self.written: list[str] = []

    def holds(
        self, name: str, order: tuple[int, ...], *, renews: bool = False, tries: int = 1
    ) -> Actor:
        """Somebody whose requests arrive in this order."""

        def enter(grant: Grant) -> None:
            """it holds the lock"""
            self.holders[name] = grant

        def learn() -> None:
            """it is told that its lease is lost"""
            self.said[name] = f"{name} learned that it has lost the lock"

        def write() -> None:
            """it writes through a gate that compares fences"""
            grant = self.holders.get(name)
            if grant is None:
                return
            lease = _Fenced(grant.fence, name)
            try:
                self.stage.client.fenced_set(f"{{{self.stage.namespace}}}:r", name, lease)
                self.written.append(name)
            except FenceRefused as error:
                self.said[f"{name} writes"] = f"refused, for {error.fence} was seen"

        async def actor(sim: SimPort) -> None:
            io: Any = SimFan(sim, order)
            for _ in range(tries):
                ask, tried = Ask(sim.token(), name, 10.0, 0.0), self.place.new_tried()
                try:
                    grant = await protocol.acquire(io, self.place, ask, _Deaf(), tried)
                except FencepostError as error:
                    self.said[name] = f"{type(error).__name__}: {error}"
                    continue
                await sim.call(enter, grant)
                break
            else:
                return
            if renews:
                due = Renewal(self.place, ask.attempt, 10.0, name, grant.fence)
                [answer] = await protocol.tend(io, [due], [])
                if isinstance(answer, Lost):
                    await sim.call(learn)
            await sim.call(write)

        return actor

    def world(self, server: int, *, waits: bool = False) -> Actor:
        """A server restarts without its data, and the longest lease passes."""
        keys, born = self.polls.keys[server], self.polls.born[server]

        def empty() -> None:
            """a server comes back without its data"""
            self.redis.delete(keys.lock, keys.fences, born)

        def later() -> None:
            """the longest lease is over: votes have ended, a newborn has waited"""
            self.redis.delete(*(k.lock for k in self.polls.keys))
            self.redis.hset(born, "since", 0)

        async def actor(io: SimPort) -> None:
            await io.call(empty)
            if waits:
                await io.call(later)

        return actor

    def picture(self) -> dict[str, str]:
        """Who has whose vote, which servers vote, and who holds the lock."""
        votes = [self.redis.hget(k.lock, "owner") or "–" for k in self.polls.keys]
        may = ["yes" if self.redis.hget(b, "open") == "1" else "no" for b in self.polls.born]
        held = ", ".join(f"{who} (fence {one.fence})" for who, one in self.holders.items())
        return {"votes": " ".join(votes), "may vote": " ".join(may), "holds": held or "nobody"}

    def scene(self, verdict: Callable[[Play], Verdict], **actors: Actor) -> Scene:
        return Scene(actors=actors, picture=self.picture, verdict=verdict)


class _Fenced:
    """What a gate asks of a holder."""

    def __init__(self, fence: int, token: str) -> None:
        self.fence, self.token, self.name = fence, token, "x"
