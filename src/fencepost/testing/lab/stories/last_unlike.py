"""The last unlike: an empty set is no set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.story import Story, Verdict
from fencepost.testing.lab.three import three

if TYPE_CHECKING:
    from fencepost.testing.lab.ours import Ours
    from fencepost.testing.lab.usual import Usual
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor


def judge(play: Play) -> Verdict:
    """The page of the user who has just unliked it."""
    shown = play.result("page")
    if shown == (False, 0):
        return Verdict(True, "the page shows an empty heart and 0, as it must")
    heart = "a full heart" if shown[0] else "an empty heart"
    return Verdict(False, f"the page shows {heart} and {shown[1]}: the unlike is undone")


def _cast(it: Usual | Ours) -> dict[str, Actor]:
    return {"ann": it.click("ann", False), "page": it.page("ann")}


STORY = Story(
    name="last-unlike",
    title="The last unlike comes back",
    sense=(
        "The only like of an item is taken back, and an empty set is a missing set: the next page takes that for a "
        "cache miss. It asks the database, where the unlike has not arrived yet, and the heart is full again."
    ),
    columns=three(
        "ann",
        cast=_cast,
        judge=judge,
        plain="ann.exists ann.unlike page.exists page.select page.fill page.show",
        fixed="ann.exists ann.unlike page.exists page.show",
        ours="ann.set page.hmget",
        title="state, count and journal in one script",
    ),
)
