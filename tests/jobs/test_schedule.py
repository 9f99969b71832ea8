"""Schedules: which times are run, how often, and what a second scheduler finds. On a real server.

The time of the server can't be set here, so what is set is the mark up to which a schedule has been
looked at. Times of the calendar, two schedulers in every order: ``test_schedule_explored.py``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost import AsyncClient, Client
from fencepost._core.port import run_sync
from fencepost.errors import ClientClosed, Refused, ServerError, Unavailable
from fencepost.jobs.cron import Cron
from fencepost.jobs.schedule import LATE, MOST, OCCUR, Early, Schedule, Seen, Watch, keep, look
from support.jobs import Bench, a_record
from support.until import until

HOUR = 3_600_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def nightly(**more: Any) -> Schedule:
    return Schedule(
        name="nightly", cron=Cron("30 2 * * *", "America/New_York"), record=a_record(), **more
    )


# -- what is run of what has come -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "overlap", "expected"),
    [
        ("one", "skip", ["08 07:00"]),
        ("all", "allow", ["07 07:30", "08 07:00"]),
        ("skip", "skip", []),
    ],
)
def test_missed_times(missed: str, overlap: str, expected: list[str]) -> None:
    """Away from Friday noon to Sunday noon, over the night when half past two is missing."""
    one = nightly(missed=missed, overlap=overlap)
    times, latest, count = one.chosen(ms("2026-03-06T12:00"), ms("2026-03-08T12:00"))
    assert [f"{datetime.fromtimestamp(at / 1000, UTC):%d %H:%M}" for at in times] == expected
    assert (latest, count) == (ms("2026-03-08T07:00"), 2)
    assert one.chosen(latest, ms("2026-03-08T12:00")) == ([], 0, 0)
    assert one.next_ms(latest) == ms("2026-03-09T06:30")


def test_a_time_that_has_just_come_is_not_missed() -> None:
    one, at = nightly(missed="skip"), ms("2026-03-09T06:30")
    assert one.chosen(at - 1, at - 1) == ([], 0, 0)
    assert one.chosen(at - 1, at)[0] == [at]
    assert one.chosen(at - HOUR, at + int(LATE * 1000))[0] == [at]
    assert one.chosen(at - HOUR, at + int(LATE * 1000) + 1)[0] == []


def test_what_is_made_up_for_is_bounded() -> None:
    now = ms("2026-03-09T06:30")
    every = Schedule(name="x", cron=Cron("* * * * *"), missed="all", overlap="allow")
    times, latest, count = every.chosen(now - 24 * HOUR, now)
    assert (len(times), latest, count) == (MOST, now, 24 * 60)
    assert every.chosen(1, now)[2] == 31 * 24 * 60  # longer outages are not counted


def test_an_occurrence_is_its_name_and_its_moment() -> None:
    first, second = (datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in (5, 6))
    one = dataclasses.replace(nightly(), cron=Cron("*/30 * * * *", "America/New_York"))
    assert one.id(first) == nightly().id(first) == "nightly@2026-11-01T053000Z"
    assert one.id(first) != one.id(second)
    assert one.id(first.astimezone(one.cron.zone)) == one.id(first)
    assert one.key != nightly().key


# -- on the server ----------------------------------------------------------------------------------


def occur(bench: Bench, schedule: Schedule, *times: int, since: int = 0, upto: int = 0) -> Any:
    keys = bench.keys
    words: list[Any] = [schedule.key, since, upto, 250, 86_400_000, 31 * 24 * HOUR, 0]
    for at in times:
        words += (schedule.id(datetime.fromtimestamp(at / 1000, UTC)), at, schedule.record)
    names = (keys.bodies, keys.due, keys.ready, keys.claims, keys.unique, keys.remembered)
    return bench.run(OCCUR((*names, keys.wake, keys.schedules, keys.history), words))


def now_of(bench: Bench) -> int:
    seconds, micros = bench.client.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def test_a_time_is_added_once_by_whoever_asks(bench: Bench) -> None:
    now = now_of(bench)
    entered = occur(bench, nightly())
    assert now <= entered.seen_ms <= entered.now_ms
    later = entered.seen_ms - HOUR
    assert bench.client.command("ZADD", bench.keys.schedules, later - HOUR, nightly().key) == 0
    assert occur(bench, nightly(), later, upto=later).said == "C"
    assert occur(bench, nightly(), later, upto=later).said == "H"
    assert bench.look(nightly().id(datetime.fromtimestamp(later / 1000, UTC))).state == "ready"


def test_nothing_comes_early_by_the_servers_clock(bench: Bench) -> None:
    """The scheduler's clock, or the server's own a moment ago, was an hour ahead."""
    at = now_of(bench) + HOUR
    assert isinstance(occur(bench, nightly(), at, upto=at), Early)
    assert bench.left() == set()
    hasty = OCCUR.with_text(
        OCCUR.plain.replace("if upto_ms > now_ms then return {'EARLY', now_ms} end", "")
    )
    assert hasty.plain != OCCUR.plain
    keys = bench.keys
    names = (keys.bodies, keys.due, keys.ready, keys.claims, keys.unique, keys.remembered)
    words = [nightly().key, at - 1, at, 250, 86_400_000, HOUR, 0, "x", at, a_record()]
    assert bench.run(hasty((*names, keys.wake, keys.schedules, keys.history), words)).said == "C"


def test_a_schedule_that_the_server_has_lost_goes_on_where_its_scheduler_was(bench: Bench) -> None:
    now = now_of(bench)
    watch = Watch(dataclasses.replace(nightly(), cron=Cron("0 * * * *")), mark_ms=now - 5 * HOUR)
    run_sync(look(bench.io, bench.place, [watch]))
    assert (watch.added, watch.mark_ms > now - HOUR) == (1, True)
    assert run_sync(look(bench.io, bench.place, [watch])) <= 60
    other = Watch(watch.schedule, mark_ms=now - 5 * HOUR)  # it lives as well, and is late
    run_sync(look(bench.io, bench.place, [other]))
    assert (other.added, other.skipped, other.mark_ms) == (0, 0, watch.mark_ms)


def test_a_new_schedule_begins_now_and_a_forgotten_one_too(bench: Bench) -> None:
    every = dataclasses.replace(nightly(), cron=Cron("0 * * * *"))
    watch = Watch(every)
    rest = run_sync(look(bench.io, bench.place, [watch]))
    assert (watch.added, 0 < rest <= 60) == (0, True)
    old = now_of(bench) - 32 * 24 * HOUR
    bench.client.command("ZADD", bench.keys.schedules, old, "gone 0 * * * *|UTC")
    occur(bench, every)
    assert bench.client.command("ZRANGE", bench.keys.schedules, 0, -1) == [every.key.encode()]


def test_a_changed_expression_misses_nothing_and_makes_up_for_nothing(bench: Bench) -> None:
    """Old and new workers live side by side while a new version is rolled out."""
    now = now_of(bench)
    old = Watch(dataclasses.replace(nightly(), cron=Cron("0 * * * *")), mark_ms=now - 10 * HOUR)
    run_sync(look(bench.io, bench.place, [old]))
    new = Watch(dataclasses.replace(nightly(), cron=Cron("0 */1 * * *")))
    run_sync(look(bench.io, bench.place, [new]))
    assert (old.added, new.added) == (1, 0)
    assert new.mark_ms >= now
    # What both have is one, as long as its id is remembered.
    new.mark_ms = now - HOUR
    bench.client.command("ZADD", bench.keys.schedules, now - HOUR, new.schedule.key)
    new.next_ms = 0
    run_sync(look(bench.io, bench.place, [new]))
    assert (new.added, new.skipped) == (0, 1)


class Trouble:
    """A port whose server fails a few times; nobody waits on it."""

    def __init__(self, port: Any, *errors: Exception) -> None:
        self._port, self._errors = port, list(errors)
        self.slept: list[float] = []

    async def run(self, call: Any) -> Any:
        if self._errors:
            raise self._errors.pop(0)
        return await self._port.run(call)

    async def call(self, fn: Any, *args: Any) -> Any:
        return fn(*args)

    # time itself: none passes here
    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def chance(self) -> float:
        return 0.5


def test_a_scheduler_goes_on_whatever_goes_wrong(bench: Bench) -> None:
    every = dataclasses.replace(nightly(), cron=Cron("0 * * * *"))
    errors = (Unavailable("away"), ServerError("ERR broken"), RuntimeError("a bug"))
    io, counts = Trouble(bench.io, *errors), dict[str, int]()
    past = now_of(bench) - 3 * HOUR
    bench.client.command("ZADD", bench.keys.schedules, past, every.key)
    run_sync(keep(io, bench.place, [every], counts, len(errors) + 2))  # type: ignore[arg-type]
    assert counts == {"scheduled": 1, "skipped": 0}
    assert len(io.slept) == len(errors) + 1
    run_sync(keep(Trouble(bench.io, ClientClosed("closed")), bench.place, [every], counts))  # type: ignore[arg-type]


# -- the faces --------------------------------------------------------------------------------------


def away_for(client: Any, jobs: Any, hours: int) -> Any:
    """As if all workers had been away."""
    [schedule] = jobs.tasks.schedules
    now = datetime.now(UTC) - timedelta(hours=hours)
    keys = jobs._place.keys
    return client.command("ZADD", keys.schedules, int(now.timestamp() * 1000), schedule.key)


def test_a_worker_makes_up_for_what_was_missed(client: Client) -> None:
    jobs, ran = client.jobs("mail"), []

    @jobs.cron("0 * * * *", tz="Europe/Berlin")
    def tidy() -> None:
        ran.append(1)

    assert tidy.schedule.missed == "one"
    away_for(client, jobs, 10)
    worker = jobs.worker()
    worker.run(burst=True, signals=False)
    assert ran == [1]
    assert worker.counts["scheduled"] == 1
    tidy()
    assert ran == [1, 1]  # called, it just runs


async def test_any_number_of_workers_and_each_time_once(aclient: AsyncClient) -> None:
    jobs, ran = aclient.jobs("mail"), []

    @jobs.cron("0 * * * *", missed="all", overlap="allow")
    async def tidy() -> None:
        ran.append(1)

    await away_for(aclient, jobs, 20)
    workers = [jobs.worker(name=f"w{n}") for n in range(5)]
    tasks = [asyncio.create_task(one.run(signals=False)) for one in workers]
    await until(lambda: len(ran) >= 20)
    for one in workers:
        one.stop()
    await asyncio.gather(*tasks)
    # An hour may begin meanwhile.
    assert 20 <= len(ran) <= 21
    assert sum(one.counts["scheduled"] for one in workers) == len(ran)


async def test_a_time_whose_predecessor_still_runs_is_left_out(aclient: AsyncClient) -> None:
    jobs, ran, go = aclient.jobs("mail"), [], asyncio.Event()

    @jobs.cron("0 * * * *")
    async def tidy() -> None:
        ran.append(1)
        await go.wait()

    await away_for(aclient, jobs, 3)
    first = jobs.worker()
    task = asyncio.create_task(first.run(signals=False))
    await until(lambda: ran == [1])
    await away_for(aclient, jobs, 3)
    # Two hours later: the ids of those times are not the ones that were added.
    keys = jobs._place.keys
    await aclient.command("DEL", keys.remembered)
    watch = Watch(tidy.schedule)
    await look(aclient.port, jobs._place, [watch])
    assert (watch.added, watch.skipped) == (0, 1)
    go.set()
    first.stop()
    await task
    assert ran == [1]


def test_preview(client: Client) -> None:
    jobs = client.jobs("mail")

    @jobs.cron("30 2 * * *", tz="America/New_York")
    def nightly() -> None: ...

    times = nightly.preview(2, datetime(2026, 3, 8, tzinfo=UTC))
    assert [f"{at:%d %H:%M %z}" for at in times] == ["08 03:00 -0400", "09 02:30 -0400"]
    assert nightly.preview(1)[0] > datetime.now(UTC)
    with pytest.raises(Refused, match="has no zone"):
        nightly.preview(1, datetime(2026, 3, 8))  # that is the point


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tz": "Mars/Olympus"}, "unknown time zone"),
        ({"missed": "two"}, "missed is 'one', 'all' or 'skip'"),
        ({"overlap": "some"}, "overlap is 'skip' or 'allow'"),
        ({"missed": "all"}, "choose"),
        ({"unique": "pending"}, "cron does not take unique"),
        ({"retries": -1}, "retries"),
    ],
)
def test_what_cannot_work_is_refused_at_birth(client: Client, options: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        client.jobs("mail").cron("0 * * * *", **options)


def test_a_function_that_needs_arguments_is_refused(client: Client) -> None:
    with pytest.raises(Refused, match="missing a required argument: 'user'"):

        @client.jobs("mail").cron("0 * * * *")  # type: ignore[arg-type]
        def welcome(user: int) -> None: ...


def test_seen_is_told_apart_from_early() -> None:
    assert OCCUR.parse([b"EARLY", 7]) == Early(7)
    assert OCCUR.parse([b"SEEN", 7, 8, b"CH"]) == Seen(7, 8, "CH")
