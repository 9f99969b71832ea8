"""The last unlike: an empty set is no set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.ours import Ours
from fencepost.testing.lab.story import Column, Scene, Story, Verdict
from fencepost.testing.lab.usual import Usual

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play


def judge(play: Play) -> Verdict:
    """The page of the user who has just unliked it."""
    shown = play.result("page")
    if shown == (False, 0):
        return Verdict(True, "the page shows an empty heart and 0, as it must")
    heart = "a full heart" if shown[0] else "an empty heart"
    return Verdict(False, f"the page shows {heart} and {shown[1]}: the unlike is undone")


def _usual(stage: Stage, sentinel: bool) -> Scene:
    it = Usual(stage, "ann", sentinel=sentinel)
    actors = {"ann": it.click("ann", False), "page": it.page("ann")}
    return it.scene(judge, **actors)


def _ours(stage: Stage) -> Scene:
    it = Ours(stage, "ann")
    actors = {"ann": it.click("ann", False), "page": it.page("ann")}
    return it.scene(judge, **actors)


STORY = Story(
    name="last-unlike",
    title="The last unlike comes back",
    sense=(
        "The only like of an item is taken back, and an empty set is a missing set: the next page takes that for a "
        "cache miss. It asks the database, where the unlike has not arrived yet, and the heart is full again."
    ),
    columns=(
        Column(
            name="original",
            kind="usual",
            title="a set of likers and a queue",
            by="redis-py",
            schedule="ann.exists ann.unlike page.exists page.select page.fill page.show",
            scene=lambda stage: _usual(stage, sentinel=False),
        ),
        Column(
            name="sentinel",
            kind="fix",
            title="the same with a sentinel member",
            by="redis-py",
            schedule="ann.exists ann.unlike page.exists page.show",
            scene=lambda stage: _usual(stage, sentinel=True),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="state, count and journal in one script",
            by="fencepost",
            schedule="ann.set page.hmget",
            scene=_ours,
        ),
    ),
)
