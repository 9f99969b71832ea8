"""What went wrong in the field with queues, each on a real server."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fencepost import AsyncClient, Client, Denied, LeaseLost, ServerError
from fencepost.jobs import AsyncJobs, JobFailed, this_job
from support.loops import on_both_loops
from support.proxy import Proxy
from support.require import require
from support.servers import ServerProcess, find_binary
from support.until import PATIENCE, until, until_sync

LONG = PATIENCE * 2


@asynccontextmanager
async def working(mail: AsyncJobs, **options: Any) -> AsyncIterator[Any]:
    """A worker beside the test; at its end it is stopped, and has drained."""
    worker = mail.worker(**options)
    task = asyncio.create_task(worker.run(signals=False))
    await until(lambda: (worker._works is not None and worker._works.looked > 0) or task.done())
    try:
        yield worker
    finally:
        worker.stop()
        await task


def renew_now(worker: Any) -> None:
    """Its claims are due, whatever time it is."""
    for job in list(worker._works._running.values()):
        job.due = 0.0


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(server) as proxy:
        yield proxy


@pytest.fixture
def own() -> Iterator[ServerProcess]:
    """A server of one's own, which keeps what it has answered."""
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey", aof="always") as server:
        yield server


# -- delays


async def test_a_delayed_job_is_claimed_by_nobody_until_it_is_due(aclient: AsyncClient) -> None:
    """Others took it at once and held it in a worker's memory; after an hour there were many of it."""
    mail = aclient.jobs("x")

    @mail.job()
    async def later() -> None: ...

    handle = await later.after(hours=2).send()
    async with working(mail) as one, working(mail) as two:
        turns = one.counts["turns"] + two.counts["turns"]
        await until(lambda: one.counts["turns"] + two.counts["turns"] >= turns + 2)
        assert (await handle.status()).state == "due"
        figures = await mail.count()
        assert (figures.due, figures.ready, figures.running) == (1, 0, 0)
        assert one.counts.get("begun", 0) + two.counts.get("begun", 0) == 0


async def test_a_short_delay_does_not_wait_for_a_long_one(aclient: AsyncClient) -> None:
    mail = aclient.jobs("x")
    order: list[str] = []

    @mail.job()
    async def note(name: str) -> None:
        order.append(name)

    async with working(mail):
        await note.after(hours=1).send("long")
        await note.after(seconds=0.4).send("short")
        await (await note.after(seconds=0.1).send("shorter")).result(wait=LONG)
        await until(lambda: len(order) == 2)
    assert order == ["shorter", "short"]


async def test_a_delayed_job_needs_no_other_one_to_wake_a_worker(aclient: AsyncClient) -> None:
    """The token is lost; the worker looks by itself."""
    mail = aclient.jobs("x")

    @mail.job()
    async def later() -> int:
        return 1

    async with working(mail):
        handle = await later.after(seconds=0.2).send()
        await aclient.command("DEL", mail._place.keys.wake)
        now = await later.send()
        await aclient.command("DEL", mail._place.keys.wake)
        assert [await handle.result(wait=LONG), await now.result(wait=LONG)] == [1, 1]


@pytest.mark.parametrize("skew", [3600.0, -3600.0], ids=["ahead", "behind"])
async def test_clocks_of_clients_do_not_matter(
    aclient: AsyncClient, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    mail = aclient.jobs("x")
    began: list[float] = []

    @mail.job()
    async def note() -> None:
        seconds, micros = await aclient.command("TIME")
        began.append(int(seconds) + int(micros) / 1e6)

    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + skew)
    seconds, micros = await aclient.command("TIME")
    sent = int(seconds) + int(micros) / 1e6
    far = await note.after(minutes=30).send()
    async with working(mail):
        near = await note.after(seconds=0.3).send()
        await near.result(wait=LONG)
    assert began[0] >= sent + 0.3
    assert (await far.status()).state == "due"
    assert abs((await far.status()).at - sent - 1800) < 60


async def test_nothing_of_a_queue_expires_but_what_has_ended(aclient: AsyncClient) -> None:
    """A counter with a TTL of a day dropped every job that was older."""
    mail = aclient.jobs("x")

    @mail.job(retries=0, key=lambda ends: "k", unique=600.0)
    async def note(ends: bool) -> None:
        if not ends:
            raise ValueError

    await note.send(True)
    await mail.worker().run(burst=True, signals=False)
    await aclient.command("DEL", mail._place.keys.remembered)
    await note.send(False)
    await mail.worker().run(burst=True, signals=False)
    await note.after(days=4000).send(True)
    ttls = {}
    for key in await aclient.command("KEYS", f"*{aclient.namespace}:jobs:*"):
        ttls[key.decode().rpartition("}:")[2][:2]] = await aclient.command("PTTL", key)
    assert {name for name, ttl in ttls.items() if ttl >= 0} == {"R:"}
    assert len(ttls) > 5


# -- claims


async def test_a_loop_that_its_jobs_hold_up_keeps_its_claims(aclient: AsyncClient) -> None:
    """A thread renews them: others were declared dead while they computed."""
    mail = aclient.jobs("x")
    workers: list[Any] = []

    @mail.job(lease=600)
    async def computes() -> int:
        renewer = workers[0]._works._renewer
        before = renewer.counts["renewed"]

        def often() -> bool:
            renew_now(workers[0])
            return bool(renewer.counts["renewed"] >= before + 3)

        until_sync(often)  # and the loop stands still
        this_job().check()
        return int(renewer.counts["lost"])

    async with working(mail) as worker:
        workers.append(worker)
        assert await (await computes.send()).result(wait=LONG) == 0


async def test_a_job_that_runs_for_longer_than_its_lease_is_not_run_twice(
    aclient: AsyncClient,
) -> None:
    """Others ran what took long two or three times at once, by its age alone."""
    mail = aclient.jobs("x")
    began: list[int] = []
    go = asyncio.Event()

    @mail.job(lease=600)
    async def long() -> None:
        began.append(1)
        await go.wait()

    handle = await long.send()
    async with working(mail) as one, working(mail) as two:
        await until(lambda: bool(began))
        first = one if one._works._running else two
        for _ in range(3):
            # Its lease has nearly ended; the renewal comes before.
            key = mail._place.keys.claimed
            seconds, _ = await aclient.command("TIME")
            await aclient.command("ZADD", key, "XX", (int(seconds) + 60) * 1000, handle.id)
            renewed = first._works._renewer.counts["renewed"]
            renew_now(first)
            await until(lambda n=renewed: first._works._renewer.counts["renewed"] > n)  # type: ignore[misc]
            left = float(await aclient.command("ZSCORE", key, handle.id)) / 1000 - int(seconds)
            assert left > 500
        turns = one.counts["turns"] + two.counts["turns"]
        await until(lambda: one.counts["turns"] + two.counts["turns"] > turns + 1)
        go.set()
        await handle.result(wait=LONG)
    assert began == [1]


async def test_a_thread_is_told_that_its_claim_is_lost(aclient: AsyncClient) -> None:
    """It can't be cancelled: it asks, and what it says at its end is refused."""
    mail = aclient.jobs("x")
    seen: list[Any] = []
    begun = threading.Event()

    @mail.job(lease=600)
    def long() -> None:
        job = this_job()
        begun.set()
        until_sync(lambda: job.lost)
        with pytest.raises(LeaseLost, match="gave it to another"):
            job.check()
        seen.append(job.fence)

    handle = await long.send()
    async with working(mail) as worker:
        await until(begun.is_set)
        assert await handle.cancel(running=True) == "stopped"
        renew_now(worker)
        await until(lambda: bool(seen))
        await until(lambda: worker.counts.get("refused", 0) == 1)
    with pytest.raises(JobFailed, match="cancelled"):
        await handle.result()


async def test_a_late_failure_replaces_no_success(aclient: AsyncClient) -> None:
    mail = aclient.jobs("x")
    go = asyncio.Event()
    ran: list[int] = []

    @mail.job(lease=600)
    async def odd() -> str:
        ran.append(1)
        if len(ran) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("too late") from None
        return "second"

    handle = await odd.send()
    async with working(mail, concurrency=1) as first:
        await until(lambda: bool(ran))
        await aclient.command("ZADD", mail._place.keys.claimed, "XX", 1, handle.id)
        async with working(mail, concurrency=1):
            assert await handle.result(wait=LONG) == "second"
        renew_now(first)
        await until(lambda: first.counts.get("refused", 0) == 1)
        go.set()
    assert await handle.result() == "second"
    assert await mail.dead.list() == []


# -- what is asked of the server


async def test_an_idle_worker_asks_two_commands_a_look(
    aclient: AsyncClient, own: ServerProcess
) -> None:
    """Others cost hundreds a second for heartbeats alone."""
    async with AsyncClient.from_url(own.unix_url) as client:
        mail = client.jobs("x")

        @mail.job()
        async def note() -> None: ...

        await note.after(hours=1).send()
        async with working(mail) as worker:
            await until(lambda: worker.counts["turns"] >= 2)
            before, turns = await _calls(client), worker.counts["turns"]
            await until(lambda: worker.counts["turns"] >= turns + 2)
            asked = await _calls(client) - before
    assert asked <= 2 * 2 + 2 + 1  # the looks, one that may be under way, and our own INFO


async def _calls(client: AsyncClient) -> int:
    stats = (await client.command("INFO", "commandstats")).decode()
    names = ("cmdstat_evalsha", "cmdstat_blpop", "cmdstat_eval", "cmdstat_ping", "cmdstat_info")
    return sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in stats.splitlines()
        if line.partition(":")[0] in names
    )


async def test_what_has_ended_leaves_nothing_behind(aclient: AsyncClient) -> None:
    """Others kept acknowledged entries: 200 MB in four days."""
    mail = aclient.jobs("x")

    @mail.job(result_ttl=0, key=lambda n: str(n))
    async def note(n: int) -> None: ...

    await mail.add_many(note.message(n) for n in range(200))
    await mail.worker(concurrency=20).run(burst=True, signals=False)
    keys = await aclient.command("KEYS", f"*{aclient.namespace}:jobs:*")
    # The epoch, and what is known of the worker.
    assert {key.decode().rpartition("}:")[2] for key in keys} <= {"q", "w", "k", "l", "t"}


# -- connections and servers that end


@on_both_loops
async def test_replies_that_are_lost_lose_and_double_nothing(
    server_url: str, namespace: str, proxy: Proxy
) -> None:
    """Cut again and again, in both directions, at a turn, an add, a renewal."""
    async with (
        AsyncClient.from_url(proxy.url, namespace=namespace) as client,
        AsyncClient.from_url(server_url, namespace=namespace) as plain,
    ):
        mail = client.jobs("x")

        @mail.job(lease=600)
        async def counts(number: int) -> int:
            return int(await plain.command("HINCRBY", f"{namespace}:ran", number, 1))

        handles: list[Any] = []
        async with working(mail, concurrency=5):
            for number in range(60):
                proxy.fault("reply" if number % 2 else "request", "EVALSHA", "cut")
                handles.append(await counts.send(number))
            assert [await one.result(wait=LONG) for one in handles] == [1] * 60
        ran = await plain.command("HGETALL", f"{namespace}:ran")
        assert len(ran) == 60
        figures = await mail.count()
        assert (figures.ready, figures.due, figures.running, figures.dead) == (0, 0, 0, 0)


async def test_a_server_that_restarts_finds_its_workers_again(own: ServerProcess) -> None:
    """What runs goes on, and is acknowledged when the server is back; who waits, waits again."""
    async with AsyncClient.from_url(own.url, budget=1.0) as client:
        mail = client.jobs("x")
        go = asyncio.Event()
        ran: list[int] = []

        @mail.job(lease=600)
        async def holds(number: int) -> int:
            ran.append(number)
            await go.wait()
            return number

        first = await holds.send(1)
        async with working(mail):
            await until(lambda: ran == [1])
            own.kill()
            go.set()
            own.start()
            assert await first.result(wait=LONG) == 1
            assert await (await holds.send(2)).result(wait=LONG) == 2
        assert ran == [1, 2]
        assert await mail.dead.list() == []


async def test_a_server_that_comes_back_empty_refuses_what_it_does_not_know(
    own: ServerProcess,
) -> None:
    async with AsyncClient.from_url(own.url, budget=1.0) as client:
        mail = client.jobs("x")
        go = asyncio.Event()
        fences: list[int] = []

        @mail.job(lease=600)
        async def holds() -> None:
            fences.append(this_job().fence)
            if len(fences) == 1:
                await go.wait()

        await holds.named("same").send()
        async with working(mail) as worker:
            await until(lambda: len(fences) == 1)
            await client.command("FLUSHALL")
            again = await holds.named("same").send()
            await again.result(wait=LONG)
            go.set()
            await until(lambda: worker.counts.get("refused", 0) == 1)
        assert fences == sorted(set(fences))
        assert len(fences) == 2


async def test_a_worker_whose_connections_are_cut_consumes_again(
    server_url: str, namespace: str, proxy: Proxy
) -> None:
    """Others lived on and consumed nothing; a worker's sign of life is its last answer."""
    async with AsyncClient.from_url(proxy.url, namespace=namespace) as client:
        mail = client.jobs("x")

        @mail.job()
        async def note(n: int) -> int:
            return n

        assert mail.worker().silent == math.inf
        async with working(mail) as worker:
            for n in range(3):
                looked = worker._works.looked
                proxy.cut()
                assert await (await note.send(n)).result(wait=LONG) == n
                await until(lambda at=looked: worker._works.looked > at)  # type: ignore[misc]
            assert 0 <= worker.silent < math.inf
            proxy.hold("request")
            proxy.cut()
            await until(lambda: worker.silent > 3)  # it lives, and says that it is of no use
            proxy.release("request")
            await until(lambda: worker.silent < 1)


async def test_a_worker_stops_though_its_server_is_away(
    own: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't say its last words, and does not wait for ever to say them."""
    monkeypatch.setattr("fencepost.jobs.worker._LAST_WORDS", 0.2)
    async with AsyncClient.from_url(own.url, budget=0.5) as client:
        mail = client.jobs("x")
        told: list[bool] = []
        begun = asyncio.Event()

        @mail.job(lease=600)
        async def holds() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                told.append(this_job().lost)

        await holds.send()
        async with working(mail, grace=0.0):
            await until(begun.is_set)
            own.kill()
        assert told == [True]


async def test_a_queue_whose_keys_are_something_else_ends_its_worker_loudly(
    aclient: AsyncClient,
) -> None:
    mail = aclient.jobs("x")
    await aclient.command("SET", mail._place.keys.ready, "no sorted set")
    worker = mail.worker()
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await worker.run(signals=False)


async def test_a_worker_whose_credentials_are_wrong_ends_at_once(own: ServerProcess) -> None:
    async with AsyncClient.from_url(own.unix_url) as good:
        await good.command("CONFIG", "SET", "requirepass", "right")
        url = own.url.replace("redis://", "redis://:wrong@", 1)
        async with AsyncClient.from_url(url) as client:
            worker = client.jobs("x").worker()
            with pytest.raises(Denied):
                await worker.run(signals=False)


async def test_a_paused_queue_begins_nothing_and_what_runs_goes_on(aclient: AsyncClient) -> None:
    mail = aclient.jobs("x")
    go = asyncio.Event()
    ran: list[int] = []

    @mail.job()
    async def note(n: int) -> None:
        ran.append(n)
        await go.wait()

    first = await note.send(1)
    async with working(mail) as worker:
        await until(lambda: ran == [1])
        await mail.pause()
        second = await note.send(2)
        go.set()
        await first.result(wait=LONG)
        turns = worker.counts["turns"]
        await until(lambda: worker.counts["turns"] > turns)
        assert ((await second.status()).state, ran) == ("ready", [1])
        await mail.resume()
        await second.result(wait=LONG)


def test_a_sender_in_threads_wakes_a_worker_in_a_loop(client: Client, server_url: str) -> None:
    mail = client.jobs("x")
    ran = threading.Event()

    @mail.job()
    def note() -> None:
        ran.set()

    worker = mail.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    until_sync(lambda: worker._works is not None and worker._works.looked > 0)
    note.send()
    until_sync(ran.is_set)
    worker.stop()
    thread.join()
