"""One run from scratch: live coroutines, the real scripts as they are, a real database if there is one.

Nothing is restored and nothing is wrapped here, so this is also the check of the graph: what the two
disagree about is wrong in one of them.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fencepost._core import commands
from fencepost._core.port import run_sync
from fencepost._core.script import SERVER, Call
from fencepost.errors import OutcomeUnknown, Refused, Unavailable
from fencepost.testing.actors import DIED, drop
from fencepost.testing.conversation import Conversation
from fencepost.testing.environment import Move
from fencepost.testing.play import PlayError
from fencepost.testing.sandbox import Sandbox
from fencepost.testing.scenario import Scenario
from fencepost.testing.simulated import SimPort, Spawned, Step
from fencepost.testing.world import ServerState, View

ALL: Final = "*"
_READS: Final = frozenset(
    ("get", "hget", "hmget", "hgetall", "mget", "exists", "zrange", "zcard", "hlen", "time")
)


class Footprint(NamedTuple):
    """What a step reads and writes: keys, and words for what is not a key."""

    reads: frozenset[str]
    writes: frozenset[str]

    def meets(self, other: Footprint) -> bool:
        """Whether the order of the two may matter."""
        if ALL in self.writes or ALL in other.writes:
            return True
        both = self.reads | self.writes
        return not (
            self.writes.isdisjoint(other.reads | other.writes) and other.writes.isdisjoint(both)
        )


class Option(NamedTuple):
    """Something that can happen next; after the same beginning it can be taken in another run too.

    Args:
        word: Its name in schedules.
        actor: Whose it is.
        footprint: What it reads and writes.
        fault: What goes wrong with the step, ``crash``, or '' for nothing.
        to: For a move of the environment: the server after it,
        memory: and what the move remembers then.
        asks: What it will ask of the server.
    """

    word: str
    actor: str
    footprint: Footprint
    fault: str = ""
    to: ServerState | None = None
    memory: Any = None
    asks: tuple[Call[Any], ...] = ()


@dataclass(slots=True)
class Part:
    """A live actor, or what is left of a move of the environment."""

    name: str
    io: SimPort
    work: Coroutine[Any, Any, Any] | None = None
    step: Step | None = None
    answers: list[Any] = field(default_factory=list)
    result: Any = None
    ended: bool = False
    move: Move | None = None
    left: int = 0
    memory: Any = None
    offered: tuple[Step, int, int] | None = None
    offers: Sequence[Option] = ()


class Run:
    """A scenario at its beginning, to be stepped.

    Args:
        scenario: What is run.
        talk: The way to the server, which is emptied.
        sandbox: Knows how to read and restore it, where a move of the environment needs that.
        path: What will be taken first, if that is known.
    """

    def __init__(
        self,
        scenario: Scenario,
        talk: Conversation,
        sandbox: Sandbox,
        path: Sequence[Option] = (),
    ) -> None:
        self.scenario, self.sandbox, self.talk = scenario, sandbox, talk
        self._going = 0
        self.faults = scenario.faults.times
        self.wrong = ""
        self.parts: dict[str, Part] = {}
        self._spawned: dict[int, Part] = {}
        self._state: ServerState | None = None
        first = [commands.raw("FLUSHALL"), *(commands.raw(*words) for words in scenario.setup)]
        if path:
            known = (call for option in path for call in option.asks)
            talk.foretell((*first, *known), sandbox.reading)
        if scenario.reset is not None:
            scenario.reset()
        for name, actor in scenario.actors.items():
            io = SimPort(name)
            self._begin(Part(name, io, actor(io)))
        for name, move in scenario.environment.items():
            self.parts[name] = Part(name, SimPort(name), move=move, left=move.times, ended=True)
        for call in first:  # no actor has asked for anything yet
            talk.run(call)

    def close(self) -> None:
        """Drop all actors where they stand."""
        for part in self.parts.values():
            if part.work is not None:
                self.wrong = self.wrong or drop(part.name, part.work)

    def _begin(self, part: Part) -> None:
        self.parts[part.name] = part
        self._going += 1
        self._go(part, None)

    def _go(self, part: Part, answer: Any) -> None:
        assert part.work is not None
        before = len(part.io.spawned)
        try:
            failed = isinstance(answer, BaseException)
            part.step = part.work.throw(answer) if failed else part.work.send(answer)
        except StopIteration as stop:
            self._ended(part, stop.value)
        except Exception as error:
            self._ended(part, error.with_traceback(None))
            if not isinstance(error, self.scenario.allowed):
                self.wrong = f"{part.name} raised {type(error).__name__}: {error}"
        for number, task in enumerate(part.io.spawned[before:], before + 1):
            io = SimPort(f"{part.name}_{number}")
            child = Part(io.name, io, task.work)
            self._spawned[id(task)] = child
            self._begin(child)

    def _ended(self, part: Part, result: Any) -> None:
        part.step, part.ended, part.result = None, True, result
        self._going -= 1

    # -- what can happen

    def options(self) -> list[Option]:
        """All that can happen next, in the order of the scenario."""
        found: list[Option] = []
        state: ServerState | None = None
        for part in list(self.parts.values()):
            if part.move is not None:
                if part.left:
                    state = state or self.read()
                    found += self._happenings(part, part.move, state)
            elif part.step is not None:
                found += self._offers(part, part.step)
        return found

    def _happenings(self, part: Part, move: Move, state: ServerState) -> Iterator[Option]:
        for word, to, memory in move.choices(state, part.memory):
            if to[1:] != state[1:]:
                raise Refused(f"{part.name}.{word} needs a simulated server: explore it as a graph")
            before, after = state.by_name(), to.by_name()
            changed = {
                key for key in before.keys() | after.keys() if before.get(key) != after.get(key)
            }
            touched = frozenset(changed) | {f"-{part.name}"}
            if word == "flushall" or move.live:  # scripts that are forgotten are nobody's key
                touched |= {ALL}
            footprint = Footprint(frozenset(), touched)
            asks = commands.raw(*move.live) if move.live else self.sandbox.putting(to)
            yield Option(f"{part.name}.{word}", part.name, footprint, "", to, memory, (asks,))

    def _offers(self, part: Part, step: Step) -> Sequence[Option]:
        if step.kind in ("wait", "until"):  # what others do decides
            return list(self._steps(part, step))
        at = (step, len(part.answers), self.faults)
        if part.offered is None or part.offered[0] is not step or part.offered != at:
            part.offered, part.offers = at, list(self._steps(part, step))
        return part.offers

    def _steps(self, part: Part, step: Step) -> Iterator[Option]:
        word = f"{part.name}.{step.label}"
        footprint = self._footprint(part, step)
        if part.name in self.scenario.crashes:
            nothing = Footprint(frozenset(), frozenset())
            yield Option(f"{part.name}.crash", part.name, nothing, "crash")
        if step.kind == "wait" and not self._spawned[id(step.args[0])].ended:
            return
        if step.kind == "until" and not self._holds(step):
            return
        asks = (step.calls[len(part.answers)],) if step.calls else ()
        yield Option(word, part.name, footprint, asks=asks)
        if self.faults:
            rationed = Footprint(footprint.reads, footprint.writes | {"-faults"})
            for fault in self.scenario.faults.of(step):
                sent = asks if fault in ("lost", "resent") else ()
                yield Option(f"{word}!{fault}", part.name, rationed, fault, asks=sent)

    def _footprint(self, part: Part, step: Step) -> Footprint:
        other = {f"-task {part.name}"}
        if step.label in self.scenario.observe:
            other.add("-cells")
        match step.kind:
            case "run" | "all":
                call = step.calls[len(part.answers)]
                keys = frozenset(call.keys)
                if call.script is None:
                    keys = keys or frozenset(
                        str(word) for word in call.args[1:] if word is not SERVER
                    )
                    if call.verb in _READS:
                        return Footprint(keys, frozenset(other))
                return Footprint(frozenset(), keys | other)
            case "call":
                return Footprint(frozenset(), frozenset(("-cells", *other)))
            case "wait":
                return Footprint(
                    frozenset((f"-task {self._spawned[id(step.args[0])].name}",)), frozenset(other)
                )
            case "until":
                return Footprint(frozenset(), frozenset((ALL,)))
            case _:
                return Footprint(frozenset(), frozenset(other))

    # -- making it happen

    def take(self, option: Option) -> None:
        """Make it happen.

        Raises:
            PlayError: The actor does not wait at this step: the same beginning led elsewhere.
        """
        part = self.parts[option.actor]
        self._state = None
        if option.to is not None:
            self._happen(part, option)
            return
        step = part.step
        word = "" if step is None else f"{part.name}.{step.label}"
        if step is None or (option.fault != "crash" and option.word.partition("!")[0] != word):
            raise PlayError(f"{option.word} does not fit: {self.waiting() or 'all have ended'}")
        if option.fault == "crash":
            self._die(part)
        else:
            self._take(part, step, option.fault)

    def _happen(self, part: Part, option: Option) -> None:
        for call in option.asks:
            self.talk.run(call)
        part.left -= 1
        part.memory = option.memory
        self._observe(option.word.partition(".")[2].partition("(")[0], part.name, None, None)

    def _take(self, part: Part, step: Step, fault: str) -> None:
        if fault:
            self.faults -= 1
        answer: Any = None
        if fault == "cut":
            answer = Unavailable("the explorer cut the connection; nothing was sent")
        elif fault != "dropped":
            call = step.calls[len(part.answers)] if step.calls else None
            answer = self._perform(step, call)
            if not isinstance(answer, BaseException):
                self._observe(step.label, part.name, call, answer)
        if fault in ("lost", "dropped"):
            answer = OutcomeUnknown("the explorer lost the reply")
        if fault == "resent":
            return
        if step.kind == "wait" and not fault:
            answer = self._spawned[id(step.args[0])].result
        if step.kind == "all":
            part.answers.append(answer)
            if len(part.answers) < len(step.calls):
                return
            errors = [one for one in part.answers if isinstance(one, BaseException)]
            answer, part.answers = errors[0] if errors else part.answers, []
        self._go(part, answer)

    def _perform(self, step: Step, call: Call[Any] | None) -> Any:
        try:
            if call is not None:
                return self.talk.run(call, self.sandbox.reading)
            if step.kind == "call":
                assert step.fn is not None
                result = step.fn(*step.args)
                return run_sync(result) if hasattr(result, "__await__") else result
        except Exception as error:
            return error.with_traceback(None)
        return None

    def _die(self, part: Part) -> None:
        assert part.work is not None
        self.wrong = self.wrong or drop(part.name, part.work)
        self._ended(part, DIED)

    def _holds(self, step: Step) -> bool:
        assert step.fn is not None
        return bool(step.fn(self.view()))

    def _observe(self, label: str, name: str, call: Call[Any] | None, value: Any) -> None:
        observer = self.scenario.observe.get(label)
        if observer is not None:
            observer(name, call, value)

    # -- looking

    @property
    def ended(self) -> bool:
        """Whether every actor has."""
        return not self._going

    def waiting(self) -> str:
        """Who waits at what."""
        return ", ".join(
            f"{part.name} at {part.step}" for part in self.parts.values() if part.step is not None
        )

    def read(self) -> ServerState:
        """What the server holds."""
        if self._state is None:
            words = tuple(self.talk.run(self.sandbox.reading))
            self._state = self.scenario.server._replace(words=words)
        return self._state

    def view(self) -> View:
        """What checks see."""
        results = {
            part.name: part.result
            for part in self.parts.values()
            if part.ended and part.move is None
        }
        return View(self.read(), results, self.ended)

    def heal(self) -> str:
        """Let all die here, run the healing protocol alone, judge."""
        scenario = self.scenario
        if scenario.heal is None or scenario.healed is None:
            return ""
        self.faults = 0
        self.close()
        self._state = None
        io = SimPort("heal")
        part = Part("heal", io, scenario.heal(io))
        self._begin(part)
        while part.step is not None:
            self._take(part, part.step, "")
        self._state = None
        if isinstance(part.result, BaseException):
            return f"if all die here, healing ends with {type(part.result).__name__}: {part.result}"
        view = View(self.read(), {"heal": part.result})
        wrong = scenario.healed(view)
        return f"if all die here, after healing: {wrong}" if wrong else ""


__all__ = ["ALL", "Footprint", "Option", "Run", "Spawned"]
