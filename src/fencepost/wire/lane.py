"""The way to one server for one kind of request: a link that comes back, and callers in order.

Room is bounded. Who finds none waits, first come first served: nobody who comes later goes before
those who wait, and one who is let in keeps the place until the request is sent or given up.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from fencepost._core.observe import Connected, Disconnected, Hook
from fencepost.errors import Overloaded, Unavailable
from fencepost.wire.link import Link, connect
from fencepost.wire.verdict import RECONNECT, closed, no_connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fencepost.wire.address import Address
    from fencepost.wire.options import WireOptions


class Lane:
    """One link at a time, and its queue.

    Args:
        locate: Finds the address; called at each connect, so that a moved server is found again.
        options: Budgets and bounds.
        hook: Where events go.
    """

    def __init__(
        self, locate: Callable[[], Awaitable[Address]], options: WireOptions, hook: Hook
    ) -> None:
        self._locate = locate
        self._options = options
        self._hook = hook
        self.link: Link | None = None
        self.turns = 0  # callers that wait, or were let in and have not sent yet
        self._let = 0  # those that were let in
        self._queue: deque[asyncio.Future[None]] = deque()
        self._connecting: asyncio.Task[Link] | None = None
        self._ending: set[Link] = set()  # retired: unanswered requests are still on them
        self._failures = 0
        self._not_before = 0.0  # no connect before this time
        self._why = ""  # the last connect failed
        self._had_link = False
        self._closed = False

    async def enter(self, deadline: float) -> Link:
        """The link, with room for one request: send it before you await anything else.

        Args:
            deadline: By ``time.monotonic``.

        Raises:
            Overloaded: There was no room until then.
            Unavailable: There was no connection until then.
        """
        if self.turns == 0:
            link = await self._ready(deadline)
            if self.turns == 0 and self._has_room(link):
                return link
        await self._turn(deadline)
        try:
            return await self._ready(deadline)
        finally:
            self._let -= 1
            self.turns -= 1
            if self._queue:
                # Later: the caller sends first, so that its request is counted. And if it does
                # not, the place is the next one's.
                asyncio.get_running_loop().call_soon(self._let_in)

    async def _turn(self, deadline: float) -> None:
        """Wait to be let in."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._queue.append(turn)
        self.turns += 1
        if self.link is not None:
            self.link.room = self._let_in
        timer = loop.call_later(max(deadline - monotonic(), 0), self._expire, turn)
        try:
            await turn
        except BaseException:
            self.turns -= 1
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._let -= 1  # let in and cancelled at the same time: the next one's
                self._let_in()
            raise
        finally:
            timer.cancel()

    def _expire(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            budget, link = self._options.budget, self.link
            many = f"{len(link.waiting)} ({link.pending_bytes} bytes)" if link else "all"
            turn.set_exception(
                Overloaded(
                    f"{many} requests were unanswered for {budget:g} s. "
                    "Nothing was sent; send less at once",
                    retry_after=budget,
                )
            )

    def _has_room(self, link: Link) -> bool:
        return link.open and len(link.waiting) + self._let < self._options.max_requests

    def _let_in(self) -> None:
        """Let in as many as there is room for: with no link, as many as a new one has room for."""
        link, queue = self.link, self._queue
        used = self._let
        if link is not None:
            used += len(link.waiting)
        free = self._options.max_requests - used if link is None or link.open else 0
        while queue and (queue[0].done() or free > 0):
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                self._let += 1
                free -= 1
        if link is not None:
            link.room = self._let_in if queue else None

    # -- the link

    async def _ready(self, deadline: float) -> Link:
        """The link, connected if it must be; callers share one attempt."""
        if self._closed:
            raise closed()
        link = self.link
        if link is not None and not link.lost:
            return link
        task = self._connecting
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(), name="fencepost-connect")
            self._connecting = task
            task.add_done_callback(self._connected)
        # Not awaited itself: the attempt outlives a caller that gives up, and its end by ``close``
        # must not look like a cancel of the caller.
        await asyncio.wait((task,), timeout=max(deadline - monotonic(), 0))
        if not task.done():
            raise no_connection(self._options.budget, self._why)
        if task.cancelled():
            raise closed()
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, Unavailable):  # each caller gets its own: they add their tracebacks
            raise type(error)(str(error)) from error
        raise error

    async def _connect(self) -> Link:
        pause = self._not_before - monotonic()
        if pause > 0:
            await asyncio.sleep(pause)
        budget = self._options.budget
        address = await self._locate()
        try:
            async with asyncio.timeout(budget):
                link = await connect(address, self._options, self._on_lost)
        except (TimeoutError, Unavailable) as error:
            pause = RECONNECT.delay(self._failures, random.random())
            self._not_before = monotonic() + min(pause, budget / 4)
            self._failures += 1
            if isinstance(error, TimeoutError):
                error = Unavailable(
                    f"{address} did not finish its greeting within {budget:g} s. Nothing was sent"
                )
            self._why = str(error)
            raise error from None
        self._failures, self._not_before, self._why = 0, 0.0, ""
        self.link = link
        if self._hook.listener is not None:
            info = link.info
            self._hook.listener(
                Connected(link.server, info.identity, info.protocol, self._had_link)
            )
        self._had_link = True
        return link

    def _connected(self, task: asyncio.Task[Link]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # taken: nobody may be waiting any more

    def _on_lost(self, link: Link, reason: str, unanswered: int) -> None:
        if link is not self.link:
            return  # it never got beyond its handshake
        self.link = None
        if link.retired:
            self._ending = {old for old in self._ending if not old.lost}
            self._ending.add(link)
        if self._hook.listener is not None:
            self._hook.listener(Disconnected(link.server, reason, unanswered))
        if self._queue:
            self._let_in()

    async def aclose(self) -> None:
        """End the link; what is unanswered becomes ``OutcomeUnknown``, who waits is refused."""
        connecting, links = self._connecting, self.shut()
        if connecting is not None:
            await asyncio.wait((connecting,))
        for link in links:
            await link.wait_closed()

    def shut(self) -> list[Link]:
        """The first half of ``aclose``: begin to close; returns the links that are ending."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        links = [*self._ending, *([self.link] if self.link is not None else [])]
        queue, self._queue = self._queue, deque()
        for turn in queue:
            if not turn.done():
                turn.set_exception(closed())
        for link in links:
            link.abort("the client was closed")
        return links

    def forget(self) -> None:
        """Drop the links of a loop that is closed, or that belongs to the parent of a fork."""
        for link in (*self._ending, *([self.link] if self.link is not None else [])):
            link.forget()
        self.link = self._connecting = None
        self._ending.clear()
