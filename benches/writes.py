"""What a write costs: to SQL alone, around the cache, through it, and behind it.

Each write is a commit of one row to a SQLite file, without waiting for the disk (which would hide all
else; where a commit waits for it, that comes on top, once a batch for writes behind). All strategies use
the same connection, in the same thread, and 64 writers at once. A write behind is answered when the cache
and the journal have it; a second row has it wait until all is saved, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from benches.runner import Case, Load, Looped, Row, Scale, duel, server
from fencepost import AsyncClient

WRITERS: Final = 64
PLAIN: Final = "plain SQL"
_UPSERT: Final = "INSERT OR REPLACE INTO rows (id, value) VALUES (?, ?)"


class _Rows:
    """A table, and the thread that writes it."""

    def __init__(self, home: str) -> None:
        self._path = Path(home) / "rows.sqlite"
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._open).result()

    def _open(self) -> None:
        self._connection = sqlite3.connect(self._path)
        for line in ("journal_mode = WAL", "synchronous = NORMAL"):
            self._connection.execute(f"PRAGMA {line}")
        self._connection.execute("CREATE TABLE rows (id TEXT PRIMARY KEY, value TEXT)")

    def _write(self, rows: list[tuple[str, str]]) -> None:
        with self._connection:
            self._connection.executemany(_UPSERT, rows)

    async def save(self, *rows: tuple[str, str]) -> None:
        """Write some rows in one transaction."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, list(rows))

    def close(self) -> None:
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()


@contextlib.contextmanager
def _rows() -> Iterator[_Rows]:
    with (
        tempfile.TemporaryDirectory(prefix="fpb-") as home,
        contextlib.closing(_Rows(home)) as rows,
    ):
        yield rows


@contextlib.asynccontextmanager
async def _plain(rows: _Rows) -> AsyncIterator[Load]:
    async def work(worker: int, calls: int) -> None:
        for number in range(calls):
            await rows.save((f"{worker}", f"{number}"))

    yield Load(work)


@contextlib.asynccontextmanager
async def _cached(path: str, rows: _Rows, strategy: str) -> AsyncIterator[Load]:
    async with AsyncClient.from_url(f"unix://{path}") as client:
        cache: Any = client.cache("rows", ttl=3600.0)

        async def work(worker: int, calls: int) -> None:
            key = f"{worker}"
            for number in range(calls):
                value = f"{number}"

                async def save(_: object = None, value: str = value) -> None:
                    await rows.save((key, value))

                if strategy == "around":
                    await cache.write_around(key, save)
                elif strategy == "through":
                    await cache.write_through(key, value, save)
                else:
                    await save()
                    await cache.invalidate(key)

        yield Load(work)


@contextlib.asynccontextmanager
async def _behind(path: str, rows: _Rows, saved: bool) -> AsyncIterator[Load]:
    async with AsyncClient.from_url(f"unix://{path}") as client:
        cache: Any = client.cache("rows", ttl=3600.0, shards=1, on_down="raise")

        async def save_many(batch: Any) -> None:
            await rows.save(*((one.key, one.value) for one in batch))

        writes = cache.behind(save_many)

        async def work(worker: int, calls: int) -> None:
            for number in range(calls):
                await writes.set(f"{worker}", f"{number}")
            if saved and worker == 0:
                await writes.drain()

        async with writes.flusher():
            yield Load(work, writes.drain)


def _strategy(name: str, scale: Scale) -> list[Row]:
    with contextlib.ExitStack() as stack:
        path, rows = stack.enter_context(server()), stack.enter_context(_rows())
        opened = (
            partial(_behind, path, rows, name.endswith("saved"))
            if name.startswith("behind")
            else partial(_cached, path, rows, name)
        )
        ours = stack.enter_context(Looped(opened, WRITERS))
        plain = stack.enter_context(Looped(partial(_plain, rows), WRITERS))
        result = duel(ours, plain, scale)
    what = f"write {name}, {WRITERS} writers"
    return [
        result.row(what, "µs", PLAIN, lambda one: one.wall / one.calls * 1e6),
        result.cpu(what, PLAIN),
    ]


def cases() -> list[Case]:
    names = ("around", "through", "then invalidate", "behind", "behind, all saved")
    return [Case(f"cache write {name}", partial(_strategy, name)) for name in names]
