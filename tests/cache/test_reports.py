"""What was reported of other caches in public and has no interleaving of its own to play: by name.

The table in ``docs/cache.md`` says which test stands for which report.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost.cache import CacheOptions
from fencepost.errors import Refused
from support.cache import packed
from support.cachefaces import CacheFace, Loader
from support.faces import every_face
from support.loops import ASYNCIO
from support.until import until

Make = Callable[..., CacheFace]
only_async = pytest.mark.parametrize(("anyio_backend", "kind"), [(ASYNCIO, "async")])


@every_face
async def test_who_comes_as_a_load_ends_is_answered(make: Make, kind: str) -> None:
    """A holder that cleans up while a waiter comes: no error after a good load, and nothing left."""
    face = make()
    for round_ in range(20):
        key, loader = f"k{round_}", Loader(kind, round_, held=True)
        first = asyncio.ensure_future(face.get(key, loader.load))
        await loader.wait_began()
        loader.go.set()
        late = []
        for _ in range(10):
            late.append(asyncio.ensure_future(face.get(key, loader.load)))
            await asyncio.sleep(0)
        assert set(await asyncio.gather(first, *late)) == {round_}
        assert loader.calls == 1
    assert not face.cache._flights._by_key


@only_async
async def test_cancelling_who_began_a_background_refresh_blocks_nobody(
    make: Make, kind: str
) -> None:
    for ticks in range(12):
        face, loader = make(f"c{ticks}", stale=600), Loader(kind, "new")
        key = face.key("k")
        await face.command("SET", key.entry, packed("old", fresh_until=1, stale_ms=10**13))
        caller = asyncio.ensure_future(face.get("k", loader.load))
        for _ in range(ticks):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        while await face.get("k", loader.load) != "new":
            pass
        assert await face.command("EXISTS", key.lease) == 0


@pytest.mark.parametrize("lease", [None, float("inf"), 0, -1])
def test_no_lease_is_without_an_end(lease: Any) -> None:
    with pytest.raises(Refused):
        CacheOptions(lease=lease)


class Bomb:
    """Does something when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@every_face
async def test_nothing_that_is_stored_is_executed(make: Make, kind: str, tmp_path: Path) -> None:
    """Whoever may write to the server must not run code in those who read."""
    flag = tmp_path / "executed"
    bomb = pickle.dumps(Bomb(flag))
    pickle.loads(bomb)
    assert flag.exists()  # it would
    flag.unlink()
    face, loader = make(), Loader(kind, "v")
    whole = packed("v")
    head = whole[: 60 + int(whole[56:60], 16)]
    for number, raw in enumerate((bomb, head + bomb, whole + bomb)):
        key = f"k{number}"
        await face.command("SET", face.key(key).entry, raw)
        assert await face.get(key, loader.load) == "v"
    assert not flag.exists()


@every_face
async def test_an_expired_value_is_not_given_even_if_the_source_fails(
    make: Make, kind: str
) -> None:
    face = make(stale=600)
    await face.command(
        "SET", face.key("k").entry, packed("old", fresh_until=1, stale_ms=10**13), "PX", 60_000
    )
    with pytest.raises(ConnectionError):
        await face.get("k", Loader(kind, ConnectionError("down")).load, stale=0)
    with pytest.raises(ConnectionError):
        await make().get("never there", Loader(kind, ConnectionError("down")).load)


@every_face
async def test_a_load_that_comes_after_the_soft_limit_is_everybodys(make: Make, kind: str) -> None:
    """It is not thrown away, and no process is left with the old value."""
    faces = [make(stale=600, soft_limit=0.001) for _ in range(2)]
    await faces[0].command(
        "SET", faces[0].key("k").entry, packed("old", fresh_until=1, stale_ms=10**13)
    )
    loader = Loader(kind, "new", held=True)
    for face in faces:
        assert await face.get("k", loader.load) == "old"
    loader.go.set()
    await until(lambda: loader.calls >= 1 and loader.running == 0)
    for face in faces:
        while await face.get("k", loader.load) != "new":
            pass
    assert loader.calls == 1
