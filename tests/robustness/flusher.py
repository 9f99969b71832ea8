"""A process that does nothing but flush the likes of a campus: ``python -m robustness.flusher``.

Its arguments are data directory, like server, namespace and database ('': the SQLite file there); SIGTERM
ends it. A fifth one, ``careless``, takes a guard away: an ack then removes whatever the journal holds,
newer changes too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import sys
from pathlib import Path

from fencepost.campus.service import open_client, open_likes, open_store
from fencepost.campus.settings import Settings
from fencepost.campus.tables import open_engine
from support.likes import without


async def main(data: str, url: str, namespace: str, database: str, careless: str = "") -> None:
    settings = Settings(data=Path(data), url=url, namespace=namespace, database=database or None)
    engine = open_engine(settings)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_client(settings) as client:
        likes = open_likes(client, open_store(engine))
        if careless:
            exact = "stands[n] == ARGV[i + 2 * n - 1]"
            scripts = without("ack", exact, "true")
            likes._shards = [dataclasses.replace(one, scripts=scripts) for one in likes._shards]
        async with likes.flusher(drain=0.0):
            print("flushing", flush=True)
            await stop.wait()
    engine.dispose()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main(*sys.argv[1:]))
