"""One of three servers dies and comes back empty, and there are two who want the lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.testing.lab.story import Column, Scene, Story, Verdict
from fencepost.testing.lab.voters import OurVoters, UsualVoters

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play


def _usual(stage: Stage) -> Scene:
    it = UsualVoters(stage, 3, (7, 7, 2))

    def judge(play: Play) -> Verdict:
        fences = it.holders
        right = fences["bob"] > fences["ann"] and it.written[-1] == "bob"
        return Verdict(
            right,
            f"bob came later and has the lower fence ({fences['bob']} after {fences['ann']}): the gate "
            f"refuses the new holder and lets the old one write",
        )

    return it.scene(
        judge, ann=it.holds("ann", (0, 1)), world=it.world(0), bob=it.holds("bob", (0, 2))
    )


def _ours(stage: Stage) -> Scene:
    it = OurVoters(stage, 3)

    def judge(play: Play) -> Verdict:
        ann, bob = it.holders["ann"].fence, it.holders["bob"].fence
        learned, refused = "ann" in it.said, "ann writes" in it.said
        right = learned and refused and bob > ann and it.written == ["bob"]
        return Verdict(
            right,
            "ann learned at its renewal, bob got in after the longest lease with a greater fence, and the "
            "gate refused ann",
        )

    return it.scene(
        judge,
        ann=it.holds("ann", (0, 1, 2), renews=True),
        world=it.world(0, waits=True),
        bob=it.holds("bob", (0, 2, 1), tries=2),
    )


STORY = Story(
    name="empty-comeback",
    title="A server dies and comes back empty, and two want the lock",
    sense=(
        "The server that came back has forgotten its vote and its fences. The next holder gets in beside the first, "
        "and with a lower fence: even a gate then protects the wrong one."
    ),
    race="",
    columns=(
        Column(
            name="redlock",
            kind="usual",
            title="SET NX and INCR at three servers",
            by="redis-py",
            schedule=(
                "ann.ask ann.ask ann.enter world.empty bob.ask bob.ask bob.enter ann.write bob.write"
            ),
            scene=_usual,
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="a birth record, and fences written back",
            by="fencepost",
            schedule=(
                "ann.vote ann.vote ann.vote!cut ann.enter world.empty bob.vote bob.vote bob.vote "
                "bob.release ann.prolong ann.prolong ann.prolong ann.learn world.later "
                "bob.vote bob.vote bob.vote bob.births bob.births bob.births bob.config bob.admit "
                "bob.enter bob.write ann.write"
            ),
            scene=_ours,
        ),
    ),
)
