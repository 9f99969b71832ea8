"""An entry that many read is gone, and its load takes longer than they wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.testing.lab import peers
from fencepost.testing.lab.cached import Ours, Usual
from fencepost.testing.lab.story import Column, Scene, Story, Verdict

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play

CALLERS: Final = 20
LEASE: Final = 0.3
LOAD: Final = 4 * LEASE


def _usual(stage: Stage, locked: bool) -> Scene:
    it = Usual(stage)
    readers = {name: it.reader(locked=locked, tries=1) for name in ("a", "b", "c")}
    return it.scene(it.loaded_once("one load"), **readers)


def _ours(stage: Stage) -> Scene:
    it = Ours(stage)
    judge = it.loaded_once("one load: who waits, waits for the lease, and never loads beside it")
    return it.scene(judge, **{name: it.reader() for name in ("a", "b", "c")})


def _peer(stage: Stage, library: str) -> Scene:
    it = peers.Entry(stage, library, LEASE)

    def judge(play: Play) -> Verdict:
        errors = play.result("crowd")["errors"]
        told = f"; {len(errors)} callers got errors, such as {errors[0]}" if errors else ""
        if it.loads == 1 and not errors:
            return Verdict(True, f"one load for {CALLERS} callers")
        return Verdict(False, f"{it.loads} loads for {CALLERS} callers{told}")

    actors = {"crowd": it.crowd(CALLERS, LOAD)}
    return Scene(actors=actors, picture=it.picture, verdict=judge)


STORY = Story(
    name="stampede",
    race="jetcache#967",
    title="Many read what is gone, and the load takes longer than they wait",
    sense=(
        "Without a lock everybody loads. With one, those who wait have to give up at some time, and most designs let "
        "them load then: at the very moment when the source is slow, all of them ask it."
    ),
    columns=(
        Column(
            name="aside",
            kind="usual",
            title="get, load, set",
            by="redis-py",
            schedule="a.get b.get c.get a.load b.load c.load a.set b.set c.set",
            scene=lambda stage: _usual(stage, locked=False),
        ),
        Column(
            name="lock",
            kind="fix",
            title="a lock; who waited long enough loads",
            by="redis-py",
            schedule="a.get a.lock b.get b.lock c.get c.lock b.sleep c.sleep b.get b.lock c.get c.lock "
            "b.load c.load a.load b.set c.set a.set",
            scene=lambda stage: _usual(stage, locked=True),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="one lease, renewed while the load runs",
            by="fencepost",
            schedule="a.get a.claim b.get b.claim c.get c.claim b.sleep c.sleep b.claim c.claim a.load "
            "a.publish b.sleep b.claim c.sleep c.claim",
            scene=_ours,
        ),
    ),
    peers=peers.columns("crowd.read", _peer),
)
