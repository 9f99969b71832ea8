"""Runs in a peer's venv, which has that peer and nothing else: ``worker.py GROUP SOCKET_OR_PORT OP SIZE WIDTH``.

Each line of input is a number of calls; each line of output is what they took: calls, seconds, CPU.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def _glide(where: str, width: int) -> AsyncIterator[Any]:
    from glide import GlideClient, GlideClientConfiguration, NodeAddress

    config = GlideClientConfiguration(
        [NodeAddress("127.0.0.1", int(where))],  # it knows no unix sockets
        request_timeout=5000,
        inflight_requests_limit=max(1000, width),
    )
    client = await GlideClient.create(config)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def _coredis(where: str, width: int) -> AsyncIterator[Any]:
    import coredis

    async with coredis.Redis(unix_socket_path=where, max_connections=max(width, 100)) as client:
        yield client


@asynccontextmanager
async def _valkey(where: str, width: int) -> AsyncIterator[Any]:
    from valkey.asyncio import Valkey

    async with Valkey(unix_socket_path=where, max_connections=max(width, 100)) as client:
        yield client


OPENERS = {"valkey-glide": _glide, "coredis": _coredis, "valkey-py": _valkey}


async def main(group: str, where: str, op: str, size: int, width: int) -> None:
    async with OPENERS[group](where, width) as client:
        get, put = client.get, client.set
        value = b"x" * size
        key = f"b:{size}"
        await put(key, value)

        async def work(worker: int, calls: int) -> None:
            if op == "get":
                for _ in range(calls):
                    await get(key)
            else:
                own = f"b:w:{worker}"
                for _ in range(calls):
                    await put(own, value)

        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            each = max(int(line) // width, 1)
            wall, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(work(worker, each) for worker in range(width)))
            print(each * width, time.perf_counter() - wall, time.process_time() - cpu, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
    sys.stdout.flush()
