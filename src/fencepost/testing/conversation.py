"""What a search says to its server: a beginning that is known goes out in one write.

Most of a schedule is the beginning of the one before. What that asked of the server is known, so all
of it is sent at once and the replies are handed out as the protocols ask for them: the same requests,
run by the same server in the same order, at one round trip instead of one each. Every request is
compared with the one that was foretold; where they differ, the run is taken again step by step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, TypeVar

import hiredis

from fencepost._core.port import run_sync
from fencepost._core.script import Call
from fencepost.errors import FencepostError, ServerError
from fencepost.testing.scratch import ScratchServer

T = TypeVar("T")
_PACKED: Final = 10_000  # calls that are kept as bytes
_WITHIN: Final = 30.0  # seconds for a write and its replies; the machine may be busy


class Unforeseen(BaseException):
    """A protocol asked for something else than after the same beginning before."""


class Conversation:
    """One search's talk with its server.

    Args:
        server: Whom it talks to; nobody else does meanwhile.
    """

    def __init__(self, server: ScratchServer) -> None:
        self._server = server
        self._port = server.port
        self._foretold: deque[tuple[Call[Any], Any]] = deque()
        self._looked: tuple[Call[Any], Any] | None = None
        self._line = server.line()
        self._packed: dict[int, tuple[Call[Any], bytes]] = {}
        self._sent: tuple[Sequence[Call[Any]], Call[Any] | None] | None = None
        self.asked = 0
        self.writes = 0

    def foretell(self, calls: Sequence[Call[Any]], look: Call[Any] | None = None) -> None:
        """Send what a known beginning asks; ``run`` hands the replies out.

        Args:
            calls: All of it, from the server's emptying on: the run can be taken again.
            look: Asked behind it; see ``run``.
        """
        self._foretold.clear()
        self._looked = None
        # Replies are read when the first is asked for: meanwhile the actors are set up.
        if self._send(calls if look is None else (*calls, look)):
            self._sent = (calls, look)

    def _hear(self, calls: Sequence[Call[Any]], look: Call[Any] | None) -> None:
        replies = self._read(len(calls) + (look is not None))
        # A script that was forgotten, say: only the link knows what to do then, step by step.
        if any(map(_needs_care, replies)):
            return
        if look is not None:
            self._looked = (look, replies.pop())
        self._foretold.extend(zip(calls, replies, strict=True))

    def run(self, call: Call[T], look: Call[Any] | None = None) -> T:
        """Run one call, as the link does.

        Args:
            call: What to run.
            look: What will probably be asked next, and changes nothing: it goes out in the same write.

        Raises:
            Unforeseen: Something else was foretold.
        """
        if self._sent is not None:
            (calls, behind), self._sent = self._sent, None
            self._hear(calls, behind)
        if self._foretold:
            foretold, reply = self._foretold.popleft()
            if not _same(foretold, call):
                self._foretold.clear()
                raise Unforeseen(f"{call}, not {foretold}")
            return _parsed(call, reply)
        looked, self._looked = self._looked, None
        if looked is not None and looked[0] is call:
            return _parsed(call, looked[1])
        if look is not None:
            replies = self._read(2) if self._send((call, look)) else []
            if replies and not _needs_care(replies[0]):
                if not _needs_care(replies[1]):
                    self._looked = (look, replies[1])
                return _parsed(call, replies[0])
        self.asked += 1
        self.writes += 1
        return run_sync(self._port.run(call))

    def _send(self, calls: Sequence[Call[Any]]) -> bool:
        """Send several calls in one write; False if they can't be sent so."""
        if self._sent is not None:  # somebody broke off: those replies are nobody's
            self._sent = None
            self._line.close("a run was broken off")
        line = self._server.line()
        if line is not self._line:
            self._line = line
            self._packed.clear()
        try:
            packed = [self._pack(call) for call in calls]
        except FencepostError:  # one of them is for another server: the link says so, step by step
            return False
        self.asked += len(calls)
        self.writes += 1
        line.send_all(packed)
        return True

    def _pack(self, call: Call[Any]) -> bytes:
        # A call of a known beginning is the same object in every run of it.
        known = self._packed.get(id(call))
        if known is not None and known[0] is call:
            return known[1]
        info = self._line.info
        packed: bytes = hiredis.pack_command(call.words(info.identity, info.flagged))
        if len(self._packed) > _PACKED:
            self._packed.clear()
        self._packed[id(call)] = (call, packed)
        return packed

    def _read(self, count: int) -> list[Any]:
        line = self._line
        replies = line.read_all(count, monotonic() + _WITHIN)
        if len(replies) < count:
            raise FencepostError(f"the scratch server ended the connection: {line.lost}")
        return replies


def _needs_care(reply: Any) -> bool:
    return isinstance(reply, FencepostError) and type(reply) is not ServerError


def _parsed(call: Call[T], reply: Any) -> T:
    if isinstance(reply, FencepostError):
        raise reply
    return call.parse(reply)


def _same(one: Call[Any], other: Call[Any]) -> bool:
    return one is other or (
        one.args == other.args
        and one.keys == other.keys
        and one.verb == other.verb
        and one.only == other.only
        and (one.script is other.script or _text(one) == _text(other))
    )


def _text(call: Call[Any]) -> str:
    return call.script.plain if call.script is not None else ""
