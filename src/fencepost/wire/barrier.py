"""The barrier: have replicas (or a disk) got everything that this server has answered so far?

One connection of its own a server and client, never the shared link: WAIT holds up whatever stands
behind it. A group of callers shares one round: a small write, then WAIT (or WAITAOF). The write is
what makes it true. WAIT asks about the offset of its *own* connection's last write; on a connection
that wrote nothing it answers at once, with a frozen replica too. The replication stream is ordered,
so whoever has our write has everything before it.

The write goes to one key a namespace, ``{ns}:barrier``, and lasts a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from fencepost._core import keys
from fencepost._core.group import AsyncGroup, Group
from fencepost.errors import FencepostError, OutcomeUnknown, Refused, ServerError, Unavailable
from fencepost.wire.lane import Lane
from fencepost.wire.link import pack
from fencepost.wire.resp import NotPrimary
from fencepost.wire.sock import Connection, open_connection
from fencepost.wire.verdict import closed

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from fencepost._core.observe import Hook
    from fencepost.wire.address import Address
    from fencepost.wire.hello import ServerInfo
    from fencepost.wire.options import WireOptions

_MOST = 10_000
_LIFE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Copies:
    """What ``replicated`` asks for.

    Args:
        replicas: How many replicas must have it.
        where: ``memory``: they have received it; ``aof``: it is on their disks, and on the
            primary's (Redis 7.2, Valkey), with an append-only file there.
        wait: Seconds that may take.
    """

    replicas: int
    where: Literal["memory", "aof"]
    wait: float

    def words(self) -> tuple[Any, ...]:
        wait_ms = max(1, round(self.wait * 1000))
        if self.where == "memory":
            return ("WAIT", self.replicas, wait_ms)
        return ("WAITAOF", 1, self.replicas, wait_ms)

    def enough(self, reply: Any) -> bool:
        if self.where == "memory":
            return bool(reply >= self.replicas)
        return bool(reply[0] >= 1 and reply[1] >= self.replicas)

    def __str__(self) -> str:
        what = "disks of the primary and" if self.where == "aof" else "memory of"
        return f"the {what} {self.replicas} replica(s)"


class _Barrier:
    """What both worlds share: the words, and how their replies are read."""

    def __init__(self, namespace: str, copies: Copies) -> None:
        self._copies = copies
        self._write = pack(("SET", keys.barrier(namespace), "", "PX", _LIFE_MS))
        self._wait = pack(copies.words())
        self._probe = pack(("WAITAOF", 1, 0, 1))
        self._fit: set[str] = set()  # servers that can do what is asked

    def _judge_probe(self, info: ServerInfo, reply: Any) -> None:
        if isinstance(reply, ServerError):
            raise Refused(
                f"replicated to disk needs WAITAOF (Redis 7.2, Valkey) and an append-only file on "
                f"the server: {reply}. Nothing was changed"
            )
        self._fit.add(info.identity)

    def _judge(self, servers: Sequence[str], identity: str, wrote: Any, reply: Any) -> list[str]:
        """Why not, for each caller; '' where its change has arrived."""
        for answer in (wrote, reply):
            if isinstance(answer, Exception):
                return [str(answer)] * len(servers)
        why = ""
        if not self._copies.enough(reply):
            why = f"within {self._copies.wait:g} s it was not in {self._copies} (got {reply})"
        # A change that another server answered is not before our write in this one's stream.
        return [why if one == identity else "the server changed meanwhile" for one in servers]

    def _unknown(self, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"applied here, not known to be replicated: {why}. Repeating it is harmless"
        )


class AsyncBarrier(_Barrier):
    """The barrier of one server, for one event loop.

    Args:
        locate: Finds the address.
        options: Budgets and bounds.
        hook: Where events go.
        namespace: Of the key that is written.
        copies: What to wait for.
    """

    def __init__(
        self,
        locate: Callable[[], Awaitable[Address]],
        options: WireOptions,
        hook: Hook,
        namespace: str,
        copies: Copies,
    ) -> None:
        super().__init__(namespace, copies)
        self._budget = options.budget
        self._within = options.budget + copies.wait
        # A reply may take as long as the server waits, and that is no sign of a dead connection.
        self._lane = Lane(locate, replace(options, budget=self._within), hook)
        self._group: AsyncGroup[str, str] = AsyncGroup(self._round, _MOST)

    async def ready(self) -> None:
        """Connect, and see that the server can do it: before anything is changed.

        Raises:
            Refused: It can't.
            Unavailable: It does not answer.
        """
        link = await self._lane.enter(monotonic() + self._budget)
        if self._copies.where == "aof" and link.info.identity not in self._fit:
            try:
                reply: Any = await link.send(self._probe)
            except ServerError as error:
                reply = error
            except OutcomeUnknown as error:
                raise Unavailable(
                    f"the server did not answer; nothing was changed: {error}"
                ) from error
            self._judge_probe(link.info, reply)

    async def confirm(self, server: str) -> None:
        """Return when what ``server`` answered before this call is where it shall be.

        Raises:
            OutcomeUnknown: It is applied on the server; whether it is there is not known.
        """
        try:
            why = await self._group.join(server, 2 * self._within + 1.0)
        except (FencepostError, TimeoutError) as error:
            raise self._unknown(str(error)) from error
        if why:
            raise self._unknown(why)

    async def _round(self, servers: Sequence[str]) -> list[str]:
        link = await self._lane.enter(monotonic() + self._budget)
        write, wait = link.send(self._write), link.send(self._wait)
        answers: list[Any] = []
        for future in (write, wait):
            try:
                answers.append(await future)
            except FencepostError as error:
                answers.append(error)
        return self._judge(servers, link.info.identity, *answers)

    async def aclose(self) -> None:
        await self._lane.aclose()

    def shut(self) -> None:
        self._lane.shut()

    def forget(self) -> None:
        self._lane.forget()


class Barrier(_Barrier):
    """The barrier of one server, for threads: the first to come asks for all. See ``AsyncBarrier``."""

    def __init__(
        self,
        locate: Callable[[], Address],
        options: WireOptions,
        namespace: str,
        copies: Copies,
    ) -> None:
        super().__init__(namespace, copies)
        self._locate = locate
        self._options = options
        self._within = options.budget + copies.wait
        self._group: Group[str, str] = Group(self._round, _MOST)
        self._closed = False
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def ready(self) -> None:
        """See ``AsyncBarrier.ready``."""
        if self._connection is not None and self._copies.where == "memory":
            return  # it is looked at again when it is used
        with self._lock:
            connection = self._open()
            if self._copies.where == "aof" and connection.info.identity not in self._fit:
                try:
                    reply = connection.ask(self._probe, monotonic() + self._options.budget)
                except OutcomeUnknown as error:
                    raise Unavailable(
                        f"the server did not answer; nothing was changed: {error}"
                    ) from error
                self._judge_probe(connection.info, reply)

    def confirm(self, server: str) -> None:
        """See ``AsyncBarrier.confirm``."""
        try:
            why = self._group.join(server, 2 * self._within + 1.0)
        except (FencepostError, TimeoutError) as error:
            raise self._unknown(str(error)) from error
        if why:
            raise self._unknown(why)

    def _open(self) -> Connection:
        connection = self._connection
        if connection is None or connection.lost or not connection.alive(self._options.health):
            if self._closed:
                raise closed()
            budget = self._options.budget
            connection = open_connection(self._locate(), self._within, budget)
            self._connection = connection
        return connection

    def _round(self, servers: Sequence[str]) -> list[str]:
        with self._lock:
            connection = self._open()
            connection.limit(self._within)
            answers = connection.ask_all((self._write, self._wait), monotonic() + self._within)
            answers += [self._unknown(connection.lost)] * (2 - len(answers))
            if any(isinstance(answer, NotPrimary) for answer in answers):
                connection.close("the server is not the primary any more")
            return self._judge(servers, connection.info.identity, *answers)

    def close(self) -> None:
        """End the connection; a thread that waits on it gets ``OutcomeUnknown``."""
        self._closed = True
        if self._connection is None:
            return
        if self._lock.acquire(blocking=False):
            self._connection.close("the client was closed")
            self._lock.release()
        else:
            self._connection.interrupt("the client was closed")  # its thread closes it

    def forget(self) -> None:
        """In a forked child: let go of the parent's socket."""
        self._lock = threading.Lock()
        if self._connection is not None:
            self._connection.close("it belongs to the parent process")
            self._connection = None
