"""One connection that one thread uses at a time.

Whatever interrupts an exchange (an error, a deadline, Ctrl-C) ends the connection: a reply that is
still on its way must never be read by the next caller.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import hiredis

from fencepost.errors import OutcomeUnknown, Unavailable
from fencepost.wire import resp
from fencepost.wire.address import Address, tune
from fencepost.wire.hello import ServerInfo, handshake
from fencepost.wire.verdict import lost, unreachable, unsent

if TYPE_CHECKING:
    from collections.abc import Sequence

_READ_BYTES: Final = 64 * 1024
_FRESH: Final = 0.005  # seconds: a socket that was used just now needs no look at it
_PLAIN_PROBE: Final = 1.0  # seconds: likewise where a look would cost a round trip
_PING: Final = hiredis.pack_command(("PING",))


class Connection:
    """A connection that greeted its server; see ``open_connection``.

    Args:
        sock: A connected socket.
        server: Its address, for messages.
        budget: Seconds an exchange may take unless it is given less.
    """

    __slots__ = (
        "_budget",
        "_buffer",
        "_kernel",
        "_limited",
        "_reader",
        "_sock",
        "info",
        "lost",
        "server",
        "used",
    )

    def __init__(self, sock: socket.socket, server: str, budget: float) -> None:
        self._sock = sock
        self._budget = budget
        self._reader = resp.make_reader()
        self._buffer = bytearray(_READ_BYTES)
        # The kernel's own time limits save a poll a call; TLS and gevent's sockets have none.
        self._kernel = type(sock) is socket.socket and type(sock).__module__ == "socket"
        self._limited = True
        self._limit(budget)
        self.server = server
        self.info = ServerInfo("", (), 3)
        self.lost = ""  # why it ended; empty while it lives
        self.used = monotonic()

    def ask(self, packed: bytes, deadline: float) -> Any:
        """Send one command and read its reply; an error reply is returned, not raised.

        Raises:
            Unavailable: The server can't have got the whole request.
            OutcomeUnknown: It was sent, and the reply did not come.
        """
        sock, buffer, reader, nothing = self._sock, self._buffer, self._reader, resp.NOTHING
        try:
            sock.sendall(packed)
        except OSError as error:
            self.close(_say(error, self._budget))
            raise unsent(self.lost) from error
        except BaseException:
            self.close("the exchange was interrupted")
            raise
        try:
            while True:
                got = sock.recv_into(buffer)
                if not got:
                    raise ConnectionError("the server closed the connection")
                reader.feed(buffer, 0, got)
                reply = reader.gets()
                while type(reply) is resp.Push:
                    reply = reader.gets()
                if reply is not nothing:
                    break
                self._shorten(deadline)
            if reader.has_data():
                raise ConnectionError("the server sent more than was asked for")
        except OSError as error:
            self.close(_say(error, self._budget))
            raise lost(self.lost) from error
        except BaseException:
            self.close("the exchange was interrupted")
            raise
        if self._limited:
            self._limit(self._budget)
        self.used = monotonic()
        return reply

    def ask_all(self, packed: Sequence[bytes], deadline: float) -> list[Any]:
        """Send several commands in one write and read their replies.

        Returns:
            The replies that came, in order: fewer than were asked for if the connection ended.
        """
        self.send_all(packed)
        return self.read_all(len(packed), deadline)

    def send_all(self, packed: Sequence[bytes]) -> None:
        """Send several commands in one write; ``read_all`` must follow, and nothing else."""
        try:
            self._sock.sendall(b"".join(packed))
        except OSError as error:
            self.close(_say(error, self._budget))
        except BaseException:
            self.close("the exchange was interrupted")
            raise

    def read_all(self, count: int, deadline: float) -> list[Any]:
        """The replies to ``send_all``; fewer than ``count`` if the connection ended."""
        sock, buffer, reader = self._sock, self._buffer, self._reader
        replies: list[Any] = []
        if self.lost:
            return replies
        try:
            while True:
                got = sock.recv_into(buffer)
                if not got:
                    raise ConnectionError("the server closed the connection")
                reader.feed(buffer, 0, got)
                while (reply := reader.gets()) is not resp.NOTHING:
                    if type(reply) is not resp.Push:
                        replies.append(reply)
                if len(replies) >= count:
                    break
                self._shorten(deadline)
            if len(replies) > count:
                raise ConnectionError("the server sent more than was asked for")
        except OSError as error:
            self.close(_say(error, self._budget))
        except BaseException:
            self.close("the exchange was interrupted")
            raise
        if self._limited and not self.lost:
            self._limit(self._budget)
        self.used = monotonic()
        return replies[:count]

    def tell(self, packed: bytes) -> None:
        """Send what has no reply of its own (SUBSCRIBE).

        Raises:
            OSError: The connection ended.
        """
        self._limit(self._budget)
        self._sock.sendall(packed)

    def fileno(self) -> int:
        """What to wait for before ``hear``."""
        return self._sock.fileno()

    def hear(self) -> list[Any]:
        """What has come unasked, once there is something to read.

        Raises:
            OSError: The connection ended.
        """
        heard: list[Any] = []
        while True:
            got = self._sock.recv_into(self._buffer)
            if not got:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(self._buffer, 0, got)
            while (reply := self._reader.gets()) is not resp.NOTHING:
                heard.append(reply)
            # TLS may hold what no look at the socket shows.
            if not getattr(self._sock, "pending", int)():
                return heard

    def alive(self, health: float) -> bool:
        """Whether it can be used: looked at after a pause, probed after a long one."""
        if self.lost:
            return False
        idle = monotonic() - self.used
        if idle < _FRESH:
            return True
        if self._kernel:
            try:
                self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError as error:
                self.close(str(error))
                return False
            else:  # the end, or a reply that nobody asked for
                self.close("the server closed the connection")
                return False
        if idle < (health if self._kernel else min(health, _PLAIN_PROBE)):
            return True
        try:  # what an idle NAT cut looks like from here: nothing at all
            budget = self._budget / 4
            self._limit(budget)
            self._limited = True
            return self.ask(_PING, monotonic() + budget) is not None
        except (OutcomeUnknown, Unavailable):
            return False

    def _shorten(self, deadline: float) -> None:
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._limit(left)
        self._limited = True

    def limit(self, seconds: float) -> None:
        """Let the next exchange take at most so long."""
        self._limit(seconds)
        self._limited = True

    def _limit(self, seconds: float) -> None:
        if self._kernel:
            value = struct.pack("@ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        else:
            self._sock.settimeout(seconds)
        self._limited = False

    def close(self, reason: str) -> None:
        """End it. Nothing is said to the server: in a forked child this only drops a descriptor."""
        self.lost = self.lost or reason
        self._sock.close()

    def interrupt(self, reason: str) -> None:
        """End it from another thread: the one that waits on it is woken, and closes it."""
        self.lost = self.lost or reason
        with contextlib.suppress(OSError):  # it has ended meanwhile
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


def _say(error: OSError, budget: float) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return f"no answer within {budget:g} s"
    return str(error) or type(error).__name__


def open_connection(address: Address, budget: float, within: float) -> Connection:
    """Connect and greet.

    Args:
        address: Where.
        budget: Seconds that its exchanges may take.
        within: Seconds that this may take.

    Raises:
        Unavailable: Nobody answers there, or the server refused us.
    """
    deadline = monotonic() + within
    try:
        sock = _connect(address, within)
    except (OSError, UnicodeError) as error:
        raise unreachable(str(address), error) from error
    try:
        connection = Connection(sock, str(address), budget)
        talk = handshake(address)
        words = next(talk)
        while True:
            left = deadline - monotonic()
            if left <= 0:
                raise Unavailable(
                    f"{address} did not finish its greeting within {within:g} s. Nothing was sent"
                )
            connection.limit(left)
            try:
                reply = connection.ask(hiredis.pack_command(words), deadline)
            except (OutcomeUnknown, Unavailable) as error:
                raise Unavailable(
                    f"{address} ended the connection during the handshake: {connection.lost}"
                ) from error
            try:
                words = talk.send(reply)
            except StopIteration as stop:
                connection.info = stop.value
                return connection
    except BaseException:
        sock.close()
        raise


def _connect(address: Address, within: float) -> socket.socket:
    if address.path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(within)
            sock.connect(address.path)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection((address.host, address.port), within)
    try:
        tune(sock)
        if address.tls is not None:
            return address.tls.wrap_socket(sock, server_hostname=address.host)
        sock.settimeout(None)
        return sock
    except BaseException:
        sock.close()
        raise
