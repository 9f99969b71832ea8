"""A queue of jobs as it is usually written, with redis-py, and ours; what was done is noted beside them.

The usual queue is a list of ids, a hash with what became of each, and (the reliable one) a list of what
was taken. The effect of a job is a mail, and a mail that was sent is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencepost._core import commands
from fencepost._core.keys import job_keys
from fencepost._core.port import run_sync
from fencepost.jobs import protocol
from fencepost.jobs.cron import Cron
from fencepost.jobs.protocol import Ack, Me, New, Place
from fencepost.jobs.record import head, pack, pack_value, unpack_value
from fencepost.jobs.schedule import Schedule, Watch, look
from fencepost.testing.lab.story import Scene, Verdict

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor
    from fencepost.testing.simulated import SimPort

JOB = "welcome:ann"
NOTES = {
    "time": "TIME: the server's clock, the only one that decides",
    "chosen": "which times have come since this schedule was looked at: 02:30 in New York",
    "next_ms": "when it comes next",
    "hset": "says that it knows of its claims, before it runs them",
}
"""Steps that are no scripts, and say nothing themselves."""


class _Mails:
    """What was sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, who: str) -> None:
        """the job does what it is for: a mail goes out"""
        self.sent.append(who)

    def once(self, fine: str, twice: str, never: str) -> Callable[[Play], Verdict]:
        """The verdict on how often it went out."""

        def judge(play: Play) -> Verdict:
            match len(self.sent):
                case 1:
                    return Verdict(True, fine)
                case 0:
                    return Verdict(False, never)
                case _:
                    return Verdict(False, f"{twice}: by {' and by '.join(self.sent)}")

        return judge


class Usual(_Mails):
    """The usual queue, with one job in it if asked for."""

    def __init__(self, stage: Stage, *, waits: bool = True) -> None:
        super().__init__()
        self.redis = stage.redis
        self.ready, self.taken = (f"{stage.namespace}:{part}" for part in ("ready", "taken"))
        self.job, self.lock = (f"{stage.namespace}:{part}" for part in ("job", "lock"))
        if waits:
            self.redis.rpush(self.ready, JOB)

    # -- workers

    def worker(self, name: str, *, reliable: bool = False) -> Actor:
        """Takes a job, sends its mail, and says what became of it."""

        async def protocol(io: SimPort) -> None:
            job = await io.call(self.take if reliable else self.pop)
            if job is None:
                return
            await io.call(self.send, name)
            await io.call(self.end, f"sent by {name}")

        return protocol

    def pop(self) -> str | None:
        """LPOP ready: it is in no list any more"""
        job: str | None = self.redis.lpop(self.ready)
        return job

    def take(self) -> str | None:
        """LMOVE ready taken: a recovery would find it there"""
        job: str | None = self.redis.lmove(self.ready, self.taken, "LEFT", "RIGHT")
        return job

    def end(self, outcome: str) -> None:
        """HSET job outcome, LREM taken"""
        self.redis.hset(self.job, "outcome", outcome)
        self.redis.lrem(self.taken, 0, JOB)

    def requeue(self) -> None:
        """a recovery puts back what was taken long ago: LMOVE taken ready"""
        self.redis.lmove(self.taken, self.ready, "LEFT", "LEFT")

    # -- schedulers

    def scheduler(self, name: str, *, locks: bool = False) -> Actor:
        """A beat: when it is 02:30, it adds the nightly job."""

        async def protocol(io: SimPort) -> None:
            await io.call(self.is_due)
            if locks:
                while not await io.call(self.acquire):
                    await io.call(self.waits)
            await io.call(self.add, name)
            if locks:
                await io.call(self.release)

        return protocol

    def is_due(self) -> bool:
        """it is 02:30 by this machine's clock, and this process has not run it today"""
        return True

    def acquire(self) -> bool:
        """SET lock NX PX 30000"""
        return bool(self.redis.set(self.lock, "x", nx=True, px=30_000))

    def waits(self) -> None:
        """somebody else has the lock: wait"""

    def release(self) -> None:
        """DEL lock"""
        self.redis.delete(self.lock)

    def add(self, name: str) -> None:
        """RPUSH ready: the nightly job"""
        self.redis.rpush(self.ready, f"nightly of {name}")

    def runs(self) -> Actor:
        """A worker that runs all that is ready."""

        async def protocol(io: SimPort) -> None:
            for _ in range(2):
                job = await io.call(self.pop)
                if job is not None:
                    await io.call(self.send, job)

        return protocol

    # -- the stage

    def world(self, step: str) -> Actor:
        """What happens meanwhile."""

        async def work(io: SimPort) -> None:
            await io.call(getattr(self, step))

        return work

    def outcome(self) -> str:
        """What the queue says became of the job."""
        return str(self.redis.hget(self.job, "outcome") or "nothing")

    def scene(self, verdict: Callable[[Play], Verdict], **actors: Actor) -> Scene:
        """Itself, with actors and a judge."""
        return Scene(actors=actors, picture=self.picture, verdict=verdict)

    def picture(self) -> dict[str, str]:
        """The lists, the outcome, and the mails."""
        ready, taken = (self.redis.lrange(key, 0, -1) for key in (self.ready, self.taken))
        return {
            "ready": ", ".join(ready) or "∅",
            "taken": ", ".join(taken) or "∅",
            "outcome": self.outcome(),
            "mails": ", ".join(self.sent) or "∅",
        }


class Ours(_Mails):
    """Ours, with one job in it if asked for."""

    def __init__(self, stage: Stage, *, waits: bool = True) -> None:
        super().__init__()
        self.port = stage.port
        self.place = Place("mail", job_keys(stage.namespace, "mail"))
        self.id = "welcome"
        self.record = head(20.0, 5, 3, "-", "-", 600.0) + pack("welcome", ("ann",), {}, 100)
        if waits:
            run_sync(protocol.add(self.port, self.place, [New(self.id, "+0", self.record)]))

    def worker(self, name: str) -> Actor:
        """Turns: takes a job, sends its mail, and says what became of it."""

        async def work(io: SimPort) -> Any:
            me, said = Me(f"{name}:1"), ()
            answer: Any = await protocol.turn(io, self.place, me, 1, [])
            for claim in answer.claims:
                await io.run(protocol.knowing(self.place, me))
                await io.call(self.send, name)
                outcome = pack_value(f"sent by {name}", "")
                ack = Ack(claim.id, claim.epoch, "D", 600_000, outcome)
                last: Any = await protocol.turn(io, self.place, me, 0, [ack])
                said = last.applied
            return said

        return work

    def lapse(self) -> None:
        """the lease ends: its worker has said nothing for 20 s (SIGSTOP, a GC pause, it is gone)"""
        claimed = self.place.keys.claimed
        words = run_sync(self.port.run(commands.read("ZRANGE", claimed, 0, -1)))
        for job in words:
            run_sync(self.port.run(commands.raw("ZADD", claimed, "XX", 1, job)))

    def scheduler(self) -> Actor:
        """A worker's look at its schedule, a moment after 02:30 in New York."""
        cron = Cron("30 2 * * *", "America/New_York")
        schedule = Schedule(name="nightly", cron=cron, record=self.record)
        mark_ms = int(time.time() * 1000) - 25 * 3_600_000  # it has come since, once at least

        async def work(io: SimPort) -> int:
            watch = Watch(schedule, mark_ms=mark_ms)
            await look(io, self.place, [watch])
            return watch.added

        return work

    def world(self, step: str) -> Actor:
        """What happens meanwhile."""

        async def work(io: SimPort) -> None:
            await io.call(getattr(self, step))

        return work

    def outcome(self) -> str:
        """What the queue says became of the job."""
        seen = run_sync(protocol.look(self.port, self.place, self.id))
        if seen.state == "done":
            return str(unpack_value(seen.outcome))
        return f"{seen.state} {seen.counts.why}".strip()

    def scene(self, verdict: Callable[[Play], Verdict], **actors: Actor) -> Scene:
        """Itself, with actors and a judge."""
        return Scene(actors=actors, picture=self.picture, verdict=verdict, notes=NOTES)

    def picture(self) -> dict[str, str]:
        """Who waits, who is claimed under which epoch, what became of it, and the mails."""
        keys = self.place.keys
        ready = run_sync(self.port.run(commands.read("ZRANGE", keys.ready, 0, -1)))
        claims: dict[str, str] = run_sync(self.port.run(commands.hgetall(keys.claims)))
        held = [f"{job} by {text.split()[-1]}" for job, text in claims.items()]
        return {
            "ready": ", ".join(sorted(one.decode() for one in ready)) or "∅",
            "claims": ", ".join(sorted(held)) or "∅",
            "outcome": self.outcome(),
            "mails": ", ".join(self.sent) or "∅",
        }
