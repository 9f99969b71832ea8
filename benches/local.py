"""The cache in the process: what a hit costs, and how many there are, beside its peers.

Peers live in a venv of their own (``peers/local.txt``). What a hit costs is measured in one process of that
venv, ours among them, in turns. Hit ratios are of traces in the folder that ``FENCEPOST_TRACES`` names:
files ``NAME.u32le``, ``NAME.u32le.xz`` or ``NAME.txt``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from functools import partial
from pathlib import Path

from benches import peers
from benches.runner import Case, Row, Scale, say

GROUP = "local"
TRACES = "FENCEPOST_TRACES"
SIZES = (0.001, 0.01, 0.1)  # of a trace's keys
OURS = ("s3fifo", "wtinylfu", "lfu", "lru")
HIT_AIM = 1 / 2.5  # of cachebox's get, without a ttl
SOURCE = Path(__file__).parents[1] / "src"


def _ask(*words: str) -> list[list[float | str]]:
    """The figures that the worker prints, one JSON list a line."""
    command = [str(peers.python_of(GROUP)), str(peers.HERE / "local_worker.py"), *words]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as running:
        assert running.stdout is not None
        lines = [json.loads(line) for line in running.stdout]
    if running.returncode:
        raise peers.NotHere(f"{GROUP}: its worker failed, see above")
    return lines


def _hits(kind: str, scale: Scale) -> list[Row]:
    """Nanoseconds of CPU a hit, the least of the rounds: what is above it is the machine."""
    found = {
        str(name): float(ns)
        for name, ns in _ask("hits", kind, str(scale.rounds), str(scale.seconds))
    }
    ours = found.pop("fencepost s3fifo")
    rows = []
    for name, ns in sorted(found.items(), key=lambda one: one[1]):
        aim = None
        if kind == "get" and name == "cachebox":
            aim = HIT_AIM
        elif (
            not name.startswith("fencepost")
            and name not in ("functools", "dict")
            and kind not in ("threads", "set")
        ):
            aim = (
                1.0
                if name not in ("cachebox", "moka-py") or kind in ("decorator", "awaited")
                else None
            )
        rows.append(Row(f"local hit, {kind}", "ns CPU", ours, name, ns, ns / ours, aim))
    return rows


def _ratios(scale: Scale) -> list[Row]:
    folder = os.environ.get(TRACES)
    if not folder:
        raise peers.NotHere(f"no traces: {TRACES} names a folder of them")
    limit = {"quick": 50_000, "normal": 300_000}.get(scale.name, 0)
    table: dict[tuple[str, int], dict[str, float]] = {}
    for trace, size, policy, ratio in _ask("ratios", folder, str(limit), *map(str, SIZES)):
        table.setdefault((str(trace), int(size)), {})[str(policy)] = float(ratio)
    rows, shares = [], []
    for (trace, size), found in table.items():
        best = max(found, key=lambda name: found[name] if name != "Belady" else 0)
        ours = max(found[name] for name in OURS)
        shares.append(ours / found[best])
        rows += [
            Row(f"hit ratio {trace} at {size:,}: s3fifo", "%", found["s3fifo"] * 100, name, ratio * 100,
                found["s3fifo"] / ratio if ratio else None)
            for name, ratio in found.items() if name != "s3fifo"
        ]  # fmt: skip
        rows.append(
            Row(f"hit ratio {trace} at {size:,}: best of ours", "%", ours * 100, best,
                found[best] * 100, ours / found[best], 0.95)
        )  # fmt: skip
    names = {name for found in table.values() for name in found}

    def mean(name: str) -> float:
        return statistics.mean(found[name] / found["Belady"] for found in table.values())

    for name in sorted(names - {"s3fifo", "Belady"}, key=mean, reverse=True):
        aim = None if name in OURS else 1.0
        rows.append(
            Row(f"hit ratio / Belady, mean of {len(table)}", "", mean("s3fifo"), name, mean(name),
                mean("s3fifo") / mean(name), aim)
        )  # fmt: skip
    say(f"  best of ours is at worst {min(shares):.3f} of the best")
    return rows


def cases() -> list[Case]:
    return [
        *(
            Case(f"local hit {kind}", partial(_hits, kind))
            for kind in ("get", "ttl", "awaited", "decorator", "threads", "set")
        ),
        Case("local hit ratios", _ratios),
    ]
