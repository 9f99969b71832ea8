"""Runs in the venv of ``local.txt``, with ours on the path: ``hits KIND ROUNDS SECONDS`` or
``ratios FOLDER LIMIT SIZE…``. Prints one JSON list a figure.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import cachebox
import cachetools
import moka_py
import theine

from fencepost.local import LocalCache

KEYS = [f"key:{number}" for number in range(1000)]
OURS = ("s3fifo", "wtinylfu", "lfu", "lru")
Run = Callable[[int], None]


def reads(cache: Any, put: Callable[[str, int], Any]) -> Run:
    """``cache.get(key)`` of keys that are there, as it is written in programs."""
    for key in KEYS:
        put(key, 1)

    def run(calls: int) -> None:
        for _ in range(calls // len(KEYS)):
            for key in KEYS:
                cache.get(key)

    return run


def looped(get: Callable[[str], Any]) -> Run:
    def run(calls: int) -> None:
        for _ in range(calls // len(KEYS)):
            for key in KEYS:
                get(key)

    return run


def gets(ttl: float | None) -> dict[str, Run]:
    found: dict[str, Run] = {}
    size = 2 * len(KEYS)
    for policy in OURS:
        mine: Any = LocalCache(size, policy=policy, ttl=ttl)
        found[f"fencepost {policy}"] = reads(mine, mine.set)
    counted: Any = LocalCache(size, ttl=ttl, count_hits=True)
    found["fencepost s3fifo, hits counted"] = reads(counted, counted.set)
    boxes: dict[str, Any] = (
        {"cachebox": cachebox.LRUCache(size)}
        if ttl is None
        else {"cachebox": cachebox.TTLCache(size, ttl)}
    )
    boxes["cachetools"] = (
        cachetools.LRUCache(size) if ttl is None else cachetools.TTLCache(size, ttl)
    )
    for name, box in boxes.items():
        found[name] = reads(box, box.__setitem__)
    moka = moka_py.Moka(size, ttl=ttl)
    found["moka-py"] = reads(moka, moka.set)
    thein = theine.Cache(size)
    found["theine"] = reads(thein, lambda key, value: thein.set(key, value, ttl and _delta(ttl)))
    if ttl is None:
        found["dict"] = reads(one := {}, one.__setitem__)
    return found


def _delta(seconds: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=seconds)


def sets() -> dict[str, Run]:
    """New keys, each of which pushes another one out."""
    found: dict[str, Run] = {}

    def fresh(put: Callable[[int, int], Any]) -> Run:
        at = 0

        def run(calls: int) -> None:
            nonlocal at
            for key in range(at, at + calls):
                put(key, 1)
            at += calls

        return run

    for policy in OURS:
        mine: Any = LocalCache(1000, policy=policy)
        found[f"fencepost {policy}"] = fresh(mine.set)
    found["cachebox"] = fresh(cachebox.LRUCache(1000).__setitem__)
    found["cachetools"] = fresh(cachetools.LRUCache(1000).__setitem__)
    found["moka-py"] = fresh(moka_py.Moka(1000).set)
    found["theine"] = fresh(theine.Cache(1000).set)
    return found


def function(key: str) -> int:
    return 1


def decorators() -> dict[str, Run]:
    size = 2 * len(KEYS)
    made: dict[str, Callable[[str], Any]] = {
        f"fencepost {policy}": LocalCache(size, policy=policy).cached()(function)  # type: ignore[arg-type]
        for policy in OURS
    }
    made["functools"] = functools.lru_cache(size)(function)
    made["cachebox"] = cachebox.cached(cachebox.LRUCache(size))(function)
    made["cachetools"] = cachetools.cached(cachetools.LRUCache(size))(function)
    made["cachetools, lock"] = cachetools.cached(cachetools.LRUCache(size), lock=threading.Lock())(
        function
    )
    made["moka-py"] = moka_py.cached(size)(function)
    made["theine"] = theine.Memoize(size, None)(function)
    return {name: looped(one) for name, one in made.items()}


async def afunction(key: str) -> int:
    return 1


def awaited() -> dict[str, Callable[[int], Awaitable[None]]]:
    import aiocache
    from cashews import Cache

    size = 2 * len(KEYS)

    def alooped(get: Callable[[str], Awaitable[Any]]) -> Callable[[int], Awaitable[None]]:
        async def run(calls: int) -> None:
            for _ in range(max(calls // len(KEYS), 1)):
                for key in KEYS:
                    await get(key)

        return run

    found: dict[str, Callable[[str], Awaitable[Any]]] = {}
    for policy in OURS:
        mine: Any = LocalCache(size, policy=policy)
        found[f"fencepost {policy}"] = functools.partial(mine.aget_or_load, load=_one)
        found[f"fencepost {policy}, decorator"] = mine.cached()(afunction)
    found["cachebox"] = cachebox.cached(cachebox.LRUCache(size))(afunction)
    found["moka-py"] = moka_py.cached(size)(afunction)
    found["theine"] = theine.Memoize(size, None)(afunction)
    cash = Cache()
    cash.setup(f"mem://?size={size}")
    found["cashews mem"] = cash(ttl="1h", key="{key}")(afunction)
    found["aiocache mem"] = aiocache.cached(cache=aiocache.Cache.MEMORY)(afunction)
    return {name: alooped(one) for name, one in found.items()}


async def _one() -> int:
    return 1


def threads() -> dict[str, Run]:
    """The same gets by eight threads at once."""

    def shared(run: Run) -> Run:
        def together(calls: int) -> None:
            crowd = [threading.Thread(target=run, args=(calls // 8,)) for _ in range(8)]
            for one in crowd:
                one.start()
            for one in crowd:
                one.join()

        return together

    found = gets(None)
    guarded = cachetools.LRUCache(2 * len(KEYS))
    for key in KEYS:
        guarded[key] = 1
    lock = threading.Lock()

    def locked(key: str) -> Any:
        with lock:
            return guarded.get(key)

    found["cachetools"] = looped(locked)  # it asks for a lock of yours
    return {name: shared(run) for name, run in found.items()}


def measure(found: dict[str, Any], rounds: int, seconds: float) -> None:
    least: dict[str, float] = {}
    runner = asyncio.Runner()
    gc.disable()

    def once(run: Any, calls: int) -> float:
        began = time.process_time()
        if inspect.iscoroutinefunction(run):
            runner.run(run(calls))
        else:
            run(calls)
        return (time.process_time() - began) / calls

    calls = {}
    for name, run in found.items():
        once(run, 8000)
        calls[name] = max(int(seconds / max(once(run, 8000), 1e-9)) // 8000, 1) * 8000
    for _ in range(rounds):
        for name, run in found.items():
            gc.collect()
            spent = once(run, calls[name])
            least[name] = min(least.get(name, spent), spent)
    runner.close()
    for name, spent in least.items():
        print(json.dumps([name, spent * 1e9]), flush=True)


def ratios(folder: str, limit: int, shares: list[float]) -> None:
    from fencepost.local.simulate import belady, play, read_trace

    paths = [
        p for p in sorted(Path(folder).iterdir()) if p.name.endswith((".u32le", ".xz", ".txt"))
    ]
    for path in paths:
        trace = list(read_trace(path))[: limit or None]
        unique = len(set(trace))
        for share in shares:
            size = max(int(unique * share), 10)
            name = path.name.split(".")[0]
            figures = {policy: play(policy, trace, size) for policy in OURS}
            figures["Belady"] = belady(trace, size)
            figures |= {who: _peer(make(size), trace) for who, make in PEERS.items()}
            for who, ratio in figures.items():
                print(json.dumps([name, size, who, ratio]), flush=True)


PEERS: dict[str, Callable[[int], Any]] = {
    "cachebox LRU": cachebox.LRUCache,
    "cachebox LFU": cachebox.LFUCache,
    "moka-py": moka_py.Moka,
    "theine": theine.Cache,
}


def _peer(cache: Any, trace: list[int]) -> float:
    hits = 0
    put = cache.set if hasattr(cache, "set") else cache.__setitem__
    theirs = isinstance(cache, theine.Cache)
    for key in trace:
        found = cache.get(key)
        if (found[0] if theirs and isinstance(found, tuple) else found) is None:
            put(key, 1)
        else:
            hits += 1
    return hits / len(trace)


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "get": lambda: gets(None),
    "ttl": lambda: gets(3600.0),
    "awaited": awaited,
    "decorator": decorators,
    "threads": threads,
    "set": sets,
}


if __name__ == "__main__":
    if sys.argv[1] == "hits":
        measure(KINDS[sys.argv[2]](), int(sys.argv[3]), float(sys.argv[4]))
    else:
        ratios(sys.argv[2], int(sys.argv[3]), [float(word) for word in sys.argv[4:]])
