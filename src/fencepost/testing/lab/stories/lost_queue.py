"""R25: the queue is evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost._core import commands
from fencepost._core.port import run_sync
from fencepost.errors import Refused
from fencepost.testing.lab.ours import NOTES, Ours
from fencepost.testing.lab.story import Scene, Story, Verdict
from fencepost.testing.lab.three import our_column, usual_columns
from fencepost.testing.lab.usual import Usual

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play


def _usual(stage: Stage, sentinel: bool) -> Scene:
    it = Usual(stage, sentinel=sentinel)
    actors = {
        "ann": it.click("ann", True),
        "world": it.world("evict", "expire"),
        "worker": it.worker(),
        "page": it.page("ann"),
    }

    def judge(play: Play) -> Verdict:
        shown = play.result("page")
        if shown == (True, 1) and stage.rows(it.item) == {"ann"}:
            return Verdict(True, "ann's like is in the database")
        return Verdict(False, "ann's acknowledged like is nowhere any more, and nobody noticed")

    return it.scene(judge, **actors)


class _Careless:
    """A server that evicts whatever it likes, for a while."""

    def __init__(self, stage: Stage) -> None:
        self._port = stage.port
        self._set("allkeys-lru")

    def _set(self, policy: str) -> None:
        run_sync(self._port.run(commands.raw("CONFIG", "SET", "maxmemory-policy", policy)))

    def close(self) -> None:
        self._set("noeviction")


def _ours(stage: Stage) -> Scene:
    it = Ours(stage, opened=False)
    stage.keep(_Careless(stage))

    def judge(play: Play) -> Verdict:
        try:
            play.result("ann")
        except Refused as error:
            return Verdict(not it.owes("ann"), f"refused before anything was acknowledged: {error}")
        return Verdict(False, "a like was acknowledged on a server that may evict it")

    def picture() -> dict[str, str]:
        policy: Any = run_sync(stage.port.run(commands.raw("CONFIG", "GET", "maxmemory-policy")))
        told = policy[b"maxmemory-policy"] if isinstance(policy, dict) else policy[1]
        return {"policy": told.decode(), **it.picture()}

    return Scene(actors={"ann": it.click("ann", True)}, picture=picture, verdict=judge, notes=NOTES)


_SCHEDULE = "ann.exists{} ann.like world.evict worker.pop world.expire page.exists page.select page.fill page.show"

STORY = Story(
    name="lost-queue",
    race="R25",
    title="The queue is evicted",
    sense=(
        "Under maxmemory with allkeys-lru a queue is a key like any other: one eviction takes every waiting event. "
        "The set still shows the likes for a while, then it expires, and they were never there."
    ),
    columns=(
        *usual_columns(_usual, _SCHEDULE.format(" ann.select ann.fill"), _SCHEDULE.format("")),
        our_column("the policy is asked before a shard opens", _ours, "ann.epoch ann.look"),
    ),
)
