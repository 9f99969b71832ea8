"""Queues as applications use them: both faces, real workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost import AsyncClient, Client, Refused, ServerError, WaitTimeout
from fencepost.jobs import (
    AsyncJobs,
    Backoff,
    Cancel,
    JobFailed,
    Retry,
    Snooze,
    protocol,
    this_job,
)
from fencepost.jobs.api import _batches
from fencepost.jobs.record import new_id
from support.until import until

LONG = 60.0  # seconds: what never ends within a test


@asynccontextmanager
async def working(mail: AsyncJobs, **options: Any) -> AsyncIterator[Any]:
    """A worker beside the test; at its end it is stopped, and has drained."""
    async with mail.worker(**options) as worker:
        yield worker


def renew_now(worker: Any) -> None:
    """Its claims are due, whatever time it is."""
    for job in worker._works._running.values():
        job.due = 0.0


async def test_sent_run_and_asked(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")

    @mail.job()
    async def double(number: int) -> int:
        return number * 2

    @mail.job()
    def shout(text: str, *, times: int = 1) -> str:
        return text.upper() * times

    assert await double(4) == 8
    assert shout("a") == "A"
    handle = await double.send(7)
    assert handle.created
    assert (await handle.status()).state == "ready"
    with pytest.raises(WaitTimeout, match="is ready"):
        await handle.result()
    async with working(mail):
        assert await handle.result(wait=LONG) == 14
        assert await (await shout.send("ab", times=2)).result(wait=LONG) == "ABAB"
    assert (await handle.status()).state == "done"
    assert await mail.handle(handle.id).result() == 14


async def test_a_worker_beside_an_application(aclient: AsyncClient) -> None:
    """It drains at the end of its block, begins once, and what ended it is told there."""
    mail, ended = aclient.jobs("mail"), asyncio.Event()

    @mail.job()
    async def ends_late() -> None:
        await asyncio.sleep(0)
        ended.set()

    worker = mail.worker()
    async with worker:
        handle = await ends_late.send()
        await until(lambda: worker.counts.get("begun", 0) == 1)
    assert ended.is_set()
    assert (await handle.status()).state == "done"
    with pytest.raises(Refused, match="make another one"):
        async with worker:
            pass
    await aclient.command("SET", mail._place.keys.due, "no queue")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        async with mail.worker() as worker:
            await until(lambda: worker._task.done())

    async def fails() -> None:
        async with mail.worker() as broken:
            await until(lambda: broken._task.done())
            raise KeyError

    with pytest.raises(KeyError):  # the body's own is never masked
        await fails()


def test_a_worker_beside_an_application_of_threads(client: Client) -> None:
    mail, ended = client.jobs("mail"), threading.Event()

    @mail.job()
    def note() -> None:
        ended.set()

    worker = mail.worker()
    with worker:
        handle = note.send()
        assert ended.wait(LONG)
    assert handle.status().state == "done"
    with pytest.raises(Refused, match="make another one"), worker:
        pass
    client.command("SET", mail._place.keys.due, "no queue")
    with pytest.raises(ServerError, match="WRONGTYPE"), mail.worker() as broken:
        broken._thread.join(LONG)


async def test_who_waits_is_told(aclient: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """And need not look: here it would do so once in a thousand seconds."""
    monkeypatch.setattr(protocol, "POLL", 1000.0)
    mail = aclient.jobs("mail")
    go = asyncio.Event()

    @mail.job(retries=0)
    async def holds(fails: bool) -> int:
        await go.wait()
        if fails:
            raise ValueError("no")
        return 1

    async with working(mail):
        ends, fails = await holds.send(False), await holds.send(True)
        waiting = [asyncio.create_task(one.result(wait=1000)) for one in (ends, fails)]
        key = mail._place.keys.head
        while not await aclient.command("HEXISTS", key, "waits"):  # noqa: ASYNC110  # they say so
            await asyncio.sleep(0)
        go.set()
        done, _ = await asyncio.wait(waiting, timeout=LONG)
        assert len(done) == 2
        assert waiting[0].result() == 1
        assert isinstance(waiting[1].exception(), JobFailed)


def test_from_threads(client: Client) -> None:
    mail = client.jobs("mail")
    ran: list[int] = []

    @mail.job()
    def note(number: int) -> int:
        ran.append(number)
        return -number

    handle = note.send(1)
    later = note.after(hours=24).send(2)
    many = mail.add_many(note.message(n) for n in range(3, 6))
    assert later.status().state == "due"
    mail.worker(concurrency=2).run(burst=True)
    assert sorted(ran) == [1, 3, 4, 5]
    assert handle.result() == -1
    assert [one.result(wait=LONG) for one in many] == [-3, -4, -5]
    assert later.move(seconds=0)
    mail.pause()
    mail.worker().run(burst=True)
    assert mail.count().ready == 1
    mail.resume()
    mail.worker().run(burst=True)
    assert later.result() == -2
    gone = note.after(hours=1).send(9)
    assert gone.cancel() == "cancelled"
    with pytest.raises(JobFailed, match="cancelled"):
        gone.result()


def test_a_worker_of_threads_is_stopped_from_another_thread(client: Client) -> None:
    mail = client.jobs("mail")
    ran = threading.Event()

    @mail.job()
    def note() -> None:
        ran.set()

    worker = mail.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    note.send()
    assert ran.wait(LONG)
    worker.stop()
    thread.join(LONG)
    assert not thread.is_alive()
    assert worker.counts["done"] == 1


async def test_later_and_at_a_moment(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")

    @mail.job()
    async def remind() -> None: ...

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    at = await remind.at(tomorrow).send()
    assert abs((await at.status()).at - tomorrow.timestamp()) < 0.002
    after = await remind.after(minutes=5, seconds=1).send()
    seconds, _ = await aclient.command("TIME")
    assert 299 < (await after.status()).at - int(seconds) < 303
    with pytest.raises(Refused, match="no zone"):
        remind.at(datetime(2030, 1, 1))
    for bad in ({"hours": -1}, {"days": 1e6}, {"seconds": float("nan")}, {"seconds": "1"}):
        with pytest.raises(Refused):
            remind.after(**bad)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="not both"):
        await at.move(at=tomorrow, hours=1)


@dataclass
class Parcel:
    """What a job is about."""

    weight: float
    until: datetime


async def test_arguments_are_checked_and_typed(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")
    got: list[Any] = []

    @mail.job()
    async def carry(parcel: Parcel, *more: int, to: str = "x") -> Parcel:
        got.append((parcel, more, to))
        return parcel

    parcel = Parcel(1.5, datetime(2030, 1, 1, tzinfo=UTC))
    handle = await carry.send(parcel, 1, 2, to="y")
    await mail.worker().run(burst=True, signals=False)
    assert got == [(parcel, (1, 2), "y")]
    assert await handle.result() == parcel
    with pytest.raises(Refused, match="missing a required argument"):
        await carry.send()  # type: ignore[call-arg]
    with pytest.raises(Refused, match="can't be stored"):
        await carry.send(object())  # type: ignore[arg-type]
    with pytest.raises(Refused, match="more than max_body"):
        await carry.send(parcel, to="x" * 70_000)
    assert (await mail.count()).ready == 0


async def test_many_are_sent_in_calls_of_bounded_size(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")
    ran: list[int] = []

    @mail.job(result_ttl=0)
    async def note(number: int, text: str) -> None:
        ran.append(number)

    text = "x" * 60_000
    many = [note.message(n, text if n < 40 else "") for n in range(1300)]
    sizes = [sum(len(one.new.record) for one in some) for some in _batches(many)]
    assert sum(sizes) == sum(len(one.new.record) for one in many)
    assert max(sizes) <= 1024 * 1024
    assert len(await mail.add_many(many)) == 1300
    assert await mail.add_many([]) == []
    await mail.worker(concurrency=100).run(burst=True, signals=False)
    assert sorted(ran) == list(range(1300))


async def test_what_fails_is_tried_again_and_then_given_up(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")
    seen: list[int] = []

    @mail.job(retries=2, backoff=Backoff(0, jitter=0))
    async def fails() -> None:
        seen.append(this_job().tries)
        raise ValueError("no luck")

    handle = await fails.send()
    await mail.worker().run(burst=True, signals=False)
    assert seen == [0, 1, 2]
    with pytest.raises(JobFailed, match="ValueError: no luck") as caught:
        await handle.result()
    assert caught.value.state == "dead"
    [dead] = await mail.dead.list()
    assert (dead.id, dead.task, dead.tries, dead.crashes) == (handle.id, "fails", 3, 0)
    assert await mail.dead.replay(dead.id) == 1
    await mail.worker().run(burst=True, signals=False)
    assert seen == [0, 1, 2] * 2
    assert await mail.dead.discard(dead.id) == 1
    assert await mail.dead.list() == []


async def test_a_job_says_what_becomes_of_it(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")
    seen: list[str] = []

    @mail.job(retries=1)
    async def asks(how: str) -> str:
        job = this_job()
        seen.append(f"{how} {job.tries}")
        if how == "retry" and job.tries == 0:
            raise Retry("not yet", after=0)
        if how == "snooze" and seen.count("snooze 0") < 4:
            raise Snooze(0)
        if how == "cancel":
            raise Cancel("not wanted")
        return how

    handles = {how: await asks.send(how) for how in ("retry", "snooze", "cancel")}
    await mail.worker().run(burst=True, signals=False)
    assert await handles["retry"].result() == "retry"
    assert await handles["snooze"].result() == "snooze"
    with pytest.raises(JobFailed, match="not wanted"):
        await handles["cancel"].result()
    assert sorted(seen) == ["cancel 0", "retry 0", "retry 1", *["snooze 0"] * 4]
    with pytest.raises(Refused, match="called, not sent"):
        await asks("x")


async def test_unknown_tasks_and_bodies_that_cant_be_read_are_shown_and_the_rest_goes_on(
    aclient: AsyncClient,
) -> None:
    mail, older = aclient.jobs("mail"), aclient.jobs("mail")
    ran: list[int] = []

    @mail.job()
    async def note(number: int) -> None:
        ran.append(number)

    @older.job()
    async def removed() -> None: ...

    @older.job(name="note")
    async def before(number: str) -> None: ...

    unknown = await removed.send()
    mistyped = await before.send("seven")
    garbled = await note.send(1)
    await aclient.command("HSET", mail._place.keys.bodies, garbled.id, b"1 20000 5 3 - - 0\n\xc1")
    await note.send(2)
    await mail.worker().run(burst=True, signals=False)
    assert ran == [2]
    dead = {one.id: one.why for one in await mail.dead.list()}
    assert "no task 'removed'" in dead[unknown.id]
    assert "arguments" in dead[mistyped.id]
    assert "can't be decoded" in dead[garbled.id]
    await older.dead.replay(unknown.id)
    await older.worker().run(burst=True, signals=False)
    assert (await unknown.status()).state == "done"


async def test_a_job_that_takes_too_long_is_cancelled_and_a_thread_cant_be(
    aclient: AsyncClient,
) -> None:
    mail = aclient.jobs("mail")

    @mail.job(time_limit=0.05, retries=0)
    async def hangs() -> None:
        await asyncio.Event().wait()

    handle = await hangs.send()
    await mail.worker().run(burst=True, signals=False)
    with pytest.raises(JobFailed, match=r"time_limit 0\.05 s"):
        await handle.result()
    with pytest.raises(Refused, match="a thread, which can't be stopped"):

        @mail.job(time_limit=1)
        def plain() -> None: ...


async def test_unique_keys_and_their_verdicts(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")
    go = asyncio.Event()

    @mail.job(key=lambda user: f"welcome:{user}")
    async def welcome(user: int) -> None:
        await go.wait()

    @mail.job(key=lambda user: f"digest:{user}", debounce=3600)
    async def digest(user: int, page: int = 0) -> None: ...

    first = await welcome.send(7)
    assert (await welcome.send(7)).verdict == "kept"
    assert (await welcome.send(8)).verdict == "created"
    async with working(mail):
        while (await first.status()).state != "running":  # noqa: ASYNC110  # in a worker
            await asyncio.sleep(0)
        refused = await welcome.send(7)
        assert (refused.verdict, refused.id, refused.created) == ("running", first.id, False)
        go.set()
    assert (await welcome.send(7)).created
    one = await digest.send(7)
    again = await digest.send(7)
    assert (again.verdict, again.id) == ("moved", one.id)
    assert (await one.status()).state == "due"
    with pytest.raises(Refused, match="needs a key"):

        @mail.job(debounce=1)
        async def keyless() -> None: ...


async def test_an_id_of_ones_own_is_the_same_job(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")
    ran: list[int] = []

    @mail.job()
    async def note(number: int) -> None:
        ran.append(number)

    occurrence = note.named("nightly 2026-03-08T02:30 {x}", remember=3600)
    assert (await occurrence.send(1)).created
    assert (await occurrence.after(hours=1).send(2)).verdict == "kept"
    await mail.worker().run(burst=True, signals=False)
    assert (await occurrence.send(3)).verdict == "kept"
    await mail.worker().run(burst=True, signals=False)
    assert ran == [1]
    with pytest.raises(Refused):
        note.named("")


async def test_a_running_job_that_is_cancelled_is_stopped(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")
    told: list[str] = []
    begun = asyncio.Event()

    @mail.job(lease=30)
    async def long() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(f"lost: {this_job().lost}")
            raise

    handle = await long.send()
    async with working(mail) as worker:
        await asyncio.wait_for(begun.wait(), LONG)
        assert await handle.cancel() == "running"
        assert await handle.cancel(running=True) == "stopped"
        renew_now(worker)
        await until(lambda: bool(told))
    assert told == ["lost: True"]
    with pytest.raises(JobFailed, match="cancelled"):
        await handle.result()


async def test_priorities(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")
    ran: list[str] = []

    def noting(name: str, priority: int) -> Any:
        @mail.job(name=name, priority=priority)
        async def note() -> None:
            ran.append(name)

        return note

    for name, priority in (("last", 9), ("plain", 5), ("first", 0)):
        await noting(name, priority).send()
    await mail.worker(concurrency=1).run(burst=True, signals=False)
    assert ran == ["first", "plain", "last"]


async def test_a_queue_runs_no_more_at_once_than_its_limit(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail", limit=3)
    inside, most = 0, 0

    @mail.job()
    async def counts() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    await mail.add_many(counts.message() for _ in range(40))
    async with working(mail, concurrency=8), working(mail, concurrency=8):
        while (await mail.count()).ready:  # noqa: ASYNC110  # in the workers
            await asyncio.sleep(0)
    assert most == 3


async def test_a_job_knows_its_fence(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")
    seen: list[tuple[int, str]] = []

    @mail.job()
    async def writes() -> None:
        job = this_job()
        assert job.check() > 0
        await aclient.fenced_set(f"{aclient.namespace}:doc", "x", job)
        seen.append((job.fence, job.token))

    @mail.job()
    def in_a_thread() -> int:
        return this_job().fence

    first, second = await writes.send(), await in_a_thread.send()
    await mail.worker().run(burst=True, signals=False)
    assert seen[0][1] == first.id
    assert await second.result() > 10**15


async def test_a_result_that_cant_be_kept_is_told(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail", max_result=100)

    @mail.job()
    async def large(kind: str) -> Any:
        return "x" * 1000 if kind == "large" else object()

    @mail.job(result_ttl=0)
    async def unkept() -> object:
        return object()

    handles = [await large.send("large"), await large.send("odd"), await unkept.send()]
    await mail.worker().run(burst=True, signals=False)
    with pytest.raises(JobFailed, match="more than max_result"):
        await handles[0].result()
    with pytest.raises(JobFailed, match="can't be stored"):
        await handles[1].result()
    with pytest.raises(JobFailed, match="nothing was kept"):
        await handles[2].result()


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"retries": 1.5},
        {"backoff": 3},
        {"lease": 0},
        {"lease": 1e6},
        {"time_limit": 0},
        {"priority": 10},
        {"crashes": 0},
        {"unique": "always"},
        {"unique": 0},
        {"debounce": -1},
        {"result_ttl": -1},
        {"name": ""},
    ],
    ids=str,
)
async def test_what_can_not_work_is_refused_at_the_door(
    aclient: AsyncClient, options: dict[str, Any]
) -> None:
    with pytest.raises(Refused):
        aclient.jobs("mail").job(**options)


async def test_more_that_can_not_work(aclient: AsyncClient) -> None:
    mail = aclient.jobs("mail")

    @mail.job()
    async def note() -> None: ...

    with pytest.raises(Refused, match="already"):

        @mail.job(name="note")
        async def other() -> None: ...

    with pytest.raises(Refused):
        aclient.jobs("")
    with pytest.raises(Refused, match="limit"):
        aclient.jobs("mail", limit=-1)
    for bad in ({"concurrency": 0}, {"concurrency": 10_000}, {"grace": -1}):
        with pytest.raises(Refused):
            mail.worker(**bad)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="another queue"):
        await aclient.jobs("other").add_many([note.message()])
    with pytest.raises(Refused, match=r"task\.message"):
        await mail.add_many([note])  # type: ignore[list-item]
    for wrong in ({"base": -1}, {"factor": 0.5}, {"jitter": 2}, {"cap": float("nan")}):
        with pytest.raises(Refused):
            Backoff(**wrong)
    worker = mail.worker()
    await worker.run(burst=True, signals=False)
    with pytest.raises(Refused, match="another one"):
        await worker.run()


def test_backoff_grows_and_is_spread() -> None:
    backoff = Backoff(2, factor=3, jitter=0.5, cap=100)
    assert [backoff.delay(n, 1.0) for n in (1, 2, 3, 4, 5, 5000)] == [2, 6, 18, 54, 100, 100]
    assert backoff.delay(1, 0.0) == 1
    assert Backoff(2, jitter=0).delay(1, 0.3) == 2


def test_ids_of_one_process_sort_as_they_were_made() -> None:
    ids = [new_id() for _ in range(1000)]
    assert ids == sorted(set(ids))
