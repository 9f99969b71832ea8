"""What may happen to a fleet, one small class each. ``strike`` begins it, ``heal`` ends it.

A fault chooses its victim from the dice of its plan, so a seed replays everything that is struck, in
order and for as long. What traffic meets it with is for the machine to say.
"""

from __future__ import annotations

import random
import signal
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustness.fleet import Fleet, Worker


class Fault(ABC):
    """One thing that goes wrong, and is mended.

    Args:
        dice: Chooses the victim.
    """

    seconds = (0.3, 1.2)
    """How long it lasts."""
    loses = False
    """Whether it is declared to lose data."""
    needed = False
    """Whether a process can't start before it is healed."""

    def __init__(self, dice: random.Random) -> None:
        self.victim = dice.randrange(2)

    @abstractmethod
    def strike(self, fleet: Fleet) -> None:
        """Do it."""

    def heal(self, fleet: Fleet) -> None:  # noqa: B027  # most end by themselves
        """By itself, unless a class says how."""

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.victim})"


class _OfWorker(Fault):
    @abstractmethod
    def worker(self, fleet: Fleet) -> Worker:
        """Whom it meets."""


class _Killed(_OfWorker):
    def strike(self, fleet: Fleet) -> None:
        self.worker(fleet).kill()

    def heal(self, fleet: Fleet) -> None:
        self.worker(fleet).start()
        self.worker(fleet).wait_ready()


class _Stopped(_OfWorker):
    def strike(self, fleet: Fleet) -> None:
        self.worker(fleet).tell(signal.SIGSTOP)

    def heal(self, fleet: Fleet) -> None:
        self.worker(fleet).tell(signal.SIGCONT)


class _Flusher(_OfWorker):
    def worker(self, fleet: Fleet) -> Worker:
        return fleet.flushers[self.victim]


class _Service(_OfWorker):
    def worker(self, fleet: Fleet) -> Worker:
        return fleet.services[self.victim]


class KillFlusher(_Killed, _Flusher):
    """SIGKILL of a flusher, wherever it is."""


class StopFlusher(_Stopped, _Flusher):
    """SIGSTOP of a flusher past its claim: another one takes over, then it wakes up."""

    seconds = (2.2, 3.0)


class KillService(_Killed, _Service):
    """SIGKILL of a service with requests in it."""


class StopService(_Stopped, _Service):
    """SIGSTOP of a service with requests in it."""


class KillServer(Fault):
    """SIGKILL of the Valkey server; it comes back with what its append-only file holds."""

    seconds = (0.5, 4.0)
    needed = True

    def strike(self, fleet: Fleet) -> None:
        fleet.server.kill()

    def heal(self, fleet: Fleet) -> None:
        fleet.server.start()


class StopServer(Fault):
    """SIGSTOP of the Valkey server: connections stay, nothing is answered."""

    seconds = (0.5, 3.0)
    needed = True

    def strike(self, fleet: Fleet) -> None:
        fleet.server.pause()

    def heal(self, fleet: Fleet) -> None:
        fleet.server.resume()


class ForgetScripts(Fault):
    """SCRIPT FLUSH."""

    def strike(self, fleet: Fleet) -> None:
        fleet.command("SCRIPT", "FLUSH", "SYNC")


class KillClients(Fault):
    """CLIENT KILL of every connection."""

    def strike(self, fleet: Fleet) -> None:
        fleet.command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")


class PauseClients(Fault):
    """CLIENT PAUSE: everybody waits, then everything is done at once."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        self._milliseconds, self._mode = dice.randrange(300, 2500), dice.choice(("ALL", "WRITE"))

    def strike(self, fleet: Fleet) -> None:
        fleet.command("CLIENT", "PAUSE", self._milliseconds, self._mode)

    def heal(self, fleet: Fleet) -> None:
        fleet.command("CLIENT", "UNPAUSE")


class OutOfMemory(Fault):
    """The server has no memory left for writes."""

    def strike(self, fleet: Fleet) -> None:
        fleet.command("CONFIG", "SET", "maxmemory", "100kb")

    def heal(self, fleet: Fleet) -> None:
        fleet.command("CONFIG", "SET", "maxmemory", "0")


class LoseHeaders(Fault):
    """Every cached header is gone at once, dirty ones too, as no eviction policy would do it."""

    def strike(self, fleet: Fleet) -> None:
        headers = fleet.command("KEYS", "*}:H:*")
        if headers:
            fleet.command("DEL", *headers)


class LockDatabase(Fault):
    """Somebody else writes to the SQLite file for a while."""

    seconds = (0.5, 2.0)

    def strike(self, fleet: Fleet) -> None:
        self._connection: sqlite3.Connection = fleet.sql()
        self._connection.execute("BEGIN IMMEDIATE")

    def heal(self, fleet: Fleet) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


class CutConnections(Fault):
    """All connections of the services end, with requests and replies in them."""

    def strike(self, fleet: Fleet) -> None:
        fleet.proxy.cut()


class LoseReply(Fault):
    """One script is run, and the connection ends before its reply; or before the script."""

    action: Any = "cut"

    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        self._what: Any = dice.choice(("request", "reply"))

    def strike(self, fleet: Fleet) -> None:
        fleet.proxy.fault(self._what, "EVALSHA", self.action)


class _Hold(Fault):
    way: Any
    seconds = (0.3, 2.6)

    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        self._cut = dice.random() < 0.5

    def strike(self, fleet: Fleet) -> None:
        fleet.proxy.hold(self.way)

    def heal(self, fleet: Fleet) -> None:
        if self._cut:
            fleet.proxy.cut()
        fleet.proxy.release(self.way)


class HoldReplies(_Hold):
    """The network swallows replies for a while, then gives them back, or never does."""

    way = "reply"


class HoldRequests(_Hold):
    """The same with requests: what was sent long ago may still arrive, after others."""

    way = "request"


class HalfALine(LoseReply):
    """Half of a request or of a reply arrives, and the connection ends."""

    action = "half"


class DeadLine(LoseReply):
    """From some request or reply on nothing arrives any more, and the connection stays open."""

    action = "drop"


class EmptyServer(Fault):
    """FLUSHALL by a hand. What was not in SQL yet is lost, and that is declared."""

    loses = True

    def strike(self, fleet: Fleet) -> None:
        fleet.command("FLUSHALL")


AROUND: tuple[type[Fault], ...] = (
    KillFlusher,
    StopFlusher,
    KillService,
    StopService,
    LockDatabase,
    CutConnections,
    LoseReply,
    HoldReplies,
)
"""What strikes around the server."""

OF_SERVER: tuple[type[Fault], ...] = (
    KillServer,
    StopServer,
    ForgetScripts,
    KillClients,
    PauseClients,
    OutOfMemory,
    LoseHeaders,
)
"""What strikes the server; either kind can be met by the other at the same time."""

NETWORK: tuple[type[Fault], ...] = (HoldRequests, HalfALine, DeadLine)
"""What else a network may do; apart, so that the seeds of older runs say what they said."""

FAULTS = (*AROUND, *OF_SERVER)


@dataclass(frozen=True)
class Planned:
    """A fault, and how long it lasts."""

    fault: Fault
    seconds: float

    def __str__(self) -> str:
        return f"{self.fault} {self.seconds:.1f}s"


def plan(seed: int, length: int, kinds: Sequence[type[Fault]] = FAULTS) -> list[Planned]:
    """What happens, in order: each kind once before any comes again.

    Args:
        seed: Says all of it.
        length: How many.
        kinds: Of which.
    """
    dice = random.Random(seed)
    planned: list[Planned] = []
    while len(planned) < length:
        order = dice.sample(list(kinds), len(kinds))
        planned += [Planned(kind(dice), dice.uniform(*kind.seconds)) for kind in order]
    return planned[:length]


Storm = tuple[Planned, ...]


def storms(
    seed: int,
    length: int,
    of_server: Sequence[type[Fault]] = OF_SERVER,
    around: Sequence[type[Fault]] = AROUND,
) -> list[Storm]:
    """Two faults at once, one of the server and one around it, so many times.

    Args:
        seed: Says all of it.
        length: How many.
        of_server: What may strike the server.
        around: What may strike around it.
    """
    return list(zip(plan(seed, length, around), plan(seed + 1000, length, of_server), strict=True))
