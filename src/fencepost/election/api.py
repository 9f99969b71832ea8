"""The two faces of an election, side by side; the docstrings stand on the async one."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fencepost._core import commands
from fencepost._core.aio import clock, token
from fencepost._core.keys import escape
from fencepost._core.port import run_sync
from fencepost.election import protocol
from fencepost.election.leader import LOCK, Leader, read_card, write_card
from fencepost.election.options import ElectionOptions
from fencepost.election.seat import FOR_EVER, AsyncSeat, SyncSeat, Work
from fencepost.election.term import AsyncTerm, Term
from fencepost.errors import FencepostError, LockTimeout, Refused
from fencepost.lock.guard import Guard
from fencepost.lock.lease import report
from fencepost.lock.options import check_wait
from fencepost.wire.bells import AsyncBell, SyncBell
from fencepost.wire.listener import EVERYBODY

if TYPE_CHECKING:
    from fencepost._core.script import Call
    from fencepost.client import AsyncClient, Client
    from fencepost.quorum import AsyncQuorum, Quorum


class _Election:
    """What both faces share: the options, the lock that it rests on, and who shall stop."""

    def __init__(
        self,
        client: AsyncClient | Client | AsyncQuorum | Quorum,
        name: str,
        options: ElectionOptions,
    ) -> None:
        escape(name)
        self.name = name
        self.options = options
        self.stopping = False
        self._client: Any = client
        self._servers = len(getattr(client, "_clients", ())) or 1  # of a quorum, or the one
        self._bells: set[Any] = set()
        self._term: Any = None  # the last one that was won by this object
        self._lock()  # what can't work is refused now, not at the first try

    @property
    def identity(self) -> str:
        """What this candidate calls itself."""
        return self.options.identity or f"{socket.gethostname()}:{os.getpid()}"

    def stop(self) -> None:
        """Stand no more: ``run`` lets its work drain, resigns and returns; from any thread.

        A ``lead`` that waits ends with ``LockTimeout``; one that leads is told by ``term.stopping``.
        The library installs no signal handlers: call it in yours.
        """
        self.stopping = True
        term = self._term
        if term is not None and not term.ended:
            term.tell_stop()
        for bell in list(self._bells):
            bell.ring()

    def _lock(self) -> Any:
        options = self.options
        card = write_card(self.identity, options.ttl, options.metadata)
        # Made anew each time: after a fork the card is another.
        return self._client.lock(
            f"{LOCK}{self.name}", ttl=options.ttl, wait=0, max_hold=math.inf, owner=card
        )

    def _bell(self, kind: type[Any]) -> Any:
        hub, keys = self._client._lock_hub(), self._lock()._place.keys  # noqa: SLF001
        return kind(hub.listener, keys.channel, token(), self.options.retry)

    def _word(self) -> Call[Any]:
        """The command that tells those who listen to look: a hint."""
        channel = self._lock()._place.keys.channel  # noqa: SLF001
        return commands.raw("PUBLISH", channel, EVERYBODY)

    def _won(self, kind: type[Any], lease: Any) -> Any:
        options = self.options
        leader = Leader(
            name=self.name,
            identity=self.identity,
            metadata=options.metadata,
            fence=lease.fence,
            since=time.time(),
            ttl=options.ttl,
            remaining=lease.remaining(),
        )
        term = self._term = kind(lease, leader, options)
        if self.stopping:  # told between the try and here
            term.tell_stop()
        return term

    def _leads(self) -> Any:
        """The term to resign, or None."""
        term = self._term
        return None if term is None or term.ended or term.lost else term

    @contextlib.contextmanager
    def _listening(self, bell: Any) -> Iterator[Any]:
        """While somebody may have to be woken."""
        self._bells.add(bell)
        try:
            yield bell
        finally:
            self._bells.discard(bell)

    def _led(self, held: LockTimeout) -> LockTimeout:
        """Says who leads, instead of who holds a lock."""
        identity, _, _ = read_card(held.owner)
        return LockTimeout(
            f"{identity!r} leads in the election {self.name!r} (fence {held.fence}); its lease lasts "
            f"{held.remaining:.3g} s if it is not renewed",
            owner=identity,
            fence=held.fence,
            remaining=held.remaining,
        )

    def _not_elected(self) -> LockTimeout:
        return LockTimeout(f"{self.identity!r} stands no more in the election {self.name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, ttl={self.options.ttl:g})"


# -- the async face


class AsyncElection(_Election):
    """An election, as ``AsyncClient.election`` makes it: one object is one candidate.

    ``async with election.lead() as term:`` waits until it leads; ``await election.run(work)`` stands
    again and again. What this promises and what no election can is written in ``docs/elections.md``.
    """

    def lead(self, *, wait: float = math.inf) -> AsyncLead:
        """Wait until this candidate leads, and lead while the block runs.

        The block is cancelled when the term is over, and ends with ``LeaseLost``. At its end the
        term is given back. The block is entered with an ``AsyncTerm``.

        Args:
            wait: Seconds to wait; 0 tries once.

        Raises:
            LockTimeout: Somebody else led all the time (on entering).
            Unavailable: The server could not be reached in that time (on entering).
            Refused: ``wait`` is no time.
        """
        check_wait(wait)
        return AsyncLead(self, wait)

    async def run(
        self,
        work: Work,
        *,
        started: Work | None = None,
        stopped: Work | None = None,
        new_leader: Work | None = None,
    ) -> None:
        """Campaign for ever: lead, run ``work(term)``, stop, resign, stand again; until ``stop``.

        When the term is over, the work is cancelled, and the next campaign begins. Work that returns
        steps down; the next campaign begins a ``retry`` later. Every callback may be a plain
        function or a coroutine function.

        Args:
            work: What the leader does.
            started: Called with the term before the work.
            stopped: Called with the term when the work has stopped, before the term is given back:
                once for each call of ``started`` (of the work, without one), also if that failed.
            new_leader: Called with each ``Leader`` that this candidate learns of, itself included.

        Raises:
            BaseException: What work or a callback raised. The term has been given back.
            Unavailable: The client is closed, or the server refuses its credentials.
        """
        seat = AsyncSeat(self, work, started, stopped, new_leader)
        with self._listening(self._bell(AsyncBell)) as bell:
            try:
                await protocol.run(self._client.port, seat, bell, self.options.retry)
            finally:
                seat.clear()

    async def observe(self) -> AsyncIterator[Leader | None]:
        """Who leads now, and from then on each new leader; None while nobody does.

        A word tells of a change at once; without it, it is seen a ``retry`` later at most. Terms that
        come and go between two looks are not told. While the server does not answer, nothing is.
        """
        known, first = None, True
        bell, seat = self._bell(AsyncBell), AsyncSeat(self)
        with self._listening(bell):
            try:
                await bell.listen()
                while True:
                    known = await protocol.next_leader(
                        self._client.port, seat, bell, self.options.retry, known, first
                    )
                    first = False
                    yield known
            finally:
                bell.close()

    async def resign(self) -> bool:
        """Step down, if this candidate leads: its work is told to stop, drains, is cancelled, has stopped.

        In ``run`` the next campaign begins a ``retry`` later.

        Returns:
            Whether it led until the term was given back.

        Raises:
            Refused: It was called by the work itself, which would wait for its own end: return instead.
        """
        term = self._leads()
        if term is None:
            return False
        if term.holder is asyncio.current_task():
            raise Refused("the work itself resigns by its end: return, or leave the block")
        term.tell_stop()
        await term.until(lambda: term.ended, clock() + FOR_EVER)
        return not term.lost

    async def _take(self, floor: int) -> AsyncTerm:
        try:
            lease = await self._lock().acquire(wait=0, floor=floor)
        except LockTimeout as held:
            raise self._led(held) from None
        term: AsyncTerm = self._won(AsyncTerm, lease)
        try:
            await self._announce()
        except BaseException:
            self._clear(term)
            raise
        return term

    async def _announce(self) -> None:
        with contextlib.suppress(FencepostError):  # then others look by themselves
            await protocol.announce(self._client.port, self._word(), self._servers)

    async def _give_back(self, term: AsyncTerm) -> None:
        try:
            confirmed = await term._give_back()  # noqa: SLF001
        finally:
            term.mark_ended()
        if confirmed:
            await self._announce()

    def _clear(self, term: AsyncTerm) -> None:
        if not term.ended:
            term.abandon()
            term.mark_ended()


class AsyncLead:
    """One block that leads, as ``AsyncElection.lead`` makes it."""

    def __init__(self, election: AsyncElection, wait: float) -> None:
        self._election, self._wait = election, wait
        self._term: AsyncTerm | None = None
        self._guard: Guard | None = None

    async def __aenter__(self) -> AsyncTerm:
        election = self._election
        if self._term is not None:
            raise Refused("a block that leads is entered once; call lead() again")
        with election._listening(election._bell(AsyncBell)) as bell:  # noqa: SLF001
            term: AsyncTerm | None = await protocol.campaign(
                election._client.port,  # noqa: SLF001
                AsyncSeat(election),
                bell,
                election.options.retry,
                clock() + self._wait,
            )
        if term is None:
            raise election._not_elected()  # noqa: SLF001
        self._term = term
        try:
            term.check()  # never a body without a term
            term.holder = asyncio.current_task()
            self._guard = Guard(term)
        except BaseException:
            election._clear(term)  # noqa: SLF001
            raise
        return term

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        term, guard = self._term, self._guard
        assert term is not None  # noqa: S101  # it was entered
        assert guard is not None  # noqa: S101
        guard.close()
        await self._election._give_back(term)  # noqa: SLF001
        guard.settle(error)


# -- the face for threads


class Election(_Election):
    """An election, for threads; see ``AsyncElection``. Work can't be cancelled: ``term.sleep``, ``check``."""

    def stop(self) -> None:
        self.stopping = True
        # In a thread of its own: a signal handler must not wait for a lock that what it interrupts holds.
        threading.Thread(target=super().stop, name="fencepost-stop", daemon=True).start()

    def lead(self, *, wait: float = math.inf) -> Lead:
        check_wait(wait)
        return Lead(self, wait)

    def run(
        self,
        work: Work,
        *,
        started: Work | None = None,
        stopped: Work | None = None,
        new_leader: Work | None = None,
    ) -> None:
        seat = SyncSeat(self, work, started, stopped, new_leader)
        with self._listening(self._bell(SyncBell)) as bell:
            try:
                run_sync(protocol.run(self._client.port, seat, bell, self.options.retry))
            finally:
                seat.clear()

    def observe(self) -> Iterator[Leader | None]:
        known, first = None, True
        bell, seat = self._bell(SyncBell), SyncSeat(self)
        with self._listening(bell):
            try:
                bell.listen()
                while True:
                    known = run_sync(
                        protocol.next_leader(
                            self._client.port, seat, bell, self.options.retry, known, first
                        )
                    )
                    first = False
                    yield known
            finally:
                bell.close()

    def resign(self) -> bool:
        term = self._leads()
        if term is None:
            return False
        if term.holder == threading.get_ident():
            raise Refused("the work itself resigns by its end: return, or leave the block")
        term.tell_stop()
        term.until(lambda: term.ended, clock() + FOR_EVER)
        return not term.lost

    def _take(self, floor: int) -> Term:
        try:
            lease = self._lock().acquire(wait=0, floor=floor)
        except LockTimeout as held:
            raise self._led(held) from None
        term: Term = self._won(Term, lease)
        try:
            term.holder = threading.get_ident()
            self._announce()
        except BaseException:
            self._clear(term)
            raise
        return term

    def _announce(self) -> None:
        with contextlib.suppress(FencepostError):
            run_sync(protocol.announce(self._client.port, self._word(), self._servers))

    def _give_back(self, term: Term) -> None:
        try:
            confirmed = term._give_back()  # noqa: SLF001
        finally:
            term.mark_ended()
        if confirmed:
            self._announce()

    def _clear(self, term: Term) -> None:
        if not term.ended:
            term.abandon()
            term.mark_ended()


class Lead:
    """One block that leads, for threads; see ``AsyncElection.lead``."""

    def __init__(self, election: Election, wait: float) -> None:
        self._election, self._wait = election, wait
        self._term: Term | None = None

    def __enter__(self) -> Term:
        election = self._election
        if self._term is not None:
            raise Refused("a block that leads is entered once; call lead() again")
        with election._listening(election._bell(SyncBell)) as bell:  # noqa: SLF001
            campaign = protocol.campaign(
                election._client.port,  # noqa: SLF001
                SyncSeat(election),
                bell,
                election.options.retry,
                clock() + self._wait,
            )
            term: Term | None = run_sync(campaign)
        if term is None:
            raise election._not_elected()  # noqa: SLF001
        self._term = term
        try:
            term.check()
        except BaseException:
            election._clear(term)  # noqa: SLF001
            raise
        return term

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._term is not None  # noqa: S101  # it was entered
        self._election._give_back(self._term)  # noqa: SLF001
        if self._term.lost:
            report(self._term, error)
