"""The states of all actors, numbered: a suspended protocol is rebuilt from the replies it was given.

A coroutine can't be copied. But it does the same for the same replies, so a state *is* a history of
replies; histories that lead to equal frames (``frozen.py``) are one state.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost._core.port import OtherServer
from fencepost.errors import OutcomeUnknown, Unavailable
from fencepost.testing.environment import Move
from fencepost.testing.frozen import Freezer
from fencepost.testing.scenario import Actor, Scenario
from fencepost.testing.simulated import SimPort, Step
from fencepost.testing.world import frozen

LOST: Final = OutcomeUnknown("the explorer lost the reply")
CUT: Final = Unavailable("the explorer cut the connection; nothing was sent")
ELSEWHERE: Final = OtherServer("the server changed since this was decided. Nothing was sent")


class Died:
    """What an actor that died leaves as its result."""

    def __repr__(self) -> str:
        return "died"


DIED: Final = Died()


@dataclass(slots=True)
class State:
    """One actor in one of its states.

    Args:
        name: Of the actor.
        step: What it waits at; None if it has ended.
        given: The outcomes it was given, by number.
        part: Those of the step's calls that are through already (a step of several calls).
        result: What it returned, or the error that it raised.
        wrong: What is wrong with how it ended.
        move: What it is, if it is a move of the environment.
        left: How often that may still happen.
        memory: What that remembers.
    """

    name: str
    step: Step | None
    given: tuple[int, ...] = ()
    part: tuple[int, ...] = ()
    result: Any = None
    wrong: str = ""
    move: Move | None = None
    left: int = 0
    memory: Any = None
    dead: int = -1
    after: dict[int, int] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.step is None and self.move is None


class Actors:
    """All states met so far, by number."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._freeze = Freezer()
        self._outcomes: list[tuple[bool, Any]] = []
        self._outcome_numbers: dict[Hashable, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self.states: list[State] = []
        self.waiting: set[int] = set()
        self.wrong = False
        self.lost, self.cut = self.outcome_of(LOST), self.outcome_of(CUT)
        self.elsewhere = self.outcome_of(ELSEWHERE)

    def start(self) -> tuple[int, ...]:
        """The first state of every actor and move, in the scenario's order."""
        first = [self._make(name, actor, ()) for name, actor in self._scenario.actors.items()]
        moves = [
            self._moved(name, move, move.times, None)
            for name, move in self._scenario.environment.items()
        ]
        return (*first, *moves)

    def outcome_of(self, value: Any, raw: bool = False) -> int:
        """The number of an outcome: a reply as the server gave it, a function's result, or an error."""
        key = (
            raw,
            frozen(value) if raw and not isinstance(value, BaseException) else self._freeze(value),
        )
        number = self._outcome_numbers.get(key)
        if number is None:
            number = self._outcome_numbers[key] = len(self._outcomes)
            self._outcomes.append((raw, value))
        return number

    def value(self, outcome: int) -> Any:
        """What an outcome is."""
        return self._outcomes[outcome][1]

    def give(self, number: int, outcome: int) -> int:
        """The state after ``number`` was given an outcome."""
        state = self.states[number]
        after = state.after.get(outcome)
        if after is None:
            actor = self._scenario.actors[state.name]
            after = state.after[outcome] = self._make(state.name, actor, (*state.given, outcome))
        return after

    def die(self, number: int) -> int:
        """The state in which it is dead."""
        state = self.states[number]
        if state.dead < 0:
            state.dead = self._number(("dead", state.name), State(state.name, None, result=DIED))
        return state.dead

    def moved(self, number: int, memory: Any) -> int:
        """The state of a move after it happened once more."""
        state = self.states[number]
        assert state.move is not None
        return self._moved(state.name, state.move, state.left - 1, memory)

    def _moved(self, name: str, move: Move, left: int, memory: Any) -> int:
        return self._number(
            ("move", name, left, memory), State(name, None, move=move, left=left, memory=memory)
        )

    def _number(self, key: Hashable, state: State) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.states)
            self.states.append(state)
            self.wrong = self.wrong or bool(state.wrong)
            if state.step is not None:
                self.waiting.add(number)
        return number

    def _make(self, name: str, actor: Actor, given: tuple[int, ...]) -> int:
        io = SimPort(name)
        work = actor(io)
        state = State(name, None, given)
        try:
            state.step = work.send(None)
            for outcome in given:
                self._resume(work, state, outcome)
        except StopIteration as stop:
            state.step, state.part, state.result = None, (), stop.value
        except Exception as error:
            state.step, state.part, state.result = None, (), error.with_traceback(None)
            if not isinstance(error, self._scenario.allowed):
                state.wrong = f"{name} raised {type(error).__name__}: {error}"
        if io.spawned:
            drop(name, work)
            for task in io.spawned:
                task.work.close()
            raise NotImplementedError(f"{name} spawned a protocol: explore it by re-execution")
        if state.step is None:
            return self._number(("ended", name, self._freeze(state.result), state.wrong), state)
        key = ("waits", name, self._freeze(work), state.part)
        state.wrong = drop(name, work)
        return self._number(key, state)

    def _resume(self, work: Coroutine[Any, Any, Any], state: State, outcome: int) -> None:
        step = state.step
        assert step is not None
        if step.kind == "all":
            state.part = (*state.part, outcome)
            if len(state.part) < len(step.calls):
                return
            results = [self._result(step, i, one) for i, one in enumerate(state.part)]
            errors = [one for one in results if isinstance(one, BaseException)]
            answer: Any = errors[0] if errors else results
        else:
            answer = self._result(step, 0, outcome)
        state.part = ()
        state.step = work.throw(answer) if isinstance(answer, BaseException) else work.send(answer)

    def _result(self, step: Step, index: int, outcome: int) -> Any:
        raw, value = self._outcomes[outcome]
        if isinstance(value, BaseException):
            value.__traceback__ = value.__context__ = None
            return value
        if not raw:
            return value
        try:
            return step.calls[index].parse(value)
        except Exception as error:
            return error


def drop(name: str, work: Coroutine[Any, Any, Any]) -> str:
    """Drop a protocol where it stands; what is wrong with how it took that."""
    try:
        work.close()
    except RuntimeError as error:
        return f"{name} awaits while it is dropped: {error}"
    except Exception as error:
        return f"{name} raised {type(error).__name__} while it was dropped: {error}"
    return ""
