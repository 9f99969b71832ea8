"""A fetch against an invalidation, and against a lost link: every order of their steps, with the real ``Near``.

A network of three parts that each keep their own order: the reader's connection, the tracker's, the writer's.
What is held when all is quiet must be what the server has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost.cache.near import NOTHING, Near, NearOptions

OPTIONS = NearOptions(ttl=3600.0)


class World:
    """A server with one key, who is told of its changes, and the steps of everybody."""

    def __init__(self, make: Callable[[], Near]) -> None:
        self.value = 1
        self.pushes: deque[str] = deque()
        self.tracked = True
        self.near = make()
        self.near.found()

    def reader(self) -> Iterator[None]:
        if self.near.get("k", NOTHING) is NOTHING:
            mark = self.near.mark("k")
            yield
            answer = self.value
            yield
            if mark is not None:
                self.near.keep("k", mark, answer, 0.0, math.inf)
        yield

    def writer(self) -> Iterator[None]:
        self.value += 1
        if self.tracked:
            self.pushes.append("k")
        yield

    def own_writer(self) -> Iterator[None]:
        """In this process: it drops before and after."""
        self.near.drop("k")
        yield
        self.value += 1
        if self.tracked:
            self.pushes.append("k")
        yield
        self.near.drop("k")
        yield

    def cutter(self) -> Iterator[None]:
        self.tracked = False
        self.pushes.clear()  # what was on its way is lost
        yield
        self.near.lost()
        yield
        self.tracked = True
        yield
        self.near.found()
        yield

    def deliver(self) -> None:
        self.near.heard([self.pushes.popleft()])


def play(make: Callable[[], Near], actors: tuple[str, ...], choices: list[int]) -> tuple[Any, int]:
    """One order: at each step the choice says who goes on. Gives what is held wrong, and the fan-out.

    ``choices`` is grown to its end; the next order is that of ``following``.
    """
    world = World(make)
    going = [getattr(world, name)() for name in actors]
    widths: list[int] = []
    at = 0
    while going or world.pushes:
        width = len(going) + bool(world.pushes)
        if at == len(choices):
            choices.append(0)
        widths.append(width)
        chosen = choices[at]
        at += 1
        if chosen == len(going):
            world.deliver()
        elif next(going[chosen], StopIteration) is StopIteration:
            del going[chosen]
    held = world.near.get("k", NOTHING)
    while choices and choices[-1] + 1 >= widths[len(choices) - 1]:
        choices.pop()
    if choices:
        choices[-1] += 1
    return (held if held is not NOTHING and held != world.value else None), len(choices)


def explore(
    make: Callable[[], Near], actors: tuple[str, ...], most: int, *, first: bool = False
) -> tuple[int, int]:
    """All orders, up to a bound: how many, and how many end with something old (``first``: until one does)."""
    choices: list[int] = []
    orders = wrong = 0
    while orders < most:
        stale, more = play(make, actors, choices)
        orders += 1
        wrong += stale is not None
        if not more or (first and wrong):
            return orders, wrong
    raise AssertionError(f"more than {most:,} orders")


def ours() -> Near:
    return Near(OPTIONS, lambda key: key, now=lambda: 0.0)


class Unmarked(Near):
    """The usual client: what was read is held."""

    __slots__ = ()

    def keep(self, key: str, mark: object, value: Any, asked: float, fresh: float) -> bool:
        self.held.set(key, value)
        return True


class OldMarks(Near):
    """A loss empties what is held, and forgets that reads are under way."""

    __slots__ = ()

    def lost(self) -> None:
        self.listening = False
        self.held.clear()

    def found(self) -> None:
        self.listening = True


class Unemptied(Near):
    """A loss is not noticed."""

    __slots__ = ()

    def lost(self) -> None: ...

    def found(self) -> None:
        self.listening = True


class OnlyBefore(Near):
    """Own changes are not dropped, since the server will tell of them."""

    __slots__ = ()

    def drop(self, key: str) -> None: ...


def made(kind: type[Near]) -> Callable[[], Near]:
    return lambda: kind(OPTIONS, lambda key: key, now=lambda: 0.0)


SCENARIOS = (
    ("reader", "writer"),
    ("reader", "reader", "writer"),
    ("reader", "writer", "writer"),
    ("reader", "own_writer"),
    ("reader", "writer", "cutter"),
)


@pytest.mark.parametrize("actors", SCENARIOS, ids="-".join)
def test_fetch_against_invalidate_in_every_order(actors: tuple[str, ...]) -> None:
    orders, wrong = explore(ours, actors, 60_000)
    assert orders > 10
    assert wrong == 0


@pytest.mark.explore
@pytest.mark.parametrize(
    "actors",
    [("reader", "own_writer", "cutter"), ("reader", "reader", "own_writer")],
    ids="-".join,
)
def test_fetch_against_invalidate_in_every_order_deep(actors: tuple[str, ...]) -> None:
    orders, wrong = explore(ours, actors, 3_000_000)
    assert orders > 10_000
    assert wrong == 0


@pytest.mark.parametrize(
    ("kind", "actors"),
    [
        (Unmarked, ("reader", "writer")),
        (OldMarks, ("reader", "writer", "cutter")),
        (Unemptied, ("reader", "writer", "cutter")),
    ],
    ids=lambda one: one.__name__ if isinstance(one, type) else "-".join(one),
)
def test_without_a_guard_some_order_leaves_something_old(
    kind: type[Near], actors: tuple[str, ...]
) -> None:
    """The controls: the usual client among them."""
    orders, wrong = explore(made(kind), actors, 60_000, first=True)
    assert (wrong, orders > 0) == (1, True)


def test_who_writes_reads_it_next_whatever_is_heard() -> None:
    """Nothing is delivered: what this process changed is gone from it all the same."""

    def after(kind: type[Near]) -> Any:
        world = World(made(kind))
        for _ in world.reader():
            pass
        for _ in world.own_writer():
            pass
        return world.near.get("k", NOTHING)

    assert after(Near) is NOTHING
    assert after(OnlyBefore) == 1  # the control


def test_lettuce_3481_an_invalidation_between_the_get_and_the_local_put() -> None:
    """lettuce#3481, cashews: the put is refused, since its mark is gone."""
    world = World(ours)
    reader = world.reader()
    next(reader)  # asked
    next(reader)  # answered: the old value
    next(world.writer())
    world.deliver()
    next(reader)  # the put
    assert world.near.get("k", NOTHING) is NOTHING
    for _ in world.reader():
        pass
    assert world.near.get("k") == world.value


def test_a_bound_on_marks_only_keeps_answers_out() -> None:
    near = ours()
    near.found()
    first = near.mark("first")
    for number in range(70_000):
        near.mark(f"k{number}")
    assert first is not None
    assert not near.keep("first", first, 1, 0.0, 10.0)
    assert len(near._marks) <= 65_536
    assert len(near._names) <= 2 * (near.options.maxsize + len(near._marks)) + 1
    last = near.mark("last")
    assert last is not None
    assert near.keep("last", last, 1, 0.0, 10.0)
    near.heard(["last"])
    assert near.get("last", NOTHING) is NOTHING
