"""A tap on the clients of this process: which keys they read, for a trace.

It stands in place of the servers' own methods while it is open, and costs nothing when it is not. What is
recorded is what callers read (``GET`` and the like, one a read of a cache), not what scripts touch.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from fencepost._core.script import Call
from fencepost.errors import Refused
from fencepost.local.record import Recorder
from fencepost.wire.pool import SyncServer
from fencepost.wire.single import Server

_READS: Final = frozenset({"get", "hget", "hmget", "hgetall", "smembers", "zrange", "lrange"})
_TAPPED: Final[tuple[tuple[type[Any], str], ...]] = (
    (Server, "run"),
    (Server, "all"),
    (SyncServer, "run"),
    (SyncServer, "run_shared"),
    (SyncServer, "all"),
)
_open = threading.Lock()
_inside = threading.local()
"""One tapped method may use another one: a request is noted by the outer."""


@contextlib.contextmanager
def recording(
    path: Path | str, rate: float = 0.1, *, limit: int = 10_000_000, match: str = "*"
) -> Iterator[Recorder]:
    """Record the keys that all clients of this process read, until the end of the block.

    Args:
        path: Of the trace, 4 bytes a request, made anew.
        rate: The share of the keys that are followed.
        limit: Requests after which nothing more is written.
        match: A pattern of keys, as the server knows them: ``*:cache:products:*``.

    Raises:
        Refused: A recording is under way, or an option can't work.
        OSError: The file can't be made.
    """
    if not _open.acquire(blocking=False):
        raise Refused("a recording is under way in this process; end it first")
    try:
        recorder = Recorder(path, rate, limit)

        def note(call: Call[Any]) -> None:
            if call.script is None and call.verb.lower() in _READS:
                key = str(call.keys[0] if call.keys else _text(call.args[1]))
                if match == "*" or fnmatchcase(key, match):
                    recorder.see(key)

        own = [(home, name, getattr(home, name)) for home, name in _TAPPED]
        try:
            for home, name, method in own:
                setattr(home, name, _tapped(method, note, many=name == "all"))
            yield recorder
        finally:
            for home, name, method in own:
                setattr(home, name, method)
            recorder.close()
    finally:
        _open.release()


def _text(word: Any) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


def _tapped(
    method: Callable[..., Any], note: Callable[[Call[Any]], None], *, many: bool
) -> Callable[..., Any]:
    @functools.wraps(method)
    def tapped(self: Any, asked: Any, *more: Any, **named: Any) -> Any:
        if getattr(_inside, "now", False):
            return method(self, asked, *more, **named)
        for call in asked if many else (asked,):
            note(call)
        _inside.now = True
        try:
            return method(self, asked, *more, **named)
        finally:
            _inside.now = False

    return tapped
