"""The stage set-up that most stories of likes share: the usual code, the usual fix, ours, one item each.

In each of the three the same people do the same things to an item; only what the item is made of differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fencepost.testing.lab.ours import Ours
from fencepost.testing.lab.story import Column, Scene, Verdict
from fencepost.testing.lab.usual import Usual

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor

Cast = Callable[["Usual | Ours"], "dict[str, Actor]"]
Judge = Callable[["Play"], Verdict]


def usual_columns(
    scene: Callable[[Stage, bool], Scene], plain: str, fixed: str
) -> tuple[Column, Column]:
    """The usual code and the usual fix.

    Args:
        scene: Sets the stage; with a sentinel member or without.
        plain: The schedule without.
        fixed: The schedule with it.
    """
    return (
        Column(
            name="original",
            kind="usual",
            title="a set of likers and a queue",
            by="redis-py",
            schedule=plain,
            scene=lambda stage: scene(stage, False),
        ),
        Column(
            name="sentinel",
            kind="fix",
            title="the same with a sentinel member",
            by="redis-py",
            schedule=fixed,
            scene=lambda stage: scene(stage, True),
        ),
    )


def our_column(title: str, scene: Callable[[Stage], Scene], schedule: str) -> Column:
    """Ours.

    Args:
        title: What it does instead.
        scene: Sets the stage.
        schedule: Under it.
    """
    return Column(
        name="fencepost", kind="ours", title=title, by="fencepost", schedule=schedule, scene=scene
    )


def three(
    *users: str,
    cast: Cast,
    judge: Judge,
    plain: str,
    fixed: str,
    ours: str,
    title: str,
    warm: bool = True,
) -> tuple[Column, ...]:
    """All three columns.

    Args:
        users: Who likes the item at first.
        cast: The actors, on an item of any of them.
        judge: The verdict on each.
        plain: The schedule of the usual code.
        fixed: The schedule of the usual fix.
        ours: Our schedule.
        title: What ours does instead.
        warm: Whether the item is in the cache at first.
    """

    def usual(stage: Stage, sentinel: bool) -> Scene:
        it = Usual(stage, *users, sentinel=sentinel, warm=warm)
        return it.scene(judge, **cast(it))

    def own(stage: Stage) -> Scene:
        it = Ours(stage, *users, warm=warm)
        return it.scene(judge, **cast(it))

    return (*usual_columns(usual, plain, fixed), our_column(title, own, ours))
