"""What the server says by itself of its hottest keys: the counters of its LFU eviction."""

from __future__ import annotations

from typing import Any, NamedTuple

from fencepost._core import commands
from fencepost._core.keys import escape
from fencepost._core.port import Port
from fencepost.errors import Refused, ServerError

_PAGE = 500


class ServerKey(NamedTuple):
    """A key of the server and its LFU counter, 0 to 255: logarithmic, and decaying while nobody asks."""

    key: str
    counter: int


async def server_top(io: Port, namespace: str, n: int, look_at: int) -> list[ServerKey]:
    """The ``n`` greatest counters of the first ``look_at`` keys of a namespace.

    Raises:
        Refused: The server keeps no counters, or a number can't work.
    """
    for name, value, most in (("n", n, 1_000), ("look_at", look_at, 10_000_000)):
        if type(value) is not int or not 1 <= value <= most:
            raise Refused(f"{name} is a whole number from 1 to {most:,}, got {value!r}")
    policy = _policy(await io.run(commands.read("INFO", "memory")))
    if "lfu" not in policy:
        raise Refused(
            f"maxmemory-policy is {policy or 'not told'}: the server counts only under allkeys-lfu or "
            "volatile-lfu; use top(), which asks the clients"
        )
    signs = "".join(f"\\{sign}" if sign in "*?[]\\^-" else sign for sign in escape(namespace))
    cursor: Any = b"0"
    found: dict[bytes, int] = {}
    seen = 0
    while seen < look_at:
        cursor, names = await io.run(
            commands.read("SCAN", cursor, "MATCH", f"{{{signs}:*", "COUNT", _PAGE)
        )
        names = names[: look_at - seen]
        seen += len(names)
        counters = await _counters(io, names)
        found.update((key, count) for key, count in zip(names, counters, strict=True) if count >= 0)
        if cursor == b"0":
            break
    best = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:n]
    return [ServerKey(key.decode(errors="backslashreplace"), count) for key, count in best]


async def _counters(io: Port, names: list[bytes]) -> list[int]:
    """Of some keys, -1 where a key is gone; asking does not count as a use."""
    counters = []
    try:
        replies = await io.all([commands.read("OBJECT", "FREQ", name) for name in names])
        counters = [-1 if reply is None else int(reply) for reply in replies]
    except ServerError:  # one of them is gone, and the server calls that an error
        for name in names:
            try:
                reply = await io.run(commands.read("OBJECT", "FREQ", name))
            except ServerError:
                reply = None
            counters.append(-1 if reply is None else int(reply))
    return counters


def _policy(info: bytes | str) -> str:
    text = info.decode() if isinstance(info, bytes) else info
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "maxmemory_policy":
            return value.strip()
    return ""
