"""Writes to the source through both faces: who publishes, who forgets, what a failure leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.cache import Loaded
from fencepost.errors import OutcomeUnknown, Unavailable
from support.cachefaces import CacheFace, Loader
from support.faces import every_face
from support.proxy import Proxy
from support.servers import ServerProcess

Make = Callable[..., CacheFace]


class Source:
    """A source that is one value."""

    def __init__(self, kind: str, value: Any = 0) -> None:
        self.kind = kind
        self.value = value
        self.error: Exception | None = None

    def _save(self, value: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.value = value
        return f"saved {value}"

    @property
    def save(self) -> Callable[..., Any]:
        async def save(value: Any = None) -> Any:
            return self._save(value)

        return save if self.kind == "async" else lambda value=None: self._save(value)

    @property
    def load(self) -> Callable[..., Any]:
        async def load() -> Any:
            return self.value

        return load if self.kind == "async" else lambda: self.value


@every_face
async def test_write_through_publishes_what_was_saved(make: Make, kind: str) -> None:
    face, source = make(), Source(kind)
    await face.get("k", source.load)
    written = await face.write_through("k", 7, source.save, tags=["g"], ttl=5)
    assert (written.published, written.reason, written.saved) == (True, "", "saved 7")
    entry = await face.peek("k")
    assert (entry.value, entry.tags) == (7, ("g",))
    assert entry.fresh_until - entry.read_began == pytest.approx(5, abs=0.01)
    assert await face.command("EXISTS", face.key("k").intents) == 0


@every_face
async def test_what_the_save_returns_may_be_published_instead(make: Make, kind: str) -> None:
    face = make()
    loader = Loader(kind, Loaded({"id": 1, "made": "now"}, revision=4))
    await face.write_through("k", {"id": 1}, loader.load)
    assert loader.arguments == [({"id": 1},)]
    entry = await face.peek("k")
    assert (entry.value, entry.revision) == ({"id": 1, "made": "now"}, 4)


@every_face
async def test_write_around_forgets(make: Make, kind: str) -> None:
    face, source = make(), Source(kind)
    await face.get("k", source.load)

    async def save() -> None:
        source.value = 3

    def save_sync() -> None:
        source.value = 3

    written = await face.write_around("k", save if kind == "async" else save_sync)
    assert (written.published, written.reason) == (False, "around")
    assert await face.peek("k") is None
    assert await face.get("k", source.load) == 3


@every_face
@pytest.mark.parametrize("how", ["write_through", "write_around"])
async def test_a_failed_save_forgets_since_nobody_knows(make: Make, kind: str, how: str) -> None:
    face, source = make(), Source(kind)
    await face.get("k", source.load)
    source.error = OSError("the database is down")
    value = (7,) if how == "write_through" else ()
    with pytest.raises(OSError, match="down"):
        await getattr(face, how)("k", *value, source.save)
    assert await face.peek("k") is None
    assert await face.command("EXISTS", face.key("k").intents) == 0
    assert await face.get("k", source.load) == 0


@every_face
async def test_writers_that_overlap_leave_no_older_value(make: Make, kind: str) -> None:
    faces, source = [make(), make()], Source(kind)
    loader = Loader(kind, held=True)
    first = asyncio.ensure_future(faces[0].write_through("k", 1, loader.load))
    await loader.wait_began()
    written = await faces[1].write_through("k", 2, source.save)
    assert (written.published, written.reason) == (False, "overlapped")
    loader.go.set()
    assert (await first).reason == "overlapped"
    assert await faces[0].peek("k") is None


@every_face
async def test_a_load_beside_a_writer_is_its_callers_alone(make: Make, kind: str) -> None:
    face, source = make(), Source(kind, "before")
    loader = Loader(kind, held=True)
    writing = asyncio.ensure_future(face.write_through("k", "after", loader.load))
    await loader.wait_began()
    entry = await make().entry("k", source.load)
    assert (entry.value, entry.published, entry.reason) == ("before", False, "writing")
    assert await face.peek("k") is None
    loader.go.set()
    assert (await writing).published
    assert (await face.peek("k")).value == "after"


@every_face
async def test_a_load_that_a_write_stopped_is_not_published(make: Make, kind: str) -> None:
    face, source, loader = make(), Source(kind), Loader(kind, "old", held=True)
    reading = asyncio.ensure_future(make().get("k", loader.load))
    await loader.wait_began()
    await face.write_through("k", "new", source.save)
    loader.go.set()
    assert await reading == "new"


@every_face
async def test_a_write_that_can_not_be_announced_is_not_saved(
    kind: str, server: ServerProcess, namespace: str
) -> None:
    source = Source(kind)
    with Proxy(server) as proxy:
        face = CacheFace(kind, proxy.url, namespace, wire={"budget": 0.6})
        await face.command("PING")
        proxy.hold("request", "EVALSHA")
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await face.write_through("k", 7, source.save)
        assert source.value == 0
        await face.close()


@every_face
async def test_an_end_that_is_lost_is_said_and_heals(
    make: Make, kind: str, server: ServerProcess, namespace: str
) -> None:
    """The save is done; the announcement runs out by itself, and nothing was published since."""
    plain, source = make(), Source(kind)
    await plain.set("k", "before")
    with Proxy(server) as proxy:
        face = CacheFace(kind, proxy.url, namespace, wire={"budget": 0.6}, intent=1)
        await face.command("PING")

        async def save(value: Any) -> None:
            source.value = value
            break_off()

        def save_sync(value: Any) -> None:
            source.value = value
            break_off()

        def break_off() -> None:
            proxy.hold("request", "EVALSHA")

        written = await face.write_through("k", 7, save if kind == "async" else save_sync)
        assert (written.published, written.reason, source.value) == (False, "unreachable", 7)
        await face.close()
    assert 0 < await plain.command("PTTL", plain.key("k").entry) <= 1_000
    while await plain.command("EXISTS", plain.key("k").entry, plain.key("k").intents):
        pass
    assert await plain.get("k", source.load) == 7
