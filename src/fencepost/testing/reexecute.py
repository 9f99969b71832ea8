"""Re-execution: whole schedules, each from scratch, without those that only swap independent steps.

Depth first over the choices of a run, with sleep sets (Godefroid, "Partial-Order Methods for the
Verification of Concurrent Systems", 1996, chapter 5): after a step was explored it sleeps in its
siblings until something happens that it does not commute with. Every state is still reached. Two
steps commute if neither writes a key that the other touches; scripts declare their keys, and the
sandbox sees that they keep to them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fencepost._core.script import Call
from fencepost.testing.conversation import Conversation, Unforeseen
from fencepost.testing.live import Option, Run
from fencepost.testing.minimise import minimise
from fencepost.testing.play import PlayError
from fencepost.testing.report import Finding, Report, Telling, Told
from fencepost.testing.sandbox import Sandbox
from fencepost.testing.scenario import Scenario
from fencepost.testing.scratch import ScratchServer
from fencepost.testing.world import ServerState, View

_AT_ONCE = 64  # calls
_GARBAGE = 100_000  # objects


@dataclass(slots=True)
class _Choice:
    """A node of the current path: what could happen, what sleeps, what was tried, what is taken."""

    options: dict[str, Option]
    asleep: dict[str, Option]
    taken: str
    switches: int
    tried: dict[str, Option] = field(default_factory=dict)

    def next(self) -> str | None:
        """A word that is neither asleep nor tried."""
        for word in self.options:
            if word not in self.asleep and word not in self.tried:
                return word
        return None

    def sleepers(self) -> dict[str, Option]:
        """What still sleeps after what was taken."""
        taken = self.options[self.taken]
        both = {**self.asleep, **self.tried}
        return {
            word: one
            for word, one in both.items()
            if one.actor != taken.actor and not one.footprint.meets(taken.footprint)
        }


class Declarations:
    """Sees that scripts keep to the keys that they declare, on the server, in every state they meet.

    Nothing is wrapped in a run. But each call that could come next is noted with the state that it
    would meet, and after the run, each of these once, the sandbox runs it there.
    """

    def __init__(self, sandbox: Sandbox, server: ScratchServer) -> None:
        self._sandbox, self._server = sandbox, server
        self._seen: set[Hashable] = set()
        self._noted: list[tuple[ServerState, Call[Any]]] = []

    def note(self, state: ServerState, call: Call[Any]) -> None:
        """A call that may meet this state."""
        if call.script is None:  # a command: the server itself says which of its words are keys
            return
        key = (state.words, call.script.plain, call.keys, call.args)
        if key not in self._seen:
            self._seen.add(key)
            self._noted.append((state, call))

    def check(self, least: int = 1) -> None:
        """Run what was noted, if it is so many; the server's own state is nobody's any more.

        Raises:
            UndeclaredKey: A script touched a key that it did not declare.
        """
        if len(self._noted) < least:
            return
        noted, self._noted = self._noted, []
        identity, now = self._server.line().info.identity, int(time.time() * 1000)
        self._sandbox.run_all(
            [
                (state._replace(identity=identity, greeted=identity, clock_ms=now), call)
                for state, call in noted
            ]
        )


class Reexecution:
    """One search.

    Args:
        scenario: What is explored.
        server: Is emptied before every schedule.
        limit: Schedules, at most.
        reduce: Whether to leave out what only swaps independent steps.
    """

    def __init__(
        self, scenario: Scenario, server: ScratchServer, limit: int, reduce: bool = True
    ) -> None:
        self.scenario, self.server, self.limit = scenario, server, limit
        self.sandbox = Sandbox(server.port)
        self.talk = Conversation(server)
        self._foretells = True
        self.declared = Declarations(self.sandbox, server)
        self.reduce = reduce and scenario.preemptions is None
        self._cells = tuple(cell.state for cell in scenario.cells)
        self._path: list[_Choice] = []
        self._ends: set[Any] = set()

    def search(self, endings: bool = False, progress: Told | None = None) -> Report:
        """Run all schedules."""
        schedules, finding = 0, None
        telling = Telling(progress, "re-execution", self.limit)
        rarely = gc.get_threshold()
        gc.set_threshold(_GARBAGE, *rarely[1:])  # a run makes many small things and few circles
        bounded = (
            ""
            if self.scenario.preemptions is None
            else f"at most {self.scenario.preemptions} preemptions"
        )
        try:
            while True:
                finding = self._run(endings)
                schedules += 1
                ended = finding is not None or not self._backtrack()
                if telling.due(ended):
                    untried = sum(choice.next() is not None for choice in self._path)
                    telling.tell(schedules=schedules, frontier=untried)
                if ended:
                    break
                if schedules >= self.limit:
                    bounded = ", ".join(
                        filter(None, (bounded, f"at most {self.limit:,} schedules"))
                    )
                    break
            self.declared.check()
            if finding is not None:
                finding = self._shorten(finding)
        finally:
            gc.set_threshold(*rarely)
            self.put_cells()
        return Report(
            search="re-execution",
            schedules=schedules,
            asked=self.talk.asked,
            bounded_by=bounded,
            seconds=telling.seconds,
            finding=finding,
            endings=frozenset(self._ends),
        )

    def put_cells(self) -> None:
        """Set the cells back to where they began."""
        for cell, state in zip(self.scenario.cells, self._cells, strict=True):
            cell.state = state

    def _begin(self, path: Sequence[Option] = ()) -> Run:
        self.put_cells()
        return Run(self.scenario, self.talk, self.sandbox, path if self._foretells else ())

    def _run(self, endings: bool) -> Finding | None:
        path = [choice.options[choice.taken] for choice in self._path]
        run = self._begin(path)
        try:
            for option in path:
                run.take(option)
            return self._extend(run, endings)
        except Unforeseen:
            # Words that differ from run to run (a clock of the caller's) are his business.
            self._foretells = False
            run.close()
            return self._run(endings)
        finally:
            run.close()
            self.declared.check(_AT_ONCE)

    def _extend(self, run: Run, endings: bool) -> Finding | None:
        """Go on from where the path ends, to an end; judge each new state."""
        while True:
            options = run.options()
            if message := self._judge(run, bool(options)):
                return Finding(message, " ".join(one.taken for one in self._path), run.view())
            if run.ended and endings:
                view = run.view()
                self._ends.add(
                    (view.server.words, tuple((k, repr(v)) for k, v in view.results.items()))
                )
            for option in options:
                if option.to is None:
                    for call in option.asks:
                        self.declared.note(run.read(), call)
            choice = self._choose({one.word: one for one in options})
            if choice is None:
                if run.ended and (message := run.heal()):
                    return Finding(message, " ".join(one.taken for one in self._path), run.view())
                return None
            self._path.append(choice)
            run.take(choice.options[choice.taken])

    def _choose(self, options: dict[str, Option]) -> _Choice | None:
        last = self._path[-1] if self._path else None
        asleep = last.sleepers() if last is not None and self.reduce else {}
        switches, bound = last.switches if last else 0, self.scenario.preemptions
        if last is not None and bound is not None:
            actor = last.options[last.taken].actor
            mine = {word: one for word, one in options.items() if one.actor == actor}
            world = {
                word: one for word, one in options.items() if one.actor in self.scenario.environment
            }
            if mine and switches >= bound:
                options = mine | world
        choice = _Choice(options, asleep, "", switches)
        word = choice.next()
        if word is None:
            return None
        self._settle(choice, word)
        return choice

    def _settle(self, choice: _Choice, word: str) -> None:
        choice.taken = word
        if self.scenario.preemptions is None:
            return
        # The last of the path, or what comes behind it.
        at = len(self._path) - (bool(self._path) and self._path[-1] is choice)
        if at:
            last = self._path[at - 1]
            actor = last.options[last.taken].actor
            could = any(one.actor == actor for one in choice.options.values())
            leaves = choice.options[word].actor != actor and could
            choice.switches = last.switches + (
                leaves and choice.options[word].actor not in self.scenario.environment
            )

    def _backtrack(self) -> bool:
        """Turn to the last choice that has something untried; False if there is none."""
        while self._path:
            choice = self._path[-1]
            choice.tried[choice.taken] = choice.options[choice.taken]
            word = choice.next()
            if word is not None:
                self._settle(choice, word)
                return True
            self._path.pop()
        return False

    def _judge(self, run: Run, enabled: bool) -> str:
        if run.wrong:
            return run.wrong
        scenario = self.scenario
        if scenario.invariant is not None and (wrong := scenario.invariant(run.view())):
            return wrong
        if run.ended:
            if scenario.final is not None and (wrong := scenario.final(run.view())):
                return wrong
        elif not enabled:
            return f"deadlock: nobody can go on, {run.waiting()}"
        return ""

    def follow(self, words: list[str], strict: bool) -> tuple[list[str], str, View]:
        """Run one schedule: the words that were taken, what is wrong where it ends, and that state.

        Args:
            words: The schedule.
            strict: A word that does not fit raises; else it is left out.

        Raises:
            PlayError: A word does not fit.
        """
        run, told = self._begin(), list[str]()
        try:
            for word in words:
                options = {option.word: option for option in run.options()}
                if message := self._judge(run, bool(options)):
                    return told, message, run.view()
                option = options.get(word)
                if option is not None:
                    run.take(option)
                    told.append(word)
                elif strict:
                    could = ", ".join(options) or "nothing"
                    raise PlayError(f"{word} does not fit: {could} could be next")
            message, view = self._judge(run, bool(run.options())), run.view()
            if not message and run.ended:
                message = run.heal()
            return told, message, view
        finally:
            run.close()

    def _shorten(self, finding: Finding) -> Finding:
        words = minimise(finding.schedule.split(), lambda some: self.follow(some, strict=False)[:2])
        told, message, view = self.follow(words, strict=True)
        return Finding(message, " ".join(told), view)


def reexecute(
    scenario: Scenario,
    *,
    server: ScratchServer | str | None = None,
    limit: int = 100_000,
    reduce: bool = True,
    endings: bool = False,
    progress: Told | None = None,
) -> Report:
    """Run a scenario's schedules one by one, each from scratch.

    For what the graph can't restore: protocols that spawn, a real database, scripts unwrapped. It
    covers every order of the steps; healing is judged where all actors have ended.

    Args:
        scenario: What to explore; ``reset`` brings back what is neither server nor cell.
        server: See ``explore``.
        limit: Schedules, at most.
        reduce: Leave out schedules that only swap independent steps.
        endings: Collect how the runs end in ``report.endings``.
        progress: See ``explore``.

    Returns:
        What was covered and what was found.

    Raises:
        Refused: A move of the environment needs a simulated server; or the server holds keys.
        PlayError: The same choices did not lead to the same steps: something outside the cells and
            the server decides.
    """
    if isinstance(server, ScratchServer):
        return Reexecution(scenario, server, limit, reduce).search(endings, progress)
    with ScratchServer(server) as own:
        return Reexecution(scenario, own, limit, reduce).search(endings, progress)
