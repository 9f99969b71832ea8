"""Other people's caches under the hand: each library runs in an environment of its own.

``fencepost lab --against cashews`` plays stories with the library itself: a process an actor, whose
loads stop where the schedule says so. Which environment that is: ``FENCEPOST_PEERS/<library>`` if
that is set, ``benches/.venvs/<library>`` of a checkout, or this one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from fencepost.errors import FencepostError
from fencepost.testing.lab.story import Column, Scene, Verdict

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor
    from fencepost.testing.simulated import SimPort

WORKER: Final = Path(__file__).with_name("worker.py")
MODULES: Final = {
    "cashews": "cashews",
    "aiocache": "aiocache",
    "dogpile.cache": "dogpile.cache",
    "django-redis": "django_redis",
    "redis-py": "redis",
}
"""The libraries, and what to import of them."""
DESIGNS: Final = {
    "cashews": "@cache(lock=True)",
    "aiocache": "get, RedLock, get, load, set",
    "dogpile.cache": "get_or_create, a distributed lock",
    "django-redis": "get, cache.lock, get, load, set",
    "redis-py": "get, Lock, get, load, set",
}
KEYS_ALL: Final = "*"


class NoPeer(FencepostError):
    """A library is not to be found."""


def places() -> list[Path]:
    """Where environments of libraries may be."""
    there = [Path(__file__).parents[5] / "benches" / ".venvs", Path("benches/.venvs")]
    given = os.environ.get("FENCEPOST_PEERS")
    return [Path(given), *there] if given else there


def python_of(library: str) -> Path:
    """The interpreter that has a library.

    Raises:
        NoPeer: There is none; the message says how to make one.
    """
    for place in places():
        python = place / library / "bin" / "python"
        if python.exists() and (place / library / "stamp").exists():
            return python.absolute()
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(MODULES[library]) is not None:
            return Path(sys.executable)
    raise NoPeer(
        f"{library} is not installed where the lab looks for it; in a checkout, "
        f"'python -m benches.peers {library}' makes an environment for it (elsewhere: install it "
        "beside fencepost)"
    )


class Peer:
    """A process that uses a library, and does what it is told.

    Args:
        stage: Where; the worker is ended with it.
        library: Which.
        lease: Seconds of its locks.
    """

    def __init__(self, stage: Stage, library: str, lease: float = 600.0) -> None:
        socket = unquote(stage.url.removeprefix("unix://"))
        self._process = subprocess.Popen(  # noqa: S603 - the library's interpreter, our file
            [str(python_of(library)), str(WORKER), library, socket, str(lease)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        stage.keep(self)

    def ask(self, op: str, **words: Any) -> Any:
        """What it answers.

        Raises:
            NoPeer: It has died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise NoPeer("the worker has no pipes")
        stdin.write(json.dumps({"op": op, **words}) + "\n")
        line = stdout.readline()
        if not line:
            raise NoPeer(f"the worker died at {op!r}; what it said is above")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()


class Entry:
    """One entry of a library's cache, with actors in processes of their own.

    Args:
        stage: Where. The lab's server is nobody else's: it is emptied first.
        library: Which.
        lease: Seconds of its locks, for who does not end them by ``lease_ends``.
    """

    def __init__(self, stage: Stage, library: str, lease: float = 600.0) -> None:
        self.stage, self.library = stage, library
        self.value = "old"
        self.loads = 0
        stage.redis.flushall()
        self.watch = Peer(stage, library, lease)

    def reader(self) -> Actor:
        """Reads through the cache, in a process of its own."""
        peer = Peer(self.stage, self.library)
        read = ""

        def get() -> str:
            """the library's get: until its load has read the source, or it needs none"""
            nonlocal read
            read = self.value
            state: str = peer.ask("begin")["state"]
            self.loads += state == "loading"
            return state

        def end() -> dict[str, Any]:
            """the load returns what it read; the library does the rest"""
            told: dict[str, Any] = peer.ask("end", value=read)
            return told

        async def work(io: SimPort) -> Any:
            return await io.call(end) if await io.call(get) == "loading" else None

        return work

    def writer(self) -> Actor:
        """Saves, and has the library forget the entry."""

        def save() -> None:
            """write the source, COMMIT"""
            self.value = "new"

        def forget() -> None:
            """the library's delete"""
            self.watch.ask("forget")

        async def work(io: SimPort) -> None:
            await io.call(save)
            await io.call(forget)

        return work

    def crowd(self, number: int, seconds: float) -> Actor:
        """Many who read at once, in one process."""

        def read() -> dict[str, Any]:
            """all of them call the library's get, and the load takes its time"""
            told: dict[str, Any] = self.watch.ask("callers", number=number, seconds=seconds)
            self.loads += told["loads"]
            return told

        async def work(io: SimPort) -> Any:
            return await io.call(read)

        return work

    def world(self, *steps: str) -> Actor:
        """What happens to the server and the source."""

        async def work(io: SimPort) -> None:
            for step in steps:
                await io.call(getattr(self, step))

        return work

    def lease_ends(self) -> None:
        """whatever the library has locked ends with its TTL"""
        for key in self.stage.redis.scan_iter(KEYS_ALL):
            self.stage.redis.delete(key)  # nothing is cached yet

    def change(self) -> None:
        """somebody writes the source"""
        self.value = "new"

    def held(self) -> str:
        """What the cache holds."""
        held = self.watch.ask("peek")["value"]
        return "nothing" if held is None else str(held)

    def picture(self) -> dict[str, str]:
        """Server and source."""
        keys = sorted(self.stage.redis.scan_iter(KEYS_ALL))
        return {"cache": self.held(), "keys": ", ".join(keys) or "none", "source": self.value}

    def scene(self, wrong: str, **actors: Actor) -> Scene:
        """Itself, with actors; right is what the source has, or nothing."""

        def judge(play: Play) -> Verdict:
            held = self.held()
            if held in (self.value, "nothing"):
                return Verdict(True, f"the cache holds {held}")
            return Verdict(False, wrong.format(held=held))

        return Scene(actors=actors, picture=self.picture, verdict=judge)


def columns(schedule: str, scene: Callable[[Stage, str], Scene]) -> tuple[Column, ...]:
    """A column a library: the same schedule for each."""
    return tuple(
        Column(
            name=library,
            kind="peer",
            title=DESIGNS[library],
            by=library,
            schedule=schedule,
            scene=lambda stage, library=library: scene(stage, library),  # type: ignore[misc]
        )
        for library in MODULES
    )
