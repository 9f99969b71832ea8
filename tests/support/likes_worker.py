"""A process that flushes likes into a PostgreSQL until its stdin ends: ``flushing(…)`` starts some.

Its one line of output says that it has begun.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import create_engine

from fencepost import Client
from fencepost.likes import LikeOptions, SqlLikes
from support.likes import TABLES

NAME = "w"
OPTIONS = LikeOptions(shards=2, flush_delay=0.0, claim_time=0.2, batch_items=3, batch_changes=7)
"""Small batches that collide: what many processes do to each other, many times a second."""


@contextlib.contextmanager
def flushing(
    server_url: str, namespace: str, database: str, processes: int = 1
) -> Iterator[list[subprocess.Popen[str]]]:
    """Some flushers, each a process of its own; stopped at the end of the block."""
    with contextlib.ExitStack() as stack:
        workers = []
        for _ in range(processes):
            worker = subprocess.Popen(
                [sys.executable, "-m", "support.likes_worker", server_url, namespace, database],
                cwd=Path(__file__).parent.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(_stop, worker)
            workers.append(worker)
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "flushing\n"
        yield workers


def _stop(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.close()
    try:
        worker.wait(30)
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def main(server_url: str, namespace: str, database: str) -> None:
    logging.disable()
    engine = create_engine(database)
    with Client.from_url(server_url, namespace=namespace) as client:
        likes = client.likes(NAME, store=SqlLikes(engine, **TABLES), options=OPTIONS)
        with likes.flusher(drain=0.0):
            print("flushing", flush=True)
            sys.stdin.read()
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
