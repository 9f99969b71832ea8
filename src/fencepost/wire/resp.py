"""Replies and errors: what the parser makes of bytes, and what each error says was done."""

from __future__ import annotations

import re
from typing import Any, Final

import hiredis

from fencepost.errors import Overloaded, ScriptMissing, ServerError

BULK_BYTES: Final = 64 * 1024
"""A request or reply above this goes over a second connection, beside the small ones."""


class NotPrimary(ServerError):
    """READONLY: the server became a replica; STALELINK: a script of ours saw that it was one.

    Nothing was applied; reconnect, and greet whoever is there now.
    """


class NotReady(ServerError):
    """LOADING, BUSY, MASTERDOWN, TRYAGAIN, CLUSTERDOWN: nothing was applied; try again soon."""


_NOT_READY: Final = ("LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN")
# Redis 6.2 wraps an error that a script met:
# "ERR Error running script (…): @user_script:3: -READONLY You …"
_WRAPPED: Final = re.compile(r"^ERR Error running script .*?@user_script: ?\d+: -?(?=[A-Z]+ )")


def error_of(text: str) -> Exception:
    """The exception that an error reply becomes."""
    text = _WRAPPED.sub("", text)
    code = text.partition(" ")[0]
    if code == "NOSCRIPT":
        return ScriptMissing(text)
    if code in ("READONLY", "STALELINK"):
        return NotPrimary(text)
    if code in _NOT_READY:
        return NotReady(text)
    if code == "OOM":
        return Overloaded(f"the server is out of memory and refused the request whole: {text}")
    return ServerError(text)


def make_reader() -> Any:
    """A parser whose error replies are exceptions (returned, not raised)."""
    return hiredis.Reader(protocolError=ConnectionError, replyError=error_of, notEnoughData=NOTHING)


class _Nothing:
    __slots__ = ()


NOTHING: Final = _Nothing()
Push: Final = hiredis.PushNotification


# Words that change the connection for everybody on it, or block it: refused on a shared link.
_NOT_SHARED: Final = frozenset(
    (
        *("AUTH", "HELLO", "RESET", "QUIT", "SELECT", "MONITOR", "SYNC", "PSYNC"),
        *("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "READONLY", "READWRITE", "ASKING"),
        *("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"),
        *("BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BLMPOP", "BZPOPMIN", "BZPOPMAX", "BZMPOP"),
        *("WAIT", "WAITAOF", "REPLCONF"),
    )
)
_NOT_SHARED_SECOND: Final = {
    "CLIENT": frozenset(
        ("REPLY", "TRACKING", "CACHING", "SETNAME", "SETINFO", "NO-EVICT", "NO-TOUCH", "CAPA")
    ),
    "SCRIPT": frozenset(("DEBUG",)),
}


# Of these no form is refused, and to look at every word costs a fifth of a call: each with its name
# in a play.
SHARED: Final[dict[Any, str]] = {
    verb: verb.lower()
    for verb in (
        *("GET", "SET", "DEL", "UNLINK", "EXISTS", "MGET", "MSET", "INCR", "INCRBY", "DECR"),
        *("EXPIRE", "PEXPIRE", "TTL", "PTTL", "HGET", "HSET", "HDEL", "HMGET", "HGETALL"),
        *("SADD", "SREM", "SISMEMBER", "SMEMBERS", "SCARD", "ZADD", "ZREM", "ZSCORE", "ZRANGE"),
        *("LPUSH", "RPUSH", "LPOP", "RPOP", "LRANGE", "LLEN", "EVALSHA", "XADD", "PUBLISH"),
    )
}


def why_not_shared(words: tuple[Any, ...]) -> str:
    """Why a raw command can't go over the shared link; empty when it can."""
    parts = [w.decode(errors="replace") if isinstance(w, bytes) else str(w) for w in words]
    verb = parts[0].upper() if parts else ""
    if not verb:
        return "a command needs at least its name"
    second = parts[1].upper() if len(parts) > 1 else ""
    if verb in _NOT_SHARED or second in _NOT_SHARED_SECOND.get(verb, ()):
        return f"{verb} changes or blocks the connection that all callers share"
    if verb in ("XREAD", "XREADGROUP") and any(p.upper() == "BLOCK" for p in parts):
        return f"{verb} with BLOCK would block the connection that all callers share"
    return ""
