"""One connection of one event loop: what is issued in one tick goes out in one write.

Guarantees: replies answer requests in order; a cancelled caller's reply is read and dropped, the
others get their own; when the connection ends, every unanswered request becomes ``OutcomeUnknown``
(or ``Unavailable``, if its bytes were never handed to the transport). It never reconnects: a
``Lane`` makes a new link.

Speed rests on what is *not* here: no task, no timeout object and no lock a call. A call costs one
packed command, one plain Future and its share of a write; deadlines stand per write, checked by
one timer a link.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import hiredis

from fencepost._core.aio import clock
from fencepost.errors import OutcomeUnknown, Unavailable
from fencepost.wire import resp
from fencepost.wire.address import Address, tune
from fencepost.wire.hello import ServerInfo, handshake, read_time
from fencepost.wire.verdict import lost, unreachable, unsent

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.wire.options import WireOptions

pack: Final[Callable[[tuple[Any, ...]], bytes]] = hiredis.pack_command
_EARLY: Final = 64  # requests: a long tick is written in slices, so that the server starts early
_READ_BYTES: Final = 256 * 1024
_GRACE: Final = 0.05  # seconds: replies may lie unread behind a loop that was held up
_PING: Final = pack(("PING",))
_TIME: Final = pack(("TIME",))
_TIME_EVERY: Final = 120.0  # seconds: how long an estimate of the server's clock is good

_of_parents: list[asyncio.Transport] = []
"""Transports of a parent process: never closed here, and never collected, since a loop's epoll
is shared over a fork and closing them would take the parent's sockets out of it."""


class Link(asyncio.BufferedProtocol):
    """A connection; use ``connect`` to get one that is ready.

    Args:
        loop: The event loop it lives on.
        server: Its address, for messages.
        options: Budgets and bounds.
        on_lost: Called once with the link, the reason and the number of unanswered requests.
    """

    __slots__ = (
        "_answered",
        "_batches",
        "_buffer",
        "_doubt",
        "_gone",
        "_lone",
        "_loop",
        "_on_lost",
        "_options",
        "_out",
        "_paused",
        "_pid",
        "_reader",
        "_resting",
        "_scheduled",
        "_sent",
        "_timed",
        "_timer",
        "_transport",
        "_view",
        "info",
        "lost",
        "offset_ms",
        "on_push",
        "open",
        "pending_bytes",
        "retired",
        "room",
        "server",
        "waiting",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: str,
        options: WireOptions,
        on_lost: Callable[[Link, str, int], None],
    ) -> None:
        self._loop = loop
        self._options = options
        self._on_lost = on_lost
        self._pid = os.getpid()
        self._reader = resp.make_reader()
        self._buffer = bytearray(_READ_BYTES)
        # A view: asyncio's TLS reads into slices of what it is given, and a slice of a bytearray
        # is a copy. Its bytes would be lost, and zeros read in their place.
        self._view = memoryview(self._buffer)
        self._out: list[bytes] = []  # packed, not yet written
        # One a request, in order, written or not.
        self.waiting: deque[asyncio.Future[Any]] = deque()
        # A write each: the number of its last request, its deadline, its bytes.
        self._batches: deque[tuple[int, float, int]] = deque()
        self._sent = 0  # requests written
        self._answered = 0
        self.pending_bytes = 0  # written and not known to be answered
        self._scheduled = False
        self._lone = True  # the last tick had no more than one request left to write
        self._paused = False
        self._resting = True  # nobody watches a deadline: there is no timer, or it only probes
        self._doubt = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] | None = None
        self.server = server
        self.info = ServerInfo("", (), 3)
        self.offset_ms = 0.0  # the server's clock, as ``info`` had it or by a later look
        self._timed = monotonic()
        self.lost = ""  # why the link ended; empty while it lives
        self.retired = ""  # why it takes no more requests, though some are unanswered
        self.open = True  # it lives, and takes more bytes
        self.on_push: Callable[[list[Any]], None] | None = None
        self.room: Callable[[], None] | None = None  # set while somebody waits for room

    # -- requests

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Queue one packed command; its future gets the reply, or an error.

        Raises:
            Unavailable: The link has ended; nothing was sent.
        """
        if self.lost or self.retired:
            raise unsent(self.lost or self.retired)
        future = self._loop.create_future()
        idle = not self.waiting
        self.waiting.append(future)
        self._out.append(packed)
        if (idle and self._lone) or len(self._out) >= _EARLY:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._tick)
        return future

    def _tick(self) -> None:
        self._scheduled = False
        if self._out:
            # One at a time goes out at once; in a crowd the first waits for the others of its tick.
            self._lone = len(self._out) < 2
            self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out or self._paused or self.lost:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        self._sent += len(out)
        self.pending_bytes += len(data)
        self._batches.append((self._sent, monotonic() + self._options.budget, len(data)))
        out.clear()
        if self.pending_bytes >= self._options.max_bytes:
            self.open = False
        if self._resting:
            self._watch(self._options.budget)
        self._transport.write(data)  # type: ignore[union-attr]  # it lives: it is not lost

    # -- replies

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if self.lost:
            return
        reader = self._reader
        gets, waiting, nothing, push = reader.gets, self.waiting, resp.NOTHING, resp.Push
        answered = 0
        try:
            reader.feed(self._buffer, 0, nbytes)
            while (reply := gets()) is not nothing:
                if type(reply) is push:
                    if self.on_push is not None:
                        self.on_push(reply)
                    continue
                future = waiting.popleft()
                answered += 1
                if future.done():  # a cancelled caller's reply is read and dropped
                    pass
                elif isinstance(reply, Exception):
                    future.set_exception(reply)
                    if type(reply) is resp.NotPrimary:
                        self.retire("the server is not the primary any more")
                elif self.retired:  # answered by a replica: what it says may be old
                    future.set_exception(lost(self.retired))
                else:
                    future.set_result(reply)
        except Exception as error:  # not RESP, or a reply that nobody asked for
            self.abort(f"the server broke the protocol: {error!r}")
            return
        self._answered += answered
        batches = self._batches
        while batches and batches[0][0] <= self._answered:
            self.pending_bytes -= batches.popleft()[2]
        if not self.open:
            self._reopen()
        if self.room is not None:
            self.room()

    def _reopen(self) -> None:
        if self.retired:
            if not self.waiting:
                self.abort(self.retired)
        elif not self._paused and not self.lost:
            self.open = self.pending_bytes < self._options.max_bytes

    # -- the one timer

    def _watch(self, seconds: float) -> None:
        """Look at the oldest deadline in so many seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._resting = False
        self._timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        if self.lost:
            return
        options = self._options
        if monotonic() - self._timed > _TIME_EVERY:
            self._ask_time()
        if not self._batches:
            self._resting = True
            self._timer = self._loop.call_later(options.health, self._probe)
            return
        left = self._batches[0][1] - monotonic()
        if left > 0:
            self._doubt = False
            self._watch(left)
        elif not self._doubt:
            # This loop may have been held up, and the replies lie in the socket: read, then judge.
            self._doubt = True
            self._watch(min(_GRACE, options.budget / 2))
        else:
            self.abort(f"no answer within {options.budget:g} s")

    def _probe(self) -> None:
        self._timer = None
        if not self.lost and not self.retired:
            # Its deadline is its write's; an idle NAT cut shows here and not at the next caller.
            self.send(_PING).add_done_callback(_seen)
            self._ask_time()

    def _ask_time(self) -> None:
        if self.retired:
            return
        sent, self._timed = clock(), monotonic()

        def tell(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                offset = read_time(future.result(), sent, clock())
                self.offset_ms = self.offset_ms if offset is None else offset

        self.send(_TIME).add_done_callback(tell)

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no asyncio.Transport

    def pause_writing(self) -> None:
        self._paused = True
        self.open = False

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()
        self._reopen()
        if self.room is not None:
            self.room()

    def eof_received(self) -> bool:
        self._end("the server closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "the connection was closed")
        self._transport = None
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def retire(self, reason: str) -> None:
        """Take no more requests, and end when what was written is answered."""
        if self.lost or self.retired:
            return
        self.retired = reason
        self.open = False
        for _ in range(len(self._out)):
            future = self.waiting.pop()
            if not future.done():
                future.set_exception(unsent(reason))
        self._out.clear()
        self._on_lost(self, reason, 0)

    def abort(self, reason: str) -> None:
        """End the link at once; what is unanswered becomes ``OutcomeUnknown``."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return when the socket of a link that ended is closed."""
        if self._transport is not None:
            if self._gone is None:
                self._gone = self._loop.create_future()
            await asyncio.shield(self._gone)

    def forget(self) -> None:
        """Drop everything without the event loop, which is closed or another process's."""
        self.lost = self.lost or "its event loop is gone"
        self.open = False
        if self._transport is not None:
            if self._pid == os.getpid():
                _close_behind(self._transport)
            else:
                _of_parents.append(self._transport)
        self._transport = self._timer = None
        self.waiting.clear()

    def _end(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = reason
        self.open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = self.waiting
        unanswered = len(waiting) - len(self._out)
        self._out.clear()
        self._batches.clear()
        self.pending_bytes = 0
        for number, future in enumerate(waiting):
            if not future.done():
                future.set_exception(lost(reason) if number < unanswered else unsent(reason))
        waiting.clear()
        if not self.retired:
            self._on_lost(self, reason, unanswered)
        if self.room is not None:
            self.room()


def _close_behind(transport: Any) -> None:
    """Close the socket of a transport whose loop is closed, without the warning it would give.

    asyncio has no public way: its transports close in a callback, and nothing calls it any more.
    uvloop closes them with the loop.
    """
    if hasattr(transport, "_ssl_protocol"):
        transport._closed = True  # noqa: SLF001
        transport = transport._ssl_protocol._transport  # noqa: SLF001
    sock = getattr(transport, "_sock", None)
    if sock is not None:
        transport._sock = None  # noqa: SLF001
        sock.close()


def _seen(future: asyncio.Future[Any]) -> None:
    """Take a probe's error, so that it is not reported as never retrieved."""
    if not future.cancelled():
        future.exception()


async def connect(
    address: Address, options: WireOptions, on_lost: Callable[[Link, str, int], None]
) -> Link:
    """Open a connection and greet the server; bounded by the caller.

    Raises:
        Unavailable: Nobody answers there, or the server refused us.
    """
    loop = asyncio.get_running_loop()

    def make() -> Link:
        return Link(loop, str(address), options, on_lost)

    try:
        if address.path:
            transport, link = await loop.create_unix_connection(make, address.path)
        else:
            transport, link = await loop.create_connection(
                make,
                address.host,
                address.port,
                ssl=address.tls,
                server_hostname=address.host if address.tls else None,
            )
    except (OSError, UnicodeError) as error:
        raise unreachable(str(address), error) from error
    try:
        if not address.path:
            # A twin of the descriptor: uvloop does not let its own be tuned.
            number = os.dup(transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=number) as twin:
                tune(twin)
        link.info = await _greet(link, address)
    except BaseException:
        link.abort("the handshake failed")
        await link.wait_closed()
        raise
    return link


async def _greet(link: Link, address: Address) -> ServerInfo:
    talk = handshake(address)
    words = next(talk)
    while True:
        try:
            reply: Any = await link.send(pack(words))
        except (OutcomeUnknown, Unavailable) as error:
            raise Unavailable(
                f"{address} ended the connection during the handshake: {link.lost}"
            ) from error
        except Exception as error:
            reply = error
        try:
            words = talk.send(reply)
        except StopIteration as stop:
            info: ServerInfo = stop.value
            link.offset_ms = info.offset_ms
            return info
