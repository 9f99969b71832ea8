"""R1: the set expires while an unlike is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.ours import Ours
from fencepost.testing.lab.story import Column, Scene, Story, Verdict
from fencepost.testing.lab.usual import Usual

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play


def judge(play: Play) -> Verdict:
    """Ann's page, after everything else."""
    shown = play.result("page")
    if shown == (False, 1):
        return Verdict(True, "ann's page shows an empty heart and 1")
    return Verdict(
        False,
        f"ann's page shows a full heart and {shown[1]}, though the database has her unlike by now",
    )


def _usual(stage: Stage, sentinel: bool) -> Scene:
    it = Usual(stage, "ann", "ben", sentinel=sentinel)
    actors = {
        "ann": it.click("ann", False),
        "world": it.world("expire"),
        "ben": it.page("ben"),
        "worker": it.worker(),
        "page": it.page("ann"),
    }
    return it.scene(judge, **actors)


def _ours(stage: Stage) -> Scene:
    it = Ours(stage, "ann", "ben")
    actors = {
        "ann": it.click("ann", False),
        "world": it.world("expire"),
        "ben": it.page("ben"),
        "page": it.page("ann"),
    }
    return it.scene(judge, **actors)


_SCHEDULE = (
    "ann.exists ann.unlike world.expire ben.exists ben.select ben.fill ben.show "
    "worker.pop worker.apply page.exists page.show"
)

STORY = Story(
    name="expired-unlike",
    race="R1",
    title="The cache expires while an unlike is queued",
    sense=(
        "A rebuild reads the database, which has not heard of the queued unlike, and shows the like to everybody. "
        "The worker then deletes the row, but nobody tells the rebuilt set: it stays wrong until it expires."
    ),
    columns=(
        Column(
            name="original",
            kind="usual",
            title="a set of likers and a queue",
            by="redis-py",
            schedule=_SCHEDULE,
            scene=lambda stage: _usual(stage, sentinel=False),
        ),
        Column(
            name="sentinel",
            kind="fix",
            title="the same with a sentinel member",
            by="redis-py",
            schedule=_SCHEDULE,
            scene=lambda stage: _usual(stage, sentinel=True),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="a lost header is flushed first, then loaded",
            by="fencepost",
            schedule=(
                "ann.set world.expire ben.hmget ben.begin ben.claim ben.commit ben.ack "
                "ben.hmget ben.begin ben.snapshot ben.fill ben.hmget page.hmget"
            ),
            scene=_ours,
        ),
    ),
)
