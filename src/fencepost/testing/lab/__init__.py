"""The lab: the races of this field, played on a real server for the usual code, the usual fix, and ours.

    with ScratchServer() as server:
        for performed in run(STORIES["last-unlike"], server.url):
            print(performed.column.title, performed.verdict.text)

``fencepost lab`` prints them, or writes a page that steps through them. A column names the library
that it is written with, so that ``--against`` is a conformance kit: who fails, with which schedule.
"""

from __future__ import annotations

from collections.abc import Callable

from fencepost.testing.lab.stage import Stage
from fencepost.testing.lab.stories import STORIES
from fencepost.testing.lab.story import Beat, Column, Performed, Scene, Story, Verdict, perform

__all__ = [
    "STORIES",
    "Beat",
    "Column",
    "Performed",
    "Scene",
    "Stage",
    "Story",
    "Verdict",
    "perform",
    "run",
]


def run(
    story: Story, url: str, wanted: Callable[[Column], bool] = lambda column: column.kind != "peer"
) -> list[Performed]:
    """Play a story's columns, each on a stage of its own.

    Args:
        story: Which.
        url: A server that is nobody else's; see ``ScratchServer``.
        wanted: Which columns; libraries that need an environment of their own only if asked for.
    """
    performed = []
    for column in filter(wanted, (*story.columns, *story.peers)):
        with Stage(url) as stage:
            performed.append(perform(column, stage))
    return performed
