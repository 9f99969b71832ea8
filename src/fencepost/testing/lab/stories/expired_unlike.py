"""R1: the set expires while an unlike is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.story import Story, Verdict
from fencepost.testing.lab.three import three
from fencepost.testing.lab.usual import Usual

if TYPE_CHECKING:
    from fencepost.testing.lab.ours import Ours
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor


def judge(play: Play) -> Verdict:
    """Ann's page, after everything else."""
    shown = play.result("page")
    if shown == (False, 1):
        return Verdict(True, "ann's page shows an empty heart and 1")
    return Verdict(
        False,
        f"ann's page shows a full heart and {shown[1]}, though the database has her unlike by now",
    )


def _cast(it: Usual | Ours) -> dict[str, Actor]:
    worker = {"worker": it.worker()} if isinstance(it, Usual) else {}
    return {
        "ann": it.click("ann", False),
        "world": it.world("expire"),
        "ben": it.page("ben"),
        **worker,
        "page": it.page("ann"),
    }


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
    columns=three(
        "ann",
        "ben",
        cast=_cast,
        judge=judge,
        plain=_SCHEDULE,
        fixed=_SCHEDULE,
        ours=(
            "ann.set world.expire ben.hmget ben.begin ben.claim ben.commit ben.ack "
            "ben.hmget ben.begin ben.snapshot ben.fill ben.hmget page.hmget"
        ),
        title="a lost header is flushed first, then loaded",
    ),
)
