"""The state graph: every order of all actors, each state of everything visited once.

A node is the server's state, the cells, the faults that are left and the state of every actor.
Breadth first, so the first finding is a shortest schedule.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Sized
from typing import Any

from fencepost.testing.engine import Engine
from fencepost.testing.report import Finding, Report, Telling, Told

# server, cells, faults left, (last actor + 1) and switches where they are bounded, then the actors
Node = tuple[int, ...]
_FIXED = 4


class Graph:
    """One search over an engine.

    Args:
        engine: Answers what can happen.
        limit: States, at most.
    """

    def __init__(self, engine: Engine, limit: int) -> None:
        self.engine = engine
        self.limit = limit
        self.states = engine.actors.states
        self.first: Node = (
            engine.server0,
            engine.cells0,
            engine.scenario.faults.times,
            0,
            *engine.actors0,
        )
        self._bound = engine.scenario.preemptions
        self._places = len(self.first) - _FIXED + 1
        self.transitions = 0

    def search(self, endings: bool = False, progress: Told | None = None) -> Report:
        """Visit all states; ``endings`` collects how the runs end."""
        asked, looked = self.engine.sandbox.calls, 0
        telling = Telling(progress, "graph", self.limit)
        parents: dict[Node, tuple[Node, str] | None] = {self.first: None}
        queue = deque([self.first])
        ends: set[Any] = set()
        finding, bounded = None, ""
        if self._bound is not None:
            bounded = f"at most {self._bound} preemptions"
        gc.disable()  # millions of tuples and no circles: looking for those would take half the time
        try:
            while queue and finding is None:
                node = queue.popleft()
                looked += 1
                if not looked & 255 and telling.due():
                    telling.tell(**self._sizes(parents, queue))
                enabled = False
                for word, after in self.successors(node):
                    enabled = True
                    if after not in parents:
                        parents[after] = (node, word)
                        queue.append(after)
                if message := self.judge(node, enabled):
                    finding = Finding(message, _path(parents, node), self._view(node))
                elif endings and self._ended(node):
                    view = self._view(node)
                    ends.add(
                        (view.server.words, tuple((k, repr(v)) for k, v in view.results.items()))
                    )
                if len(parents) > self.limit and finding is None:
                    bounded = ", ".join(filter(None, (bounded, f"at most {self.limit:,} states")))
                    break
        finally:
            gc.enable()
        if telling.due(last=True):
            telling.tell(**self._sizes(parents, queue))
        return Report(
            search="graph",
            states=len(parents),
            transitions=self.transitions,
            asked=self.engine.sandbox.calls - asked,
            bounded_by=bounded,
            seconds=telling.seconds,
            finding=finding,
            endings=frozenset(ends),
        )

    def _sizes(self, parents: Sized, queue: Sized) -> dict[str, int]:
        return {
            "states": len(parents),
            "transitions": self.transitions,
            "frontier": len(queue),
        }

    def successors(self, node: Node) -> list[tuple[str, Node]]:
        """All moves of all actors."""
        # The inner loop of everything: an actor's moves depend on nothing but these four numbers.
        found: list[tuple[str, Node]] = []
        world = node[:3]
        known = self.engine.known_moves(world)
        switch = node[3]
        for place in range(_FIXED, len(node)):
            actor = node[place]
            moves = known.get(actor)
            if moves is None:
                moves = known[actor] = self.engine.moves(world, actor)
            if not moves:
                continue
            if self._bound is not None:
                switch = self._switched(node, place)
                if switch < 0:
                    continue
            before, behind = node[_FIXED:place], node[place + 1 :]
            for word, server, cells, faults, after in moves:
                found.append((word, (server, cells, faults, switch, *before, after, *behind)))
        self.transitions += len(found)
        return found

    def _switched(self, node: Node, place: int) -> int:
        """The slot that counts switches after a move of ``place``; -1 if it may not move now."""
        used, last = divmod(node[3], self._places)
        if self.states[node[place]].move is not None:
            return node[3]  # the world may do what it likes
        if last and last - 1 + _FIXED != place:
            leaves = self.engine.moves(node[:3], node[last - 1 + _FIXED])
            used += bool(leaves)
        assert self._bound is not None
        return -1 if used > self._bound else used * self._places + place - _FIXED + 1

    def judge(self, node: Node, enabled: bool) -> str:
        """What is wrong with a node."""
        if wrong := self.engine.wrong(node[0], node[1]):
            return wrong
        if self.engine.actors.wrong:
            for number in node[_FIXED:]:
                if wrong := self.states[number].wrong:
                    return wrong
        if self._ended(node):
            final = self.engine.scenario.final
            if final is not None and (judged := final(self._view(node))):
                return judged
        elif not enabled and self._bound is None:
            states = [self.states[number] for number in node[_FIXED:]]
            waiting = [
                f"{state.name} at {state.step}" for state in states if state.step is not None
            ]
            return f"deadlock: nobody can go on, {', '.join(waiting)}"
        return ""

    def _ended(self, node: Node) -> bool:
        waiting = self.engine.actors.waiting
        return waiting.isdisjoint(node[_FIXED:])

    def _view(self, node: Node) -> Any:
        return self.engine.view(node[0], node[1], node[_FIXED:])

    # -- one schedule at a time

    def walk(self, dice: random.Random, most: int = 10_000) -> tuple[list[str], str]:
        """One random schedule: its words, and what is wrong at its end ('' if nothing is)."""
        node = self.first
        words: list[str] = []
        for _ in range(most):
            moves = self.successors(node)
            if message := self.judge(node, bool(moves)):
                return words, message
            if not moves:
                break
            # By actor first: an actor with many faults is not chosen more often.
            by_actor: dict[str, list[tuple[str, Node]]] = {}
            for word, after in moves:
                by_actor.setdefault(word.partition(".")[0], []).append((word, after))
            some = by_actor[dice.choice(sorted(by_actor))]
            word, node = some[0] if dice.random() < 0.7 else dice.choice(some)
            words.append(word)
        return words, ""

    def follow(self, words: list[str], strict: bool) -> tuple[list[str], str, Node]:
        """Run a schedule: the words that were taken, what is wrong where it ends (or on the way), and where.

        Args:
            words: The schedule.
            strict: A word that does not fit raises; else it is left out.

        Raises:
            ValueError: A word does not fit.
        """
        node = self.first
        told: list[str] = []
        for word in words:
            moves = dict(self.successors(node))
            if message := self.judge(node, bool(moves)):
                return told, message, node
            name, _, rest = word.partition(".")
            if rest == "*":
                while mine := [(one, to) for one, to in self.successors(node) if _plain(one, name)]:
                    told.append(mine[0][0])
                    node = mine[0][1]
                continue
            after = moves.get(word)
            if after is None:
                if strict:
                    raise ValueError(
                        f"{word} does not fit: {', '.join(moves) or 'nothing'} could be next"
                    )
                continue
            told.append(word)
            node = after
        return told, self.judge(node, bool(self.successors(node))), node


def _plain(word: str, name: str) -> bool:
    return word.startswith(f"{name}.") and "!" not in word and not word.endswith(".crash")


def _path(parents: dict[Node, tuple[Node, str] | None], node: Node) -> str:
    words: list[str] = []
    while (step := parents[node]) is not None:
        node = step[0]
        words.append(step[1])
    return " ".join(reversed(words))
