"""A story: a race that is known to happen, told for several designs on one real server.

Each design has a column: its actors, the schedule that it meets, and a verdict on what came out. A
schedule is a line for ``Play``; performing it notes after every word what server and database hold,
so that a reader can step through it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fencepost.testing.play import Play
from fencepost.testing.simulated import Step

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.scenario import Actor

Kind = Literal["usual", "fix", "ours", "peer"]
"""The usual code, the usual fix, ours; or a library, played only when it is asked for."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a design came out right, and what it showed."""

    holds: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One design, set up.

    Args:
        actors: Who acts; see ``Play``.
        picture: What server and database hold now, a line each.
        verdict: Judges the end.
        notes: What some steps do, by label, where they do not say so themselves.
    """

    actors: Mapping[str, Actor]
    picture: Callable[[], dict[str, str]]
    verdict: Callable[[Play], Verdict]
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One design in one story.

    Args:
        name: For command lines and tests.
        kind: The usual code, the usual fix, ours, or a library.
        title: The design in a few words.
        by: The library that it is written with: ``fencepost lab --against`` asks for it.
        schedule: What happens, in order.
        scene: Sets it up.
    """

    name: str
    kind: Kind
    title: str
    by: str
    schedule: str
    scene: Callable[[Stage], Scene]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One race.

    Args:
        name: For command lines.
        title: A line.
        sense: What happens and why it matters, in two sentences.
        columns: The designs, ours last.
        race: Its name in the list of races that must hold.
        peers: Libraries in the same race, each in an environment of its own.
    """

    name: str
    title: str
    sense: str
    columns: tuple[Column, ...]
    race: str = ""
    peers: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """One word of a schedule, and what there was after it.

    Args:
        actor: Who; '' for the beginning.
        step: Which step.
        note: What the step does.
        picture: Server and database after it.
    """

    actor: str
    step: str
    note: str
    picture: dict[str, str]


@dataclass(frozen=True, slots=True)
class Performed:
    """A column, played to its end."""

    column: Column
    verdict: Verdict
    beats: tuple[Beat, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        shown = {
            name: getattr(self.column, name) for name in ("name", "kind", "title", "by", "schedule")
        }
        return {**shown, **asdict(self.verdict), "beats": [asdict(beat) for beat in self.beats]}


def perform(column: Column, stage: Stage) -> Performed:
    """Play a column.

    Raises:
        PlayError: Its schedule does not fit its actors.
    """
    scene = column.scene(stage)
    play = Play(stage.port, **scene.actors)
    beats = [Beat("", "", "how it begins", scene.picture())]
    try:
        for word in column.schedule.split():
            actor, _, step = word.partition(".")
            note = _note(scene, play, actor, step)
            play.run(word)
            beats.append(Beat(actor, step, note, scene.picture()))
        return Performed(column, scene.verdict(play), tuple(beats))
    finally:
        play.close()


def _note(scene: Scene, play: Play, actor: str, step: str) -> str:
    """What a step does: its script's first sentence, its command, or its function's."""
    if step == "crash":
        return "the process is gone, with all that it held in memory"
    waits = play.step_of(actor)
    return scene.notes.get(step) or ("" if waits is None else describe(waits))


def describe(step: Step) -> str:
    """A step in a line."""
    if step.calls:
        call = step.calls[0]
        if call.script is not None:
            return call.script.contract.says.removesuffix(".")
        return " ".join(str(word) for word in call.args)
    first = (inspect.getdoc(step.fn) or "").partition("\n")[0]
    return first or step.label
