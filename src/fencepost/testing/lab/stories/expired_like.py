"""R2: the set expires while a like is queued."""

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
    """Cid's page, a moment after his like."""
    shown = play.result("page")
    if shown == (True, 2):
        return Verdict(True, "cid's page shows a full heart and 2")
    return Verdict(
        False,
        f"cid's page shows an empty heart and {shown[1]}: his like is gone, so he clicks again",
    )


def _cast(it: Usual | Ours) -> dict[str, Actor]:
    return {"cid": it.click("cid", True), "world": it.world("expire"), "page": it.page("cid")}


_SCHEDULE = "cid.exists cid.like world.expire page.exists page.select page.fill page.show"

STORY = Story(
    name="expired-like",
    race="R2",
    title="The cache expires while a like is queued",
    sense=(
        "The like was acknowledged and waits in the queue, and the rebuild knows only the database. "
        "The user sees an empty heart and clicks again, which queues a second event for one like."
    ),
    columns=three(
        "ann",
        cast=_cast,
        judge=judge,
        plain=_SCHEDULE,
        fixed=_SCHEDULE,
        ours=(
            "cid.set world.expire page.hmget page.begin page.claim page.commit page.ack "
            "page.hmget page.begin page.snapshot page.fill page.hmget"
        ),
        title="a lost header is flushed first, then loaded",
    ),
)
