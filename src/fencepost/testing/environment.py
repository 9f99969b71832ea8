"""What the world does to the server while actors act: expiry, data loss, failover, time.

A move may happen at any moment or never. Each is a pure function of the server's state that offers
its choices: a word for the schedule and the state after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fencepost.testing.world import ServerState

Choices = Iterable[tuple[str, ServerState]]


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that may happen.

    Args:
        choices: The ways in which it may happen in a state, and the memory it leaves.
        times: How often.
        live: What to send to a real server instead where no state is restored (``SCRIPT FLUSH``).
    """

    choices: Callable[[ServerState, Any], Iterable[tuple[str, ServerState, Any]]]
    times: int = 1
    live: tuple[str, ...] = ()


def _short(key: str) -> str:
    """A key without its hash tag, as it stands in schedules."""
    _, brace, rest = key.partition("}:")
    return rest if brace and rest else key


def expiry(times: int = 1, only: Callable[[str], bool] = lambda key: True) -> Move:
    """A key that has a TTL is gone (expired, or evicted under a volatile policy).

    Args:
        times: How many keys may go in one run.
        only: Which keys.
    """

    def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
        for name, stored in state.by_name().items():
            if stored.volatile and only(name):
                yield f"expire({_short(name)})", state.without(name), None

    return Move(choices, times)


def delete(key: str, times: int = 1) -> Move:
    """One key is gone, TTL or not."""

    def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
        if key in state.by_name():
            yield f"delete({_short(key)})", state.without(key), None

    return Move(choices, times)


def flush_all(times: int = 1) -> Move:
    """FLUSHALL: everything is gone and the server's identity stays."""

    def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
        yield "flushall", state._replace(words=()), None

    return Move(choices, times)


def script_flush(times: int = 1) -> Move:
    """SCRIPT FLUSH: the server forgets its scripts; only re-execution can tell."""

    def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
        yield "script_flush", state, None

    return Move(choices, times, ("SCRIPT", "FLUSH"))


def _next_life(state: ServerState, hidden: bool) -> ServerState:
    run_id, _, replication = state.identity.partition(":")
    identity = f"{int(run_id, 16) + 1:x}:{int(replication, 16) + 1:x}"
    return state._replace(identity=identity, greeted=state.greeted if hidden else identity)


def restart_empty(times: int = 1) -> Move:
    """The server comes back as another process, without its data."""

    def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
        yield "restart", _next_life(state, hidden=False)._replace(words=()), None

    return Move(choices, times)


def failover(hidden: bool = False) -> Move:
    """A replica stops following at some moment, and is the primary from some later moment on.

    Args:
        hidden: A proxy keeps the connections up: they believe that they talk to the server that
            they greeted, until ``reconnect`` (a third move).
    """

    def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
        if memory is None:
            yield "replica_stops", state, ("replica", state.words)
        elif memory[0] == "replica":
            yield "failover", _next_life(state, hidden)._replace(words=memory[1]), ("done",)
        else:
            yield "reconnect", state._replace(greeted=state.identity), ("done",)

    return Move(choices, 3 if hidden else 2)


def tick(milliseconds: int, times: int = 1) -> Move:
    """The server's clock goes on (or back: a negative number); no TTL ends by it, see ``expiry``."""

    def choices(state: ServerState, memory: Any) -> Iterable[tuple[str, ServerState, Any]]:
        yield f"tick({milliseconds})", state._replace(clock_ms=state.clock_ms + milliseconds), None

    return Move(choices, times)
