"""A play: several protocols on one real server, stepped by hand, told as a line of text.

    play = Play(port, flusher=lambda io: flush_items(io, …), user=lambda io: set_like(io, …))
    play.run("flusher.claim user.set flusher.commit flusher.ack")
    assert play.result("user").changed

A word is ``actor.step``; the step must be the one that the actor waits at, so a schedule that has
gone stale fails loudly. Faults are written behind it:

    user.set!lost       it was applied, the reply was lost (OutcomeUnknown)
    user.set!dropped    it never arrived, and the caller can't know (OutcomeUnknown)
    user.set!resent     it was applied, and the link will send it again: the actor still waits
    user.set!cut        it was not sent (Unavailable)
    user.crash          the actor dies where it stands
    user.*              it runs to its end
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fencepost._core.port import Port, run_sync
from fencepost.errors import OutcomeUnknown, Unavailable
from fencepost.testing.simulated import SimPort, Step

Actor = Callable[[SimPort], Coroutine[Any, Any, Any]]


class PlayError(AssertionError):
    """A schedule does not fit what the actors do."""


class _Part:
    """One actor: its coroutine, the step it waits at, and how it ended."""

    def __init__(self, name: str, actor: Actor) -> None:
        self.io = SimPort(name)
        self.work = actor(self.io)
        self.step: Step | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = False
        self.advance(None, None)

    def advance(self, value: Any, error: BaseException | None) -> None:
        try:
            self.step = self.work.throw(error) if error is not None else self.work.send(value)
        except StopIteration as stop:
            self.step, self.ended, self.result = None, True, stop.value
        except Exception as raised:
            self.step, self.ended, self.error = None, True, raised


class Play:
    """Some actors on one server.

    Args:
        port: Runs the steps for real: a ``SyncPort``, as in ``Client.port``.
        **actors: A function from a port to a protocol, each. They start at once, up to their
            first step.
    """

    def __init__(self, port: Port, **actors: Actor) -> None:
        self._port = port
        self._parts = {name: _Part(name, actor) for name, actor in actors.items()}
        self.told: list[str] = []

    def add(self, **actors: Actor) -> None:
        """Bring more actors on."""
        self._parts.update({name: _Part(name, actor) for name, actor in actors.items()})

    def run(self, schedule: str) -> None:
        """Run a schedule.

        Raises:
            PlayError: A word names another step than the one its actor waits at.
        """
        for word in schedule.split():
            name, _, rest = word.partition(".")
            label, _, fault = rest.partition("!")
            part = self._parts.get(name)
            if part is None:
                raise PlayError(
                    f"{word}: there is no actor {name!r}; there are {', '.join(self._parts)}"
                )
            if label == "crash":
                part.work.close()
                part.step, part.ended = None, True
                self.told.append(word)
                continue
            while label == "*" and part.step is not None:
                self._take(part, part.step, "")
            if label == "*":
                continue
            if part.step is None:
                raise PlayError(
                    f"{word}: {name} has ended ({part.error or part.result!r}); told: {self}"
                )
            if part.step.label != label:
                raise PlayError(f"{word}: {name} waits at {part.step.label!r}; told: {self}")
            self._take(part, part.step, fault)

    def _take(self, part: _Part, step: Step, fault: str) -> None:
        self.told.append(f"{part.io.name}.{step.label}{'!' + fault if fault else ''}")
        if fault == "cut":
            part.advance(None, Unavailable("the play cut the connection; nothing was sent"))
            return
        if fault == "dropped":
            part.advance(None, OutcomeUnknown("the play dropped the request"))
            return
        try:
            value = self._perform(step)
        except Exception as error:
            part.advance(None, error)
            return
        if fault == "lost":
            part.advance(None, OutcomeUnknown("the play lost the reply"))
        elif fault == "resent":
            return
        elif fault:
            raise PlayError(f"unknown fault {fault!r}: lost, dropped, resent, cut")
        else:
            part.advance(value, None)

    def _perform(self, step: Step) -> Any:
        match step.kind:
            case "run":
                return run_sync(self._port.run(step.calls[0]))
            case "all":
                return run_sync(self._port.all(step.calls))
            case "call":
                assert step.fn is not None
                return step.fn(*step.args)
            case "sleep":
                return None
            case kind:
                raise PlayError(f"a play does not know the step {kind!r}")

    def step_of(self, actor: str) -> Step | None:
        """The step that an actor waits at; None if it has ended."""
        return self._parts[actor].step

    def waits_at(self, actor: str) -> str | None:
        """Its label."""
        step = self._parts[actor].step
        return step.label if step is not None else None

    def result(self, actor: str) -> Any:
        """What an actor returned; its error is raised.

        Raises:
            PlayError: It has not ended.
        """
        part = self._parts[actor]
        if not part.ended:
            raise PlayError(
                f"{actor} has not ended, it waits at {self.waits_at(actor)!r}; told: {self}"
            )
        if part.error is not None:
            raise part.error
        return part.result

    def close(self) -> None:
        """Drop all actors where they stand."""
        for part in self._parts.values():
            part.work.close()

    def __str__(self) -> str:
        return " ".join(self.told)
