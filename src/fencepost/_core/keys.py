"""Every key is built here, one function each, the hash tag visible.

Parts that come from users are escaped injectively, so that no id can forge another key, leave its
hash tag or collide: ``{ } % : #``, spaces and control bytes become ``%XX``. Empty ids are refused
(an empty hash tag would split one entity over two slots).
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from fencepost.errors import Refused

MAX_ID_BYTES: Final = 200
"""An id that is longer (escaped, in bytes) is refused where it must be read back."""

_UNSAFE: Final = re.compile(r"[{}%:#\x00-\x20\x7f~]")


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def escape(part: str) -> str:
    """Escape one part of a key; two different parts never become the same.

    Raises:
        Refused: It is empty, not text, or holds a lone surrogate.
    """
    if not isinstance(part, str):
        raise Refused(f"an id is text, got {type(part).__name__} {part!r}")
    if not part:
        raise Refused("an empty id names nothing; give a non-empty one")
    if not part.isascii():
        try:
            part.encode()
        except UnicodeEncodeError:
            raise Refused(f"the id {part!r} is not valid Unicode") from None
    return _UNSAFE.sub(_percent, part) if not part.isalnum() else part


def unescape(part: str) -> str:
    """The inverse of ``escape``."""
    return unquote_to_bytes(part).decode() if "%" in part else part


def shorten(part: str, limit: int = MAX_ID_BYTES) -> str:
    """Escape a part, and replace what is too long by a readable prefix and a hash.

    The prefix ends in ``~``, which ``escape`` never leaves, so no short id equals a shortened one.
    """
    escaped = escape(part)
    if len(escaped.encode()) <= limit:
        return escaped
    digest = hashlib.sha256(part.encode()).hexdigest()[:32]
    return escaped.encode()[:40].decode(errors="ignore") + "~" + digest


def bounded(part: str) -> str:
    """Escape an id that must be read back, so it can't be shortened.

    Raises:
        Refused: It is empty, not text, or longer than ``MAX_ID_BYTES``.
    """
    escaped = escape(part)
    if len(escaped) > MAX_ID_BYTES or (
        not escaped.isascii() and len(escaped.encode()) > MAX_ID_BYTES
    ):
        raise Refused(
            f"an id has at most {MAX_ID_BYTES} bytes, got {len(escaped.encode())}: {part[:40]!r}…"
        )
    return escaped


def field_of(user: str) -> str:
    """The field of a user (an escaped id) in a hash that also holds header fields, which begin with ``#``."""
    return "u" + user


def user_of(field: str) -> str:
    """The user of such a field."""
    return field[1:]


@dataclass(frozen=True, slots=True)
class LikeShard:
    """The keys of one shard of a like cache; all share one hash tag, so one script may use all.

    ``E`` opening record · ``H:item`` header and known states · ``P:item`` journal ·
    ``Q`` dirty items by due time · ``D`` dirty since · ``G:item`` load tokens.
    """

    tag: str
    opening: str
    due: str
    since: str

    def header(self, item: str) -> str:
        return f"{self.tag}:H:{item}"

    def journal(self, item: str) -> str:
        return f"{self.tag}:P:{item}"

    def tokens(self, item: str) -> str:
        return f"{self.tag}:G:{item}"


def like_shard(namespace: str, name: str, number: int) -> LikeShard:
    """The keys of shard ``number`` of the like cache ``name``."""
    tag = f"{{{escape(namespace)}:likes:{escape(name)}:{number:03d}}}"
    return LikeShard(tag, f"{tag}:E", f"{tag}:Q", f"{tag}:D")


def like_hint(namespace: str, name: str, user: str) -> str:
    """The hint of what a user liked just now: its own slot, best effort."""
    return f"{{{escape(namespace)}:likes:{escape(name)}:U:{user}}}"


def barrier(namespace: str) -> str:
    """The key that a barrier writes, so that WAIT has something to wait for."""
    return f"{{{escape(namespace)}}}:barrier"


@dataclass(frozen=True, slots=True)
class CacheKeys:
    """The keys of one entry of a cache; all share one hash tag, so one script may use all.

    ``v`` entry · ``l`` lease · ``m`` marks (revision floor, stopped leases) · ``w`` write intents ·
    ``j`` journal: a value that the source does not have yet.
    """

    entry: str
    lease: str
    marks: str
    intents: str
    journal: str

    @property
    def all(self) -> tuple[str, str, str, str]:
        """In the order in which scripts take them; the journal comes apart."""
        return (self.entry, self.lease, self.marks, self.intents)


@dataclass(frozen=True, slots=True)
class CacheShard:
    """What the entries of a slot share, where a cache is written behind.

    ``E`` opening record · ``Q`` unsaved keys by due time · ``D`` unsaved since · ``X`` set aside.
    """

    opening: str
    due: str
    since: str
    aside: str


def cache_prefix(namespace: str, name: str) -> str:
    """What the keys of a cache begin with, the opening brace of the hash tag included."""
    return f"{{{escape(namespace)}:cache:{escape(name)}:"


def _cache_slot(prefix: str, key: str, shards: int) -> str:
    """What the keys of an entry begin with: a slot of its own, or one of ``shards``."""
    if not shards:
        return f"{prefix}{shorten(key)}}}"
    return f"{prefix}{shard_number(key, shards):03d}}}:{shorten(key)}"


def cache_entry(prefix: str, key: str, shards: int = 0) -> str:
    """The entry of ``key``: all that a hit needs."""
    return f"{_cache_slot(prefix, key, shards)}:v"


def cache_keys(prefix: str, key: str, shards: int = 0) -> CacheKeys:
    """All keys of the entry of ``key``."""
    slot = _cache_slot(prefix, key, shards)
    return CacheKeys(f"{slot}:v", f"{slot}:l", f"{slot}:m", f"{slot}:w", f"{slot}:j")


def cache_shard(prefix: str, number: int) -> CacheShard:
    """What the entries of shard ``number`` share."""
    slot = f"{prefix}{number:03d}}}"
    return CacheShard(f"{slot}:E", f"{slot}:Q", f"{slot}:D", f"{slot}:X")


def cache_stamp(prefix: str, tag: str) -> str:
    """The stamp of a tag: its own slot; no entry's hash tag ends like it, since ``:`` is escaped there."""
    return f"{prefix}tag:{shorten(tag)}}}"


def cache_epoch(prefix: str) -> str:
    """What changes whenever any tag of the cache is invalidated."""
    return f"{prefix}tags:}}"


@dataclass(frozen=True, slots=True)
class LockKeys:
    """The keys of one lock, semaphore or read/write lock; all share one hash tag, so one script may
    use all.

    ``l`` holder or holders · ``f`` fences · ``q`` who waits, in order · ``a`` until when each waiter
    may be silent · ``e`` when each of several holders ends · ``x:attempt`` an attempt that has ended.
    ``channel`` is no key: waiters are called there.
    """

    lock: str
    fences: str
    queue: str
    alive: str
    channel: str
    ends: str

    def ended(self, attempt: str) -> str:
        return f"{self.lock[:-1]}x:{attempt}"


def lock_keys(namespace: str, name: str, kind: str = "lock") -> LockKeys:
    """The keys of the lock ``name``, or of another ``kind`` of that name."""
    tag = f"{{{escape(namespace)}:{kind}:{shorten(name)}}}"
    return LockKeys(f"{tag}:l", f"{tag}:f", f"{tag}:q", f"{tag}:a", f"{tag}:c", f"{tag}:e")


def birth_record(namespace: str) -> str:
    """The key in which a server that votes keeps who it was: not in the slot of any lock."""
    return f"{{{escape(namespace)}}}:born"


def gate_of(key: str) -> str:
    """The key of the gate before a key of the user's: always in that key's slot.

    Raises:
        Refused: There is none: the key is empty, or holds a ``}`` that ends no hash tag.
    """
    if not isinstance(key, str) or not key:
        raise Refused(f"a key is text and not empty, got {key!r}")
    start = key.find("{")
    if start >= 0 and key.find("}", start + 1) > start + 1:
        return f"{key}:fence"
    if "}" in key:
        raise Refused(f"the key {key!r} has a '}}' that ends no hash tag: name its gate yourself")
    return f"{{{key}}}:fence"


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one queue of jobs; all share one hash tag, so one script may use all.

    ``b`` bodies · ``d`` due times · ``r`` ready, in order · ``c`` ends of leases · ``e`` claims · ``m``
    what was counted · ``q`` the last epoch, and whether it is paused · ``w`` the last turn of each worker
    · ``k`` the last turn that each said it knew of · ``l`` when each was here · ``u`` holders of unique
    keys · ``o`` names that are remembered, until when · ``x`` given up · ``t`` the token that wakes a
    worker · ``h`` what happened · ``R:id`` what became of a job. ``channel`` is no key: there it is told who has ended.
    """

    bodies: str
    due: str
    ready: str
    claimed: str
    claims: str
    counts: str
    head: str
    workers: str
    known: str
    alive: str
    unique: str
    remembered: str
    dead: str
    wake: str
    history: str
    channel: str

    @property
    def turn(self) -> tuple[str, ...]:
        """In the order in which a turn takes them; results come behind."""
        return tuple(getattr(self, name) for name in self.__slots__[:-1])

    def result(self, job: str) -> str:
        return f"{self.bodies[:-1]}R:{job}"

    @property
    def schedules(self) -> str:
        """Up to when each schedule has been looked at."""
        return f"{self.bodies[:-1]}s"


def job_keys(namespace: str, queue: str) -> JobKeys:
    """The keys of the queue ``queue``."""
    tag = f"{{{escape(namespace)}:jobs:{bounded(queue)}}}"
    return JobKeys(*[f"{tag}:{letter}" for letter in (*"bdrcemqwkluoxth", "ended")])


def shard_number(item: str, shards: int) -> int:
    """Which shard an item lives in: stable over processes and versions (CRC-32)."""
    return zlib.crc32(item.encode()) % shards
