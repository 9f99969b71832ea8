"""A lock on five servers: what an uncontended pair costs in PINGs of the same client, and beside pottery."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial

from benches import peers
from benches.runner import Case, Load, Looped, Row, Scale, compare, duel, server
from fencepost import AsyncClient, AsyncQuorum

SERVERS = 5
AIM = 4.0  # PINGs of the same client, at most
PEER = "pottery"


@contextlib.contextmanager
def _servers() -> Iterator[list[str]]:
    """Five servers that may vote."""
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(server()) for _ in range(SERVERS)]

        async def init() -> None:
            async with AsyncQuorum.from_urls([f"unix://{path}" for path in paths]) as quorum:
                await quorum.init()

        asyncio.run(init())
        yield paths


@contextlib.asynccontextmanager
async def _pairs(paths: list[str]) -> AsyncIterator[Load]:
    async with AsyncQuorum.from_urls([f"unix://{path}" for path in paths]) as quorum:
        lock = quorum.lock("b", wait=600)

        async def work(worker: int, calls: int) -> None:
            for _ in range(calls):
                async with lock:
                    pass

        yield Load(work)


@contextlib.asynccontextmanager
async def _pings(path: str) -> AsyncIterator[Load]:
    async with AsyncClient.from_url(f"unix://{path}") as client:

        async def work(worker: int, calls: int) -> None:
            for _ in range(calls):
                await client.command("PING")

        yield Load(work)


@contextlib.asynccontextmanager
async def _five_pings(paths: list[str]) -> AsyncIterator[Load]:
    """The floor: a PING of all five at once, twice, as a pair asks them twice."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient.from_url(f"unix://{path}"))
            for path in paths
        ]

        async def work(worker: int, calls: int) -> None:
            for _ in range(calls):
                for _ in range(2):
                    await asyncio.gather(*(client.command("PING") for client in clients))

        yield Load(work)


def _in_pings(scale: Scale) -> list[Row]:
    rows = []
    with _servers() as paths:
        for what, load in (
            ("lock and release on a quorum of 5", partial(_pairs, paths)),
            ("all of 5 servers asked for PING twice", partial(_five_pings, paths)),
        ):
            with Looped(load, 1) as ours, Looped(partial(_pings, paths[0]), 1) as pings:
                result = duel(ours, pings, scale)
            pairs = zip(result.ours, result.peer, strict=True)
            cost = statistics.median(ping.per_second / pair.per_second for pair, ping in pairs)
            if rows:
                rows.append(Row(what, "PINGs", cost))
            else:
                rows.append(Row(what, "PINGs", cost, "the aim", AIM, AIM / cost, 1.0))
    return rows


class _Worker(peers.Piped):
    """One library in a process of its own, in a thread; see ``peers/lock_worker.py``."""

    def __init__(self, group: str, paths: list[str]) -> None:
        python = sys.executable if group == "fencepost-quorum" else str(peers.python_of(group))
        worker = str(peers.HERE / "lock_worker.py")
        self._words = [python, worker, group, ",".join(paths), "pair", "1"]


def _beside(scale: Scale) -> list[Row]:
    calls = max(int(scale.seconds * 500), 20)
    micros: list[list[float]] = [[], []]
    in_pings: list[list[float]] = [[], []]
    with (
        _servers() as paths,
        _Worker("fencepost-quorum", paths) as ours,
        _Worker(PEER, paths) as theirs,
    ):
        for turn in range(scale.rounds + 1):
            for which, peer in enumerate((ours, theirs)):
                count, wall, _, pings = map(float, peer.ask(calls))
                if turn:
                    micros[which].append(wall / count * 1e6)
                    in_pings[which].append(wall / pings)
    what = "take and give back a lock on 5 servers, a thread"
    return [
        compare(what, "µs", micros[0], PEER, micros[1]),
        compare(what, "PINGs of its client", in_pings[0], PEER, in_pings[1]),
    ]


def cases() -> list[Case]:
    return [
        Case("quorum pair in PINGs", _in_pings),
        Case(f"quorum pair beside {PEER}", _beside, full=True),
    ]
