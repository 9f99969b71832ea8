"""Three of five servers are held; one of them loses its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.story import Column, Scene, Story, Verdict
from fencepost.testing.lab.voters import OurVoters, UsualVoters

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play


def _usual(stage: Stage) -> Scene:
    it = UsualVoters(stage, 5, (1, 1, 1, 1, 1))

    def judge(play: Play) -> Verdict:
        held = " and ".join(it.holders)
        return Verdict(len(it.holders) < 2, f"{held} hold the lock at the same time")

    return it.scene(
        judge, ann=it.holds("ann", (0, 1, 2)), world=it.world(2), bob=it.holds("bob", (2, 3, 4))
    )


def _ours(stage: Stage) -> Scene:
    it = OurVoters(stage, 5)

    def judge(play: Play) -> Verdict:
        alone = list(it.holders) == ["ann"]
        return Verdict(alone, f"only ann holds it. bob: {it.said.get('bob', '')}")

    return it.scene(
        judge,
        ann=it.holds("ann", (0, 1, 2, 3, 4)),
        world=it.world(2),
        bob=it.holds("bob", (4, 3, 2, 1, 0)),
    )


STORY = Story(
    name="third-vote",
    title="3 of 5 servers are held, and one of them loses its data",
    sense=(
        "A majority protects a lock only as long as its servers remember: one of them comes back empty, or without "
        "the last second of its journal, and gives its vote a second time. Then two have a majority."
    ),
    race="",
    columns=(
        Column(
            name="redlock",
            kind="usual",
            title="SET NX at five servers",
            by="redis-py",
            schedule="ann.ask ann.ask ann.ask ann.enter world.empty bob.ask bob.ask bob.ask bob.enter bob.write",
            scene=_usual,
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="who may have forgotten a vote gives none",
            by="fencepost",
            schedule=(
                "ann.vote ann.vote ann.vote ann.vote!cut ann.vote!cut ann.enter world.empty "
                "bob.vote bob.vote bob.vote bob.vote bob.vote bob.release bob.release"
            ),
            scene=_ours,
        ),
    ),
)
