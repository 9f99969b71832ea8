"""One cached entry and its source, for the stories of the cache: as it is usually written, and ours.

The usual code is cache-aside in redis-py: GET, read the source, SET with a TTL. The usual fixes are a
lock with a TTL around the refresh, a second delete, a version of the tag. Ours runs the protocols of
``fencepost.cache``, step by step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencepost._core import commands
from fencepost._core.codec import Codec
from fencepost._core.keys import cache_prefix
from fencepost._core.port import run_sync
from fencepost.cache import CacheOptions, Loaded, protocol, write
from fencepost.cache.entry import decode
from fencepost.cache.judge import EARLY, FRESH
from fencepost.cache.region import PLAIN, Ask, Region
from fencepost.testing.lab.story import Scene, Verdict

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor
    from fencepost.testing.simulated import SimPort

KEY, TAG = "42", "shop"
TTL = 600
NOTES = {
    "get": "GET the entry",
    "load": "read the source",
    "save": "write the source, COMMIT",
    "sleep": "wait a moment for who is loading, then look again",
}


class Source(ABC):
    """Where the truth is: one value, and how often it was read."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.value = "old"
        self.loads = 0

    def load(self) -> str:
        """read the source"""
        self.loads += 1
        return self.value

    def save(self, value: str = "new") -> None:
        """write the source, COMMIT"""
        self.value = value

    def world(self, *steps: str) -> Actor:
        """What happens to the server and the source."""

        async def work(io: SimPort) -> None:
            for step in steps:
                await io.call(getattr(self, step))

        return work

    def change(self) -> None:
        """somebody writes the source, past the cache"""
        self.value = "new"

    @abstractmethod
    def held(self) -> str:
        """What the cache holds."""

    def scene(self, verdict: Callable[[Play], Verdict], **actors: Actor) -> Scene:
        """Itself, with actors and a judge."""
        return Scene(actors=actors, picture=self.picture, verdict=verdict, notes=NOTES)

    def picture(self) -> dict[str, str]:
        """Server and source."""
        return {"cache": self.held(), **self.locks(), "source": self.value}

    def locks(self) -> dict[str, str]:
        """Who may refresh."""
        return {}

    def agrees(self, right: str, wrong: str) -> Callable[[Play], Verdict]:
        """A judge: the cache holds what the source has, or nothing."""

        def judge(play: Play) -> Verdict:
            held = self.held()
            if held in (self.value, "nothing"):
                return Verdict(True, right)
            return Verdict(False, wrong.format(held=held))

        return judge

    def loaded_once(self, right: str) -> Callable[[Play], Verdict]:
        """A judge: the source was read once."""

        def judge(play: Play) -> Verdict:
            if self.loads == 1:
                return Verdict(True, right)
            return Verdict(False, f"the source was read {self.loads} times for one entry")

        return judge


class Usual(Source):
    """Cache-aside in redis-py.

    Args:
        stage: Where.
        held: What the cache holds at first.
    """

    def __init__(self, stage: Stage, held: str | None = None) -> None:
        super().__init__(stage)
        self.redis = stage.redis
        self.key, self.mutex = f"{stage.namespace}:product:42", f"{stage.namespace}:lock:42"
        self.members, self.version = f"{stage.namespace}:tag", f"{stage.namespace}:version"
        if held is not None:
            self.redis.set(self.key, held, ex=TTL)

    # -- who reads

    def reader(self, *, locked: bool = False, asks: bool = False, tries: int = 1) -> Actor:
        """Reads through the cache.

        Args:
            locked: Whether a miss is loaded under a lock.
            asks: Whether it looks before it writes if the lock is still its own.
            tries: How often it waits for another's load, before it loads itself.
        """

        async def work(io: SimPort) -> str:
            token, left = io.name, tries
            while True:
                held = await io.call(self.get)
                if held is not None:
                    return str(held)
                if not locked or await io.call(self.lock, token):
                    break
                if left == 0:
                    break
                left -= 1
                await io.sleep(0.05)
            value: str = await io.call(self.load)
            if not asks or await io.call(self.owns, token):
                await io.call(self.set, value)
            if locked:
                await io.call(self.unlock, token)
            return value

        return work

    def tagged_reader(self, *, stamped: bool = False) -> Actor:
        """Reads through the cache, and says what the entry depends on."""

        async def work(io: SimPort) -> str:
            value: str = await io.call(self.load)
            if stamped:
                await io.call(self.set_stamped, value)
            else:
                await io.call(self.set_tagged, value)
            return value

        return work

    def get(self) -> str | None:
        """GET product"""
        held: str | None = self.redis.get(self.key)
        return held

    def set(self, value: str) -> None:
        """SET product EX 600"""
        self.redis.set(self.key, value, ex=TTL)

    def lock(self, token: str) -> bool:
        """SET lock token NX PX 5000"""
        return bool(self.redis.set(self.mutex, token, nx=True, px=600_000))

    def owns(self, token: str) -> bool:
        """GET lock: is it still mine?"""
        return bool(self.redis.get(self.mutex) == token)

    def unlock(self, token: str) -> None:
        """DEL lock if it is still mine"""
        if self.owns(token):
            self.redis.delete(self.mutex)

    def set_tagged(self, value: str) -> None:
        """SET product, SADD tag product in one MULTI"""
        with self.redis.pipeline() as pipe:
            pipe.set(self.key, value, ex=TTL).sadd(self.members, self.key).execute()

    def set_stamped(self, value: str) -> None:
        """GET the tag's version, SET product with it"""
        version = self.redis.get(self.version) or "0"
        self.redis.set(self.key, f"{value} v{version}", ex=TTL)

    # -- who writes

    def writer(self, *steps: str) -> Actor:
        """Changes the source and the cache, a step after the other."""

        async def work(io: SimPort) -> None:
            for step in steps:
                await io.call(getattr(self, step))

        return work

    def through(self, value: str, *, locked: bool = False) -> Actor:
        """Saves a value, and puts it into the cache."""

        def save() -> None:
            """write the source, COMMIT"""
            self.value = value

        async def work(io: SimPort) -> None:
            if locked:
                await io.call(self.lock, io.name)
            await io.call(save)
            await io.call(self.set, value)
            if locked:
                await io.call(self.unlock, io.name)

        return work

    def delete(self) -> None:
        """DEL product"""
        self.redis.delete(self.key)

    def delete_again(self) -> None:
        """DEL product once more, a moment later"""
        self.redis.delete(self.key)

    def delete_tag(self) -> None:
        """DEL every member of the tag's set, and the set"""
        self.redis.delete(self.members, *self.redis.smembers(self.members))

    def raise_version(self) -> None:
        """INCR the tag's version: what carries another one is a miss"""
        self.redis.incr(self.version)

    # -- the world

    def lease_ends(self) -> None:
        """the lock's TTL ends: its holder is stopped (SIGSTOP, a GC pause, a slow source)"""
        self.redis.delete(self.mutex)

    # -- what there is

    def held(self) -> str:
        value = self.redis.get(self.key)
        if value is None:
            return "nothing"
        word, _, version = str(value).partition(" v")
        if version and version != (self.redis.get(self.version) or "0"):
            return "nothing"  # a miss: the tag has another version by now
        return word

    def locks(self) -> dict[str, str]:
        owner = self.redis.get(self.mutex)
        return {} if owner is None else {"lock": str(owner)}


class Ours(Source):
    """The same entry in fencepost's cache: the protocols that applications run.

    Args:
        stage: Where.
        held: What the cache holds at first.
        **options: Of the cache.
    """

    def __init__(self, stage: Stage, held: str | None = None, **options: Any) -> None:
        super().__init__(stage)
        prefix = cache_prefix(stage.namespace, "products")
        settings = CacheOptions(**{"ttl": float(TTL), "beta": 0.0, **options})
        # no heartbeat of its own: in a play time passes where the schedule says so
        self.region = Region("products", prefix, settings, Codec(), renews=False)
        self.keys = self.region.keys(KEY)
        if held is not None:
            run_sync(write.set_value(stage.port, self.region, KEY, held, PLAIN))

    def reader(self, ask: Ask = PLAIN) -> Actor:
        """Reads through the cache."""

        async def work(io: SimPort) -> str:
            found = await protocol.look(io, self.region, KEY, ask)
            if found.stored is not None and found.state in (FRESH, EARLY):
                return str(found.stored.value)
            entry = await protocol.refresh(io, self.region, KEY, self.load, ask, found)
            return "nothing" if entry is None else str(entry.value)

        return work

    def invalidator(self) -> Actor:
        """Saves, then invalidates."""

        async def work(io: SimPort) -> None:
            await io.call(self.save)
            await write.invalidate(io, self.region, (KEY,), hard=True, revision=None)

        return work

    def tag_invalidator(self) -> Actor:
        """Saves, then invalidates the tag."""

        async def work(io: SimPort) -> None:
            await io.call(self.save)
            await write.invalidate_tags(io, self.region, (TAG,))

        return work

    def around(self) -> Actor:
        """A write that announces itself, and forgets the entry."""
        return lambda io: write.write_around(io, self.region, KEY, self.save)

    def through(self, value: str) -> Actor:
        """A write that announces itself, and publishes what it saved."""

        def save(_: object) -> Loaded[str]:
            """write the source, COMMIT"""
            self.value = value
            return Loaded(value)

        return lambda io: write.write_through(io, self.region, KEY, value, save, PLAIN)

    def lease_ends(self) -> None:
        """the lease's TTL ends: its holder is stopped, and does not renew"""
        run_sync(self.stage.port.run(commands.delete(self.keys.lease)))

    def held(self) -> str:
        raw = run_sync(self.stage.port.run(commands.get(self.keys.entry)))
        if raw is None:
            return "nothing"
        stored = decode(raw, KEY, self.region.codec)
        for tag, stamp in stored.header.stamps.items():
            if run_sync(self.stage.port.run(commands.get_text(self.region.stamp(tag)))) != stamp:
                return "nothing"  # a miss: the tag has another stamp by now
        return str(stored.value)

    def life_ms(self) -> int:
        """For how long the entry is there."""
        left: int = self.stage.redis.pttl(self.keys.entry)
        return left

    def locks(self) -> dict[str, str]:
        owner = self.stage.redis.get(self.keys.lease)
        writes = self.stage.redis.hlen(self.keys.intents)
        shown = {} if owner is None else {"lease": str(owner).rstrip("_")}
        return shown | ({"announced writes": str(writes)} if writes else {})
