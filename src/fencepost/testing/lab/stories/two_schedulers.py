"""Two schedulers at half past two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.queued import Ours, Usual
from fencepost.testing.lab.story import Column, Scene, Story

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage

TWICE = "the nightly job ran twice"
NEVER = "the nightly job did not run"


def _usual(stage: Stage, locks: bool) -> Scene:
    it = Usual(stage, waits=False)
    return it.scene(
        it.once("it ran once", TWICE, NEVER),
        one=it.scheduler("one", locks=locks),
        other=it.scheduler("other", locks=locks),
        worker=it.runs(),
    )


def _ours(stage: Stage) -> Scene:
    it = Ours(stage, waits=False)
    return it.scene(
        it.once("both found the same time, under the same name: it was added once", TWICE, NEVER),
        one=it.scheduler(),
        other=it.scheduler(),
        worker=it.worker("worker"),
    )


STORY = Story(
    name="two-schedulers",
    title="Two schedulers at half past two",
    sense=(
        "Every process has a scheduler, or there are two for safety, and each adds the nightly job when its time has "
        "come. A lock makes them add it one after the other; a single scheduler makes it not run when that one is down."
    ),
    columns=(
        Column(
            name="beat",
            kind="usual",
            title="each adds what is due",
            by="redis-py",
            schedule="one.is_due other.is_due one.add other.add worker.pop worker.send worker.pop worker.send",
            scene=lambda stage: _usual(stage, locks=False),
        ),
        Column(
            name="lock",
            kind="fix",
            title="the same under a lock",
            by="redis-py",
            schedule="one.is_due other.is_due one.acquire one.add one.release other.acquire other.add other.release "
            "worker.pop worker.send worker.pop worker.send",
            scene=lambda stage: _usual(stage, locks=True),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="an occurrence has a name: its schedule and its moment in UTC",
            by="fencepost",
            schedule="one.time other.time one.chosen other.chosen one.occur other.occur one.next_ms other.next_ms "
            "worker.turn worker.hset worker.send worker.turn",
            scene=_ours,
        ),
    ),
)
