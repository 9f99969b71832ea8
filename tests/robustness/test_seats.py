"""Seats under a crowd, while services that release them are killed: never too many, none lost, none stuck.

Users hold, confirm, let time pass, give back; what they were told is held against the rows at the end.
Meanwhile the rows are counted again and again: there must never be more than fit. A SIGKILL strikes a
service at any step: between the commit and the relay, in the middle of a release, with jobs in hand.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from campus.running import SOON, Serve, eventually
from robustness.test_robustness import SEED
from support.require import require
from support.servers import ServerProcess, find_binary

CAPACITY = 7
BETWEEN = 20
"""Answers between two kills, so that work is under way when the next one strikes."""
HOLD = "0.5"


@dataclass
class Hall:
    """Several services on one database and one server, and what users were told."""

    home: Path
    url: str
    serves: list[Serve] = field(default_factory=list)
    begun: list[Serve] = field(default_factory=list)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    kills: int = 0
    answers: int = 0
    most: dict[int, int] = field(default_factory=dict)
    taken: dict[tuple[int, str], bool] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def start(self) -> Serve:
        one = Serve(
            *("--data", str(self.home / "data"), "--url", self.url),
            *("--no-samples", "--hold", HOLD, "--drain", "5"),
        )
        self.begun.append(one)
        assert one.url
        return one

    def rows(self) -> list[tuple[int, str, str]]:
        with closing(sqlite3.connect(self.home / "data" / "campus.sqlite3", timeout=30)) as one:
            query = "SELECT activity_id, user_id, state FROM campus_seats"
            return list(one.execute(query))

    async def ask(self, http: httpx.AsyncClient, method: str, path: str) -> int:
        """An answer, from whichever service lives; what is asked states how things shall be."""
        while True:
            await self.up.wait()
            serve = random.choice(self.serves)
            try:
                answer = await http.request(method, f"{serve.url}{path}")
            except httpx.TransportError:
                continue
            self.answers += 1
            self.codes[answer.status_code] = self.codes.get(answer.status_code, 0) + 1
            if answer.status_code != 503:
                return answer.status_code

    async def lives(
        self, http: httpx.AsyncClient, user: str, items: list[int], rounds: int
    ) -> None:
        dice = random.Random(f"{SEED} {user}")
        for _ in range(rounds):
            item = dice.choice(items)
            seat = f"/api/activities/{item}/seats/{user}"
            held = await self.ask(http, "PUT", seat)
            if held not in (200, 409):
                self.wrong.append(f"PUT {seat}: {held}")
            if held == 200 and dice.random() < 0.5:
                confirmed = await self.ask(http, "PUT", f"{seat}/confirmation")
                had = self.taken.get((item, user), False)
                if confirmed == 409 and had:
                    self.wrong.append(f"{user} had a seat of {item} for good, and has lost it")
                self.taken[item, user] = confirmed == 200
                if dice.random() < 0.4:
                    await self.ask(http, "DELETE", seat)
                    self.taken[item, user] = False

    async def counts(self) -> None:
        """How many seats there ever were at once; a loop until it is cancelled."""
        while True:
            found: dict[int, int] = {}
            for item, *_ in await asyncio.to_thread(self.rows):
                found[item] = found.get(item, 0) + 1
            for item, count in found.items():
                self.most[item] = max(self.most.get(item, 0), count)

    async def kill_some(self, times: int, crowd: asyncio.Future[Any]) -> None:
        """Kill a service and start another, so many times."""
        while self.kills < times:
            enough = self.answers + BETWEEN

            async def worked(enough: int = enough) -> bool:
                return self.answers >= enough or crowd.done()

            await eventually(worked)
            victim = self.serves.pop(random.randrange(len(self.serves)))
            if not self.serves:
                self.up.clear()
            await asyncio.to_thread(victim.kill)
            self.kills += 1
            self.serves.append(await asyncio.to_thread(self.start))
            self.up.set()


async def run(
    hall: Hall, *, users: int, rounds: int, items: int, services: int, kills: int
) -> None:
    hall.serves = [await asyncio.to_thread(hall.start) for _ in range(services)]
    hall.up.set()
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(timeout=SOON, limits=limits) as http:
        made = []
        for number in range(items):
            new = {"title": f"Nr. {number}", "place": "x", "capacity": CAPACITY}
            new["starts_at"] = "2090-01-01T00:00:00Z"
            answer = await http.post(f"{hall.serves[0].url}/api/activities", json=new)
            made.append(int(answer.json()["id"]))
        counting = asyncio.create_task(hall.counts())
        crowd = asyncio.gather(*[hall.lives(http, f"u{n}", made, rounds) for n in range(users)])
        await asyncio.gather(crowd, hall.kill_some(kills, crowd))

        async def settled() -> bool:
            return all(state == "taken" for *_, state in await asyncio.to_thread(hall.rows))

        await eventually(settled)
        counting.cancel()


def judge(hall: Hall) -> None:
    assert hall.wrong == []
    assert max(hall.most.values()) <= CAPACITY, hall.most
    there = {(item, user) for item, user, _ in hall.rows()}
    assert there == {pair for pair, taken in hall.taken.items() if taken}
    assert hall.codes.get(200, 0) > 0
    assert set(hall.codes) <= {200, 204, 409, 503}, hall.codes
    print(f"{hall.kills} kills, answers {hall.codes}, at most {hall.most} seats of {CAPACITY}")


@pytest.fixture
def hall(tmp_path: Path) -> Any:
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey", aof="always") as server:
        hall = Hall(tmp_path, server.unix_url)
        yield hall
        for one in hall.begun:
            one.kill()


@pytest.mark.timeout(300)
async def test_a_small_crowd_while_services_are_killed(hall: Hall) -> None:
    """The short slice."""
    await run(hall, users=16, rounds=2, items=2, services=1, kills=1)
    judge(hall)


@pytest.mark.robustness
async def test_two_hundred_users_while_services_are_killed(hall: Hall) -> None:
    await run(hall, users=200, rounds=12, items=12, services=3, kills=15)
    judge(hall)
    assert hall.codes[409] > 0
