"""A tag is invalidated while an entry that will carry it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.cache.region import Ask
from fencepost.testing.lab.cached import TAG, Ours, Usual
from fencepost.testing.lab.story import Column, Scene, Story

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage

WRONG = "the cache holds {held}: the entry came after the tag was invalidated, and looks newer than it is"


def _usual(stage: Stage, stamped: bool) -> Scene:
    it = Usual(stage)
    steps = ("save", "raise_version" if stamped else "delete_tag")
    judge = it.agrees("the cache holds what the source has", WRONG)
    return it.scene(judge, reader=it.tagged_reader(stamped=stamped), writer=it.writer(*steps))


def _ours(stage: Stage) -> Scene:
    it = Ours(stage)
    judge = it.agrees("the entry carries the stamp of before its load: a miss at once", WRONG)
    return it.scene(judge, reader=it.reader(Ask(tags=(TAG,))), writer=it.tag_invalidator())


STORY = Story(
    name="late-tag",
    race="FusionCache#628",
    title="A tag is invalidated while one of its entries is loaded",
    sense=(
        "Tags are kept as sets of keys, or as a version that entries carry. An entry that is written after the "
        "invalidation is in no set that was deleted, and carries the version of afterwards."
    ),
    columns=(
        Column(
            name="set",
            kind="usual",
            title="a set of keys a tag",
            by="redis-py",
            schedule="reader.load writer.save writer.delete_tag reader.set_tagged",
            scene=lambda stage: _usual(stage, stamped=False),
        ),
        Column(
            name="version",
            kind="fix",
            title="a version a tag, read when the entry is written",
            by="redis-py",
            schedule="reader.load writer.save writer.raise_version reader.set_stamped",
            scene=lambda stage: _usual(stage, stamped=True),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="a stamp a tag, read before the load",
            by="fencepost",
            schedule="reader.get reader.claim reader.stamp reader.load writer.save "
            "writer.delete writer.delete reader.publish",
            scene=_ours,
        ),
    ),
)
