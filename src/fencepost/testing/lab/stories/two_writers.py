"""Two writers write through, and their orders differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.cached import Ours, Usual
from fencepost.testing.lab.story import Column, Scene, Story

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage

WRONG = "the cache holds {held}, the source the other one"


def _usual(stage: Stage, locked: bool) -> Scene:
    it = Usual(stage)
    return it.scene(
        it.agrees("the cache holds what the source has", WRONG),
        a=it.through("a", locked=locked),
        b=it.through("b", locked=locked),
        world=it.world("lease_ends"),
    )


def _ours(stage: Stage) -> Scene:
    it = Ours(stage)
    judge = it.agrees(
        "writers that overlapped publish nothing: the next reader asks the source", WRONG
    )
    return it.scene(judge, a=it.through("a"), b=it.through("b"))


STORY = Story(
    name="two-writers",
    title="Two writers write through, in one order to the source and in the other to the cache",
    sense=(
        "Each saves, and puts what it saved into the cache. The one that saved first may be the last at the cache; "
        "and a lock with a TTL around both steps ends while its holder is stopped between them."
    ),
    columns=(
        Column(
            name="through",
            kind="usual",
            title="save, then SET",
            by="redis-py",
            schedule="a.save b.save b.set a.set",
            scene=lambda stage: _usual(stage, locked=False),
        ),
        Column(
            name="lock",
            kind="fix",
            title="the same under a lock with a TTL",
            by="redis-py",
            schedule="a.lock a.save world.lease_ends b.lock b.save b.set b.unlock a.set a.unlock",
            scene=lambda stage: _usual(stage, locked=True),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="alone it publishes, overlapping it forgets",
            by="fencepost",
            schedule="a.write_begin a.save b.write_begin b.save b.write_end a.write_end",
            scene=_ours,
        ),
    ),
)
