"""Who waits for a word on a channel: one connection and one thread for all of them.

A word is a hint. It may be lost (the connection broke, the server forgot), and it may come twice;
whoever hears none looks by itself. After every reconnect all are called, since a word may have been
said meanwhile.

Only the thread touches the socket (TLS allows no two); others hand it what to send.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import hiredis

from fencepost._core.observe import log
from fencepost.errors import FencepostError
from fencepost.wire.sock import Connection, open_connection
from fencepost.wire.verdict import RECONNECT

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.wire.address import Address
    from fencepost.wire.options import WireOptions

EVERYBODY: Final = "*"
"""The word that calls all who listen on a channel."""
LINGER: Final = 10.0
"""Seconds that the connection is kept when nobody listens any more."""


class _Ear:
    """One who waits for one word on a channel."""

    __slots__ = ("ready", "ring")

    def __init__(self, ring: Callable[[], None], ready: Callable[[], None]) -> None:
        self.ring = ring
        self.ready = ready


class Listener:
    """The ears of one process at one server.

    Args:
        locate: Finds the address; called at each connect.
        options: Budgets.
    """

    def __init__(self, locate: Callable[[], Address], options: WireOptions) -> None:
        self._locate = locate
        self._options = options
        self._lock = threading.Lock()
        self._channels: dict[str, dict[str, _Ear]] = {}
        self._confirmed: set[str] = set()
        self._orders: deque[tuple[str, str]] = deque()
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None
        self._connection: Connection | None = None
        self._closed = False
        self.connections = 0
        """How many were opened."""

    def add(
        self, channel: str, word: str, ring: Callable[[], None], ready: Callable[[], None]
    ) -> None:
        """Hear ``word`` on ``channel``.

        Args:
            channel: Its name.
            word: What to wait for; unique among those who listen on the channel.
            ring: Called in the listener's thread for each word heard, and after a reconnect.
            ready: Called once the server has confirmed: what is said from then on is heard.
        """
        ear = _Ear(ring, ready)
        with self._lock:
            ears = self._channels.get(channel)
            if ears is None:
                ears = self._channels[channel] = {}
                self._orders.append(("SUBSCRIBE", channel))
            ears[word] = ear
            known = channel in self._confirmed
            if self._thread is None and not self._closed:
                self._begin()
            elif not known:
                self._nudge()
        if known:
            ready()

    def remove(self, channel: str, word: str) -> None:
        """Hear it no more."""
        with self._lock:
            ears = self._channels.get(channel)
            if ears is None:
                return
            ears.pop(word, None)
            if not ears:
                # The last one: one subscription a channel, however many listen.
                del self._channels[channel]
                self._confirmed.discard(channel)
                self._orders.append(("UNSUBSCRIBE", channel))
                self._nudge()

    def close(self) -> None:
        """End the connection and the thread."""
        with self._lock:
            self._closed = True
            self._channels.clear()
            self._nudge()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._options.budget)

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""
        if self._connection is not None:
            self._connection.close("it belongs to the parent process")
        if self._wake is not None:
            self._wake.close()

    # -- the thread

    def _begin(self) -> None:
        mine, self._wake = socket.socketpair()
        mine.setblocking(False)
        self._wake.setblocking(False)
        self._thread = threading.Thread(
            target=self._main, args=(mine, self._wake), name="fencepost-listener", daemon=True
        )
        self._thread.start()

    def _nudge(self) -> None:
        if self._wake is not None:
            with contextlib.suppress(OSError):  # full: it is awake anyway
                self._wake.send(b".")

    def _main(self, mine: socket.socket, other: socket.socket) -> None:
        failures = 0
        try:
            while self._wanted():
                connection: Connection | None = None
                try:
                    budget = self._options.budget
                    connection = open_connection(self._locate(), budget, budget)
                    self._connection = connection
                    self.connections += 1
                    failures = 0
                    self._serve(connection, mine)
                except (FencepostError, OSError):
                    failures += 1
                    # Not a busy loop, and not for longer than who waits would look by itself.
                    self._rest(mine, RECONNECT.delay(failures, 0.5))
                finally:
                    if connection is not None:
                        connection.close("nobody listens")
                    with self._lock:
                        self._confirmed.clear()
        finally:
            mine.close()
            other.close()

    def _wanted(self) -> bool:
        """Whether to go on; the last look and the end of the thread are one step."""
        with self._lock:
            if self._channels and not self._closed:
                return True
            self._thread = self._wake = None
            self._orders.clear()
            return False

    def _rest(self, mine: socket.socket, seconds: float) -> None:
        until = monotonic() + seconds
        while not self._closed and (left := until - monotonic()) > 0:
            _readable((mine,), left)
            _drain(mine)

    def _serve(self, connection: Connection, mine: socket.socket) -> None:
        with self._lock:
            self._orders.clear()
            channels = list(self._channels)
            ears = [ear for some in self._channels.values() for ear in some.values()]
        if channels:
            connection.tell(_pack("SUBSCRIBE", *channels))
        if self.connections > 1:
            for ear in ears:
                ear.ring()
        idle = monotonic()
        while not self._closed:
            readable = _readable((connection, mine), LINGER)
            if mine.fileno() in readable:
                _drain(mine)
            self._send_orders(connection)
            if connection.fileno() in readable:
                for reply in connection.hear():
                    self._heard(reply)
            with self._lock:
                if self._channels:
                    idle = monotonic()
            if monotonic() - idle > LINGER:
                return

    def _send_orders(self, connection: Connection) -> None:
        while True:
            with self._lock:
                if not self._orders:
                    return
                order = self._orders.popleft()
            connection.tell(_pack(*order))

    def _heard(self, reply: Any) -> None:
        if not isinstance(reply, list) or len(reply) < 3:
            return
        kind, channel = reply[0], reply[1].decode() if reply[1] is not None else ""
        with self._lock:
            ears = self._channels.get(channel)
            if ears is None:
                return
            if kind == b"subscribe":
                self._confirmed.add(channel)
                told = list(ears.values())
            elif kind == b"message":
                word = reply[2].decode(errors="replace")
                ear = ears.get(word)
                told = (
                    list(ears.values()) if word == EVERYBODY else [ear] if ear is not None else []
                )
            else:
                return
        for ear in told:
            try:
                (ear.ready if kind == b"subscribe" else ear.ring)()
            except Exception:  # of one who listens; the others hear all the same
                log.exception("who was called on %s failed", channel)


def _pack(*words: str | int | float | bytes | memoryview[int]) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub says one word
    return packed


def _readable(some: tuple[socket.socket | Connection, ...], seconds: float) -> set[int]:
    poll = select.poll()  # not select(): a process may have more than 1,024 files
    for one in some:
        poll.register(one.fileno(), select.POLLIN)
    return {fd for fd, _ in poll.poll(seconds * 1000)}


def _drain(mine: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while mine.recv(4096):
            pass
