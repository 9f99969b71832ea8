"""One connection of one event loop: what is issued in one tick goes out in one write.

Guarantees: replies answer requests in order; a cancelled caller's reply is read and dropped, the
others get their own; when the connection ends, every unanswered request becomes ``OutcomeUnknown``
(or ``Unavailable``, if its bytes were never handed to the transport). It never reconnects: a
``Server`` makes a new link.

Speed rests on what is *not* here: no task, no timeout object and no lock a call. A call costs one
packed command, one plain Future and its share of a write; deadlines stand per write, checked by
one timer a link.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from fencepost.errors import OutcomeUnknown, Unavailable
from fencepost.wire import resp
from fencepost.wire.address import Address, tune
from fencepost.wire.hello import ServerInfo, handshake

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
_EARLY = 32  # requests: a long tick is written in slices, so that the server starts early
_READ_BYTES = 256 * 1024


class Link(asyncio.BufferedProtocol):
    """A connection; use ``connect`` to get one that is ready.

    Args:
        loop: The event loop it lives on.
        budget: Seconds after which an unanswered write means that the server is stuck.
        health: Seconds of silence after which an idle link is probed with a PING.
        on_lost: Called once with the link, the reason and the number of unanswered requests.
    """

    __slots__ = (
        "_answered", "_batches", "_budget", "_buffer", "_health", "_loop", "_on_lost",
        "_out", "_paused", "_reader", "_scheduled", "_sent", "_timer", "_transport", "info", "lost", "on_push",
        "pending_bytes", "room", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        budget: float,
        health: float,
        on_lost: Callable[[Link, str, int], None],
    ) -> None:
        self._loop = loop
        self._budget = budget
        self._health = health
        self._on_lost = on_lost
        self._reader = resp.make_reader()
        self._buffer = bytearray(_READ_BYTES)
        self._out: list[bytes] = []  # packed, not yet written
        self.waiting: deque[asyncio.Future[Any]] = deque()  # one a request, in order, written or not
        self._batches: deque[tuple[int, float, int]] = deque()  # (number of the last request, deadline, bytes)
        self._sent = 0  # requests written
        self._answered = 0
        self.pending_bytes = 0  # written and not known to be answered
        self._scheduled = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.info = ServerInfo("", (), 3)
        self.lost = ""  # why the link ended; empty while it lives
        self.on_push: Callable[[list[Any]], None] | None = None
        self.room: Callable[[], None] | None = None  # called when answers arrived while somebody waits for room

    # -- requests

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Queue one packed command; its future gets the reply, or an error.

        Raises:
            Unavailable: The link has ended; nothing was sent.
        """
        if self.lost:
            raise Unavailable(f"the connection ended before the request was sent: {self.lost}")
        future = self._loop.create_future()
        idle = not self.waiting
        self.waiting.append(future)
        self._out.append(packed)
        if idle or len(self._out) >= _EARLY:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._tick)
        return future

    def _tick(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out or self._paused or self.lost:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        self._sent += len(out)
        self.pending_bytes += len(data)
        self._batches.append((self._sent, self._loop.time() + self._budget, len(data)))
        out.clear()
        if self._timer is None:
            self._arm(self._budget / 8)
        assert self._transport is not None
        self._transport.write(data)

    # -- replies

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        reader.feed(self._buffer, 0, nbytes)
        gets, waiting, nothing, push = reader.gets, self.waiting, resp.NOTHING, resp.Push
        answered = 0
        try:
            while (reply := gets()) is not nothing:
                if type(reply) is push:
                    if self.on_push is not None:
                        self.on_push(reply)
                    continue
                future = waiting.popleft()
                answered += 1
                if not future.done():  # a cancelled caller's reply is read and dropped
                    if isinstance(reply, Exception):
                        future.set_exception(reply)
                    else:
                        future.set_result(reply)
        except (ConnectionError, IndexError) as error:  # not RESP, or a reply that nobody asked for
            self.abort(f"the server broke the protocol: {error}")
            return
        self._answered += answered
        batches = self._batches
        while batches and batches[0][0] <= self._answered:
            self.pending_bytes -= batches.popleft()[2]
        if self.room is not None:
            self.room()

    # -- the one timer

    def _arm(self, delay: float) -> None:
        self._timer = self._loop.call_later(delay, self._check)

    def _check(self) -> None:
        self._timer = None
        if self.lost:
            return
        now = self._loop.time()
        if self._batches:
            if self._batches[0][1] <= now:
                self.abort(f"no answer within {self._budget:g} s")
                return
            self._arm(self._budget / 8)
        elif self._out:  # the transport has taken nothing for a while: the oldest of these must not wait for ever
            self.abort(f"could not write within {self._budget:g} s")
        else:
            self._timer = self._loop.call_later(self._health, self._probe)

    def _probe(self) -> None:
        self._timer = None
        if not self.lost and not self.waiting:
            # Its deadline is the batch's; an idle NAT cut shows here and not at the next caller.
            self.send(pack(("PING",))).add_done_callback(_seen)
        elif not self.lost:
            self._arm(self._budget / 8)

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no asyncio.Transport

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def eof_received(self) -> bool:
        self._end("the server closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "the connection was closed")
        self._transport = None

    def abort(self, reason: str) -> None:
        """End the link at once."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the link; what is unanswered becomes ``OutcomeUnknown``."""
        self._end("the client was closed")
        if self._transport is not None:
            self._transport.close()

    def forget(self) -> None:
        """Drop everything without touching the event loop, which is closed or another process's."""
        self.lost = self.lost or "its event loop is gone"
        self._transport = None
        self._timer = None
        self.waiting.clear()

    def _end(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, unsent = self.waiting, len(self._out)
        self._out.clear()
        unanswered = len(waiting) - unsent
        for number, future in enumerate(waiting):
            if future.done():
                continue
            if number < unanswered:
                future.set_exception(
                    OutcomeUnknown(f"the reply was lost ({reason}): the request was applied once or not at all")
                )
            else:
                future.set_exception(Unavailable(f"the connection ended before the request was sent: {reason}"))
        waiting.clear()
        self._batches.clear()
        self.pending_bytes = 0
        self._on_lost(self, reason, unanswered)
        if self.room is not None:
            self.room()


def _seen(future: asyncio.Future[Any]) -> None:
    """Take a probe's error, so that it is not reported as never retrieved."""
    if not future.cancelled():
        future.exception()


async def connect(
    address: Address, *, budget: float, health: float, on_lost: Callable[[Link, str, int], None]
) -> Link:
    """Open a connection and greet the server; bounded by the caller.

    Raises:
        Unavailable: Nobody answers there, or the server refused us.
    """
    loop = asyncio.get_running_loop()

    def make() -> Link:
        return Link(loop, budget=budget, health=health, on_lost=on_lost)

    try:
        if address.path:
            _, link = await loop.create_unix_connection(make, address.path)
        else:
            name = address.host if address.tls else None
            _, link = await loop.create_connection(
                make, address.host, address.port, ssl=address.tls, server_hostname=name
            )
    except OSError as error:
        raise Unavailable(f"no server answers at {address}: {error}. Nothing was sent") from error
    try:
        assert link._transport is not None
        sock = link._transport.get_extra_info("socket")
        if isinstance(sock, (socket.socket, asyncio.trsock.TransportSocket)) and not address.path:
            tune(sock)  # type: ignore[arg-type]
        link.info = await _greet(link, address)
    except BaseException:
        link.abort("the handshake failed")
        raise
    return link


async def _greet(link: Link, address: Address) -> ServerInfo:
    talk = handshake(address)
    words = next(talk)
    while True:
        try:
            reply: Any = await link.send(pack(words))
        except OutcomeUnknown as error:
            raise Unavailable(f"{address} ended the connection during the handshake: {link.lost}") from error
        except Exception as error:
            reply = error
        try:
            words = talk.send(reply)
        except StopIteration as stop:
            info: ServerInfo = stop.value
            return info
