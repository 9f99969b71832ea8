"""A worker for tests runs what is due, and lets time pass for a queue."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import AsyncClient, Client
from fencepost.jobs import Backoff, JobFailed, Retry, this_job
from fencepost.testing import AsyncDueJobs, DueJobs


async def test_what_is_due_runs_at_once_and_time_passes(server_url: str, namespace: str) -> None:
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        mail = client.jobs("mail")
        ran: list[str] = []

        @mail.job()
        async def note(name: str) -> None:
            ran.append(name)

        due = AsyncDueJobs(mail)
        await note.after(hours=24).send("tomorrow")
        await note.after(minutes=5).send("soon")
        await note.send("now")
        assert await due.run_due() == 1
        assert await due.advance(hours=23, minutes=59) == 1
        assert ran == ["now", "soon"]
        assert await due.advance(minutes=1) == 1
        assert ran == ["now", "soon", "tomorrow"]
        assert await due.advance(days=1000) == 0


async def test_what_jobs_send_while_time_passes_comes_at_its_own_time(
    server_url: str, namespace: str
) -> None:
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        mail = client.jobs("mail")
        ran: list[Any] = []

        @mail.job(retries=2, backoff=Backoff(300, factor=1, jitter=0))
        async def fails() -> None:
            ran.append(this_job().tries)
            if len(ran) < 9:
                raise Retry

        @mail.job()
        async def again(left: int) -> None:
            ran.append(f"again {left}")
            if left:
                await again.after(hours=1).send(left - 1)

        due = AsyncDueJobs(mail)
        handle = await fails.after(hours=1).send()
        await again.after(minutes=63).send(2)
        assert await due.advance(hours=2) == 4
        # Tries at 60, 65 and 70 minutes, the other at 63.
        assert ran == [0, "again 2", 1, 2]
        with pytest.raises(JobFailed):
            await handle.result()
        assert await due.advance(hours=2) == 2


def test_in_threads_and_leases_end_too(server_url: str, namespace: str) -> None:
    with Client.from_url(server_url, namespace=namespace) as client:
        mail = client.jobs("mail")
        ran: list[int] = []

        @mail.job(key=lambda n: "k", unique=3600.0)
        def note(n: int) -> None:
            ran.append(n)

        due = DueJobs(mail)
        note.after(seconds=30).send(1)
        assert due.advance(minutes=1) == 1
        assert note.send(2).verdict == "recent"
        assert due.advance(hours=1) == 0
        assert note.send(3).verdict == "created"
        assert due.run_due() == 1
        assert ran == [1, 3]
