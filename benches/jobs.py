"""Jobs: sent, run, late by how much, woken how soon, and what a delayed one takes; beside arq and saq."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import sys
import time
from functools import partial
from typing import Any

import hiredis

from benches import peers
from benches.runner import Case, Row, Scale, Spent, duel, say, server
from fencepost import AsyncClient

ENQUEUE_AIM = 6_000  # a second, one by one
BATCH_AIM = 100_000  # a second, in hundreds
RUN_AIM = 8.0  # times the best peer, 50 at once
LATE_AIM = (2.0, 5.0)  # ms, median and 99 %
BYTES_AIM = 150  # a delayed job, over what its id and its body take
CALL_AIM = 5.0  # ms, the longest call of the server while very many are overdue


class _Queue(peers.Piped):
    """A contestant in another process; see ``jobs_worker.py``."""

    def __init__(self, group: str, path: str, op: str) -> None:
        python = sys.executable if group == "ours" else str(peers.python_of(group))
        self._words = [python, str(peers.HERE / "jobs_worker.py"), group, path]
        self._op, self._path, self._group = op, path, group

    def round(self, calls: int) -> Spent:
        # What was sent and not run is in nobody's way later.
        if not self._op.startswith("run:"):
            _flush(self._path)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words: list[str] = []
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{self._op} {calls}\n")
            words = self._process.stdout.readline().split()
        if not words:
            raise peers.NotHere(f"{self._group} ended: see above")
        return Spent(int(words[0]), float(words[1]), float(words[2]))


def _flush(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(hiredis.pack_command(("FLUSHALL",)))
        sock.recv(100)


def _beside(op: str, what: str, aim: float | None, scale: Scale) -> list[Row]:
    rows: list[Row] = []
    for group in peers.groups("jobs"):
        try:
            with (
                server() as mine,
                server() as theirs,
                _Queue("ours", mine, op) as ours,
                _Queue(group, theirs, op) as peer,
            ):
                result = duel(ours, peer, scale)
        except peers.NotHere as error:
            say(f"  left out: {error}")
            continue
        rows += [result.rate(what, group, aim), result.cpu(what, group)]
    return rows


def _sent(op: str, what: str, aim: float, scale: Scale) -> list[Row]:
    with server() as path, _Queue("ours", path, op) as ours:
        ours.round(1000)
        rates = [ours.round(4000).per_second for _ in range(scale.rounds)]
    rate = statistics.median(rates)
    return [Row(what, "calls/s", rate, "the aim", aim, rate / aim, 1.0)]


# -- lateness and waking up


def _late(scale: Scale) -> list[Row]:
    async def measure(path: str) -> tuple[list[float], list[float]]:
        late: list[float] = []
        woken: list[float] = []
        async with AsyncClient.from_url(f"unix://{path}") as client:
            mail = client.jobs("late")

            @mail.job(result_ttl=0)
            async def due(at: float) -> None:
                late.append((time.time() - at) * 1000)

            @mail.job(result_ttl=0)
            async def now(sent: float) -> None:
                woken.append((time.perf_counter() - sent) * 1000)

            worker = mail.worker(concurrency=50)
            task = asyncio.create_task(worker.run(signals=False))
            await asyncio.sleep(0.2)
            count = 100 * scale.rounds
            for number in range(count):
                after = 0.3 + number * 0.003
                await due.after(seconds=after).send(time.time() + after)
            while len(late) < count:
                await asyncio.sleep(0.01)
            for _ in range(10 * scale.rounds):
                await asyncio.sleep(0.02)  # it sleeps by now
                await now.send(time.perf_counter())
            while len(woken) < 10 * scale.rounds:
                await asyncio.sleep(0.01)
            worker.stop()
            await task
        return late, woken

    with server() as path:
        late, woken = asyncio.run(measure(path))
    late.sort()
    rows = []
    for name, at, aim in (("median", 0.5, LATE_AIM[0]), ("99 %", 0.99, LATE_AIM[1])):
        figure = late[int(len(late) * at)]
        rows.append(
            Row(
                f"a delayed job begins late, {name}",
                "ms",
                figure,
                "the aim",
                aim,
                aim / figure,
                1.0,
            )
        )
    wake = statistics.median(woken)
    rows.append(Row("an idle worker wakes up", "ms", wake, "the aim", 2.0, 2.0 / wake, 1.0))
    return rows


def _idle(scale: Scale) -> list[Row]:
    async def calls(client: AsyncClient) -> int:
        stats = (await client.command("INFO", "stats")).decode()
        line = next(one for one in stats.splitlines() if one.startswith("total_commands"))
        return int(line.partition(":")[2])

    async def measure(path: str) -> float:
        async with AsyncClient.from_url(f"unix://{path}") as client:
            mail = client.jobs("idle")
            worker = mail.worker()
            task = asyncio.create_task(worker.run(signals=False))
            await asyncio.sleep(0.3)
            seconds = 4.0 + scale.seconds * 10
            before = await calls(client)
            await asyncio.sleep(seconds)
            asked = await calls(client) - before - 1
            worker.stop()
            await task
        return asked / seconds

    with server() as path:
        rate = asyncio.run(measure(path))
    # A script counts as one command, and so does each that it runs.
    return [Row("an idle worker asks, scripts' own commands included", "commands/s idle", rate)]


# -- size, and very many


def _size(scale: Scale) -> list[Row]:
    async def measure(path: str) -> float:
        async with AsyncClient.from_url(f"unix://{path}") as client:
            mail = client.jobs("size")

            @mail.job()
            async def later(number: int) -> None: ...

            async def used() -> int:
                info = (await client.command("INFO", "memory")).decode()
                line = next(one for one in info.splitlines() if one.startswith("used_memory:"))
                return int(line.partition(":")[2])

            await mail.add_many([later.after(days=1).message(1)])
            before, count = await used(), 50_000
            for _ in range(count // 500):
                await mail.add_many([later.after(days=1).message(1) for _ in range(500)])
            new = later.new((1,), {})
            return (await used() - before) / count - len(new.id) - len(new.record)

    with server() as path:
        size = asyncio.run(measure(path))
    return [
        Row(
            "a delayed job, over its id and body",
            "bytes",
            size,
            "the aim",
            BYTES_AIM,
            BYTES_AIM / size,
            1.0,
        )
    ]


def _overdue(count: int, scale: Scale) -> list[Row]:
    async def measure(path: str) -> tuple[float, float]:
        # The script that makes them late takes its time.
        async with AsyncClient.from_url(f"unix://{path}", budget=60.0) as client:
            mail = client.jobs("overdue")
            ran = 0

            @mail.job(result_ttl=0)
            async def later(number: int) -> None:
                nonlocal ran
                ran += 1

            keys = mail._place.keys
            for _ in range(count // 500):
                await mail.add_many([later.after(days=1).message(1) for _ in range(500)])
            # Their time has come: as if nobody had worked for a day.
            await client.command(
                "EVAL",
                "local all = redis.call('ZRANGE', KEYS[1], 0, -1) redis.call('DEL', KEYS[1])"
                " for _, id in ipairs(all) do redis.call('ZADD', KEYS[1], 1.3125, id) end",
                1,
                keys.due,
            )
            await client.command("CONFIG", "SET", "slowlog-log-slower-than", 500)
            await client.command("SLOWLOG", "RESET")
            began = time.perf_counter()
            await mail.worker(concurrency=50).run(burst=True, signals=False)
            took = time.perf_counter() - began
            assert ran == count // 500 * 500
            slow: list[Any] = await client.command("SLOWLOG", "GET", 1000)
            longest = max((entry[2] for entry in slow if b"EVALSHA" in entry[3][0]), default=500)
        return longest / 1000, ran / took

    with server() as path:
        longest, rate = asyncio.run(measure(path))
    what = f"{count:,} overdue at start"
    return [
        Row(
            f"{what}: the longest call", "ms", longest, "the aim", CALL_AIM, CALL_AIM / longest, 1.0
        ),
        Row(f"{what}: run", "calls/s", rate),
    ]


def cases() -> list[Case]:
    sent, many = "a job is sent, one by one", "jobs are sent in hundreds"
    return [
        Case("jobs sent", partial(_sent, "one", sent, ENQUEUE_AIM)),
        Case("jobs sent in hundreds", partial(_sent, "many", many, BATCH_AIM)),
        Case("jobs sent, peers", partial(_beside, "one", sent, None), full=True),
        Case("jobs sent in hundreds, peers", partial(_beside, "many", many, None), full=True),
        *(
            Case(
                f"jobs run, {width} at once",
                partial(
                    _beside,
                    f"run:{width}",
                    f"jobs run, {width} at once",
                    RUN_AIM if width == 50 else None,
                ),
                full=True,
            )
            for width in (1, 10, 50, 500)
        ),
        Case("jobs late", _late),
        Case("jobs idle", _idle),
        Case("jobs size", _size),
        Case("jobs overdue, 20,000", partial(_overdue, 20_000)),
        Case("jobs overdue, a million", partial(_overdue, 1_000_000), full=True),
    ]
