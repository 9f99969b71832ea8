"""The checker knows good histories from bad ones; small ones are compared with trying every order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.testing.linearizability import UNKNOWN, History, Model, Timed, check


def register(state: int, request: tuple[str, int], answer: object) -> int | None:
    """One number: ``put`` answers None, ``get`` what was put last."""
    verb, value = request
    if verb == "put":
        return value
    return state if answer is UNKNOWN or answer == state else None


REGISTER = Model(0, register)


def put(value: int, begun: float, ended: float, answer: object = None) -> Timed:
    return Timed("x", ("put", value), answer, begun, ended)


def get(answer: object, begun: float, ended: float) -> Timed:
    return Timed("x", ("get", 0), answer, begun, ended)


GOOD = {
    "nothing": [],
    "one after the other": [put(1, 0, 1), get(1, 2, 3), put(2, 4, 5), get(2, 6, 7)],
    "a read beside a write sees either": [put(1, 0, 5), get(0, 1, 2), get(1, 3, 4)],
    "two writes at once": [put(1, 0, 9), put(2, 0, 9), get(1, 10, 11), get(1, 12, 13)],
    "a lost write that was applied": [put(1, 0, 1, UNKNOWN), get(1, 2, 3)],
    "a lost write that was not": [put(1, 0, 1, UNKNOWN), get(0, 2, 3)],
    "a lost write that is applied late": [put(1, 0, 1, UNKNOWN), get(0, 2, 3), get(1, 4, 5)],
    "a lost read": [put(1, 0, 1), get(UNKNOWN, 2, 3), get(1, 4, 5)],
    "two objects": [put(1, 0, 1), Timed("y", ("get", 0), 0, 2, 3)],
}

BAD = {
    "an old value after a new one": [put(1, 0, 1), get(0, 2, 3)],
    "back and forth": [put(1, 0, 9), get(1, 1, 2), get(0, 3, 4)],
    "a value from nowhere": [get(7, 0, 1)],
    "two orders of the same writes": [
        put(1, 0, 9),
        put(2, 0, 9),
        get(1, 10, 11),
        get(2, 12, 13),
    ],
    "a lost write that is applied twice": [
        put(1, 0, 1, UNKNOWN),
        get(1, 2, 3),
        put(2, 4, 5),
        get(2, 6, 7),
        get(1, 8, 9),
    ],
    "a lost write before it began": [get(1, 0, 1), put(1, 2, 3, UNKNOWN)],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert check(GOOD[name], REGISTER) is None


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_told_apart(name: str) -> None:
    why = check(BAD[name], REGISTER)
    assert why is not None
    assert "no order of the" in str(why)


def test_a_recorded_call_that_never_ends_well_is_unknown() -> None:
    history = History()
    with pytest.raises(OSError, match="cut"), history.call("x", ("put", 1)):
        raise OSError("cut")
    with history.call("x", ("get", 0)) as call:
        call.answered(1)
    assert [one.answer for one in history.calls] == [UNKNOWN, 1]
    assert check(history.calls, REGISTER) is None


def by_trying_all(calls: list[Timed]) -> bool:
    """Whether some order of some choice of the unknown calls makes sense; the definition itself."""
    known = [call for call in calls if call.answer is not UNKNOWN]
    unknown = [call for call in calls if call.answer is UNKNOWN]
    for size in range(len(unknown) + 1):
        for some in itertools.combinations(unknown, size):
            for order in itertools.permutations([*known, *some]):
                if _keeps_time(order) and _makes_sense(order):
                    return True
    return False


def _keeps_time(order: tuple[Timed, ...]) -> bool:
    return not any(
        later.answer is not UNKNOWN and later.ended < earlier.begun
        for at, earlier in enumerate(order)
        for later in order[at + 1 :]
    )


def _makes_sense(order: tuple[Timed, ...]) -> bool:
    state: int | None = 0
    for call in order:
        state = register(state, call.request, call.answer)
        if state is None:
            return False
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Timed]:
    instants = draw(st.permutations(range(10)))
    calls = []
    for begun, ended in (
        itertools.batched(instants, 2)
        if hasattr(itertools, "batched")
        else zip(instants[::2], instants[1::2], strict=True)
    ):
        begun, ended = min(begun, ended), max(begun, ended)
        if draw(st.booleans()):
            answer = draw(st.sampled_from([None, UNKNOWN]))
            calls.append(put(draw(st.integers(1, 2)), begun, ended, answer))
        else:
            calls.append(get(draw(st.sampled_from([0, 1, 2, UNKNOWN])), begun, ended))
    return calls


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_it_agrees_with_trying_every_order(calls: list[Timed]) -> None:
    assert (check(calls, REGISTER) is None) == by_trying_all(calls)
