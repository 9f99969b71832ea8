"""What candidates do differently on a loop and in a thread; see ``protocol.Seat``."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from fencepost._core.aio import clock
from fencepost.election.leader import Leader, leader_of
from fencepost.election.term import AsyncTerm, Term
from fencepost.errors import FenceRefused, LeaseLost, Refused

if TYPE_CHECKING:
    from fencepost.election.api import AsyncElection, Election

Work = Callable[[Any], Awaitable[Any] | Any]
FOR_EVER: Final = 1e9


class AsyncSeat:
    """A candidate on a loop; see ``protocol.Seat``."""

    def __init__(
        self,
        election: AsyncElection,
        work: Work | None = None,
        started: Work | None = None,
        stopped: Work | None = None,
        new_leader: Work | None = None,
    ) -> None:
        self.told = 0
        self._election = election
        self._work, self._started, self._stopped = work, started, stopped
        self._new_leader = new_leader
        self._term: AsyncTerm | None = None

    @property
    def stopping(self) -> bool:
        return self._election.stopping

    async def take(self, floor: int) -> AsyncTerm:
        self._term = term = await self._election._take(floor)  # noqa: SLF001
        return term

    async def look(self) -> Leader | None:
        holder = await self._election._lock().locked_by()  # noqa: SLF001
        return None if holder is None else leader_of(self._election.name, holder)

    async def tell(self, leader: Leader) -> None:
        await _called(self._new_leader, leader)

    async def reign(self, term: AsyncTerm) -> BaseException | None:
        begun = False

        async def whole() -> None:
            nonlocal begun
            self.told = term.fence
            await _called(self._new_leader, term.leader)
            term.check()  # never work without a term
            begun = True  # before it is called: what began half must be stopped, too
            await _called(self._started, term)
            await _called(self._work, term)

        task = asyncio.get_running_loop().create_task(whole(), name=f"leads-{term.name}")
        term.holder = task
        error = await self._tend(term, task)
        its = None if task.cancelled() else task.exception()
        # A loss is no answer to who cancels the campaign.
        if its is not None and (error is None or not isinstance(its, LeaseLost | FenceRefused)):
            error = its
        if begun:
            try:
                await _called(self._stopped, term)
            except BaseException as late:
                error = error or late
        return error

    async def _tend(self, term: AsyncTerm, task: asyncio.Task[None]) -> BaseException | None:
        """Wait for the work, and cancel it when its time is over; returns our own cancel."""
        task.add_done_callback(lambda _: term._tell())  # noqa: SLF001
        cancelled: BaseException | None = None
        struck = False

        def due() -> bool:
            return task.done() or term.lost or term.until_stopped() <= 0

        while not task.done():
            try:
                if (
                    struck
                ):  # it was told; its term is given back when it has ended, whatever it does now
                    await asyncio.wait([task])
                else:
                    await term.until(due, clock() + min(term.until_stopped(), FOR_EVER))
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                term.lease.let_run_out(self._election.options.ttl)
                struck = task.cancel()
            else:
                if not struck and due():
                    struck = task.cancel()
        return cancelled

    async def resign(self, term: AsyncTerm) -> None:
        await self._election._give_back(term)  # noqa: SLF001

    def clear(self) -> None:
        """Whatever ended the campaign: nothing of it leads."""
        if self._term is not None:
            self._election._clear(self._term)  # noqa: SLF001


async def _called(function: Work | None, value: Any) -> None:
    if function is not None:
        answer = function(value)
        if inspect.isawaitable(answer):
            await answer


class SyncSeat:
    """A candidate in a thread; its coroutines never suspend."""

    def __init__(
        self,
        election: Election,
        work: Work | None = None,
        started: Work | None = None,
        stopped: Work | None = None,
        new_leader: Work | None = None,
    ) -> None:
        self.told = 0
        self._election = election
        self._work, self._started, self._stopped = work, started, stopped
        self._new_leader = new_leader
        self._term: Term | None = None

    @property
    def stopping(self) -> bool:
        return self._election.stopping

    async def take(self, floor: int) -> Term:
        self._term = term = self._election._take(floor)  # noqa: SLF001
        return term

    async def look(self) -> Leader | None:
        holder = self._election._lock().locked_by()  # noqa: SLF001
        return None if holder is None else leader_of(self._election.name, holder)

    async def tell(self, leader: Leader) -> None:
        _call(self._new_leader, leader)

    async def reign(self, term: Term) -> BaseException | None:
        begun, error = False, None
        try:
            self.told = term.fence
            _call(self._new_leader, term.leader)
            term.check()
            begun = True
            _call(self._started, term)
            _call(self._work, term)
        except BaseException as its:
            error = its
        if begun:
            try:
                _call(self._stopped, term)
            except BaseException as its:
                error = error or its
        return error

    async def resign(self, term: Term) -> None:
        self._election._give_back(term)  # noqa: SLF001

    def clear(self) -> None:
        if self._term is not None:
            self._election._clear(self._term)  # noqa: SLF001


def _call(function: Work | None, value: Any) -> None:
    if function is not None:
        answer = function(value)
        if inspect.iscoroutine(answer):
            answer.close()
            raise Refused(f"{function!r} is a coroutine function; use AsyncClient.election for it")
