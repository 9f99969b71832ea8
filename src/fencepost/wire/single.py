"""One server as the callers of one event loop see it: links that come back, and bounded waiting.

The hit path is ``run``: pack, send, await one Future, parse. Everything else — no link yet, no room,
a lost reply, a server that is loading or was demoted — goes through ``_carefully``, which ends
within the budget, and says whether the request may have been applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from fencepost._core.backoff import Backoff
from fencepost._core.observe import Connected, Disconnected, Hook
from fencepost._core.port import OtherServer
from fencepost._core.script import Call
from fencepost.errors import (
    ClientClosed,
    FencepostError,
    OutcomeUnknown,
    Overloaded,
    Refused,
    ScriptMissing,
    Unavailable,
)
from fencepost.wire import resp
from fencepost.wire.address import Address
from fencepost.wire.link import Link, connect, pack
from fencepost.wire.options import WireOptions

log = logging.getLogger("fencepost.wire")
T = TypeVar("T")
_RECONNECT: Final = Backoff(0.02, 1.0)
_BIG_KEYS: Final = 1024


class Server:
    """One server for one event loop.

    Args:
        locate: Finds the address; called at each connect, so that a moved server is found again.
        options: Budgets and bounds.
        hook: Where events go.
    """

    def __init__(self, locate: Callable[[], Awaitable[Address]], options: WireOptions, hook: Hook) -> None:
        self._locate = locate
        self._options = options
        self._max_requests = options.max_requests
        self._hook = hook
        self._link: Link | None = None  # small requests
        self._bulk: Link | None = None  # values that would hold up the small ones
        self._connecting: dict[bool, asyncio.Task[Link]] = {}
        self._queue: deque[asyncio.Future[None]] = deque()  # callers that wait for room, in order
        self._big: dict[Any, None] = {}  # keys seen with big values: their reads go over the bulk link
        self._failures = 0
        self._not_before = 0.0  # no connect before this time of the loop
        self._had_link = False
        self._closed = False

    # -- the hit path

    async def run(self, call: Call[T]) -> T:
        """Send one call and read its reply. See ``Port.run`` for the errors."""
        link = self._link
        if link is not None and not link.lost and not self._queue and not self._big:
            info = link.info
            plain = call.script is None and not call.only
            packed = pack(call.args if plain else call.words(info.identity, info.flagged))
            if len(packed) <= resp.BULK_BYTES and len(link.waiting) < self._max_requests:
                try:
                    reply = await link.send(packed)
                except FencepostError as error:
                    return await self._carefully(call, error, link)
                if type(reply) is bytes and len(reply) > resp.BULK_BYTES:
                    self._note_big(call)
                return call.parse(reply)
        return await self._carefully(call, None, None)

    async def all(self, calls: Sequence[Call[T]]) -> list[T]:
        """Send several calls in one write and read their replies."""
        link = self._link
        if link is None or link.lost or self._queue or self._big or (
            len(link.waiting) + len(calls) > self._max_requests
        ):  # fmt: skip
            return await self._each(calls)
        info = link.info
        identity, flagged = info.identity, info.flagged
        packed = [pack(call.words(identity, flagged)) for call in calls]
        if any(len(one) > resp.BULK_BYTES for one in packed):
            return await self._each(calls)
        futures: list[asyncio.Future[Any]] = []
        with contextlib.suppress(Unavailable):  # the link ended meanwhile: the rest goes the careful way
            futures.extend(link.send(one) for one in packed)
        results: list[T] = []
        first: BaseException | None = None
        for number, call in enumerate(calls):
            try:
                if number < len(futures):
                    try:
                        results.append(call.parse(await futures[number]))
                    except FencepostError as error:
                        results.append(await self._carefully(call, error, link))
                else:
                    results.append(await self._carefully(call, None, None))
            except FencepostError as error:  # the other replies are awaited before this one is raised
                first = first or error
        if first is not None:
            raise first
        return results

    async def _each(self, calls: Sequence[Call[T]]) -> list[T]:
        outcomes = await asyncio.gather(*(self.run(call) for call in calls), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    # -- everything else

    async def _carefully(self, call: Call[T], error: FencepostError | None, link: Link | None) -> T:
        """Run a call through trouble, within the budget.

        What may be tried again: what was not sent, what the server refused whole, and what its
        script declares harmless. Everything else is reported as it is.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.budget
        tries = 0
        whole = False
        while True:
            if error is not None:
                whole = self._judge(call, error, link, whole)
                if loop.time() >= deadline or self._closed:
                    raise error
                if not whole and tries:
                    pause = min(_RECONNECT.delay(tries, random.random()), deadline - loop.time())
                    await asyncio.sleep(max(pause, 0))
            tries += 1
            error = link = None
            future: asyncio.Future[Any] | None = None
            try:
                async with asyncio.timeout_at(deadline):
                    bulk = call.keys[:1] in self._big if self._big else False
                    link = await self._room(bulk)
                    packed = pack(call.words(link.info.identity, link.info.flagged, whole))
                    if len(packed) > resp.BULK_BYTES and not bulk:
                        link = await self._ready(bulk=True)
                    future = link.send(packed)
                    reply = await future
            except TimeoutError:
                if future is None:
                    raise Unavailable(
                        f"no connection to the server within {self._options.budget:g} s. Nothing was sent"
                    ) from None
                raise OutcomeUnknown(
                    f"no answer within {self._options.budget:g} s: the request was applied once or not at all"
                ) from None
            except FencepostError as caught:
                error = caught
            else:
                if type(reply) is bytes and len(reply) > resp.BULK_BYTES:
                    self._note_big(call)
                return call.parse(reply)

    def _judge(self, call: Call[Any], error: FencepostError, link: Link | None, whole: bool) -> bool:
        """Raise what is final; return whether the next try sends the script's text."""
        if isinstance(error, ScriptMissing) and call.script is not None and not whole:
            return True
        if isinstance(error, resp.NotPrimary):
            if link is not None:
                link.abort("the server is not the primary any more")
            return False
        if isinstance(error, ClientClosed | OtherServer | Refused):
            raise error
        if isinstance(error, resp.NotReady | Unavailable) or (isinstance(error, OutcomeUnknown) and call.resend):
            return False
        raise error

    def _note_big(self, call: Call[Any]) -> None:
        key = call.keys[:1] or tuple(call.args[1:2])
        if len(self._big) >= _BIG_KEYS:
            self._big.pop(next(iter(self._big)))
        self._big[key] = None

    # -- room: callers over the bounds wait, in order

    async def _room(self, bulk: bool) -> Link:
        link = await self._ready(bulk=bulk)
        while not self._has_room(link):
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            link.room = self._let_in
            try:
                async with asyncio.timeout(self._options.budget):
                    await turn
            except TimeoutError:
                raise Overloaded(
                    f"{len(link.waiting)} requests ({link.pending_bytes} bytes) were unanswered for "
                    f"{self._options.budget:g} s. Nothing was sent; send less at once",
                    retry_after=self._options.budget,
                ) from None
            finally:
                if not turn.done():
                    turn.cancel()
            link = await self._ready(bulk=bulk)
        return link

    def _has_room(self, link: Link) -> bool:
        options = self._options
        return len(link.waiting) < options.max_requests and link.pending_bytes < options.max_bytes

    def _let_in(self) -> None:
        link = self._link
        free = self._options.max_requests - (len(link.waiting) if link is not None else 0)
        while self._queue and free > 0:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
        if not self._queue and link is not None:
            link.room = None

    # -- links

    async def _ready(self, *, bulk: bool = False) -> Link:
        """The link, connected if it must be; callers share one attempt."""
        if self._closed:
            raise ClientClosed("the client is closed; nothing was sent")
        link = self._bulk if bulk else self._link
        if link is not None and not link.lost:
            return link
        task = self._connecting.get(bulk)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(bulk), name="fencepost-connect")
            self._connecting[bulk] = task
            task.add_done_callback(lambda done: self._connected(bulk, done))
        return await asyncio.shield(task)

    async def _connect(self, bulk: bool) -> Link:
        loop = asyncio.get_running_loop()
        pause = self._not_before - loop.time()
        if pause > 0:
            await asyncio.sleep(pause)
        budget = self._options.budget
        try:
            async with asyncio.timeout(budget):
                address = await self._locate()
                link = await connect(address, budget=budget, health=self._options.health, on_lost=self._on_lost)
        except TimeoutError:
            self._back_off(loop)
            raise Unavailable(f"the server did not answer a greeting within {budget:g} s. Nothing was sent") from None
        except Unavailable:
            self._back_off(loop)
            raise
        self._failures, self._not_before = 0, 0.0
        if self._closed:
            link.close()
            raise ClientClosed("the client was closed; nothing was sent")
        if bulk:
            self._bulk = link
        else:
            self._link = link
            if self._hook.listener is not None:
                info = link.info
                self._hook.listener(Connected(str(address), info.identity, info.protocol, self._had_link))
            self._had_link = True
        return link

    def _back_off(self, loop: asyncio.AbstractEventLoop) -> None:
        self._not_before = loop.time() + _RECONNECT.delay(self._failures, random.random())
        self._failures += 1

    def _connected(self, bulk: bool, task: asyncio.Task[Link]) -> None:
        self._connecting.pop(bulk, None)
        if not task.cancelled():
            task.exception()  # taken: callers that wait get it, and nobody may be waiting any more

    def _on_lost(self, link: Link, reason: str, unanswered: int) -> None:
        if link is self._link:
            self._link = None
        elif link is self._bulk:
            self._bulk = None
        else:
            return  # it never got beyond its handshake
        if self._hook.listener is not None:
            self._hook.listener(Disconnected("bulk" if link is self._bulk else "main", reason, unanswered))

    async def aclose(self) -> None:
        """Close the connections; what is unanswered becomes ``OutcomeUnknown``."""
        self._closed = True
        for task in list(self._connecting.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, FencepostError):
                await task
        for link in (self._link, self._bulk):
            if link is not None:
                link.close()
        self._let_in()
        await asyncio.sleep(0)  # lets the transports close their sockets

    def forget(self) -> None:
        """Drop the links of a loop that is closed, or that belongs to the parent of a fork."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            for link in (self._link, self._bulk):
                if link is not None:
                    link.forget()
            self._link = self._bulk = None
            self._connecting.clear()
