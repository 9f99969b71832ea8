"""An invalidation comes while a load runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab import peers
from fencepost.testing.lab.cached import Ours, Usual
from fencepost.testing.lab.story import Column, Scene, Story

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage

WRONG = "the cache holds {held}, read before the change and written after its invalidation"


def _usual(stage: Stage, *steps: str) -> Scene:
    it = Usual(stage)
    judge = it.agrees("the cache holds what the source has", WRONG)
    return it.scene(judge, reader=it.reader(), writer=it.writer("save", *steps))


def _ours(stage: Stage) -> Scene:
    it = Ours(stage)
    judge = it.agrees("the invalidation took the lease away: the load published nothing", WRONG)
    return it.scene(judge, reader=it.reader(), writer=it.invalidator())


def _peer(stage: Stage, library: str) -> Scene:
    it = peers.Entry(stage, library)
    return it.scene(WRONG, reader=it.reader(), writer=it.writer())


STORY = Story(
    name="invalidated-load",
    race="FusionCache#625",
    title="An invalidation comes while a load runs",
    sense=(
        "A reader has read the source and not yet written the cache; a writer commits and deletes the entry, which is "
        "not there. Then the reader writes what it read, and nobody deletes it again."
    ),
    columns=(
        Column(
            name="aside",
            kind="usual",
            title="save, then DEL",
            by="redis-py",
            schedule="reader.get reader.load writer.save writer.delete reader.set",
            scene=lambda stage: _usual(stage, "delete"),
        ),
        Column(
            name="twice",
            kind="fix",
            title="DEL again, a moment later",
            by="redis-py",
            schedule="reader.get reader.load writer.save writer.delete writer.delete_again reader.set",
            scene=lambda stage: _usual(stage, "delete", "delete_again"),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="an invalidation takes the lease away",
            by="fencepost",
            schedule="reader.get reader.claim reader.load writer.save writer.invalidate "
            "reader.publish reader.claim reader.load reader.publish",
            scene=_ours,
        ),
    ),
    peers=peers.columns("reader.get writer.save writer.forget reader.end", _peer),
)
