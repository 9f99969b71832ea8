"""Was there an order in which these concurrent calls make sense?

A history is linearizable if each call can be given one instant between its beginning and its end so
that, taken in the order of these instants, a plain sequential model gives the same answers. The
search is Wing and Gong's (1993) with Lowe's memory of configurations (2017), as in porcupine: take a
call that no other had ended before, ask the model whether its answer was possible, go on; step back
where it was not. A call whose answer was lost may have taken effect at any time after its beginning,
or never.

    history = History()
    with history.call("u1", ("set", True)) as call:
        call.answered(await likes.set("1", "u1", liked=True))
    assert check(history.calls, model) is None

A specification is a start state and a step, ``step(state, request, answer) -> state``; it gives None
where that answer was not possible. States are hashable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

S = TypeVar("S", bound=Hashable)


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
"""The answer of a call whose answer was lost: it may have been applied, once, or may never be."""

_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Timed:
    """One call of a history.

    Args:
        key: Which object; objects are checked apart.
        request: What was asked.
        answer: What was answered, or ``UNKNOWN``.
        begun: When it began; any clock that orders.
        ended: When it ended.
    """

    key: Hashable
    request: Any
    answer: Any
    begun: float
    ended: float


@dataclass(slots=True)
class Open:
    """A call that has begun."""

    answer: Any = UNKNOWN

    def answered(self, answer: Any) -> None:
        """It was answered; a call that ends without this has an unknown answer."""
        self.answer = answer


@dataclass(slots=True)
class History:
    """Records calls as they happen; order is by a counter, so clocks play no part."""

    calls: list[Timed] = field(default_factory=list)
    _ticks: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def call(self, key: Hashable, request: Any) -> Iterator[Open]:
        """Record one call: it begins and ends with the block."""
        begun, one = next(self._ticks), Open()
        try:
            yield one
        finally:
            self.calls.append(Timed(key, request, one.answer, begun, next(self._ticks)))


@dataclass(frozen=True, slots=True)
class Model(Generic[S]):
    """A sequential specification.

    Args:
        start: The first state.
        step: The state after a request that was answered so, or None if that can't be. For an
            unknown answer it is called with ``UNKNOWN`` and gives the state after the request.
    """

    start: S
    step: Callable[[S, Any, Any], S | None]


@dataclass(frozen=True, slots=True)
class Impossible:
    """Why a history makes no sense.

    Args:
        key: Of the object.
        calls: All of its calls, by beginning.
        longest: The longest order that did make sense, as indices.
    """

    key: Hashable
    calls: tuple[Timed, ...]
    longest: tuple[int, ...]

    def __str__(self) -> str:
        lines = [
            f"no order of the {len(self.calls)} calls on {self.key!r} makes sense; the longest that does:"
        ]
        lines += [f"  {self._line(number)}" for number in self.longest]
        lines.append("and these do not fit behind it:")
        lines += [
            f"  {self._line(number)}"
            for number in range(len(self.calls))
            if number not in self.longest
        ]
        return "\n".join(lines)

    def _line(self, number: int) -> str:
        call = self.calls[number]
        return f"[{call.begun:g}, {call.ended:g}] {call.request!r} -> {call.answer!r}"


def check(calls: Iterable[Timed], model: Model[Any]) -> Impossible | None:
    """Check a history, object by object.

    Args:
        calls: In any order.
        model: Of one object.

    Returns:
        None if it is linearizable, else why not, of the first object that is not.
    """
    by_key: dict[Hashable, list[Timed]] = {}
    for call in calls:
        by_key.setdefault(call.key, []).append(call)
    for key, some in by_key.items():
        ordered = tuple(sorted(some, key=lambda call: call.begun))
        longest = _search(ordered, model)
        if longest is not None:
            return Impossible(key, ordered, longest)
    return None


def _search(calls: tuple[Timed, ...], model: Model[Any]) -> tuple[int, ...] | None:
    """None if there is an order; else the longest beginning of one."""
    ends = [_NEVER if call.answer is UNKNOWN else call.ended for call in calls]
    must = sum(1 << number for number, end in enumerate(ends) if end != _NEVER)
    seen: set[tuple[int, Hashable]] = set()
    longest: tuple[int, ...] = ()
    stack: list[tuple[int, Any, tuple[int, ...]]] = [(0, model.start, ())]
    while stack:
        done, state, order = stack.pop()
        if done & must == must:
            return None  # unknown calls that are left never took effect
        if len(order) > len(longest):
            longest = order
        # Only a call that began before every other open call ended can be next.
        first_end = min(end for number, end in enumerate(ends) if not done >> number & 1)
        for number in range(len(calls) - 1, -1, -1):
            if done >> number & 1 or calls[number].begun > first_end:
                continue
            after = model.step(state, calls[number].request, calls[number].answer)
            if after is None:
                continue
            configuration = (done | 1 << number, after)
            if configuration not in seen:
                seen.add(configuration)
                stack.append((*configuration, (*order, number)))
    return longest
