"""R3: a snapshot, then a write, then the fill."""

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
    """Ben's page, after both rebuilds."""
    shown = play.result("page")
    if shown == (True, 2):
        return Verdict(True, "ben's page shows a full heart and 2")
    return Verdict(
        False, f"ben's page shows an empty heart and {shown[1]}: the late fill wrote over his like"
    )


def _cast(it: Usual | Ours) -> dict[str, Actor]:
    return {"slow": it.page("ann"), "ben": it.click("ben", True), "page": it.page("ben")}


_SCHEDULE = "slow.exists slow.select ben.exists ben.select ben.fill ben.like slow.fill slow.show page.exists page.show"

STORY = Story(
    name="late-fill",
    race="R3",
    title="A slow rebuild overwrites a newer like",
    sense=(
        "A slow page has read the database and pauses, and meanwhile somebody rebuilds the cache and likes. "
        "Then the slow one fills the cache with what it read, and the acknowledged like is gone."
    ),
    columns=three(
        "ann",
        cast=_cast,
        judge=judge,
        plain=_SCHEDULE,
        fixed=_SCHEDULE,
        ours=(
            "slow.hmget slow.begin slow.snapshot ben.set ben.begin ben.snapshot ben.fill ben.set "
            "slow.fill slow.hmget page.hmget"
        ),
        title="a fill writes only what is not known",
        warm=False,
    ),
)
