"""A queue looked at from outside: which jobs there are, and what happened to them. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fencepost._core import commands
from fencepost._core.keys import escape, unescape
from fencepost._core.port import Port
from fencepost.jobs.protocol import Place
from fencepost.jobs.record import Unreadable, unpack
from fencepost.jobs.scripts import NONE, Counts, counts_of

STATES: Final = ("due", "ready", "running", "dead")
_ORDER: Final = 4_398_046_511_104  # what is ready stands by priority, then by its time
_WORDS: Final = {
    "A": "added",
    "D": "done",
    "C": "cancelled",
    "R": "failed, to be tried again",
    "S": "put off",
    "B": "handed back",
    "X": "failed, given up",
    "P": "could not be read",
    "L": "lost with its worker",
}


@dataclass(frozen=True, slots=True)
class Listed:
    """A job in a queue; times in seconds of the server's clock.

    Args:
        id: Of the job.
        state: ``due`` (its time has not come, or was not looked at since), ``ready``, ``running``
            or ``dead``.
        at: When it is or was due; of one that runs, when it began; of a dead one, when it was given up.
        task: Its name; empty if it can't be read.
        arguments: As they are stored.
        counts: What was counted against it.
        epoch: Of the claim by which it runs.
        worker: That runs it.
        lease: When its lease ends, if it is not renewed.
    """

    id: str
    state: str
    at: float
    task: str = ""
    arguments: tuple[Any, ...] = ()
    counts: Counts = NONE
    epoch: int = 0
    worker: str = ""
    lease: float = 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened to a job; times in seconds of the server's clock.

    Args:
        id: Of the job.
        what: In words.
        at: When.
        due: When the job was due.
        began: When this try began; 0 where there was none.
        epoch: Of its claim.
        worker: That ran it.
    """

    id: str
    what: str
    at: float
    due: float
    began: float = 0.0
    epoch: int = 0
    worker: str = ""

    @property
    def late(self) -> float:
        """Seconds between when it was due and when this try began."""
        return max(self.began - self.due, 0.0) if self.began else 0.0


async def history(io: Port, place: Place, id: str = "") -> list[Entry]:
    """What happened, in order, as far as it was kept (``history=`` of the queue).

    Args:
        io: The port.
        place: Which queue.
        id: Of one job alone, as it is stored.
    """
    lines = await io.run(commands.read("LRANGE", place.keys.history, 0, -1))
    entries = (_entry(line.decode()) for line in lines)
    return [one for one in entries if not id or one.id == id]


def _entry(line: str) -> Entry:
    letter, id, at, *more = line.split(" ", 6)
    what = _WORDS.get(letter, letter)
    if letter == "A":
        return Entry(id, what, int(at) / 1000, int(more[0]) / 1000)
    epoch, due, began, worker = more
    return Entry(id, what, int(at) / 1000, int(due) / 1000, int(began) / 1000, int(epoch), worker)


async def listed(io: Port, place: Place, state: str, most: int, first: int = 0) -> list[Listed]:
    """Jobs of one state: those that come first, of the dead the latest."""
    keys = place.keys
    key = {"due": keys.due, "ready": keys.ready, "running": keys.claimed, "dead": keys.dead}[state]
    verb = "ZREVRANGE" if state == "dead" else "ZRANGE"
    scores = await _scores(io, verb, key, first, first + most - 1)
    if not scores:
        return []
    ids = list(scores)
    records, counts, claims = [
        await io.run(commands.read("HMGET", which, *ids))
        for which in (keys.bodies, keys.counts, keys.claims)
    ]
    return [
        _listed(id, state, scores[id], record, counts_of(count or b""), claim)
        for id, record, count, claim in zip(ids, records, counts, claims, strict=True)
        if record is not None  # it may have ended meanwhile
    ]


def _listed(
    id: str, state: str, score: float, record: bytes, counts: Counts, claim: bytes | None
) -> Listed:
    try:
        task, args, kwargs = unpack(record)
    except Unreadable:
        task, args, kwargs = "", [], {}
    arguments = (*args, *(f"{name}={value!r}" for name, value in kwargs.items()))
    at = (score % _ORDER if state == "ready" else int(score)) / 1000
    if state != "running" or claim is None:
        return Listed(id, state, at, task, arguments, counts)
    epoch, _, since_ms, *_, worker = claim.decode().split(" ")
    began = int(since_ms) / 1000
    return Listed(id, state, began, task, arguments, counts, int(epoch), worker, at)


async def queues(io: Port, namespace: str) -> list[str]:
    """The queues of a namespace, by name."""
    prefix = f"{{{escape(namespace)}:jobs:"
    pattern = "".join(f"\\{sign}" if sign in "*?[]\\^-" else sign for sign in prefix) + "*}:[bqwk]"
    found, cursor = set[str](), b"0"
    while True:
        cursor, keys = await io.run(commands.read("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
        found |= {_name(key.decode(), prefix) for key in keys}
        if cursor == b"0":
            return sorted(found)


def _name(key: str, prefix: str) -> str:
    return unescape(key[len(prefix) : key.rindex("}:")])


async def workers(io: Port, place: Place) -> dict[str, float]:
    """Each worker that has been here lately, and when, in seconds of the server's clock."""
    found = await _scores(io, "ZRANGE", place.keys.alive, 0, -1)
    return {name: score / 1000 for name, score in found.items()}


async def schedules(io: Port, place: Place) -> dict[str, float]:
    """Each schedule, and up to when it has been looked at, in seconds of the server's clock."""
    found = await _scores(io, "ZRANGE", place.keys.schedules, 0, -1)
    return {name: score / 1000 for name, score in found.items()}


async def _scores(io: Port, verb: str, key: str, first: int, last: int) -> dict[str, float]:
    words = await io.run(commands.read(verb, key, first, last, "WITHSCORES"))
    # A pair each where the server speaks RESP3, one flat list where it does not.
    paired = words and isinstance(words[0], list)
    pairs = words if paired else zip(words[::2], words[1::2], strict=True)
    return {name.decode(): float(score) for name, score in pairs}
