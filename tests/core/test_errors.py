"""Errors: yes, no and unknown are different types, and the tree is the one that is drawn."""

from __future__ import annotations

import re

import pytest

import fencepost
from fencepost import errors
from fencepost._core.script import Call
from fencepost.errors import (
    ClientClosed,
    Denied,
    FencepostError,
    OutcomeUnknown,
    Overloaded,
    ScriptMissing,
    ServerError,
    Unavailable,
)
from fencepost.wire import resp
from fencepost.wire.resp import NotPrimary, NotReady, error_of
from fencepost.wire.verdict import Next, Trouble


def test_tree_is_the_one_that_is_drawn() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    edge = 0
    for line in (errors.__doc__ or "").splitlines():
        if not path and line.strip() == "FencepostError":
            path, edge = ["FencepostError"], line.index("F")
        elif path and (match := re.search(r"[├└]── (\w+)", line)):
            depth = (match.start() - edge) // 4 + 1
            path[depth:] = [match[1]]
            drawn[match[1]] = path[depth - 1]
    real = {
        name: cls
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, FencepostError) and cls is not FencepostError
    }
    assert drawn.keys() == real.keys()
    for name, parent in drawn.items():
        assert real[name].__bases__[0].__name__ == parent


def test_public_errors_are_exported() -> None:
    for name, cls in vars(errors).items():
        if isinstance(cls, type) and issubclass(cls, FencepostError) and name != "ScriptMissing":
            assert getattr(fencepost, name) is cls


def test_unknown_is_no_kind_of_unavailable() -> None:
    """Who retries on Unavailable must not retry what may have been applied."""
    assert not issubclass(OutcomeUnknown, Unavailable)
    assert not issubclass(Unavailable, OutcomeUnknown)
    assert not issubclass(ServerError, Unavailable)


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("WRONGTYPE Operation against …", ServerError, "WRONGTYPE"),
        ("NOSCRIPT No matching script", ScriptMissing, "NOSCRIPT"),
        ("READONLY You can't write", NotPrimary, "READONLY"),
        ("STALELINK it was a replica meanwhile", NotPrimary, "STALELINK"),
        ("LOADING Redis is loading", NotReady, "LOADING"),
        ("BUSY Redis is busy", NotReady, "BUSY"),
        ("MASTERDOWN Link with MASTER is down", NotReady, "MASTERDOWN"),
        ("ERR unknown command", ServerError, "ERR"),
        ("", ServerError, ""),
        (
            "ERR Error running script (call to f_0123): @user_script:3: -READONLY You can't write",
            NotPrimary,
            "READONLY",
        ),
    ],
)
def test_error_reply_becomes_its_type(text: str, kind: type, code: str) -> None:
    error = error_of(text)
    assert type(error) is kind
    assert isinstance(error, ServerError)
    assert error.code == code


def test_full_server_is_overloaded() -> None:
    error = error_of("OOM command not allowed when used memory > 'maxmemory'.")
    assert isinstance(error, Overloaded)
    assert error.retry_after > 0


def test_parser_gives_errors_as_values_even_if_they_are_no_text() -> None:
    reader = resp.make_reader()
    reader.feed(b"-ERR \xff\xfe\r\n-WRONGTYPE x\r\n*1\r\n-ERR inner\r\n")
    assert isinstance(reader.gets(), ServerError)
    assert reader.gets().code == "WRONGTYPE"
    assert isinstance(reader.gets()[0], ServerError)
    assert reader.gets() is resp.NOTHING


# -- what an error permits

PLAIN = Call("incr", ("INCR", "k"), int)
HARMLESS = Call("get", ("GET", "k"), bytes, resend=True)


def judge(call: Call[object], *met: FencepostError, left: float = 60.0) -> Next:
    trouble = Trouble()
    for error in met[:-1]:
        trouble.meet(call, error, left=60.0)
    return trouble.meet(call, met[-1], left=left)


def test_what_was_not_applied_is_tried_again() -> None:
    for error in (Unavailable("x"), NotReady("LOADING x")):
        assert judge(PLAIN, error) is Next.AGAIN
    assert judge(PLAIN, NotPrimary("READONLY x")) is Next.ELSEWHERE
    assert judge(HARMLESS, OutcomeUnknown("x")) is Next.AGAIN


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("x"),
        ServerError("WRONGTYPE x"),
        ClientClosed("x"),
        Denied("x"),
        ScriptMissing("NOSCRIPT"),
        Overloaded("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_all_else_is_told(error: FencepostError) -> None:
    with pytest.raises(type(error)) as caught:
        judge(PLAIN, error)
    assert caught.value is error


def test_refusal_at_the_end_of_the_budget_is_unavailable() -> None:
    for error in (NotReady("LOADING x"), NotPrimary("READONLY x")):
        with pytest.raises(Unavailable, match="nothing was applied") as caught:
            judge(PLAIN, error, left=0.0)
        assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "last", [Unavailable("x"), NotReady("LOADING x"), NotPrimary("READONLY x"), Overloaded("x")]
)
def test_once_unknown_always_unknown(last: FencepostError) -> None:
    first = OutcomeUnknown("first")
    with pytest.raises(OutcomeUnknown) as caught:
        judge(HARMLESS, first, last, left=0.0)
    assert caught.value is first
    assert caught.value.__cause__ is last
