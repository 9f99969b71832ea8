"""A lease ends during the load, and nobody comes after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab import peers
from fencepost.testing.lab.cached import Ours, Usual
from fencepost.testing.lab.story import Column, Scene, Story

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage

WRONG = "the cache holds {held}: who had lost its lock published all the same"


def _usual(stage: Stage, asks: bool) -> Scene:
    it = Usual(stage)
    return it.scene(
        it.agrees("the cache holds what the source has", WRONG),
        old=it.reader(locked=True, asks=asks),
        world=it.world("lease_ends", "change"),
    )


def _ours(stage: Stage) -> Scene:
    it = Ours(stage)
    return it.scene(
        it.agrees("an ended lease publishes nothing, successor or not: it was read again", WRONG),
        old=it.reader(),
        world=it.world("lease_ends", "change"),
    )


def _peer(stage: Stage, library: str) -> Scene:
    it = peers.Entry(stage, library)
    return it.scene(WRONG, old=it.reader(), world=it.world("lease_ends", "change"))


STORY = Story(
    name="lost-lease",
    title="A lease ends in the middle of a load, and nobody takes over",
    sense=(
        "The lock of a loader runs out while it is stopped, and no other loader shows it. What it read is as old as "
        "its pause; and to ask for the lock before writing is one step too early."
    ),
    columns=(
        Column(
            name="lock",
            kind="usual",
            title="a lock with a TTL",
            by="redis-py",
            schedule="old.get old.lock old.load world.lease_ends world.change old.set old.unlock",
            scene=lambda stage: _usual(stage, asks=False),
        ),
        Column(
            name="asks",
            kind="fix",
            title="it asks if the lock is still its own, then writes",
            by="redis-py",
            schedule="old.get old.lock old.load old.owns world.lease_ends world.change old.set old.unlock",
            scene=lambda stage: _usual(stage, asks=True),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="the lease is compared in the step that writes",
            by="fencepost",
            schedule="old.get old.claim old.load world.lease_ends world.change "
            "old.publish old.claim old.load old.publish",
            scene=_ours,
        ),
    ),
    peers=peers.columns("old.get world.lease_ends world.change old.end", _peer),
)
