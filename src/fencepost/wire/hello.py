"""The handshake, written once for both worlds: a generator yields commands and is sent replies.

An error reply is sent in as a value. What comes out is what the link must know of its server: who
it is (run id and replication id), what it can do, and which protocol it speaks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

from fencepost.errors import ServerError, Unavailable
from fencepost.wire.address import Address

log = logging.getLogger("fencepost.wire")

Words = tuple[Any, ...]
_REFUSES_HELLO: Final = ("NOPROTO", "NOPERM")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a handshake learned.

    ``identity`` is ``run_id:replication_id``: another process or another replication history is
    another identity. It is ``?`` where an ACL forbids INFO (then a failover goes unnoticed).
    """

    identity: str
    version: tuple[int, ...]
    protocol: int

    @property
    def flagged(self) -> bool:
        """Whether scripts may carry flags (``#!lua``)."""
        return self.version >= (7,)


def handshake(address: Address) -> Generator[Words, Any, ServerInfo]:
    """Greet, authenticate, select, identify.

    Yields:
        The words of each command; the reply is sent in, an error reply as an exception.

    Returns:
        What the server said of itself.

    Raises:
        Unavailable: Wrong credentials, no such database, or the server is a replica.
    """
    auth = ("AUTH", address.username or "default", address.password) if address.password else ()
    protocol = 3
    reply = yield ("HELLO", "3", *auth)
    if isinstance(reply, ServerError) and (
        reply.code in _REFUSES_HELLO or "unknown command" in str(reply).lower()
    ):
        protocol = 2
        log.warning(
            "%s refuses RESP3 (%s): going on with RESP2; no invalidation pushes, so no near cache", address, reply
        )
        if auth:
            old_style = ("AUTH", address.username, address.password) if address.username else auth[::2]
            reply = yield old_style
        else:
            reply = None
    _must(reply, address, "refused the credentials")
    if address.db:
        _must((yield ("SELECT", address.db)), address, f"has no database {address.db}")
    server = yield ("INFO", "server")
    replication = yield ("INFO", "replication")
    if isinstance(server, ServerError) and server.code == "NOPERM":
        log.warning("%s forbids INFO: a failover or an empty restart behind it goes unnoticed", address)
        return ServerInfo("?", (7,) if protocol == 3 else (6, 2), protocol)
    _must(server, address, "did not say who it is")
    _must(replication, address, "did not say who it is")
    if _info(replication, "role") == "slave":
        raise Unavailable(f"{address} is a replica; the primary is needed. Nothing was sent; give the primary's URL")
    version = _info(server, "valkey_version") or _info(server, "redis_version")
    return ServerInfo(
        identity=f"{_info(server, 'run_id')}:{_info(replication, 'master_replid')}",
        version=tuple(int(part) for part in re.findall(r"\d+", version)[:3]),
        protocol=protocol,
    )


def _must(reply: Any, address: Address, what: str) -> None:
    if isinstance(reply, Exception):
        raise Unavailable(f"{address} {what}: {reply}") from reply


def _info(reply: Any, name: str) -> str:
    text = reply if isinstance(reply, str) else bytes(reply).decode(errors="replace")
    match = re.search(rf"^{name}:(\S+)", text, re.MULTILINE)
    return match[1] if match else ""
