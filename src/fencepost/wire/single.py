"""One server as the callers of one event loop see it.

The hit path is ``run``: pack, send, await one Future, parse. Everything else — no link yet, no
room, a lost reply, a server that is loading or was demoted — goes through ``_carefully``, which
ends within the budget and says whether the request may have been applied (see ``verdict``).
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost._core.aio import clock
from fencepost.errors import FencepostError, OutcomeUnknown, Unavailable
from fencepost.wire.lane import Lane
from fencepost.wire.link import pack
from fencepost.wire.resp import BULK_BYTES
from fencepost.wire.verdict import Trouble, closed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fencepost._core.observe import Hook
    from fencepost._core.script import Call
    from fencepost.wire.address import Address
    from fencepost.wire.options import WireOptions

T = TypeVar("T")
_BIG_KEYS: Final = 1024


class Server:
    """One server for one event loop.

    Args:
        locate: Finds the address; called at each connect, so that a moved server is found again.
        options: Budgets and bounds.
        hook: Where events go.
    """

    def __init__(
        self, locate: Callable[[], Awaitable[Address]], options: WireOptions, hook: Hook
    ) -> None:
        self._locate = locate
        self._located: asyncio.Task[Address] | None = None
        self._options = options
        self._max_requests = options.max_requests
        self._main = Lane(locate, options, hook)
        self._bulk = Lane(locate, options, hook)  # values that would hold up the small ones
        self._big: dict[Any, None] = {}  # keys seen with big values: theirs is the bulk lane
        self._closed = False
        self._offset_ms = (time() - clock()) * 1000

    # -- the hit path

    async def run(self, call: Call[T]) -> T:
        """Send one call and read its reply. See ``Port.run`` for the errors."""
        start = monotonic()
        main = self._main
        link = main.link
        if (
            link is not None
            and link.open
            and not main.turns
            and len(link.waiting) < self._max_requests
            and not (self._big and _key(call) in self._big)
        ):
            packed = call.packed
            if not packed:
                if call.script is None and not call.only:
                    packed = call.packed = pack(call.args)
                else:
                    info = link.info
                    packed = pack(call.words(info.identity, info.flagged))
            if len(packed) <= BULK_BYTES:
                try:
                    reply = await link.send(packed)
                except FencepostError as error:
                    return await self._carefully(call, error, start)
                if type(reply) is bytes and len(reply) > BULK_BYTES:
                    self._note_big(call)
                return call.parse(reply)
        return await self._carefully(call, None, start)

    def begin(self, call: Call[T]) -> asyncio.Future[Any] | None:
        """Send one call and return at once; for who asks several servers.

        Returns:
            The future of its raw reply or error, of which ``carry_on`` makes the best; None where
            nothing could be sent at once.
        """
        main = self._main
        link = main.link
        if (
            link is None
            or not link.open
            or main.turns
            or len(link.waiting) >= self._max_requests
            or (self._big and _key(call) in self._big)
        ):
            return None
        packed = pack(call.words(link.info.identity, link.info.flagged))
        return link.send(packed) if len(packed) <= BULK_BYTES else None

    async def carry_on(self, call: Call[T], error: FencepostError | None) -> T:
        """Run a call that could not be sent at once, or failed so."""
        return await self._carefully(call, error, monotonic())

    async def all(self, calls: Sequence[Call[T]]) -> list[T]:
        """Send several calls in one write and read their replies.

        Every reply is awaited before the first error is raised; only what failed is tried again.
        """
        start = monotonic()
        main = self._main
        link = main.link
        if (
            link is None
            or not link.open
            or main.turns
            or len(link.waiting) + len(calls) > self._max_requests
            or (self._big and any(_key(call) in self._big for call in calls))
        ):
            return await self._each(calls)
        identity, flagged = link.info.identity, link.info.flagged
        packed = [call.packed or pack(call.words(identity, flagged)) for call in calls]
        if any(len(one) > BULK_BYTES for one in packed):
            return await self._each(calls)
        futures: list[asyncio.Future[Any]] = []
        with contextlib.suppress(Unavailable):  # it ended meanwhile: the rest goes the careful way
            for one in packed:
                futures.append(link.send(one))  # noqa: PERF401  # what was sent must be known
        outcomes: list[Any] = [None] * len(calls)
        try:
            for number, future in enumerate(futures):
                try:
                    outcomes[number] = await future
                except FencepostError as error:
                    outcomes[number] = error
        except BaseException:
            for future in futures:  # their replies, or their errors, are nobody's any more
                future.cancel()
            raise
        return await self._finish(calls, outcomes, len(futures), start)

    async def _finish(
        self, calls: Sequence[Call[T]], outcomes: list[Any], sent: int, start: float
    ) -> list[T]:
        failed = [n for n, one in enumerate(outcomes) if isinstance(one, FencepostError)]
        failed.extend(range(sent, len(calls)))
        if failed:
            again = (self._carefully(calls[n], outcomes[n], start) for n in failed)
            more = await asyncio.gather(*again, return_exceptions=True)
            for number, outcome in zip(failed, more, strict=True):
                outcomes[number] = outcome
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        done = set(failed)
        return [
            one if number in done else call.parse(one)
            for number, (call, one) in enumerate(zip(calls, outcomes, strict=True))
        ]

    async def _each(self, calls: Sequence[Call[T]]) -> list[T]:
        outcomes = await asyncio.gather(*map(self.run, calls), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    def server_ms(self) -> float:
        """The server's clock by our estimate, in milliseconds; this machine's before there is one."""
        link = self._main.link
        if link is not None:
            self._offset_ms = link.offset_ms
        return clock() * 1000 + self._offset_ms

    # -- everything else

    async def _carefully(self, call: Call[T], error: FencepostError | None, start: float) -> T:
        """Run a call through trouble, within the budget; ``verdict`` says what is tried again."""
        if self._located is None or not self._located.done():
            await self._first_locate()
            start = monotonic()
        loop = asyncio.get_running_loop()
        deadline = start + self._options.budget
        trouble = Trouble()
        while True:
            if error is not None:
                trouble.meet(call, error, left=0.0 if self._closed else deadline - monotonic())
                if trouble.pause:
                    await asyncio.sleep(trouble.pause)
                error = None
            wide = _size(call) > BULK_BYTES
            big = wide or _key(call) in self._big
            timer: asyncio.TimerHandle | None = None
            try:
                link = await (self._bulk if big else self._main).enter(deadline)
                info = link.info
                future = link.send(pack(call.words(info.identity, info.flagged, trouble.whole)))
                timer = loop.call_later(deadline - monotonic(), self._expire, future)
                reply = await future
            except FencepostError as caught:
                error = caught
                continue
            finally:
                if timer is not None:
                    timer.cancel()
            if (type(reply) is bytes and len(reply) > BULK_BYTES) or (wide and not call.script):
                self._note_big(call)
            elif big:
                self._big.pop(_key(call), None)  # it is small by now
            return call.parse(reply)

    def _expire(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(
                OutcomeUnknown(
                    f"no answer within {self._options.budget:g} s: "
                    "the request was applied once or not at all"
                )
            )

    async def _first_locate(self) -> None:
        """Find the server before the clock of a call starts: an embedded one may have to load."""
        if self._closed:
            raise closed()
        if self._located is None:
            self._located = asyncio.get_running_loop().create_task(self._locate_once())
            self._located.add_done_callback(_seen)
        task = self._located
        await asyncio.wait((task,))
        if task.cancelled():
            raise closed()
        if (error := task.exception()) is not None:
            if self._located is task:
                self._located = None  # the next caller asks again
            raise error

    async def _locate_once(self) -> Address:
        return await self._locate()

    def _note_big(self, call: Call[Any]) -> None:
        if len(self._big) >= _BIG_KEYS:
            self._big.pop(next(iter(self._big)))
        self._big[_key(call)] = None

    # -- the end

    async def aclose(self) -> None:
        """Close the connections; what is unanswered becomes ``OutcomeUnknown``."""
        self._closed = True
        if self._located is not None and not self._located.done():
            self._located.cancel()
            await asyncio.wait((self._located,))
        await self._main.aclose()
        await self._bulk.aclose()

    def shut(self) -> None:
        """Begin to close, from a callback of the loop."""
        self._closed = True
        if self._located is not None:
            self._located.cancel()
        self._main.shut()
        self._bulk.shut()

    def forget(self) -> None:
        """Drop the links of a loop that is closed, or that belongs to the parent of a fork."""
        self._closed = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self._main.forget()
            self._bulk.forget()


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # taken: nobody may be waiting any more


def _key(call: Call[Any]) -> Any:
    """The key of a call, as far as its reply's size goes."""
    return call.keys[0] if call.keys else call.args[1] if len(call.args) > 1 else None


def _size(call: Call[Any]) -> int:
    """About how many bytes a call sends."""
    return sum(len(arg) for arg in call.args if isinstance(arg, str | bytes))
