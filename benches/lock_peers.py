"""Locks and semaphores beside other libraries, each in a process of its own, ours in threads or on a loop as theirs."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from functools import partial

from benches import peers
from benches.runner import Case, Row, Scale, compare, server

LOOPED = ("redis-fifo-lock",)
WITH_PERMITS = ("py-redis-semaphore",)
HERE = ("redis-py",)  # what the benchmarks' own environment has


class _Peer(peers.Piped):
    """One library, doing one thing; see ``peers/lock_worker.py``."""

    def __init__(self, group: str, path: str, op: str, width: int = 1) -> None:
        own = group.startswith("fencepost") or group in HERE
        python = sys.executable if own else str(peers.python_of(group))
        worker = str(peers.HERE / "lock_worker.py")
        self._words = [python, worker, group, path, op, str(width)]

    def figures(self, number: int) -> list[float]:
        return list(map(float, self.ask(number)))


def _ours(group: str) -> str:
    return "fencepost-loop" if group in LOOPED else "fencepost"


@dataclass(frozen=True, slots=True)
class _Pair:
    """Microseconds of a pair, and of a PING by the same client."""

    pair: float
    ping: float


def _in_turns(group: str, op: str, width: int, number: int, rounds: int) -> list[list[list[float]]]:
    """What ours and the other one say to a number, in turns, after a round to get warm."""
    said: list[list[list[float]]] = [[], []]
    with (
        server() as path,
        _Peer(_ours(group), path, op, width) as ours,
        _Peer(group, path, op, width) as theirs,
    ):
        for turn in range(rounds + 1):
            for which, peer in enumerate((ours, theirs)):
                figures = peer.figures(number)
                if turn:
                    said[which].append(figures)
    return said


def _pair(group: str, op: str, scale: Scale) -> list[Row]:
    calls = 10 if group == "portalocker" else max(int(scale.seconds * 1000), 20)
    said = _in_turns(group, op, 1, calls, scale.rounds)
    pairs = [[_Pair(wall / n * 1e6, pings / n * 1e6) for n, wall, _, pings in one] for one in said]
    what = "take and give back " + ("a permit" if op == "permit" else "a lock")
    micros = [[one.pair for one in side] for side in pairs]
    in_pings = [[one.pair / one.ping for one in side] for side in pairs]
    return [
        compare(what, "µs", micros[0], group, micros[1]),
        compare(what, "PINGs of its client", in_pings[0], group, in_pings[1]),
    ]


def _crowd(group: str, width: int, scale: Scale) -> list[Row]:
    said = _in_turns(group, "crowd", width, int(scale.seconds * 8000), max(scale.rounds // 2, 1))
    rates = [[turns / seconds for turns, seconds, _, _ in side] for side in said]
    spread = [
        statistics.median(most / max(least, 1) for _, _, most, least in side) for side in said
    ]
    what = f"turns of {width} {'coroutines' if group in LOOPED else 'threads'}"
    return [
        compare(what, "turns/s", rates[0], group, rates[1]),
        compare(f"{what}, most over least", "times", [spread[0]], group, [spread[1]]),
    ]


def _wakes(group: str, op: str, scale: Scale) -> list[Row]:
    times = 1 if op == "crash" else scale.rounds
    said = _in_turns(group, op, 1, times, 1 if op == "crash" else 2)
    took = [[figures[0] for figures in side] for side in said]
    what = (
        "a waiter is in, after a holder with a ttl of 2 s was killed"
        if op == "crash"
        else "a waiter wakes up after a release"
    )
    return [compare(what, "ms", took[0], group, took[1])]


def cases() -> list[Case]:
    found = []
    for group in (*HERE, *peers.groups("lock")):
        full = group not in HERE
        found.append(Case(f"lock pair beside {group}", partial(_pair, group, "pair"), full))
        if group in WITH_PERMITS:
            found.append(Case(f"permit pair beside {group}", partial(_pair, group, "permit"), full))
        found += [
            Case(f"lock crowd of {width} beside {group}", partial(_crowd, group, width), full)
            for width in (8, 64)
        ]
        found += [
            Case(f"lock {op} beside {group}", partial(_wakes, group, op), full)
            for op in ("wake", "crash")
        ]
    return found
