"""Elections under the hand: both faces under one async face, work that keeps a diary, terms that end now."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from typing import TYPE_CHECKING, Any

from fencepost._core.aio import clock
from support.lockfaces import LockFace, hurry
from support.until import until

if TYPE_CHECKING:
    from collections.abc import Callable


class ElectionFace(LockFace):
    """A client whose elections are called the same way on a loop and in threads."""

    def election(self, name: str = "x", **options: Any) -> Any:
        return self.client.election(name, **options)

    def start(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Task[Any]:
        """Call a method of either face, and go on."""
        return asyncio.create_task(self.call(method, *args, **kwargs))

    async def lead(self, election: Any, body: Callable[[Any], Any], **options: Any) -> Any:
        """Run a plain function in a block that leads."""
        if self.kind == "async":
            async with election.lead(**options) as term:
                return body(term)

        def block() -> Any:
            with election.lead(**options) as term:
                return body(term)

        return await self.call(block)

    async def holder(self, name: str = "x") -> Any:
        """Who holds the lock that an election rests on."""
        return await self.call(self.lock(f"election:{name}").locked_by)


class Diary:
    """Work and callbacks that write down what happens, for either face.

    Args:
        face: Whose work it is.
        fails: The word at which it raises ``Failure``.
        slow: The work ends only when ``go`` is set.
    """

    def __init__(self, face: ElectionFace, fails: str = "", slow: bool = False) -> None:
        self.words: list[str] = []
        self.terms: list[Any] = []
        self.go = threading.Event()
        self._fails, self._slow = fails, slow
        self.work = self._async_work if face.kind == "async" else self._sync_work

    def _say(self, word: str) -> None:
        self.words.append(word)
        if word == self._fails:
            raise Failure(word)

    def started(self, term: Any) -> None:
        self.terms.append(term)
        self._say("started")

    def stopped(self, term: Any) -> None:
        assert term is self.terms[-1]
        self._say("stopped")

    def new_leader(self, leader: Any) -> None:
        self._say(f"new {leader.identity}")

    async def _async_work(self, term: Any) -> None:
        self._say("work")
        try:
            while await term.sleep(3600):
                pass
        finally:
            while self._slow and not self.go.is_set():
                with contextlib.suppress(asyncio.CancelledError):  # it takes its time
                    await asyncio.sleep(0)
            self.words.append("ended")

    def _sync_work(self, term: Any) -> None:
        self._say("work")
        try:
            while term.sleep(3600):
                pass
        finally:
            if self._slow:
                self.go.wait()
            self.words.append("ended")

    @property
    def callbacks(self) -> dict[str, Any]:
        return {"started": self.started, "stopped": self.stopped, "new_leader": self.new_leader}

    async def says(self, word: str, times: int = 1) -> None:
        """Return when it said so."""
        await until(lambda: self.words.count(word) >= times)


class Failure(Exception):
    """What a diary raises on purpose."""


def overrun(term: Any) -> None:
    """The term is over by the clock: nothing has come through for ``renew_deadline``."""
    lease = term.lease
    with lease._keeper._changed:
        lease.until = clock() + term._options.slack
    term._tell()


async def rob(face: ElectionFace, term: Any) -> None:
    """An operator takes the lock away, and the leader learns of it when it renews."""
    await face.call(face.lock(f"election:{term.name}").force_release)
    while not term.lost:
        hurry(term.lease)
        await asyncio.sleep(0)


async def ended(task: asyncio.Task[Any]) -> Any:
    """The result of a task, or what it raised."""
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    assert not inspect.isawaitable(outcome)
    return outcome
