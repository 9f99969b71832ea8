"""A quorum of five under traffic while its servers die, freeze and come back empty, one after the other.

All clients live in one process and so have one clock: at no moment may two leases be trusted, and each
fence is greater than those of all leases that were taken before its acquire began.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from fencepost._core.aio import clock
from fencepost.errors import LeaseLost, LockTimeout, Unavailable
from fencepost.lock.quorum.scripts import VOTE_SCRIPTS, VoteScripts
from support.lockfaces import QuorumFace
from support.quorum import altered
from support.require import require
from support.servers import ServerProcess, find_binary

BORN = "'max_ttl', max_ttl_ms, 'open', '0', 'durable', '0')\n    since, open = now_ms, false\n"
TRUSTS_EMPTY = altered(
    "vote", BORN, BORN.replace("'open', '0'", "'open', '1'").replace("false", "true")
)
TTL = 1.0


class Watch:
    """Sees who trusts a lease, and in which order fences are drawn."""

    def __init__(self) -> None:
        self.active: list[Any] = []
        self.greatest = 0
        self.taken = 0
        self.wrong: list[str] = []

    def acts(self, lease: Any) -> None:
        """A holder looks at its lease, and acts."""
        if not lease.remaining():
            return
        for other in self.active:
            if other is not lease and other.remaining():
                self.wrong.append(f"{lease!r} acts beside {other!r}")


async def use(
    face: QuorumFace, watch: Watch, scripts: VoteScripts, over: Callable[[], bool]
) -> None:
    lock = face.lock(ttl=TTL, wait=2)
    polls = dataclasses.replace(lock._place.polls, scripts=scripts)
    lock._place = dataclasses.replace(lock._place, polls=polls)
    while not over():
        before = watch.greatest
        try:
            lease = await face.call(lock.acquire)
        except (Unavailable, LockTimeout):
            continue
        watch.taken += 1
        if lease.fence <= before:
            watch.wrong.append(f"{lease!r} has a lower fence than {before}")
        watch.greatest = max(watch.greatest, lease.fence)
        watch.active.append(lease)
        try:
            for _ in range(20):
                watch.acts(lease)
                lease.check()
                # time itself: a holder works for a while
                await asyncio.sleep(0.02)
        except LeaseLost:
            pass
        watch.active.remove(lease)
        with suppress(Unavailable):
            await face.call(lease.release)


async def harm(servers: list[ServerProcess], dice: random.Random, over: Callable[[], bool]) -> int:
    """One server after the other; the next one when the last one is back."""
    times = 0
    while not over():
        server = dice.choice(servers)
        times += 1
        match dice.randrange(3):
            case 0:
                await asyncio.to_thread(server.restart, empty=True)
            case 1:
                await asyncio.to_thread(server.kill)
                # time itself: it stays away for a while
                await asyncio.sleep(dice.random() * TTL)
                await asyncio.to_thread(server.start)
            case _:
                server.pause()
                # time itself: it stays frozen for a while
                await asyncio.sleep(dice.random() * TTL)
                server.resume()
        # time itself: leases are renewed, newborns wait
        await asyncio.sleep(dice.random() * 0.3)
    return times


async def run(
    scripts: VoteScripts, seconds: float, seed: int, until_wrong: bool
) -> tuple[Watch, int]:
    require("valkey", find_binary("valkey") is not None)
    watch, dice = Watch(), random.Random(seed)
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess("valkey")) for _ in range(5)]
        urls = [server.url for server in servers]
        faces = [
            QuorumFace(kind, urls, "r", max_ttl=TTL, patience=0.3)
            for kind in ("async", "threads", "async")
        ]
        end = clock() + seconds

        def over() -> bool:
            return clock() > end or (until_wrong and bool(watch.wrong))

        try:
            await faces[0].init()
            harmed, *_ = await asyncio.gather(
                harm(servers, dice, over),
                *(use(face, watch, scripts, over) for face in faces for _ in range(2)),
            )
        finally:
            for face in faces:
                await face.close()
    return watch, harmed


@pytest.mark.robustness
@pytest.mark.parametrize("seed", range(3))
async def test_servers_die_freeze_and_come_back_empty_and_one_holds_it(seed: int) -> None:
    watch, harmed = await run(VOTE_SCRIPTS, 20.0, seed, until_wrong=False)
    assert watch.wrong == []
    assert watch.taken > 10
    assert harmed > 10


@pytest.mark.robustness
async def test_and_two_would_without_the_birth_guard() -> None:
    watch, _ = await run(TRUSTS_EMPTY, 120.0, 1, until_wrong=True)
    assert watch.wrong
