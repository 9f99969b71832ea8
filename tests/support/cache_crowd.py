"""Callers of one key in a process of its own. It says each step, and is told when to go on.

    python -m support.cache_crowd URL NAMESPACE COALESCE CALLERS

``ready``, go, ``joined`` (all callers share one flight), go, then a line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
from typing import Any

from fencepost import AsyncClient
from support.until import until


async def main(url: str, namespace: str, coalesce: Any, callers: int) -> None:
    loop, loads, go = asyncio.get_running_loop(), [], asyncio.Event()

    async def load() -> str:
        loads.append(1)
        await go.wait()
        return "v"

    def told() -> Any:
        return loop.run_in_executor(None, sys.stdin.readline)

    patient = {"lease": 60, "load_limit": 60, "wait": 60}  # the machine may be busy
    async with AsyncClient.from_url(url, namespace=namespace, budget=60.0) as client:
        products = client.cache("products", coalesce=coalesce, **patient)
        await client.command("PING")
        print("ready", flush=True)
        await told()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        calls = [asyncio.ensure_future(products.get("k", load)) for _ in range(callers)]
        flights: Any = products._flights
        await until(lambda: [one.callers for one in flights._by_key.values()] == [callers])
        print("joined", flush=True)
        await told()
        go.set()
        values = set(await asyncio.gather(*calls))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        del calls
        gc.collect()
        left = len(flights._by_key) + len(flights._tasks)
        told_of = {"loads": len(loads), "values": sorted(values), "grown_kb": grown, "left": left}
        print(json.dumps(told_of), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
