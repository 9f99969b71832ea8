"""A worker in a process of its own.

    python -m support.jobs_worker URL NAMESPACE LEASE CONCURRENCY GRACE

It says ``ready``, works until SIGTERM, and then says what it counted. Its tasks write what they do to
lists on the server, so that a test sees it whoever ran them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from fencepost import AsyncClient, FencepostError
from fencepost.jobs import AsyncJobs, this_job


async def goes(client: AsyncClient) -> bool:
    """Whether the test says so; who was paused for long may get no answer to what it asked before."""
    try:
        return bool(await client.command("EXISTS", f"{client.namespace}:go"))
    except FencepostError:
        return False


def tasks(client: AsyncClient, lease: float) -> dict[str, Any]:
    """The queue ``x`` and its tasks; the test that sends has them too."""
    mail: AsyncJobs = client.jobs("x")
    ns = client.namespace

    async def note(list: str, *words: Any) -> None:
        await client.command("RPUSH", f"{ns}:{list}", " ".join(map(str, words)))

    @mail.job(lease=lease)
    async def plain(number: int) -> int:
        await note("ended", number, os.getpid())
        return os.getpid()

    @mail.job(lease=lease, crashes=2)
    async def kills(number: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @mail.job(lease=lease)
    async def holds(number: int) -> int:
        """Runs until the test says ``go``."""
        job = this_job()
        try:
            # In here: who sees this line may stop us before we have the answer to it.
            await note("begun", number, os.getpid(), job.tries, job.crashes)
            while not await goes(client):  # noqa: ASYNC110  # another process says so
                # time itself: others would ask the server as fast as they can
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            await note("told", number, os.getpid(), int(job.lost))
            raise
        await note("ended", number, os.getpid())
        return os.getpid()

    return {"mail": mail, "plain": plain, "holds": holds, "kills": kills}


async def main(url: str, namespace: str, lease: str, concurrency: str, grace: str) -> None:
    async with AsyncClient.from_url(url, namespace=namespace) as client:
        mail = tasks(client, float(lease))["mail"]
        worker = mail.worker(concurrency=int(concurrency), grace=float(grace))
        print("ready", flush=True)
        await worker.run()
        print(json.dumps(worker.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
