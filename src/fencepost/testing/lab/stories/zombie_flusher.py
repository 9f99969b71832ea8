"""R24: a worker stalls with what it has read, and wakes up after another one took over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.testing.lab.ours import Ours
from fencepost.testing.lab.story import Column, Scene, Story, Verdict
from fencepost.testing.lab.usual import Usual

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor
    from fencepost.testing.simulated import SimPort


class Locked(Usual):
    """The same, but a worker works under redis-py's lock."""

    def locked_worker(self) -> Actor:
        """Takes the lock, then one event to SQL, then gives the lock back."""
        lock: Any = self.redis.lock(f"{self.stage.namespace}:lock", timeout=30, blocking=False)

        def acquire() -> bool:
            """Lock.acquire: SET lock NX PX 30000"""
            return bool(lock.acquire())

        def release() -> str:
            """Lock.release: DEL lock if it is still ours"""
            try:
                lock.release()
            except Exception as error:
                return f"{type(error).__name__}: too late to matter"
            return "released"

        async def protocol(io: SimPort) -> None:
            if await io.call(acquire):
                event = await io.call(self.pop)
                if event is not None:
                    await io.call(self.apply, event)
                await io.call(release)

        return protocol

    def unlock(self) -> None:
        """the lock's TTL ends: its holder is stopped (SIGSTOP, a GC pause, a slow disk)"""
        self.redis.delete(f"{self.stage.namespace}:lock")


def _usual(stage: Stage, locked: bool) -> Scene:
    it = Locked(stage, "ben")
    worker = it.locked_worker if locked else it.worker
    actors = {
        "ann": it.click("ann", True),
        "zombie": worker(),
        "later": it.click("ann", False),
        "world": it.world("unlock"),
        "next": worker(),
    }

    def judge(play: Play) -> Verdict:
        if "ann" not in stage.rows(it.item):
            return Verdict(True, "ann's unlike is in the database")
        return Verdict(
            False, "the stalled worker wrote its old like over the unlike: liked in SQL, for good"
        )

    return it.scene(judge, **actors)


def _ours(stage: Stage) -> Scene:
    it = Ours(stage, "ben")
    actors = {
        "ann": it.click("ann", True),
        "zombie": it.flusher(),
        "later": it.click("ann", False),
        "next": it.flusher(),
    }

    def judge(play: Play) -> Verdict:
        if stage.rows(it.item) == {"ben"} and stage.count(it.item) == 1:
            return Verdict(
                True,
                "SQL refused the stalled flusher's fence: it read again, and found nothing to do",
            )
        return Verdict(False, f"the database says {sorted(stage.rows(it.item))}")

    return it.scene(judge, **actors)


STORY = Story(
    name="zombie-flusher",
    race="R24",
    title="A stalled worker wakes up and writes",
    sense=(
        "A worker stops for a while between reading and writing, and another one does what came later. "
        "A lock with a TTL does not help: it expires, the stalled one does not know, and nothing asks it."
    ),
    columns=(
        Column(
            name="pop",
            kind="usual",
            title="two workers on one queue",
            by="redis-py",
            schedule="ann.exists ann.like zombie.pop later.exists later.unlike next.pop next.apply zombie.apply",
            scene=lambda stage: _usual(stage, locked=False),
        ),
        Column(
            name="lock",
            kind="fix",
            title="the same under a lock with a TTL",
            by="redis-py",
            schedule="ann.exists ann.like zombie.acquire zombie.pop later.exists later.unlike world.unlock "
            "next.acquire next.pop next.apply next.release zombie.apply zombie.release",
            scene=lambda stage: _usual(stage, locked=True),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="a fence that SQL compares in the same transaction",
            by="fencepost",
            schedule="ann.set zombie.claim later.set next.claim next.commit next.ack zombie.commit zombie.claim",
            scene=_ours,
        ),
    ),
)
