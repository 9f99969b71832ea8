"""A loader is paused, its lease ends, another one publishes, and the paused one wakes up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab import peers
from fencepost.testing.lab.cached import Ours, Usual
from fencepost.testing.lab.story import Column, Scene, Story

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage

RIGHT = "the cache holds what the source has"
WRONG = "the paused loader wrote {held} over new, for as long as the entry lives"


def _usual(stage: Stage, locked: bool) -> Scene:
    it = Usual(stage)
    return it.scene(
        it.agrees(RIGHT, WRONG),
        old=it.reader(locked=locked),
        world=it.world(*(["lease_ends"] if locked else []), "change"),
        next=it.reader(locked=locked),
    )


def _ours(stage: Stage) -> Scene:
    it = Ours(stage)
    return it.scene(
        it.agrees("the late publication was refused: its token is no longer the lease's", WRONG),
        old=it.reader(),
        world=it.world("lease_ends", "change"),
        next=it.reader(),
    )


def _peer(stage: Stage, library: str) -> Scene:
    it = peers.Entry(stage, library)
    return it.scene(
        WRONG, old=it.reader(), world=it.world("lease_ends", "change"), next=it.reader()
    )


STORY = Story(
    name="paused-loader",
    title="A paused loader wakes up and publishes what it read long ago",
    sense=(
        "A process stops between reading the source and writing the cache, and meanwhile another one loads what is "
        "new. A lock with a TTL only says who may begin: the one that wakes up does not know that it has ended."
    ),
    columns=(
        Column(
            name="aside",
            kind="usual",
            title="get, load, set",
            by="redis-py",
            schedule="old.get old.load world.change next.get next.load next.set old.set",
            scene=lambda stage: _usual(stage, locked=False),
        ),
        Column(
            name="lock",
            kind="fix",
            title="the same under a lock with a TTL",
            by="redis-py",
            schedule="old.get old.lock old.load world.lease_ends world.change "
            "next.get next.lock next.load next.set next.unlock old.set old.unlock",
            scene=lambda stage: _usual(stage, locked=True),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="only the current owner publishes",
            by="fencepost",
            schedule="old.get old.claim old.load world.lease_ends world.change "
            "next.get next.claim next.load next.publish old.publish old.claim",
            scene=_ours,
        ),
    ),
    peers=peers.columns("old.get world.lease_ends world.change next.get next.end old.end", _peer),
)
