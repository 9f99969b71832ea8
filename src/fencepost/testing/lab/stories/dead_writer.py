"""A writer dies between its commit and what it owes the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.cached import TTL, Ours, Usual
from fencepost.testing.lab.story import Column, Scene, Story, Verdict

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play

WRONG = f"the cache holds {{held}} for {TTL} seconds: nobody knows that it is owed a DEL"


def _usual(stage: Stage, *steps: str) -> Scene:
    it = Usual(stage, held="old")
    judge = it.agrees("the cache holds what the source has", WRONG)
    return it.scene(judge, writer=it.writer(*steps), reader=it.reader())


def _ours(stage: Stage) -> Scene:
    it = Ours(stage, held="old")
    intent = it.region.options.intent

    def judge(play: Play) -> Verdict:
        if it.held() == it.value or it.life_ms() <= intent * 1000:
            return Verdict(
                True, f"the announcement made the old entry end within {intent:g} seconds"
            )
        return Verdict(False, WRONG.format(held=it.held()))

    return it.scene(judge, writer=it.around(), reader=it.reader())


STORY = Story(
    name="dead-writer",
    title="A writer dies between its commit and its DEL",
    sense=(
        "The source and the cache are two systems, and a process can die between them. Whoever deletes first has the "
        "entry filled again by a reader before the commit; whoever deletes last may never come to it."
    ),
    columns=(
        Column(
            name="last",
            kind="usual",
            title="save, then DEL",
            by="redis-py",
            schedule="writer.save writer.crash reader.get",
            scene=lambda stage: _usual(stage, "save", "delete"),
        ),
        Column(
            name="first",
            kind="fix",
            title="DEL, save, DEL again",
            by="redis-py",
            schedule="writer.delete reader.get reader.load reader.set writer.save writer.crash",
            scene=lambda stage: _usual(stage, "delete", "save", "delete_again"),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="a write announces itself before it saves",
            by="fencepost",
            schedule="writer.write_begin writer.save writer.crash reader.get",
            scene=_ours,
        ),
    ),
)
