"""Queues of jobs, each in its own venv: ``jobs_worker.py GROUP SOCKET``.

Each line of input is an operation and a number: ``one 100`` sends so many one by one, ``many 100`` in
hundreds, ``run:50 100`` runs so many that were sent before, 50 at once. Each line of output is what it
took: calls, seconds, CPU. Retries and results are on, as each has them by default.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

ran = 0


class Queue(Protocol):
    """What is measured."""

    async def send(self) -> None: ...
    async def send_hundred(self) -> None: ...
    async def run(self, jobs: int, width: int) -> None: ...


class Ours:
    def __init__(self, client: Any) -> None:
        self.mail = client.jobs("bench")

        @self.mail.job()
        async def nothing(number: int) -> None:
            global ran
            ran += 1

        self.task = nothing

    async def send(self) -> None:
        await self.task.send(1)

    async def send_hundred(self) -> None:
        await self.mail.add_many([self.task.message(1) for _ in range(100)])

    async def run(self, jobs: int, width: int) -> None:
        await self.mail.worker(concurrency=width).run(burst=True, signals=False)


@asynccontextmanager
async def _ours(path: str) -> AsyncIterator[Queue]:
    from fencepost import AsyncClient

    async with AsyncClient.from_url(f"unix://{path}") as client:
        yield Ours(client)


class Arq:
    def __init__(self, pool: Any, settings: Any) -> None:
        self.pool, self.settings = pool, settings

    async def send(self) -> None:
        await self.pool.enqueue_job("nothing", 1)

    async def send_hundred(self) -> None:
        await asyncio.gather(*(self.send() for _ in range(100)))

    async def run(self, jobs: int, width: int) -> None:
        from arq.worker import Worker, func

        async def nothing(ctx: Any, number: int) -> None:
            global ran
            ran += 1

        worker = Worker(
            functions=[func(nothing, name="nothing")],
            redis_settings=self.settings,
            burst=True,
            max_jobs=width,
            handle_signals=False,
        )
        await worker.main()
        await worker.close()


@asynccontextmanager
async def _arq(path: str) -> AsyncIterator[Queue]:
    import arq
    from arq.connections import RedisSettings

    settings = RedisSettings(unix_socket_path=path)
    pool = await arq.create_pool(settings)
    try:
        yield Arq(pool, settings)
    finally:
        await pool.aclose()


class Saq:
    def __init__(self, queue: Any) -> None:
        self.queue = queue

    async def send(self) -> None:
        await self.queue.enqueue("nothing", number=1)

    async def send_hundred(self) -> None:
        await asyncio.gather(*(self.send() for _ in range(100)))

    async def run(self, jobs: int, width: int) -> None:
        from saq import Worker

        ended = asyncio.Event()
        last = ran + jobs

        async def nothing(ctx: Any, *, number: int) -> None:
            global ran
            ran += 1
            if ran >= last:
                ended.set()

        worker = Worker(self.queue, functions=[("nothing", nothing)], concurrency=width)
        task = asyncio.create_task(worker.start())
        await ended.wait()
        await worker.stop()
        await task


@asynccontextmanager
async def _saq(path: str) -> AsyncIterator[Queue]:
    from redis.asyncio import Redis
    from saq.queue.redis import RedisQueue

    queue = RedisQueue(Redis(unix_socket_path=path))
    await queue.connect()
    try:
        yield Saq(queue)
    finally:
        await queue.disconnect()


OPENERS = {"ours": _ours, "arq": _arq, "saq": _saq}


async def main(group: str, path: str) -> None:
    logging.disable(logging.CRITICAL)
    loop = asyncio.get_running_loop()
    async with OPENERS[group](path) as queue:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            op, number = line.split()
            jobs, before = int(number), ran
            if op.startswith("run:"):
                for _ in range(-(-jobs // 100)):
                    await queue.send_hundred()
                jobs = -(-jobs // 100) * 100
            wall, cpu = time.perf_counter(), time.process_time()
            if op == "one":
                for _ in range(jobs):
                    await queue.send()
            elif op == "many":
                jobs = -(-jobs // 100) * 100
                for _ in range(jobs // 100):
                    await queue.send_hundred()
            else:
                await queue.run(jobs, int(op.partition(":")[2]))
                assert ran == before + jobs, (ran, before, jobs)
            print(jobs, time.perf_counter() - wall, time.process_time() - cpu, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
