"""What a look at the server finds: settings, memory, and a sample of keys.

Every command of it leaves alone what the server ranks keys by (``OBJECT``, ``TYPE``, ``PTTL`` and ``MEMORY
USAGE`` do not count as a use), none goes through the key space, and each write asks for a few keys only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost._core import commands
from fencepost._core.keys import escape
from fencepost._core.port import Port
from fencepost.errors import ServerError

SETTINGS: Final = (
    "maxmemory",
    "maxmemory-policy",
    "maxmemory-samples",
    "lfu-decay-time",
    "lfu-log-factor",
)
_BATCH: Final = 50
_LOCKS: Final = ("lock", "semaphore", "rwlock")


@dataclass(frozen=True, slots=True)
class Seen:
    """One key of the sample."""

    group: str
    ttl: float | None  # seconds; None is for ever
    size: int  # bytes
    idle: float | None = None  # seconds since its last use, under a policy that knows
    freq: int | None = None  # the server's logarithmic counter, under an LFU policy


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found."""

    settings: dict[str, str]  # those that the server tells
    used: int  # bytes
    limit: int  # bytes; 0 is none
    policy: str
    keys: int
    expiring: int
    evicted: int  # keys, since the server began
    uptime: float
    sample: tuple[Seen, ...] = field(default=())

    def number(self, name: str, default: int) -> int:
        """A setting as a number, or what the server does without it."""
        return int(self.settings.get(name, default))


def group_of(key: str, namespace: str) -> str:
    """What a key belongs to: ``journal``, ``lease``, ``fence``, ``jobs``, ``cache`` or ``other``."""
    lead = "{" + escape(namespace) + ":"
    if not key.startswith(lead):
        return "other"
    part, _, rest = key[len(lead) :].partition(":")
    kind = rest.rpartition("}")[2].removeprefix(":")
    last = kind.rpartition(":")[2]
    if part == "likes":
        return "journal" if kind[:1] in ("P", "Q", "D", "E") else "cache"
    if part == "jobs":
        return "jobs"
    if part in _LOCKS:
        return "fence" if kind == "f" else "lease"
    if part == "cache":
        return "cache" if last in ("", "v", "l", "m", "w") else "journal"
    return "other"


async def look(
    io: Port, namespace: str, number: int, progress: Callable[[int], None] = lambda done: None
) -> Facts:
    """Look at a server.

    Args:
        io: Reaches it.
        namespace: Whose keys are told apart.
        number: Keys of the sample, by chance, the same one twice maybe.
        progress: Told how many were looked at.
    """
    settings: dict[str, str] = {}
    for name in SETTINGS:
        try:
            reply: Any = await io.run(commands.raw("CONFIG", "GET", name))
        except ServerError:  # forbidden, or not there: INFO knows the most of it
            break
        pairs = (
            reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        )
        settings |= {_text(key): _text(value) for key, value in pairs}
    info = _info(await io.run(commands.raw("INFO")))
    space = [value for key, value in info.items() if re.fullmatch(r"db\d+", key)]
    policy = info.get("maxmemory_policy", settings.get("maxmemory-policy", "noeviction"))
    return Facts(
        settings=settings,
        used=int(info.get("used_memory", 0)),
        limit=int(info.get("maxmemory", 0)),
        policy=policy,
        keys=sum(_field(one, "keys") for one in space),
        expiring=sum(_field(one, "expires") for one in space),
        evicted=int(info.get("evicted_keys", 0)),
        uptime=float(info.get("uptime_in_seconds", 0)),
        sample=await _sample(io, namespace, number, "lfu" in policy, progress),
    )


async def _sample(
    io: Port, namespace: str, number: int, lfu: bool, progress: Callable[[int], None]
) -> tuple[Seen, ...]:
    seen: list[Seen] = []
    rank = "FREQ" if lfu else "IDLETIME"  # the other one is an error
    for done in range(0, number, _BATCH):
        batch = min(_BATCH, number - done)
        found = await io.all([commands.raw("RANDOMKEY") for _ in range(batch)])
        names = [name for name in found if name is not None]
        calls = [
            call
            for name in names
            for call in (
                commands.raw("PTTL", name),
                commands.raw("MEMORY", "USAGE", name),
                commands.raw("OBJECT", rank, name),
            )
        ]
        facts = await io.all(calls) if calls else []
        for at, name in enumerate(names):
            ttl, size, used = facts[3 * at : 3 * at + 3]
            if ttl != -2 and size is not None and used is not None:  # else it has gone meanwhile
                seen.append(
                    Seen(
                        group_of(_text(name), namespace),
                        None if ttl < 0 else ttl / 1000,
                        int(size),
                        None if lfu else float(used),
                        int(used) if lfu else None,
                    )
                )
        progress(done + batch)
    return tuple(seen)


def _info(reply: Any) -> dict[str, str]:
    lines = (line.partition(":") for line in _text(reply).splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def _field(text: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", text)
    return int(found[1]) if found else 0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
