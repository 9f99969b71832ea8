"""R3: a snapshot, then a write, then the fill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.ours import Ours
from fencepost.testing.lab.story import Column, Scene, Story, Verdict
from fencepost.testing.lab.usual import Usual

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play


def judge(play: Play) -> Verdict:
    """Ben's page, after both rebuilds."""
    shown = play.result("page")
    if shown == (True, 2):
        return Verdict(True, "ben's page shows a full heart and 2")
    return Verdict(
        False, f"ben's page shows an empty heart and {shown[1]}: the late fill wrote over his like"
    )


def _usual(stage: Stage, sentinel: bool) -> Scene:
    it = Usual(stage, "ann", sentinel=sentinel, warm=False)
    actors = {"slow": it.page("ann"), "ben": it.click("ben", True), "page": it.page("ben")}
    return it.scene(judge, **actors)


def _ours(stage: Stage) -> Scene:
    it = Ours(stage, "ann", warm=False)
    actors = {"slow": it.page("ann"), "ben": it.click("ben", True), "page": it.page("ben")}
    return it.scene(judge, **actors)


_SCHEDULE = "slow.exists slow.select ben.exists ben.select ben.fill ben.like slow.fill slow.show page.exists page.show"

STORY = Story(
    name="late-fill",
    race="R3",
    title="A slow rebuild overwrites a newer like",
    sense=(
        "A slow page has read the database and pauses, and meanwhile somebody rebuilds the cache and likes. "
        "Then the slow one fills the cache with what it read, and the acknowledged like is gone."
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
            title="a fill writes only what is not known",
            by="fencepost",
            schedule=(
                "slow.hmget slow.begin slow.snapshot ben.set ben.begin ben.snapshot ben.fill ben.set "
                "slow.fill slow.hmget page.hmget"
            ),
            scene=_ours,
        ),
    ),
)
