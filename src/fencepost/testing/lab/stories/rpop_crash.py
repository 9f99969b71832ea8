"""R19 and R22: a worker dies with what it has taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.ours import Ours
from fencepost.testing.lab.story import Column, Scene, Story, Verdict
from fencepost.testing.lab.usual import Usual

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play


def _popped(stage: Stage) -> Scene:
    it = Usual(stage, "ben")
    actors = {
        "ann": it.click("ann", True),
        "worker": it.worker(),
        "next": it.worker(),
        "world": it.world("expire"),
        "page": it.page("ann"),
    }

    def judge(play: Play) -> Verdict:
        if "ann" in stage.rows(it.item):
            return Verdict(True, "ann's like is in the database")
        return Verdict(
            False,
            "ann's like died with the worker: she liked it, and the database never heard of it",
        )

    return it.scene(judge, **actors)


def _moved(stage: Stage) -> Scene:
    it = Usual(stage, "ben")
    actors = {
        "ann": it.click("ann", True),
        "worker": it.worker(reliable=True),
        "later": it.click("ann", False),
        "next": it.worker(reliable=True),
        "world": it.world("requeue"),
        "last": it.worker(reliable=True),
    }

    def judge(play: Play) -> Verdict:
        if "ann" not in stage.rows(it.item):
            return Verdict(True, "ann's unlike is in the database")
        return Verdict(
            False, "the recovered like came after the unlike: the database says liked, for good"
        )

    return it.scene(judge, **actors)


def _ours(stage: Stage) -> Scene:
    it = Ours(stage, "ben")
    actors = {
        "ann": it.click("ann", True),
        "worker": it.flusher(),
        "later": it.click("ann", False),
        "next": it.flusher(),
        "last": it.flusher(),
    }

    def judge(play: Play) -> Verdict:
        if stage.rows(it.item) == {"ben"} and stage.count(it.item) == 1 and not it.owes("ann"):
            return Verdict(True, "like and unlike arrived once each, in order, over a dead flusher")
        return Verdict(
            False, f"the database says {sorted(stage.rows(it.item))}, {stage.count(it.item)}"
        )

    return it.scene(judge, **actors)


STORY = Story(
    name="rpop-crash",
    race="R19",
    title="A worker dies with an event in its hands",
    sense=(
        "What was popped is in no queue any more, so a worker that is killed before its COMMIT takes it along. "
        "The reliable queue brings it back, but behind what came later, and then the older event wins."
    ),
    columns=(
        Column(
            name="pop",
            kind="usual",
            title="LPOP, then COMMIT",
            by="redis-py",
            schedule="ann.exists ann.like worker.pop worker.crash next.pop world.expire "
            "page.exists page.select page.fill page.show",
            scene=_popped,
        ),
        Column(
            name="reliable-queue",
            kind="fix",
            title="LMOVE to a second list, and a recovery",
            by="redis-py",
            schedule="ann.exists ann.like worker.move worker.apply worker.crash later.exists later.unlike "
            "next.move next.apply next.ack world.requeue last.move last.apply last.ack",
            scene=_moved,
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="nothing leaves the journal before its COMMIT",
            by="fencepost",
            schedule="ann.set worker.claim worker.commit worker.crash later.set "
            "next.claim next.commit next.ack last.claim",
            scene=_ours,
        ),
    ),
)
