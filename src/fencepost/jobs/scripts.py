"""The scripts of a queue of jobs: what each answers, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fencepost._core.script import Script, load_script


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted against a job.

    Args:
        tries: That failed.
        crashes: Claims that were lost by a worker that knew of them.
        unseen: Claims that were lost, and whose worker never said that it knew of them.
        why: The last words about it.
    """

    tries: int = 0
    crashes: int = 0
    unseen: int = 0
    why: str = ""


NONE: Final = Counts()


class Claim(NamedTuple):
    """A job that a worker has taken.

    Args:
        id: Of the job.
        epoch: Greater than that of every claim in this queue before; every word about it carries it.
        counts: What was counted against it.
        record: Its head and its body.
    """

    id: str
    epoch: int
    counts: Counts
    record: bytes


@dataclass(frozen=True, slots=True)
class Turned:
    """A turn was done.

    Args:
        applied: Of each acknowledgement, whether it counted; False if the claim stood no more.
        wait: Seconds until something is due or a lease ends; None if nothing is known.
        reclaimed: How many lost claims were taken back.
        claims: What was taken.
        late: Seconds by which all of that together was late.
    """

    applied: tuple[bool, ...]
    wait: float | None
    reclaimed: int
    claims: tuple[Claim, ...]
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Late:
    """A later turn of this worker was here before; nothing was done."""


class Verdict(StrEnum):
    """What became of a job that was to be added."""

    CREATED = "created"
    KEPT = "kept"
    MOVED = "moved"
    RUNNING = "running"
    RECENT = "recent"


class Added(NamedTuple):
    """What became of one job that was to be added, and the id of the job that is there now."""

    verdict: Verdict
    id: str


class Cancelling(StrEnum):
    """What became of a cancel."""

    CANCELLED = "cancelled"
    STOPPED = "stopped"
    RUNNING = "running"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Moved:
    """It has another time, in milliseconds of the server's clock."""

    due_ms: int


@dataclass(frozen=True, slots=True)
class NotMoved:
    """It runs (``running``), or waits no more."""

    running: bool


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where a job is.

    Args:
        state: ``due``, ``ready``, ``running``, ``dead``, ``done``, ``cancelled`` or ``gone``.
        at: When it is due, has begun or was given up, in seconds of the server's clock; 0 if unknown.
        epoch: Of the claim by which it runs.
        worker: That runs it.
        counts: What was counted against it.
        outcome: What its function returned, as it is stored.
    """

    state: str
    at: float = 0.0
    epoch: int = 0
    worker: str = ""
    counts: Counts = NONE
    outcome: bytes = b""


@dataclass(frozen=True, slots=True)
class Dead:
    """A job that was given up: its id, when (seconds of the server's clock), why, and its record."""

    id: str
    at: float
    counts: Counts
    record: bytes


@dataclass(frozen=True, slots=True)
class Figures:
    """How much there is in a queue.

    Args:
        ready: Jobs that a worker may take.
        due: Jobs whose time has not come, or that were not looked at since it came.
        overdue: Of ``due``, those whose time has come.
        running: Jobs that a worker holds.
        dead: Jobs that were given up.
        paused: Whether none may begin.
        late: Seconds by which the job that waits longest is late.
    """

    ready: int
    due: int
    overdue: int
    running: int
    dead: int
    paused: bool
    late: float


def counts_of(text: bytes) -> Counts:
    """What ``counts`` holds of a job."""
    if not text:
        return NONE
    tries, crashes, unseen, why = text.split(b" ", 3)
    return Counts(int(tries), int(crashes), int(unseen), why.decode(errors="replace"))


def _turned(reply: list[Any]) -> Turned | Late:
    if reply[0] == b"LATE":
        return Late()
    said, wait_us = reply[1], reply[2]
    claims = tuple(
        [
            Claim(reply[n].decode(), int(reply[n + 1]), counts_of(reply[n + 2]), reply[n + 3])
            for n in range(5, len(reply), 4)
        ]
    )
    applied = () if said == b"-" else tuple([letter == 65 for letter in said])
    return Turned(
        applied, None if wait_us < 0 else wait_us / 1e6, reply[3], claims, int(reply[4]) / 1000
    )


_VERDICTS: Final = {
    b"C": Verdict.CREATED,
    b"K": Verdict.KEPT,
    b"M": Verdict.MOVED,
    b"R": Verdict.RUNNING,
    b"L": Verdict.RECENT,
}


def _added(reply: list[bytes]) -> list[Added]:
    return [Added(_VERDICTS[reply[n]], reply[n + 1].decode()) for n in range(0, len(reply), 2)]


def _cancelled(reply: list[bytes]) -> Cancelling:
    return Cancelling(reply[0].decode().lower())


def _moved(reply: list[bytes]) -> Moved | NotMoved:
    if reply[0] == b"MOVED":
        return Moved(int(reply[1]))
    return NotMoved(reply[0] == b"RUNNING")


def _seen(reply: list[Any]) -> JobStatus:
    match reply:
        case [b"ENDED", outcome]:
            state = {68: "done", 67: "cancelled"}[outcome[0]]
            return JobStatus(state, outcome=outcome[1:])
        case [b"RUNNING", claim, counts]:
            epoch, _, since_ms, _, _, worker = claim.decode().split(" ")
            return JobStatus("running", int(since_ms) / 1000, int(epoch), worker, counts_of(counts))
        case [b"DUE" | b"DEAD" as word, at_ms, counts]:
            at = int(float(at_ms)) / 1000  # the priority stands in the fraction
            return JobStatus(word.decode().lower(), at, counts=counts_of(counts))
        case [b"READY", counts]:
            return JobStatus("ready", counts=counts_of(counts))
    return JobStatus("gone")


def _dead(reply: list[bytes]) -> list[Dead]:
    return [
        Dead(
            reply[n].decode(),
            int(float(reply[n + 1])) / 1000,
            counts_of(reply[n + 2]),
            reply[n + 3],
        )
        for n in range(0, len(reply), 4)
    ]


def _letters(reply: bytes) -> str:
    return reply.decode()


def _figures(reply: list[Any]) -> Figures:
    ready, due, overdue, running, dead, paused, late_ms = map(int, reply)
    return Figures(ready, due, overdue, running, dead, bool(paused), late_ms / 1000)


def _paused(reply: list[bytes]) -> bool:
    return reply[0] == b"PAUSED"


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts of a queue; tests put others in their place to see a guard matter."""

    add: Script[list[Added]]
    turn: Script[Turned | Late]
    renew: Script[str]
    cancel: Script[Cancelling]
    move: Script[Moved | NotMoved]
    look: Script[JobStatus]
    dead_list: Script[list[Dead]]
    revive: Script[int]
    discard: Script[int]
    pause: Script[bool]
    count: Script[Figures]


_READ: Final[dict[str, Any]] = {
    "add": _added,
    "turn": _turned,
    "renew": _letters,
    "cancel": _cancelled,
    "move": _moved,
    "look": _seen,
    "dead_list": _dead,
    "revive": int,
    "discard": int,
    "pause": _paused,
    "count": _figures,
}
SCRIPTS: Final = Scripts(
    **{verb: load_script(__package__, verb, read) for verb, read in _READ.items()}
)
