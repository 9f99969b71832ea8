"""What a queue stores of a job: a head that scripts read, and a body that only workers read.

    1 lease_ms priority crashes window key keep_ms \\n  msgpack of [task, args, kwargs]

Never pickle. A worker that can't read a record says so, and the job is set aside.
"""

from __future__ import annotations

import itertools
import os
import secrets
from typing import Any, Final

import msgspec

from fencepost._core.keys import bounded
from fencepost.errors import Refused


class Unreadable(Exception):
    """A record that this worker can't run; its text says why."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


def head(
    lease: float, priority: int, crashes: int, window: str, key: str, result_ttl: float
) -> bytes:
    """The head of a record; ``window`` is ``-``, ``p``, ``r`` or milliseconds."""
    text = f"1 {int(lease * 1000)} {priority} {crashes} {window} {key} {int(result_ttl * 1000)}\n"
    return text.encode()


def pack(task: str, args: tuple[Any, ...], kwargs: dict[str, Any], most: int) -> bytes:
    """The body of a record.

    Raises:
        Refused: The arguments can't be stored, or take more than ``most`` bytes.
    """
    body = pack_value(
        [task, args, kwargs] if kwargs else [task, args], f"the arguments of {task!r}"
    )
    if len(body) > most:
        raise Refused(
            f"the arguments of {task!r} take {len(body)} bytes, more than max_body {most}: "
            "store them elsewhere and send their key"
        )
    return body


def unpack(record: bytes) -> tuple[str, list[Any], dict[str, Any]]:
    """The task, and its arguments as msgpack has them.

    Raises:
        Unreadable: It is no record of ours.
    """
    top, newline, body = record.partition(b"\n")
    if not newline or not top.startswith(b"1 "):
        raise Unreadable("it is no record of this version")
    try:
        task, args, *more = _decode(body)
        kwargs: dict[str, Any] = more[0] if more else {}
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"its body can't be decoded: {error}") from None
    if not (isinstance(task, str) and isinstance(args, list) and isinstance(kwargs, dict)):
        raise Unreadable("its body is no task with arguments")
    return task, args, kwargs


_heads: Final[dict[bytes, tuple[float, int]]] = {}


def terms_of(record: bytes) -> tuple[float, int]:
    """Seconds of its lease, and milliseconds for which what becomes of it is kept, as the server has them."""
    top = record.partition(b"\n")[0]
    found = _heads.get(top)
    if found is None:
        words = top.split(b" ")
        well = len(words) == 7 and words[1].isdigit() and words[6].isdigit()
        found = (int(words[1]) / 1000, int(words[6])) if well else (20.0, 0)
        if len(_heads) > 1000:  # heads with keys are many
            _heads.clear()
        _heads[top] = found
    return found


def pack_value(value: Any, what: str) -> bytes:
    """A value as msgpack.

    Raises:
        Refused: It can't be stored.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise Refused(f"{what} can't be stored as msgpack: {error}") from error


def unpack_value(packed: bytes, type: Any = Any) -> Any:
    """The value of such bytes, as ``type`` says."""
    return msgspec.msgpack.decode(packed, type=type)


# -- ids

_process = ""
_numbers = itertools.count()


def _born() -> None:
    """A process has a name of its own, a forked child another."""
    global _process, _numbers
    _process, _numbers = secrets.token_urlsafe(9), itertools.count()


_born()
os.register_at_fork(after_in_child=_born)


def new_id() -> str:
    """An id that no other job has; those of one process sort in the order in which they were made."""
    return f"{_process}{next(_numbers):08x}"


def given_id(id: str) -> str:
    """An id that the caller chose, as it is stored: escaped, so that it stays one word."""
    return bounded(id)
