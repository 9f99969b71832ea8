"""Runs in a peer's venv: ``cache_worker.py ADAPTERS GROUP SOCKET OP SIZE WIDTH``; see ``worker.py``.

``hit`` reads one cached value, ``many`` WIDTH of them at once. ``miss`` forgets it and lets WIDTH
callers ask at once; what is printed is the number of loads, seconds and CPU. ``stampede`` lets as many
ask as it is told, and prints also the 99th percentile of their waits and the memory. ``paused`` and
``invalidated`` play the two races of a refresh and print ``old`` or ``new``: what the cache holds in
the end. ADAPTERS is the file that says how each library is used; the lab plays with the same ones.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import threading
import time
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

LEASE = 1.0
VALUE: dict[str, Any] = {}


async def hits(peer: Any, width: int, calls: int) -> tuple[int, float, float]:
    async def load() -> Any:
        return VALUE

    each = max(calls // width, 1)
    await peer.get("k", load)
    if hasattr(peer, "get_here"):

        def run(_: int) -> None:
            for _ in range(each):
                peer.get_here("k", lambda: VALUE)

        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.to_thread(lambda: list(peer.threads.map(run, range(width))))
        return each * width, time.perf_counter() - wall, time.process_time() - cpu

    async def work() -> None:
        for _ in range(each):
            await peer.get("k", load)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(width)))
    return each * width, time.perf_counter() - wall, time.process_time() - cpu


async def misses(peer: Any, width: int) -> tuple[int, float, float, float]:
    """Loads, seconds until all were answered, CPU, and the 99th percentile of a caller's wait."""
    loads, waits = 0, []

    async def load() -> Any:
        nonlocal loads
        loads += 1
        await asyncio.sleep(0.05)
        return VALUE

    async def ask() -> None:
        began = time.perf_counter()
        try:
            await peer.get("m", load)
        finally:
            waits.append(time.perf_counter() - began)

    await peer.forget("m")
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(ask() for _ in range(width)), return_exceptions=True)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return loads, wall, cpu, sorted(waits)[int(len(waits) * 0.99)]


async def many(peer: Any, width: int) -> tuple[int, float, float]:
    """One read of WIDTH keys that are there."""
    keys = [f"m{number}" for number in range(width)]
    if await peer.peek(keys[0]) is None:
        for key in keys:
            await peer.set(key, VALUE)
    wall, cpu = time.perf_counter(), time.process_time()
    found = await peer.get_many(keys)
    spent = time.perf_counter() - wall, time.process_time() - cpu
    assert len(found) == width
    return width, *spent


async def race(peers: list[Any], op: str) -> str:
    """What the cache holds after OLD was paused in its load, and CURRENT published (or invalidated)."""
    old, current = peers
    began, go = asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        began.set()
        await go.wait()
        return "old"

    async def quick() -> Any:
        return "new"

    await old.forget("r")
    reading = asyncio.ensure_future(old.get("r", slow))
    await began.wait()
    if op == "paused":
        await asyncio.sleep(LEASE * 1.5)  # its lock has run out by now
        await current.get("r", quick)
    else:
        await current.forget("r")
    go.set()
    await asyncio.gather(reading, return_exceptions=True)
    held = await current.peek("r")
    return "nothing" if held is None else str(held)


def resident() -> float:
    """The most memory so far, MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 if sys.platform != "darwin" else 1024 * 1024)


async def main(adapters: str, group: str, path: str, op: str, size: int, width: int) -> None:
    spec = spec_from_file_location("adapters", adapters)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    VALUE.update({"id": 42, "name": "x" * size, "price": 3})
    # the lock of cashews lasts as long as its entry
    ttl = LEASE if (group, op) == ("cashews", "paused") else 60.0
    peers = [module.ADAPTERS[group](path, ttl, LEASE) for _ in range(2)]
    for peer in peers:
        await peer.open()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if op in ("paused", "invalidated"):
            print(await race(peers, op), 0, 0, flush=True)
        elif op == "hit":
            print(*await hits(peers[0], width, int(line)), flush=True)
        elif op == "many":
            print(*await many(peers[0], width), flush=True)
        elif op == "miss":
            print(*(await misses(peers[0], width))[:3], flush=True)
        else:
            print(*await misses(peers[0], int(line)), resident(), flush=True)


if __name__ == "__main__":
    threading.stack_size(256 * 1024)
    _, *words, size, width = sys.argv
    asyncio.run(main(*words, int(size), int(width)))
    sys.stdout.flush()
