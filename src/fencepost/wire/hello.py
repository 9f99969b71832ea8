"""The handshake, written once for both worlds: a generator yields commands and is sent replies.

An error reply is sent in as a value. What comes out is what the link must know of its server: who
it is (run id and replication id), what it can do, and which protocol it speaks.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fencepost._core.aio import clock
from fencepost.errors import Denied, ServerError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Generator

    from fencepost.wire.address import Address

log = logging.getLogger("fencepost.wire")

Words = tuple[Any, ...]
_REFUSES_HELLO: Final = ("NOPROTO", "NOPERM")
_DENIED: Final = frozenset({"WRONGPASS", "NOAUTH", "NOPERM"})
_NO_DATABASE: Final = _DENIED | {"ERR"}  # LOADING and the like pass; an index out of range stays


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a handshake learned.

    ``identity`` is ``run_id:replication_id``: another process or another replication history is
    another identity. It is ``?`` where an ACL forbids INFO (then a failover goes unnoticed).
    """

    identity: str
    version: tuple[int, ...]
    protocol: int
    offset_ms: float = field(default=0.0, compare=False)
    """What to add to ``clock()`` in milliseconds for the server's time; off by half a round trip at most."""
    flagged: bool = field(init=False)
    """Whether scripts may carry flags (``#!lua``)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "flagged", self.version >= (7,))


def handshake(address: Address) -> Generator[Words, Any, ServerInfo]:
    """Greet, authenticate, select, identify.

    Yields:
        The words of each command; the reply is sent in, an error reply as an exception.

    Returns:
        What the server said of itself.

    Raises:
        Denied: Wrong credentials, or no such database.
        Unavailable: The server is a replica, or too busy to greet.
    """
    known = bool(address.password or address.username)
    auth = ("AUTH", address.username or "default", address.password) if known else ()
    greeting = yield ("HELLO", "3", *auth)
    protocol = 3
    if isinstance(greeting, ServerError) and _refuses_resp3(greeting):
        protocol = 2
        log.warning(
            "%s refuses RESP3 (%s): going on with RESP2; no invalidation pushes, so no near cache",
            address,
            greeting,
        )
        greeting = None
        if known:
            greeting = yield (auth if address.username else ("AUTH", address.password))
    _must(greeting, address, "refused the credentials")
    if address.db:
        _must(
            (yield ("SELECT", address.db)), address, f"has no database {address.db}", _NO_DATABASE
        )
    server = yield ("INFO", "server")
    replication = yield ("INFO", "replication")
    if isinstance(server, ServerError) and server.code == "NOPERM":
        log.warning("%s forbids INFO: a failover or a restart behind it goes unnoticed", address)
        said = _greeted(greeting)
        _must_be_primary(said.get("role", ""), address)
        offset = yield from _offset()
        return ServerInfo("?", _version(said.get("version", "6.2")), protocol, offset)
    _must(server, address, "did not say who it is")
    _must(replication, address, "did not say who it is")
    _must_be_primary(_info(replication, "role"), address)
    offset = yield from _offset()
    return ServerInfo(
        identity=f"{_info(server, 'run_id')}:{_info(replication, 'master_replid')}",
        version=_version(_info(server, "valkey_version") or _info(server, "redis_version")),
        protocol=protocol,
        offset_ms=offset,
    )


def _offset() -> Generator[Words, Any, float]:
    sent = clock()
    reply = yield ("TIME",)
    offset = read_time(reply, sent, clock())
    return time.time() * 1000 - clock() * 1000 if offset is None else offset


def read_time(reply: Any, sent: float, got: float) -> float | None:
    """How far the server's clock is from ours, in milliseconds; None where it does not say.

    Args:
        reply: To TIME.
        sent: When that was sent, by ``clock()``.
        got: When the reply was there.
    """
    if not isinstance(reply, list) or len(reply) != 2:
        return None  # an ACL may forbid it
    return int(reply[0]) * 1000 + int(reply[1]) / 1000 - (sent + got) / 2 * 1000


def _refuses_resp3(error: ServerError) -> bool:
    return error.code in _REFUSES_HELLO or "unknown command" in str(error).lower()


def _greeted(reply: Any) -> dict[str, str]:
    """What HELLO says: the next best where INFO is forbidden."""
    if not isinstance(reply, dict):
        return {}
    return {
        name.decode(): value.decode(errors="replace")
        for name, value in reply.items()
        if isinstance(name, bytes) and isinstance(value, bytes)
    }


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _must_be_primary(role: str, address: Address) -> None:
    if role in ("slave", "replica"):
        raise Unavailable(
            f"{address} is a replica; the primary is needed. "
            "Nothing was sent; give the primary's URL"
        )


def _must(reply: Any, address: Address, what: str, codes: frozenset[str] = _DENIED) -> None:
    if isinstance(reply, Exception):
        lasting = isinstance(reply, ServerError) and reply.code in codes
        raise (Denied if lasting else Unavailable)(f"{address} {what}: {reply}") from reply


def _info(reply: Any, name: str) -> str:
    text = reply if isinstance(reply, str) else bytes(reply).decode(errors="replace")
    match = re.search(rf"^{name}:(\S+)", text, re.MULTILINE)
    return match[1] if match else ""
