"""A worker dies with the job that it has taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.queued import Ours, Usual
from fencepost.testing.lab.story import Column, Scene, Story

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage

LOST = "the job died with its worker: the mail was never sent"
TWICE = "the job was put back while its worker was alive: the mail was sent twice"


def _popped(stage: Stage) -> Scene:
    it = Usual(stage)
    verdict = it.once("the mail was sent", TWICE, LOST)
    return it.scene(verdict, worker=it.worker("worker"), next=it.worker("next"))


def _recovered(stage: Stage) -> Scene:
    it = Usual(stage)
    return it.scene(
        it.once("the mail was sent", TWICE, LOST),
        worker=it.worker("worker", reliable=True),
        world=it.world("requeue"),
        next=it.worker("next", reliable=True),
    )


def _ours(stage: Stage) -> Scene:
    it = Ours(stage)
    return it.scene(
        it.once("its lease ended, and the next worker ran it; the loss is counted", TWICE, LOST),
        worker=it.worker("worker"),
        world=it.world("lapse"),
        next=it.worker("next"),
    )


STORY = Story(
    name="popped-and-crashed",
    title="A worker takes a job and is killed",
    sense=(
        "What was popped is in no list any more, so a job that its worker has taken dies with it. A recovery by age "
        "brings it back, and cannot tell a dead worker from a slow one: then it runs twice at the same time."
    ),
    columns=(
        Column(
            name="pop",
            kind="usual",
            title="LPOP, then run",
            by="redis-py",
            schedule="worker.pop worker.crash next.pop",
            scene=_popped,
        ),
        Column(
            name="by-age",
            kind="fix",
            title="LMOVE to a second list, and a recovery by age",
            by="redis-py",
            schedule="worker.take world.requeue next.take next.send next.end worker.send worker.end",
            scene=_recovered,
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="a lease that a living worker renews, and a script that takes back what has ended",
            by="fencepost",
            schedule="worker.turn worker.hset worker.crash world.lapse next.turn next.hset next.send next.turn",
            scene=_ours,
        ),
    ),
)
