"""Runs in a library's own environment: ``worker.py LIBRARY SOCKET LEASE``; a line of JSON a question.

``begin`` starts a read and answers when its load has begun (it then waits), or when it has ended
without one. ``end`` lets the load return a value, and answers when the library is done. ``callers``
lets many read at once. ``peek`` and ``forget`` are the library's get and delete.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

from adapters import ADAPTERS  # type: ignore[import-not-found]  # it lies beside this file

KEY = "42"
LIMIT = 30.0


class Reader:
    """One read, whose load stops until it is told to go on."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._loading, self._go = asyncio.Event(), asyncio.Event()
        self._value: Any = None

    async def _load(self) -> Any:
        self._loading.set()
        await self._go.wait()
        return self._value

    async def begin(self) -> dict[str, Any]:
        self._reading = asyncio.ensure_future(self._cache.get(KEY, self._load))
        loading = asyncio.ensure_future(self._loading.wait())
        await asyncio.wait(
            [self._reading, loading], timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED
        )
        loading.cancel()
        if self._loading.is_set():
            return {"state": "loading"}
        return {"state": "done" if self._reading.done() else "waiting"}

    async def end(self, value: Any) -> dict[str, Any]:
        self._value = value
        self._go.set()
        await asyncio.wait([self._reading], timeout=LIMIT)
        if not self._reading.done():
            return {"error": "it did not end"}
        error = self._reading.exception()
        return {"value": self._reading.result()} if error is None else {"error": repr(error)}


async def callers(cache: Any, number: int, seconds: float) -> dict[str, Any]:
    """So many callers at once, and a load of so many seconds."""
    loads = 0

    async def load() -> Any:
        nonlocal loads
        loads += 1
        await asyncio.sleep(seconds)
        return "new"

    reads = (cache.get(KEY, load) for _ in range(number))
    answers = await asyncio.gather(*reads, return_exceptions=True)
    errors = [type(one).__name__ for one in answers if isinstance(one, BaseException)]
    return {"loads": loads, "errors": errors}


async def main(library: str, path: str, lease: float) -> None:
    cache = ADAPTERS[library](path, 600.0, lease)
    await cache.open()
    reader: Reader | None = None
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        op = asked.pop("op")
        answer: Any
        if op == "begin":
            reader = Reader(cache)
            answer = await reader.begin()
        elif op == "end":
            answer = await reader.end(**asked) if reader else {"error": "nothing began"}
        elif op == "callers":
            answer = await callers(cache, **asked)
        elif op == "peek":
            answer = {"value": await cache.peek(KEY)}
        else:
            answer = await cache.forget(KEY)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    threading.stack_size(256 * 1024)
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
