"""``max_loads_total``: the loads of a cache over all processes are bounded by a semaphore."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencepost import Client
from fencepost.errors import Overloaded, Refused, Unavailable, WaitTimeout
from support.cachefaces import CacheFace, Loader
from support.faces import every_face
from support.proxy import Proxy
from support.servers import ServerProcess
from support.until import until

Make = Callable[..., CacheFace]
TESTS = Path(__file__).parent.parent


async def out(face: CacheFace) -> int:
    """Permits that are out."""
    semaphore = face.client.semaphore("cache:products", permits=1)
    found = semaphore.holders()
    return len(await found if face.kind == "async" else found)


@every_face
@pytest.mark.parametrize("total", [2, None], ids=["two in all", "control"])
async def test_loads_of_a_fleet_are_admitted_a_few_at_a_time(
    make: Make, kind: str, total: int | None
) -> None:
    """Two clients, as two processes have them; without a bound for all, more than two run."""
    faces = [make(max_loads_total=total) for _ in range(2)]
    loader = Loader(kind, held=True)
    callers = [
        asyncio.ensure_future(face.get(f"k{n}{m}", loader.load))
        for m, face in enumerate(faces)
        for n in range(6)
    ]
    await until(lambda: loader.running == (total or 12))
    if total:
        assert await out(faces[0]) == 2
    loader.go.set()
    assert await asyncio.gather(*callers) == ["v"] * 12
    assert loader.calls == 12
    assert loader.peak == (total or 12)
    while await out(faces[0]):
        pass


@every_face
async def test_a_load_of_many_is_one_load(make: Make, kind: str) -> None:
    face = make(max_loads_total=1)
    seen: list[int] = []

    def load_many(keys: list[str]) -> dict[str, str]:
        seen.append(len(keys))
        return dict.fromkeys(keys, "v")

    keys = [f"k{n}" for n in range(5)]
    assert await face.get_many(keys, load_many) == dict.fromkeys(keys, "v")
    assert seen == [5]
    while await out(face):
        pass


@every_face
async def test_who_waits_for_a_permit_for_too_long_is_told(make: Make, kind: str) -> None:
    first, second = make(max_loads_total=1), make(max_loads_total=1)
    loader = Loader(kind, held=True)
    running = asyncio.ensure_future(first.get("a", loader.load))
    await loader.wait_began()
    second.cache._region.gate._limit = 0.01
    with pytest.raises(Overloaded, match="raise max_loads_total"):
        await second.get("b", loader.load)
    assert await second.command("EXISTS", second.key("b").lease) == 0  # nobody waits for it
    loader.go.set()
    assert await running == "v"
    second.cache._region.gate._limit = 60
    assert await second.get("b", loader.load) == "v"


@every_face
async def test_a_load_that_fails_gives_its_permit_back(make: Make, kind: str) -> None:
    face = make(max_loads_total=1)
    with pytest.raises(KeyError):
        await face.get("a", Loader(kind, KeyError("a")).load)
    assert await face.get("b", Loader(kind).load) == "v"


async def test_a_load_that_is_cancelled_gives_its_permit_back(
    server_url: str, namespace: str
) -> None:
    face = CacheFace("async", server_url, namespace, max_loads_total=1)
    loader = Loader("async", held=True)
    running = asyncio.create_task(face.get("a", loader.load))
    await loader.wait_began()
    waiting = asyncio.create_task(face.get("b", loader.load))
    while await face.command("ZCARD", "{" + namespace + ":semaphore:cache%3Aproducts}:q") != 1:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for task in (waiting, running):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    loader.go.set()
    assert await face.get("c", loader.load) == "v"
    await face.close()


async def test_a_thread_that_takes_too_long_keeps_its_permit(
    server_url: str, namespace: str, make_async: Make
) -> None:
    """It can't be stopped, and the source is at work for it."""
    face = make_async(max_loads_total=1, lease=0.2, load_limit=0.2)
    semaphore = face.cache._region.gate._semaphore
    semaphore.options = replace(semaphore.options, ttl=60, max_hold=3600)  # none is lost by chance
    stuck = Loader("threads", "late", held=True)
    with pytest.raises(WaitTimeout, match="took longer"):
        await face.get("a", stuck.load)
    assert await out(face) == 1
    with pytest.raises(Overloaded, match="max_loads_total"):
        await face.get("b", lambda: "no room")
    stuck.go.set()
    while await out(face):
        pass
    face.cache._region.gate._limit = 60
    assert await face.get("b", lambda: "room") == "room"


@pytest.fixture
async def make_async(server_url: str, namespace: str) -> Any:
    made: list[CacheFace] = []

    def one(**options: Any) -> CacheFace:
        made.append(CacheFace("async", server_url, namespace, **options))
        return made[-1]

    yield one
    for face in made:
        await face.close()


# -- the server is away


@every_face
async def test_without_the_server_a_process_bounds_its_own_loads(
    server: ServerProcess, namespace: str, kind: str
) -> None:
    """``on_down="load"``: under ``max_loads``, and no load waits for a permit that can't be had."""
    loader = Loader(kind, held=True)
    with Proxy(server) as proxy:
        face = CacheFace(
            kind, proxy.url, namespace, wire={"budget": 0.6}, max_loads=3, max_loads_total=1
        )
        await face.command("PING")
        proxy.hold("request")
        callers = [asyncio.ensure_future(face.get(f"k{n}", loader.load)) for n in range(6)]
        await until(lambda: loader.running == 3)
        loader.go.set()
        assert await asyncio.gather(*callers) == ["v"] * 6
        assert loader.peak == 3
        proxy.release("request")
        await face.close()


@every_face
async def test_or_raises_by_policy_before_it_loads(
    server: ServerProcess, namespace: str, kind: str
) -> None:
    """The server goes away between the look and the permit."""
    loader = Loader(kind)
    with Proxy(server) as proxy:
        face = CacheFace(
            kind, proxy.url, namespace, wire={"budget": 0.6}, max_loads_total=1, on_down="raise"
        )
        await face.command("PING")

        def gone(*_: Any, **__: Any) -> Any:
            raise Unavailable("a test says so")

        face.cache._region.gate._semaphore._take = gone
        with pytest.raises(Unavailable):
            await face.get("k", loader.load)
        assert loader.calls == 0
        await face.close()


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "3", 10**9, float("nan")])
def test_a_total_that_can_not_work_is_refused_at_the_door(bad: Any) -> None:
    with pytest.raises(Refused, match="max_loads_total"):
        Client.from_url("redis://localhost").cache("x", max_loads_total=bad)


# -- real processes

LOADS = """
import sys
from fencepost import Client
url, namespace, total, me, hangs = sys.argv[1:]
client = Client.from_url(url, namespace=namespace)
options = {"max_loads_total": int(total)} if int(total) else {}
cache = client.cache("products", lease=1.0 if hangs else 20.0, **options)
most = 0

def load():
    global most
    most = max(most, client.command("INCR", f"{namespace}:loading"))
    if hangs == "hangs":
        print("loading", flush=True)
        sys.stdin.read()
    client.command("DECR", f"{namespace}:loading")
    return "v"

print("ready", flush=True)
sys.stdin.readline()
for n in range(40):
    cache.get(f"{me}:{n}", load)
print(most, flush=True)
"""


@pytest.fixture
def spawn(server_url: str, namespace: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []

    def one(total: int, me: int, hangs: str = "") -> subprocess.Popen[str]:
        words = [server_url, namespace, str(total), str(me), hangs]
        made.append(
            subprocess.Popen(
                [sys.executable, "-c", LOADS, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
            )
        )
        return made[-1]

    yield one
    for process in made:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the process ended"
    return line.strip()


def say_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.parametrize("total", [1, 0], ids=["one in all", "control"])
def test_processes_never_load_more_at_once_than_their_total(spawn: Any, total: int) -> None:
    """Each counts the loads that run while it loads. Without a bound for all, more than one do."""
    most: list[int] = []
    while not most or (not total and max(most) < 2):
        processes = [spawn(total, len(most) + n) for n in range(2)]
        for process in processes:
            assert told(process) == "ready"
        for process in processes:
            say_go(process)
        most += [int(told(process)) for process in processes]
    assert max(most) == 1 if total else max(most) >= 2


def test_a_process_that_is_killed_while_it_loads_gives_its_permit_back(
    spawn: Any, server_url: str, namespace: str
) -> None:
    dead = spawn(1, 0, "hangs")
    assert told(dead) == "ready"
    say_go(dead)
    assert told(dead) == "loading"
    with Client.from_url(server_url, namespace=namespace) as client:
        semaphore = client.semaphore("cache:products", permits=1)
        assert semaphore.try_acquire() is None
        dead.kill()
        assert client.cache("products", max_loads_total=1).get("k", lambda: "v") == "v"
