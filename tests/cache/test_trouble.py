"""A server that is frozen, dead, or comes back empty: what it costs a caller, and the source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fencepost.cache import CacheBypassed
from fencepost.cache.breaker import FAILURES, Breaker
from fencepost.errors import OutcomeUnknown, Overloaded, Unavailable
from support.cachefaces import CacheFace, Loader, joined
from support.faces import every_face
from support.loops import ASYNCIO
from support.proxy import Proxy
from support.servers import ServerProcess

Make = Callable[..., CacheFace]


@pytest.fixture
async def behind(
    kind: str, server: ServerProcess, namespace: str
) -> AsyncIterator[tuple[Proxy, Make]]:
    """A proxy, and a maker of caches behind it."""
    made: list[CacheFace] = []

    with Proxy(server) as proxy:

        def one(**options: Any) -> CacheFace:
            made.append(CacheFace(kind, proxy.url, namespace, wire={"budget": 0.6}, **options))
            return made[-1]

        yield proxy, one
        for face in made:
            await face.close()


@every_face
async def test_a_frozen_server_costs_a_budget_and_then_the_loader_answers(
    behind: tuple[Proxy, Make], kind: str
) -> None:
    proxy, make = behind
    face, loader = make(), Loader(kind, "from the source")
    await face.set("k", "cached")
    proxy.hold("request")
    entry = await face.entry("k", loader.load)
    assert (entry.value, entry.status) == ("from the source", "loaded_unpublished")
    assert (entry.published, entry.reason) == (False, "unreachable")
    assert face.count["server_failures"] == 1  # it met the frozen server once


@every_face
async def test_or_an_error_by_policy(behind: tuple[Proxy, Make], kind: str) -> None:
    proxy, make = behind
    face, loader = make(on_down="raise"), Loader(kind)
    await face.command("PING")
    proxy.hold("request")
    for _ in range(FAILURES + 2):  # the last ones without asking
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await face.get("k", loader.load)
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await face.get_many(["k"], lambda keys: {})
    assert loader.calls == 0
    assert face.count["bypassed"]


@every_face
@pytest.mark.parametrize("step", ["claim", "publish"])
async def test_frozen_in_the_middle_of_a_refresh(
    behind: tuple[Proxy, Make], kind: str, step: str
) -> None:
    proxy, make = behind
    face, loader = make(), Loader(kind, "v", held=step == "publish")
    await face.get("warm", Loader(kind).load)
    before = face.count.get("server_failures", 0)  # the machine may be slow
    if step == "claim":
        proxy.hold("request", "EVALSHA")
    reading = asyncio.ensure_future(face.entry("k", loader.load))
    if step == "publish":
        await loader.wait_began()
        proxy.hold("request", "EVALSHA")
        loader.go.set()
    entry = await reading
    assert (entry.value, entry.status, loader.calls) == ("v", "loaded_unpublished", 1)
    assert face.count["server_failures"] == before + 1


@every_face
async def test_the_breaker_opens_probes_and_closes(
    behind: tuple[Proxy, Make], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, make = behind
    seen: list[Any] = []
    face, loader = make(observe=seen.append), Loader(kind, "v")
    await face.set("k", "cached")
    proxy.hold("request")
    for _ in range(FAILURES):
        await face.get("k", loader.load)
    assert face.count["bypassed"]
    requests = len(proxy.requests)
    now = [face.client.port.now()]
    monkeypatch.setattr(type(face.client.port), "now", lambda self: now[0])
    for _ in range(50):
        assert await face.get("k", loader.load) == "v"
    assert len(proxy.requests) == requests  # nobody asked the server
    assert face.count["server_failures"] == FAILURES
    proxy.release("request")
    now[0] += 60
    assert await face.get("k", loader.load) == "cached"  # a probe, and it was answered
    assert not face.count["bypassed"]
    assert [one.open for one in seen if isinstance(one, CacheBypassed)] == [True, False]


@every_face
async def test_the_source_is_protected_while_the_server_is_away(
    behind: tuple[Proxy, Make], kind: str
) -> None:
    """Callers of one key share loads, and those of many keys are admitted a few at a time."""
    proxy, make = behind
    face, loader = make(max_loads=2), Loader(kind, "v", held=True)
    await face.command("PING")
    proxy.hold("request")
    same = [asyncio.ensure_future(face.get("k", loader.load)) for _ in range(20)]
    await joined(face, "k", 19)
    others = [asyncio.ensure_future(face.get(f"k{n}", loader.load)) for n in range(10)]
    for n in range(10):
        await joined(face, f"k{n}", 0)
    loader.go.set()
    assert set(await asyncio.gather(*same, *others)) == {"v"}
    assert loader.peak <= 2
    if kind == "async":  # where all of them have asked before the first load begins
        assert loader.calls <= 12


@pytest.mark.parametrize(("anyio_backend", "kind"), [(ASYNCIO, "async"), (ASYNCIO, "threads")])
async def test_a_server_that_dies_and_comes_back_empty(kind: str, namespace: str) -> None:
    with ServerProcess("valkey") as server:
        faces = [CacheFace(kind, server.url, namespace, wire={"budget": 0.6}) for _ in range(2)]
        loader = Loader(kind, "v")
        await faces[0].get("k", loader.load)
        server.kill()
        entry = await faces[0].entry("k", loader.load)
        assert (entry.value, entry.status) == ("v", "loaded_unpublished")
        server.restart(empty=True)
        before = loader.calls
        held = Loader(kind, "new", held=True)
        callers = [
            asyncio.ensure_future(face.get("k2", held.load)) for face in faces for _ in range(20)
        ]
        await held.wait_began()
        held.go.set()
        assert set(await asyncio.gather(*callers)) == {"new"}
        assert held.calls <= 2  # no storm: one in the fleet, perhaps one more of a late reconnect
        assert loader.calls == before
        for face in faces:
            await face.close()


@every_face
async def test_an_owner_whose_lease_was_lost_with_the_data_publishes_nothing(
    kind: str, namespace: str
) -> None:
    """A restart that forgets the lease: the owner is refused, loads again, and publishes that."""
    with ServerProcess("valkey") as server:
        face, loader = CacheFace(kind, server.url, namespace), Loader(kind, "old", held=True)
        reading = asyncio.ensure_future(face.entry("k", loader.load))
        await loader.wait_began()
        await face.command("FLUSHALL")
        loader.value = "new"
        loader.go.set()
        assert (await reading).value == "new"
        assert loader.calls == 2
        assert face.count["rejected_expired"] == 1
        await face.close()


@every_face
async def test_a_server_that_is_out_of_memory_is_no_error_of_a_reader(
    kind: str, namespace: str
) -> None:
    with ServerProcess("valkey") as server:
        face, loader = CacheFace(kind, server.url, namespace), Loader(kind, "new")
        await face.set("k", "cached")
        await face.set("old", "cached")
        await face.command("CONFIG", "SET", "maxmemory", "100kb")
        entry = await face.entry("other", loader.load)
        assert (entry.value, entry.status) == ("new", "loaded_unpublished")
        assert await face.get_many(["k", "more"], lambda keys: dict.fromkeys(keys, "many")) == {
            "k": "cached",
            "more": "many",
        }
        assert await face.get("k", loader.load) == "cached"
        await face.invalidate("old")  # which frees memory, and must not wait for any
        assert await face.get("old", loader.load) == "new"
        strict = CacheFace(kind, server.url, namespace, on_down="raise")
        with pytest.raises(Overloaded):
            await strict.get("other", loader.load)
        await strict.close()
        await face.close()


def test_a_breaker_counts_failures_in_a_row() -> None:
    breaker = Breaker(3)
    assert not breaker.failed(0, 0.5)
    assert not breaker.failed(0, 0.5)
    assert not breaker.answered()
    assert [breaker.failed(0, 0.5) for _ in range(3)] == [False, False, True]
    assert breaker.open
    assert not breaker.failed(0, 0.5)  # a caller from before
    assert not breaker.admits(0.01)
    assert breaker.admits(0.2)  # one probe
    assert not breaker.admits(0.2)
    assert not breaker.admits(0.4)  # the next one later
    assert breaker.admits(100)
    assert breaker.answered()
    assert breaker.admits(100)
