"""Hears of changes under a prefix: ``CLIENT TRACKING … BCAST`` on a connection of its own, in a thread.

With RESP3 the server pushes the names of what changed. A server or proxy that knows RESP2 only sends them
as messages of ``__redis__:invalidate``, to a connection that is subscribed to it, in the name of a second one
that stays open beside it: if either of them ends, nobody says so on the other one.

A connection that is silently dead tells nothing, so it is asked each ``BEAT``, and given up when it has not
answered by the next one. Whatever ends it, ``lost`` is called before anything else.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

import hiredis

from fencepost._core.observe import log
from fencepost.errors import FencepostError, Unavailable
from fencepost.wire.sock import Connection, open_connection
from fencepost.wire.verdict import RECONNECT

if TYPE_CHECKING:
    from fencepost.wire.address import Address
    from fencepost.wire.options import WireOptions

BEAT: Final = 1.0
"""Seconds between two questions whether the connection lives."""
_CHANNEL: Final = "__redis__:invalidate"


class Held(Protocol):
    """Who wants to hear."""

    def heard(self, names: Iterable[str] | None) -> None: ...
    def found(self) -> None: ...
    def lost(self) -> None: ...


class Tracker:
    """Tells ``held`` of changes under ``prefix``.

    Args:
        locate: Finds the address; called at each connect.
        options: Budgets.
        prefix: What the names begin with.
        held: Told of changes, in the tracker's thread.
        beat: Seconds between two questions.
    """

    def __init__(
        self,
        locate: Callable[[], Address],
        options: WireOptions,
        prefix: str,
        held: Held,
        beat: float = BEAT,
    ) -> None:
        self._locate, self._options, self._prefix = locate, options, prefix
        self._held, self._beat = held, beat
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop, self._stopped = socket.socketpair()
        self._closed = False
        self._refused = False
        self._connections: list[Connection] = []
        self.connections = 0
        """How many times it began to listen."""

    def start(self) -> None:
        """Begin, in a thread."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._main, name="fencepost-tracker", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """End the connection and the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        with contextlib.suppress(OSError):
            self._stop.send(b".")
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._options.budget)
        self._held.lost()
        if thread is None or not thread.is_alive():
            self._stop.close()
            self._stopped.close()

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""
        self._closed = True
        self._thread = None
        self._stop.close()
        self._stopped.close()
        for connection in self._connections:
            connection.close("it belongs to the parent process")

    # -- the thread

    def _main(self) -> None:
        failures = 0
        while not self._closed:
            began = self.connections
            try:
                with contextlib.ExitStack() as stack:
                    self._listen(stack)
            except (FencepostError, OSError) as error:
                failures = 1 if self.connections > began else failures + 1
                if not self._refused and isinstance(error, _Refused):
                    self._refused = True  # said once
                    log.warning("%s; nothing of it is held near", error)
            finally:
                self._held.lost()
            if not self._closed:
                _readable((self._stopped,), RECONNECT.delay(failures, 0.5))

    def _open(self, stack: contextlib.ExitStack) -> Connection:
        budget = self._options.budget
        connection = open_connection(self._locate(), budget, budget)
        self._connections.append(connection)
        stack.callback(connection.close, "nobody listens")
        return connection

    def _listen(self, stack: contextlib.ExitStack) -> None:
        self._connections = []
        connection = self._open(stack)
        beside: Connection | None = None
        tracking: tuple[Any, ...] = ("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", self._prefix)
        if connection.info.protocol < 3:
            beside, own = self._open(stack), self._ask(connection, "CLIENT", "ID")
            connection.tell(_pack("SUBSCRIBE", _CHANNEL))
            tracking = ("CLIENT", "TRACKING", "ON", "REDIRECT", own, *tracking[3:])
            # Subscribed before anything is tracked, so that nothing is said to nobody.
            self._hear_until(connection, lambda reply: _kind(reply) == "subscribe")
            self._ask(beside, *tracking)
        else:
            connection.tell(_pack(*tracking))
            # Not `ask`: names may come right behind the answer.
            self._hear_until(connection, lambda reply: _kind(reply) == "")
        self.connections += 1
        self._held.found()
        self._serve(connection, beside)

    def _ask(self, connection: Connection, *words: Any) -> Any:
        reply = connection.ask(_pack(*words), monotonic() + self._options.budget)
        if isinstance(reply, Exception):
            raise _Refused(f"{connection.server} can't tell of changes: {reply}") from reply
        return reply

    def _hear_until(self, connection: Connection, done: Callable[[Any], bool]) -> None:
        until = monotonic() + self._options.budget
        while True:
            if not _readable((connection,), max(until - monotonic(), 0)):
                raise Unavailable(f"{connection.server} did not begin to tell of changes")
            for reply in connection.hear():
                if isinstance(reply, Exception):
                    raise _Refused(f"{connection.server} can't tell of changes: {reply}")
                if done(reply):
                    return

    def _serve(self, connection: Connection, beside: Connection | None) -> None:
        asked = monotonic()
        answered = True
        while not self._closed:
            left = asked + self._beat - monotonic()
            if left <= 0:
                if not answered:
                    raise Unavailable(f"{connection.server} has gone silent")
                if beside is not None:
                    self._ask(beside, "PING")
                connection.tell(_pack("PING"))
                asked, answered, left = monotonic(), False, self._beat
            readable = _readable((connection, self._stopped), left)
            if connection.fileno() in readable:
                for reply in connection.hear():
                    if not self._told(reply):
                        answered = True

    def _told(self, reply: Any) -> bool:
        """Whether a reply was the server's word, which is passed on; else it answers a question."""
        kind = _kind(reply)
        if kind == "invalidate":
            names = reply[1]
        elif kind == "message":
            names = reply[2]
        else:
            return False
        self._held.heard(None if names is None else [_text(name) for name in names])
        return True


class _Refused(Unavailable):
    """The server won't track."""


def _kind(reply: Any) -> str:
    return _text(reply[0]) if isinstance(reply, list) and reply else ""


def _text(word: Any) -> str:
    return word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else str(word)


def _pack(*words: Any) -> bytes:
    packed: bytes = hiredis.pack_command(words)
    return packed


def _readable(some: tuple[socket.socket | Connection, ...], seconds: float) -> set[int]:
    poll = select.poll()  # not select(): a process may have more than 1,024 files
    for one in some:
        poll.register(one.fileno(), select.POLLIN)
    return {fd for fd, _ in poll.poll(max(seconds, 0) * 1000)}
