"""A server that says what a test chose, where no real one can be made to: errors, nonsense, silence.

    with ScriptedServer(GET=["-LOADING …", b"$1\\r\\nx\\r\\n"]) as server:

Each verb has its replies in order; the last one stays. Text is one line, bytes go as they are,
``SILENCE`` is no reply, ``HANG_UP`` ends the connection, a function is given the words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.proxy import LoopThread, split, words_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    Reply = str | bytes | Callable[[tuple[bytes, ...]], str | bytes]

SILENCE = b"silence"
HANG_UP = b"hang up"


def bulk(text: str | bytes) -> bytes:
    """A value as RESP has it."""
    data = text.encode() if isinstance(text, str) else text
    return b"$%d\r\n%s\r\n" % (len(data), data)


def info(run_id: str = "a" * 40, role: str = "master") -> Callable[[tuple[bytes, ...]], bytes]:
    """Replies to INFO."""

    def reply(words: tuple[bytes, ...]) -> bytes:
        if words[1:] == (b"server",):
            return bulk(f"# Server\r\nredis_version:7.2.4\r\nrun_id:{run_id}\r\n")
        return bulk(f"# Replication\r\nrole:{role}\r\nmaster_replid:{'b' * 40}\r\n")

    return reply


HELLO = b"%2\r\n" + bulk("server") + bulk("redis") + bulk("version") + bulk("7.2.4")


class ScriptedServer(LoopThread):
    """See the module.

    Args:
        tcp: As for ``LoopThread``.
        **replies: The replies of each verb; HELLO and INFO have sensible ones.
    """

    def __init__(self, *, tcp: bool = False, **replies: Any) -> None:
        super().__init__(tcp=tcp)
        self._replies: dict[str, list[Reply]] = {"HELLO": [HELLO], "INFO": [info()]}
        for verb, what in replies.items():
            self._replies[verb] = list(what) if isinstance(what, list) else [what]

    def say(self, verb: str, *replies: Any) -> None:
        """Choose other replies for a verb."""
        self._replies[verb] = list(replies)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while chunk := await reader.read(1 << 20):
            frames, rest = split(rest + chunk)
            for frame in frames:
                words = words_of(frame)
                self.requests.append(words)
                self._note()
                reply = self._choose(words)
                if reply == HANG_UP:
                    return
                if reply != SILENCE:
                    writer.write(reply.encode() + b"\r\n" if isinstance(reply, str) else reply)
            await writer.drain()

    def _choose(self, words: tuple[bytes, ...]) -> str | bytes:
        replies = self._replies.get(words[0].decode().upper(), ["-ERR unknown command"])
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return reply if isinstance(reply, str | bytes) else reply(words)
