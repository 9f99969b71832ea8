"""A proxy between a client and a real server that loses, holds, cuts and drops on command.

    with Proxy("redis://127.0.0.1:6379") as proxy:
        client = Client.from_url(proxy.url)
        proxy.fault("reply", "INCR", "cut")      # forwarded; the connection ends before its reply
        ...
        proxy.hold("reply")                      # from here on replies stay here
        proxy.wait(lambda: proxy.count("GET") == 3)
        proxy.release("reply")

It understands RESP, so that every fault strikes exactly one request or reply, and tests wait for
what it has seen and never for time. It runs on a loop of its own, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from fencepost.errors import Refused
from fencepost.testing.frames import split, words_of
from fencepost.wire.address import parse_url

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

Direction = Literal["request", "reply"]
Action = Literal["cut", "half", "drop"]
PATIENCE = 30.0
"""Seconds after which a condition that never came true fails the test."""


class LoopThread(ABC):
    """An asyncio server in a thread of its own, with a place for conditions.

    Args:
        tls: Speak TLS to clients, with this context.
        tcp: Listen on a port of 127.0.0.1 instead of a unix socket.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, tcp: bool = False) -> None:
        self._tls = tls
        self._tcp = tcp or tls is not None
        self._home = Path(tempfile.mkdtemp(prefix="fp-", dir="/tmp"))  # socket paths are short
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0
        """How many were accepted."""
        self.open = 0
        """How many are open."""
        self.requests: list[tuple[bytes, ...]] = []
        """Each request that came, as words."""

    @property
    def url(self) -> str:
        if self._tcp:
            return f"{'rediss' if self._tls else 'redis'}://localhost:{self.port}"
        return "unix://" + quote(str(self._home / "s"))

    def count(self, verb: str) -> int:
        """How many requests with this verb came."""
        return sum(1 for words in list(self.requests) if words[0].upper() == verb.encode())

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on what was seen is true."""
        with self._changed:
            if not self._changed.wait_for(condition, PATIENCE):
                raise AssertionError(f"never came true; seen were {self.requests[-20:]}")

    async def seen(self, condition: Callable[[], bool]) -> None:
        """``wait`` for a test that has a loop."""
        await asyncio.to_thread(self.wait, condition)

    def _note(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *exc: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _run(self, work: Awaitable[None]) -> None:
        async def main() -> None:
            await work

        asyncio.run_coroutine_threadsafe(main(), self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        if self._tcp:
            self._server = await asyncio.start_server(
                self._accept, "127.0.0.1", self.port, ssl=self._tls
            )
            self.port = self._server.sockets[0].getsockname()[1]
        else:
            self._server = await asyncio.start_unix_server(self._accept, self._home / "s")

    async def _stop(self) -> None:
        # First no more are accepted, then those that were become connections, then the server ends:
        # a transport that is made for a closed server fails half-way, and nobody closes its socket.
        for sock in self._server.sockets:
            asyncio.get_running_loop().remove_reader(sock.fileno())
        for _ in range(10):
            await asyncio.sleep(0)
        self._server.close()
        told: set[asyncio.Task[Any]] = set()
        # A connection that was accepted and not begun has no end that closes it: it begins first.
        while asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._tasks - told:
                task.cancel()
                told.add(task)
            await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        self._note()
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)
            self.open -= 1
            self._note()

    @abstractmethod
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""


class Proxy(LoopThread):
    """See the module.

    Args:
        url: Where to: ``unix://`` or ``redis://``, without TLS.
        **options: As for ``LoopThread``.

    Raises:
        Refused: The server speaks TLS: nothing could be told apart in between.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._upstream = parse_url(url)
        if self._upstream.tls is not None:
            raise Refused("a proxy before TLS sees no requests; give a plain URL")
        super().__init__(**options)
        self._faults: list[tuple[Direction, bytes, Action]] = []
        self._held: dict[Direction, bytes | None] = {}
        self._wake = asyncio.Event()
        self.replies: list[tuple[bytes, ...]] = []
        """The request of each reply that came."""
        self.waiting = 0
        """How many requests or replies are held now."""

    def fault(self, direction: Direction, verb: str, action: Action) -> None:
        """Strike the next request of this verb, or its reply, once.

        Args:
            direction: Strike the request before it is forwarded, or the reply.
            verb: A command, such as ``INCR``.
            action: ``cut`` the connection instead of forwarding it, forward ``half`` of it and cut,
                or ``drop`` it and everything after it, leaving the connection open.
        """
        with self._changed:
            self._faults.append((direction, verb.encode(), action))

    def hold(self, direction: Direction, verb: str | None = None) -> None:
        """Keep requests or replies (of one verb, and what comes behind them) until ``release``."""
        with self._changed:
            self._held[direction] = verb.encode() if verb else None

    def release(self, direction: Direction) -> None:
        """Let go what is held."""
        with self._changed:
            self._held.pop(direction, None)
        self._loop.call_soon_threadsafe(self._wake.set)

    def cut(self) -> None:
        """End every connection that is open now."""

        async def work() -> None:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

        self._run(work())

    def answered(self, verb: str) -> int:
        """How many replies to this verb came."""
        return sum(1 for words in list(self.replies) if words[0].upper() == verb.encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to = self._upstream
        if to.path:
            up_reader, up_writer = await asyncio.open_unix_connection(to.path)
        else:
            up_reader, up_writer = await asyncio.open_connection(to.host, to.port)
        unanswered: deque[tuple[bytes, ...]] = deque()
        pumps = [
            asyncio.create_task(self._pump("request", reader, up_writer, unanswered)),
            asyncio.create_task(self._pump("reply", up_reader, writer, unanswered)),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            up_writer.transport.abort()  # before the wait: that may be cancelled, as the proxy stops
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            for pump in pumps:
                if not pump.cancelled():
                    pump.exception()

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        unanswered: deque[tuple[bytes, ...]],
    ) -> None:
        rest = b""
        while chunk := await reader.read(1 << 20):
            frames, rest = split(rest + chunk)
            for frame in frames:
                if direction == "request":
                    words = words_of(frame)
                    self.requests.append(words)
                    unanswered.append(words)
                elif frame.startswith(b">"):
                    words = (b"PUSH",)
                else:
                    words = unanswered.popleft()
                    self.replies.append(words)
                self._note()
                while self._is_held(direction, words[0]):
                    self._wake.clear()
                    self.waiting += 1
                    self._note()
                    try:
                        await self._wake.wait()
                    finally:
                        self.waiting -= 1
                        self._note()
                action = self._strike(direction, words[0])
                if action == "cut":
                    return
                if action == "drop":
                    while await reader.read(1 << 20):
                        pass
                    return
                if action == "half":
                    writer.write(frame[: len(frame) // 2])
                    await writer.drain()
                    return
                writer.write(frame)
            await writer.drain()

    def _is_held(self, direction: Direction, verb: bytes) -> bool:
        with self._changed:
            return direction in self._held and self._held[direction] in (None, verb.upper())

    def _strike(self, direction: Direction, verb: bytes) -> Action | None:
        with self._changed:
            for fault in self._faults:
                if fault[:2] == (direction, verb.upper()):
                    self._faults.remove(fault)
                    return fault[2]
        return None
