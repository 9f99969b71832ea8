"""A worker that was taken for dead says at last what became of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost._core import commands
from fencepost._core.keys import job_keys
from fencepost._core.port import run_sync
from fencepost.jobs import protocol
from fencepost.jobs.protocol import Ack, Me, New, Place
from fencepost.jobs.record import head, pack
from fencepost.jobs.scripts import JobStatus, Turned
from fencepost.testing.lab.story import Column, Scene, Story, Verdict

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor
    from fencepost.testing.simulated import SimPort

WELL, ILL = "done", "failed: it took too long"


class _Usual:
    """One job in a list, and workers that take it.

    Args:
        stage: Where.
        asks: Whether a worker asks if the job is still its own before it says what became of it.
    """

    def __init__(self, stage: Stage, asks: bool) -> None:
        self.redis = stage.redis
        self.asks = asks
        self.queue, self.running, self.owner, self.outcome = (
            f"{stage.namespace}:{part}" for part in ("queue", "running", "owner", "outcome")
        )
        self.redis.rpush(self.queue, "job")

    def take(self, name: str) -> None:
        """LMOVE the job to the list of those that run, and SET whose it is"""
        if self.redis.lmove(self.queue, self.running, "LEFT", "RIGHT"):
            self.redis.set(self.owner, name)

    def owns(self, name: str) -> bool:
        """GET whose it is: its own"""
        return bool(self.redis.get(self.owner) == name)

    def tell(self, outcome: str) -> None:
        """SET what became of it"""
        self.redis.set(self.outcome, outcome)

    def ack(self) -> None:
        """LREM it from the list of those that run"""
        self.redis.lrem(self.running, 1, "job")

    def lease_ends(self) -> None:
        """the first was silent for too long: a recovery puts the job back"""
        self.redis.lmove(self.running, self.queue, "LEFT", "RIGHT")
        self.redis.delete(self.owner)

    def worker(self, outcome: str) -> Actor:
        async def work(io: SimPort) -> None:
            await io.call(self.take, io.name)
            if not self.asks or await io.call(self.owns, io.name):
                await io.call(self.tell, outcome)
                await io.call(self.ack)

        return work

    def scene(self) -> Scene:
        async def world(io: SimPort) -> None:
            await io.call(self.lease_ends)

        return Scene(
            actors={"first": self.worker(ILL), "second": self.worker(WELL), "world": world},
            picture=self.picture,
            verdict=lambda play: _judge(self.redis.get(self.outcome)),
        )

    def picture(self) -> dict[str, str]:
        return {
            "queue": " ".join(self.redis.lrange(self.queue, 0, -1)) or "∅",
            "running": " ".join(self.redis.lrange(self.running, 0, -1)) or "∅",
            "its owner": self.redis.get(self.owner) or "nobody",
            "outcome": self.redis.get(self.outcome) or "none yet",
        }


class _Ours:
    """The same job in a queue of fencepost's."""

    def __init__(self, stage: Stage) -> None:
        self.port = stage.port
        self.place = Place("mail", job_keys(stage.namespace, "mail"))
        record = head(20, 5, 3, "-", "-", 600) + pack("job", (), {}, 100)
        run_sync(protocol.add(self.port, self.place, [New("job", "+0", record, kept=True)]))

    def worker(self, verdict: str) -> Actor:
        async def work(io: SimPort) -> str:
            me = Me(io.name)
            answer = await protocol.turn(io, self.place, me, 1, [])
            claims = answer.claims if isinstance(answer, Turned) else ()
            number = 600_000 if verdict == "D" else 0
            words = [Ack(one.id, one.epoch, verdict, number, b"\xc0") for one in claims]
            answer = await protocol.turn(io, self.place, me, 0, words)
            counted = isinstance(answer, Turned) and all(answer.applied)
            return "counted" if counted else "refused"

        return work

    def lease_ends(self) -> None:
        """the first was silent for as long as its lease lasts"""
        ends = commands.raw("ZADD", self.place.keys.claimed, "XX", 1, "job")
        run_sync(self.port.run(ends))

    def scene(self) -> Scene:
        async def world(io: SimPort) -> None:
            await io.call(self.lease_ends)

        def verdict(play: Play) -> Verdict:
            told = _judge(WELL if self._look().state == "done" else self._look().state)
            late = play.result("first")
            return Verdict(
                told.holds and late == "refused", f"{told.text}; the late word is {late}"
            )

        return Scene(
            actors={"first": self.worker("X"), "second": self.worker("D"), "world": world},
            picture=self.picture,
            verdict=verdict,
        )

    def _look(self) -> JobStatus:
        return run_sync(protocol.look(self.port, self.place, "job"))

    def picture(self) -> dict[str, str]:
        seen = self._look()
        return {
            "the job": seen.state,
            "its claim": f"epoch {seen.epoch} of {seen.worker}" if seen.epoch else "none",
        }


def _judge(outcome: str | None) -> Verdict:
    if outcome == WELL:
        return Verdict(True, "the job is done, as the worker that had it last has said")
    return Verdict(
        False, f"the job was done, and {outcome!r} stands there: the word of one who had lost it"
    )


STORY = Story(
    name="late-ack",
    title="A worker that was taken for dead says at last what became of its job",
    sense=(
        "It was stopped for longer than it may be silent, another took the job and did it. Then it goes on where it "
        "was, and its late failure stands where a success stood; to ask first is one step too early."
    ),
    columns=(
        Column(
            name="list",
            kind="usual",
            title="a list of what runs, and LREM",
            by="redis-py",
            schedule="first.take world.lease_ends second.take second.tell second.ack first.tell first.ack",
            scene=lambda stage: _Usual(stage, asks=False).scene(),
        ),
        Column(
            name="asks",
            kind="fix",
            title="it asks if the job is still its own, then says",
            by="redis-py",
            schedule="first.take first.owns world.lease_ends second.take second.owns second.tell second.ack "
            "first.tell first.ack",
            scene=lambda stage: _Usual(stage, asks=True).scene(),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="every word carries the epoch of its claim",
            by="fencepost",
            schedule="first.turn world.lease_ends second.turn second.turn first.turn",
            scene=lambda stage: _Ours(stage).scene(),
        ),
    ),
)
