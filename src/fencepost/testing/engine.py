"""The moves of a scenario: what each actor can do in a state of the world, and what comes of it.

Server states, states of the cells and states of the actors are numbers here; each question is asked
of the real server, the cells and the coroutines once, and looked up ever after.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from fencepost._core.port import run_sync
from fencepost._core.script import Call
from fencepost.testing.actors import DIED, Actors
from fencepost.testing.frozen import Freezer
from fencepost.testing.sandbox import Sandbox
from fencepost.testing.scenario import Scenario
from fencepost.testing.simulated import SimPort, Step
from fencepost.testing.world import ServerState, View
from fencepost.wire.resp import NotPrimary

_HEAL_STEPS = 10_000


class After(NamedTuple):
    """A move: its word, and the numbers of what it leads to."""

    word: str
    server: int
    cells: int
    faults: int
    actor: int


class Engine:
    """Answers what can happen; knows nothing of searching.

    Args:
        scenario: What is explored.
        sandbox: Where scripts run.
    """

    def __init__(self, scenario: Scenario, sandbox: Sandbox) -> None:
        self.scenario = scenario
        self.sandbox = sandbox
        self.actors = Actors(scenario)
        self._freeze = Freezer()
        self._servers: list[ServerState] = []
        self._server_numbers: dict[ServerState, int] = {}
        self._cells: list[tuple[Any, ...]] = []
        self._cell_numbers: dict[Hashable, int] = {}
        self._applied: dict[tuple[int, Hashable], tuple[int, int]] = {}
        self._called: dict[tuple[int, Hashable], tuple[int, int]] = {}
        self._moves: dict[tuple[int, ...], dict[int, tuple[After, ...]]] = {}
        self._judged: dict[tuple[int, int], str] = {}
        self._first_cells = tuple(cell.state for cell in scenario.cells)
        state = scenario.server
        for words in scenario.setup:
            reply, state = sandbox.run(state, Call(str(words[0]).lower(), tuple(words), _same))
            if isinstance(reply, Exception):
                raise reply
        self.server0 = self._server(state)
        self.cells0 = self._cell(self._first_cells)
        self.actors0 = self.actors.start()

    def close(self) -> None:
        """Set the scenario's cells back to where they began."""
        for cell, state in zip(self.scenario.cells, self._first_cells, strict=True):
            cell.state = state

    # -- moves

    def moves(self, world: tuple[int, ...], actor: int) -> tuple[After, ...]:
        """What one actor can do in (server, cells, faults), faults and its death included."""
        known = self.known_moves(world)
        found = known.get(actor)
        if found is None:
            server, cells, faults = world
            found = known[actor] = tuple(self._think(server, cells, faults, actor))
        return found

    def known_moves(self, world: tuple[int, ...]) -> dict[int, tuple[After, ...]]:
        """The moves by actor that were asked for in (server, cells, faults)."""
        known = self._moves.get(world)
        if known is None:
            known = self._moves[world] = {}
        return known

    def _think(self, server: int, cells: int, faults: int, actor: int) -> Iterator[After]:
        state = self.actors.states[actor]
        if state.move is not None:
            if state.left:
                for word, became, memory in state.move.choices(self._servers[server], state.memory):
                    observed = self._observe(cells, word.partition("(")[0], state.name, None, None)
                    number = self.actors.moved(actor, memory)
                    yield After(
                        f"{state.name}.{word}", self._server(became), observed, faults, number
                    )
            return
        step = state.step
        if step is None:
            return
        if state.name in self.scenario.crashes:
            yield After(f"{state.name}.crash", server, cells, faults, self.actors.die(actor))
        word = f"{state.name}.{step.label}"
        if step.kind in ("run", "all"):
            call = step.calls[len(state.part)]
            if call.only and call.only != self._servers[server].greeted:
                yield After(
                    word, server, cells, faults, self.actors.give(actor, self.actors.elsewhere)
                )
                return
            outcome, to = self._apply(server, call)
            if isinstance(self.actors.value(outcome), NotPrimary):
                # The link drops its connection, greets whoever is there now, and sends again.
                yield After(word, self._reconnected(server), cells, faults, actor)
                return
            changed = self._observe(cells, step.label, state.name, call, outcome)
        elif step.kind == "call":
            outcome, changed = self._call(cells, step)
            changed, to = self._observe(changed, step.label, state.name, None, outcome), server
        elif step.kind == "until":
            if not self._holds(server, cells, step):
                return
            outcome, to, changed = self.actors.outcome_of(None), server, cells
        elif step.kind == "sleep":
            outcome, to, changed = self.actors.outcome_of(None), server, cells
        else:
            raise NotImplementedError(
                f"the graph does not know the step {step.kind!r}; explore it by re-execution"
            )
        yield After(word, to, changed, faults, self.actors.give(actor, outcome))
        if not faults:
            return
        for fault in self.scenario.faults.of(step):
            lost = self.actors.cut if fault == "cut" else self.actors.lost
            after = actor if fault == "resent" else self.actors.give(actor, lost)
            if fault in ("lost", "resent"):
                yield After(f"{word}!{fault}", to, changed, faults - 1, after)
            else:
                yield After(f"{word}!{fault}", server, cells, faults - 1, after)

    # -- checks

    def wrong(self, server: int, cells: int) -> str:
        """What is wrong with a state of the world whatever the actors do; '' if nothing is."""
        key = (server, cells)
        found = self._judged.get(key)
        if found is None:
            found = self._judged[key] = self._judge(server, cells)
        return found

    def _judge(self, server: int, cells: int) -> str:
        scenario = self.scenario
        if scenario.invariant is not None and (
            wrong := scenario.invariant(self.view(server, cells))
        ):
            return wrong
        if scenario.heal is None or scenario.healed is None:
            return ""
        work = scenario.heal(SimPort("heal"))
        try:
            step = work.send(None)
            for _ in range(_HEAL_STEPS):
                answer, server, cells = self._take(server, cells, step)
                step = (
                    work.throw(answer) if isinstance(answer, BaseException) else work.send(answer)
                )
            work.close()
            return f"if all die here, healing does not end within {_HEAL_STEPS} steps"
        except StopIteration as stop:
            view = self.view(server, cells)
            view.results = {"heal": stop.value}
            wrong = scenario.healed(view)
            return f"if all die here, after healing: {wrong}" if wrong else ""
        except Exception as error:
            return f"if all die here, healing ends with {type(error).__name__}: {error}"

    def _take(self, server: int, cells: int, step: Step) -> tuple[Any, int, int]:
        """Take one step of a protocol that is alone."""
        if step.kind == "call":
            outcome, cells = self._call(cells, step)
            return self.actors.value(outcome), server, cells
        if step.kind not in ("run", "all"):
            return None, server, cells
        answers: list[Any] = []
        for call in step.calls:
            outcome, server = self._apply_alone(server, call)
            answer = self.actors.value(outcome)
            if isinstance(answer, BaseException):
                return answer, server, cells
            answers.append(call.parse(answer))
        return answers if step.kind == "all" else answers[0], server, cells

    def _apply_alone(self, server: int, call: Call[Any]) -> tuple[int, int]:
        for _ in range(2):
            if call.only and call.only != self._servers[server].greeted:
                return self.actors.elsewhere, server
            outcome, to = self._apply(server, call)
            if not isinstance(self.actors.value(outcome), NotPrimary):
                return outcome, to
            server = self._reconnected(server)
        return outcome, server

    def view(self, server: int, cells: int, actors: tuple[int, ...] = ()) -> View:
        """A state as checks see it; the cells are set back to it."""
        for cell, value in zip(self.scenario.cells, self._cells[cells], strict=True):
            cell.state = value
        states = [self.actors.states[number] for number in actors]
        results = {state.name: state.result for state in states if state.ended}
        ended = all(state.ended for state in states if state.move is None)
        return View(self._servers[server], results, ended)

    def died(self, actors: tuple[int, ...]) -> bool:
        """Whether any of these actors is dead."""
        return any(self.actors.states[number].result is DIED for number in actors)

    # -- the world, asked once

    def _apply(self, server: int, call: Call[Any]) -> tuple[int, int]:
        key = (
            server,
            (call.script.plain if call.script is not None else None, call.keys, call.args),
        )
        found = self._applied.get(key)
        if found is None:
            reply, state = self.sandbox.run(self._servers[server], call)
            raw = not isinstance(reply, BaseException)
            found = self._applied[key] = (self.actors.outcome_of(reply, raw), self._server(state))
        return found

    def _reconnected(self, server: int) -> int:
        state = self._servers[server]
        return self._server(state._replace(greeted=state.identity))

    def _call(self, cells: int, step: Step) -> tuple[int, int]:
        key = (cells, self._freeze((step.fn, step.args)))
        found = self._called.get(key)
        if found is None:
            self.view(0, cells)
            assert step.fn is not None
            try:
                result = step.fn(*step.args)
                if hasattr(result, "__await__"):
                    result = run_sync(result)
            except Exception as error:
                result = error
            found = self._called[key] = (self.actors.outcome_of(result), self._current())
        return found

    def _holds(self, server: int, cells: int, step: Step) -> bool:
        assert step.fn is not None
        return bool(step.fn(self.view(server, cells)))

    def _observe(
        self, cells: int, label: str, name: str, call: Call[Any] | None, outcome: int | None
    ) -> int:
        observer = self.scenario.observe.get(label)
        if observer is None:
            return cells
        value = None if outcome is None else self.actors.value(outcome)
        if isinstance(value, BaseException):
            return cells
        if call is not None:
            value = call.parse(value)
        self.view(0, cells)
        observer(name, call, value)
        return self._current()

    def _current(self) -> int:
        return self._cell(tuple(cell.state for cell in self.scenario.cells))

    def _cell(self, values: tuple[Any, ...]) -> int:
        number = self._cell_numbers.get(values)
        if number is None:
            number = self._cell_numbers[values] = len(self._cells)
            self._cells.append(values)
        return number

    def _server(self, state: ServerState) -> int:
        number = self._server_numbers.get(state)
        if number is None:
            number = self._server_numbers[state] = len(self._servers)
            self._servers.append(state)
        return number


def _same(reply: Any) -> Any:
    return reply
