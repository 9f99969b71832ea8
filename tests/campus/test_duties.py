"""What one service does for all: elected, done once a period, and refused at the database when late."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from campus.running import Serve, eventually, open_app
from fencepost.campus import duties
from fencepost.campus.duties import Duty, to_its_end
from fencepost.campus.tables import runs
from fencepost.errors import FenceRefused
from support.until import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from fencepost.campus.service import Campus
    from fencepost.campus.settings import Settings

Start = Any
QUICK = ("--leader-ttl", "3", "--digest-every", "0.3", "--audit-every", "0.5")
Row = tuple[str, str, int, str]


def figures(text: str, name: str) -> dict[str, float]:
    """The series of a figure, by their labels."""
    found = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.M)
    return {labels: float(value) for labels, value in found}


def rows(campus: Campus) -> list[Any]:
    with campus.activities.table.engine.connect() as connection:
        return list(connection.execute(select(runs).order_by(runs.c.period)).mappings())


def campus_of(api: httpx.AsyncClient) -> Campus:
    found: Campus = api.app.state.campus  # type: ignore[attr-defined]
    return found


class Term:
    """A leader of the table's gate."""

    def __init__(self, fence: int, identity: str) -> None:
        self.fence, self.identity, self.token = fence, identity, identity
        self.stopping = False

    def check(self) -> float:
        return 1.0


# -- in this process


def test_periods_end_at_multiples_of_their_length() -> None:
    day = Duty("d", 86_400, duties.digest)
    night = datetime(2026, 3, 29, tzinfo=UTC)
    assert day.last(night) == day.last(night + timedelta(hours=23)) == night - timedelta(days=1)
    assert day.pause(night + timedelta(hours=23)) == 3600


async def test_a_digest_tells_what_happened_in_its_period(settings: Settings) -> None:
    async with open_app(settings) as api:
        campus = campus_of(api)
        for user, item in (("ada", 1), ("bob", 1), ("ada", 2), ("eve", 2), ("eve", 3), ("bob", 2)):
            await api.put(f"/api/activities/{item}/likes/{user}")
        await api.delete("/api/activities/3/likes/eve")
        assert await campus.likes.drain(60) == 0
        now = datetime.now(UTC)
        with campus.activities.table.engine.connect() as connection:
            made = duties.digest(
                connection, now - timedelta(hours=1), now + timedelta(hours=1), None
            )
            past = duties.digest(
                connection, now - timedelta(hours=2), now - timedelta(hours=1), None
            )
    most = [{"id": 2, "likes": 3}, {"id": 1, "likes": 2}]
    assert made == {"likes": 5, "activities": 12, "most_liked": most}
    assert past == {"likes": 0, "activities": 0, "most_liked": []}


async def test_each_period_is_done_once_and_who_comes_late_is_refused(settings: Settings) -> None:
    """The gate, and the key of the period, in one transaction."""
    async with open_app(settings) as api:
        campus = campus_of(api)
        work, duty = campus.duties, campus.duties.duties[0]
        first, second = (duty.last(datetime.now(UTC)) + timedelta(seconds=n) for n in (0, 1))
        old, newer = Term(5, "old"), Term(6, "newer")
        assert await work._run(old, duty, first)  # type: ignore[arg-type]
        assert await work._run(newer, duty, first)  # type: ignore[arg-type]  # done before
        with pytest.raises(FenceRefused):
            await work._run(old, duty, second)  # type: ignore[arg-type]
        assert await work._run(newer, duty, second)  # type: ignore[arg-type]
        shown = [(row["period"], row["fence"], row["leader"]) for row in rows(campus)]
        assert shown == [(first, 5, "old"), (second, 6, "newer")]
        text = (await api.get("/metrics")).text
    counted = figures(text, "campus_duty_runs_total")
    assert counted == {
        '{duty="digest",verdict="done"}': 2,
        '{duty="digest",verdict="skipped"}': 1,
        '{duty="digest",verdict="refused"}': 1,
    }


async def test_without_the_gate_who_comes_late_writes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(duties, "pass_gate", lambda *args: None)
    async with open_app(settings) as api:
        campus = campus_of(api)
        work, duty = campus.duties, campus.duties.duties[0]
        first, second = (duty.last(datetime.now(UTC)) + timedelta(seconds=n) for n in (0, 1))
        assert await work._run(Term(6, "newer"), duty, first)  # type: ignore[arg-type]
        assert await work._run(Term(5, "old"), duty, second)  # type: ignore[arg-type]
        assert [row["fence"] for row in rows(campus)] == [6, 5]


async def test_a_run_that_fails_is_told_and_tried_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_app(settings) as api:
        campus = campus_of(api)
        work, duty = campus.duties, campus.duties.duties[0]
        period, keep = duty.last(datetime.now(UTC)), work._keep
        with closing(sqlite3.connect(settings.sqlite_path, isolation_level=None)) as other:
            other.execute("DROP TABLE fencepost_gate")
            assert not await work._run(Term(5, "me"), duty, period)  # type: ignore[arg-type]
        from fencepost.sql import guards

        await asyncio.to_thread(guards.create_tables, campus.activities.table.engine)
        assert work._keep == keep
        assert await work._run(Term(5, "me"), duty, period)  # type: ignore[arg-type]
        assert len(rows(campus)) == 1
        counted = figures((await api.get("/metrics")).text, "campus_duty_runs_total")
        assert counted['{duty="digest",verdict="failed"}'] == 1


async def test_of_two_services_one_leads_and_both_say_who(settings: Settings) -> None:
    quick = replace(settings, duties=True, digest_every=0.2, audit_every=0.2, audit_sample=5)
    async with open_app(quick) as one, open_app(quick) as two:
        faces = {"one": one, "two": two}

        async def leaders() -> list[str]:
            return [
                name for name, api in faces.items() if (await api.get("/healthz")).json()["leads"]
            ]

        async def one_leads() -> bool:
            return len(await leaders()) == 1

        async def done() -> bool:
            return {row["duty"] for row in rows(campus_of(one))} == {"digest", "audit"}

        await eventually(one_leads)
        await eventually(done)
        [name] = await leaders()
        assert (await faces[name].get("/healthz")).json()["leader"]
        gauge = {
            each: figures((await api.get("/metrics")).text, "campus_leader")[""]
            for each, api in faces.items()
        }
        assert gauge == {"one": float(name == "one"), "two": float(name == "two")}
        terms = {row["fence"] for row in rows(campus_of(one))}
        assert len(terms) == 1
    with closing(sqlite3.connect(settings.sqlite_path)) as connection:
        results = [row[0] for row in connection.execute("SELECT result FROM campus_runs")]
    assert any('"differences": 0' in result for result in results)


async def test_what_runs_in_a_thread_is_waited_for_though_it_is_cancelled() -> None:
    """Who resigns must have stopped; a thread can't be cancelled."""
    go, words = threading.Event(), []

    def work() -> None:
        go.wait()
        words.append("ended")

    task = asyncio.create_task(to_its_end(work))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert words == ["ended"]
    await until(task.done)


# -- three services, as processes


def health(process: Serve) -> dict[str, Any]:
    with process.client() as client:
        found: dict[str, Any] = client.get("/healthz").json()
        return found


def metric(process: Serve, name: str) -> dict[str, float]:
    with process.client() as client:
        return figures(client.get("/metrics").text, name)


def written(data: Path) -> list[Row]:
    """What the leaders have done, in order of its writing."""
    query = "SELECT duty, period, fence, leader FROM campus_runs ORDER BY rowid"
    with closing(sqlite3.connect(data / "campus.sqlite3", timeout=30)) as connection:
        return list(connection.execute(query))


async def led_by(services: list[Serve], data: Path, beyond: int = 0) -> Serve:
    """The service that leads and has written a row with a fence beyond this one."""
    found: list[Serve] = []

    async def leads() -> bool:
        found[:] = [one for one in services if (await asyncio.to_thread(health, one))["leads"]]
        newest = max((row[2] for row in await asyncio.to_thread(written, data)), default=0)
        return len(found) == 1 and newest > beyond

    await eventually(leads)
    return found[0]


def in_order(done: list[Row]) -> None:
    """No period twice, and no older leader after a newer one."""
    assert len({(duty, period) for duty, period, _, _ in done}) == len(done)
    assert [fence for _, _, fence, _ in done] == sorted(fence for _, _, fence, _ in done)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def three(serve: Callable[..., Serve]) -> list[Serve]:
    services = [serve(*QUICK) for _ in range(3)]
    for each in services:
        await asyncio.to_thread(lambda each=each: each.url)
    return services


async def test_the_leader_is_killed_and_another_one_takes_over(
    three: list[Serve], data: Path
) -> None:
    for _ in range(2):
        leader = await led_by(three, data)
        before = max(row[2] for row in written(data))
        three.remove(leader)
        leader.kill()
        await led_by(three, data, beyond=before)
    done = written(data)
    in_order(done)
    assert done[-1][3] == health(three[0])["leader"]  # who is left
    assert len({row[3] for row in done}) >= 2
    assert len({row[2] for row in done}) >= 3
    assert three[0].stop()[0] == 0


async def test_the_leader_is_told_to_stop_and_another_one_leads_long_before_its_lease_would_end(
    serve: Callable[..., Serve], data: Path
) -> None:
    long = ("--leader-ttl", "3600", "--digest-every", "0.3", "--audit-every", "0.5")
    services = [serve(*long) for _ in range(2)]
    leader = await led_by(services, data)
    before = max(row[2] for row in written(data))
    services.remove(leader)
    code, said, complained = await asyncio.to_thread(leader.stop)
    assert (code, complained) == (0, "")
    assert "has stopped" in said
    await led_by(services, data, beyond=before)
    in_order(written(data))


async def test_a_leader_that_is_paused_in_a_run_is_refused_at_the_database(
    three: list[Serve], data: Path
) -> None:
    """Its run waits for the database when it is stopped; when it goes on, a newer one has been there."""
    refused = 0
    while not refused:  # it may have been stopped between two runs
        leader = await led_by(three, data)
        others = [one for one in three if one is not leader]
        with closing(sqlite3.connect(data / "campus.sqlite3", isolation_level=None)) as other:
            other.execute("PRAGMA busy_timeout = 30000")
            other.execute("BEGIN IMMEDIATE")  # from here on no run can end

            async def is_in_a_run(leader: Serve = leader) -> bool:
                running = await asyncio.to_thread(metric, leader, "campus_duty_running")
                return running.get('{duty="digest"}') == 1

            await eventually(is_in_a_run)
            leader.tell(signal.SIGSTOP)
            other.execute("ROLLBACK")
        before = max(row[2] for row in written(data))
        successor = await led_by(others, data, beyond=before)
        assert successor is not leader
        leader.tell(signal.SIGCONT)

        async def leads_no_more(leader: Serve = leader) -> bool:
            shown = await asyncio.to_thread(health, leader)
            return not shown["leads"]

        await eventually(leads_no_more)
        counted = await asyncio.to_thread(metric, leader, "campus_duty_runs_total")
        refused = int(sum(n for labels, n in counted.items() if 'verdict="refused"' in labels))
    in_order(written(data))
    assert len({row[2] for row in written(data)}) >= 2
    for each in three:
        each.tell(signal.SIGTERM)
    assert [(await asyncio.to_thread(each.wait))[0] for each in three] == [0, 0, 0]
