"""What takes a lease and guards a body with it: the part that locks and shares have in common."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from fencepost._core.aio import token
from fencepost._core.port import run_sync
from fencepost.errors import Refused
from fencepost.lock.keeper import straggling
from fencepost.lock.leases import AsyncLease, Lease
from fencepost.lock.options import LeaseOptions, check_floor, check_wait
from fencepost.lock.protocol import OVERTAKES, Ask, Ending, Grant, Place, Tried
from fencepost.wire.bells import AsyncBell, SyncBell

if TYPE_CHECKING:
    from fencepost.lock.hub import Hub

F = TypeVar("F", bound=Callable[..., Any])


class Taker(ABC):
    """What both faces share: the name, the options, and who is inside by which task or thread."""

    def __init__(self, client: Any, name: str, options: LeaseOptions) -> None:
        self.name = name
        self.options: LeaseOptions = options
        self._client: Any = client
        self._inside: dict[Any, list[Any]] = {}

    def _hub(self) -> Hub:
        hub: Hub = self._client._lock_hub()  # noqa: SLF001  # a client's parts share it
        return hub

    def _ask(self, hub: Hub, wait: float | None, floor: int, insists: bool) -> Ask:
        options = self.options
        if wait is not None:
            check_wait(wait)
        check_floor(floor)
        return Ask(
            token(),
            options.owner or hub.owner,
            options.ttl,
            options.wait if wait is None else wait,
            0 if getattr(options, "fair", False) else OVERTAKES,
            floor,
            insists,
        )

    def _granted(
        self, lease: type[Any], hub: Hub, place: Place, ask: Ask, grant: Grant, tried: Tried
    ) -> Any:
        attempt = grant.attempt or ask.attempt
        for other in tried.left(attempt)[1:]:  # it was tried under other names, too
            hub.keeper.end(Ending(place, other), straggling(ask.ttl))
        return lease(
            hub.keeper,
            self._client.port,
            place,
            attempt,
            ask.owner,
            ask.ttl,
            self.options.max_hold,
            grant,
            tried,
        )

    def _give_up(self, hub: Hub, place: Place, ask: Ask, tried: Tried) -> None:
        """Whatever became of the attempt, nothing of it stays; by somebody who can't be cancelled."""
        for attempt in tried.left(ask.attempt):
            hub.keeper.end(Ending(place, attempt), straggling(ask.ttl))

    @abstractmethod
    def _again(self, who: Any) -> Any:
        """A task or thread enters a block: the lease it is inside of and enters once more, or None.

        Raises:
            Refused: It would wait for itself.
        """

    def _held_by(self, who: Any) -> list[Any]:
        """The leases that this task or thread entered by and is still inside of."""
        return [lease for lease, _ in self._inside.get(who, ()) if lease.remaining()]

    def _enter(self, who: Any, lease: Any) -> None:
        self._inside.setdefault(who, []).append([lease, 1])

    def _leave(self, who: Any) -> Any:
        """The lease to give back; None if an outer block is still inside."""
        entered = self._inside.get(who)
        if entered is None:
            raise RuntimeError(
                f"the block that holds {self.name!r} was entered in another task or thread; there, "
                "acquire() a lease and release() it"
            )
        entered[-1][1] -= 1
        if entered[-1][1]:
            return None
        lease = entered.pop()[0]
        if not entered:
            del self._inside[who]
        return lease

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, ttl={self.options.ttl:g})"


class AsyncTaker(Taker):
    """On loops."""

    async def _take(
        self, place: Place, wait: float | None, floor: int, insists: bool = True
    ) -> AsyncLease:
        hub = self._hub()
        ask, tried = self._ask(hub, wait, floor, insists), place.new_tried()
        bell = AsyncBell(hub.listener, place.keys.channel, ask.attempt)
        try:
            grant = await place.acquire(self._client.port, ask, bell, tried)
            lease: AsyncLease = self._granted(AsyncLease, hub, place, ask, grant, tried)
        except BaseException:
            self._give_up(hub, place, ask, tried)
            raise
        return lease

    @abstractmethod
    async def _take_one(self) -> AsyncLease:
        """What a block takes."""

    async def __aenter__(self) -> AsyncLease:
        who = asyncio.current_task()
        lease: AsyncLease | None = self._again(who)
        if lease is None:
            lease = await self._take_one()
            try:
                await lease.__aenter__()
            except BaseException:
                lease._abandon()  # noqa: SLF001  # its time ran out before the body began
                raise
            self._enter(who, lease)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease = self._leave(asyncio.current_task())
        if lease is not None:
            await lease.__aexit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Decorate a coroutine function: each call of it holds a lease.

        Raises:
            Refused: It is no coroutine function.
        """
        if not inspect.iscoroutinefunction(function):
            raise Refused(f"{function!r} is no coroutine function; use Client for it")

        @functools.wraps(function)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return locked  # type: ignore[return-value]  # the same parameters and result


class _LateBell:
    """A bell that is made when somebody waits: its events cost more than all else of who need not."""

    __slots__ = ("_bell", "_where")

    def __init__(self, *where: Any) -> None:
        self._where = where

    def listen(self) -> None:
        self._bell = SyncBell(*self._where)
        self._bell.listen()

    def hear(self, seconds: float) -> None:
        self._bell.hear(seconds)

    def close(self) -> None:
        self._bell.close()


class SyncTaker(Taker):
    """In threads; see ``AsyncTaker``."""

    def _take(self, place: Place, wait: float | None, floor: int, insists: bool = True) -> Lease:
        hub = self._hub()
        ask, tried = self._ask(hub, wait, floor, insists), place.new_tried()
        bell = _LateBell(hub.listener, place.keys.channel, ask.attempt)
        try:
            grant = run_sync(place.acquire(self._client.port, ask, bell, tried))
            lease: Lease = self._granted(Lease, hub, place, ask, grant, tried)
        except BaseException:
            self._give_up(hub, place, ask, tried)
            raise
        return lease

    @abstractmethod
    def _take_one(self) -> Lease:
        """What a block takes."""

    def __enter__(self) -> Lease:
        who = threading.get_ident()
        lease: Lease | None = self._again(who)
        if lease is None:
            lease = self._take_one()
            try:
                lease.__enter__()
            except BaseException:
                lease._abandon()  # noqa: SLF001  # its time ran out before the body began
                raise
            self._enter(who, lease)
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease = self._leave(threading.get_ident())
        if lease is not None:
            lease.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        if inspect.iscoroutinefunction(function):
            raise Refused(f"{function!r} is a coroutine function; use AsyncClient for it")

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return locked  # type: ignore[return-value]  # the same parameters and result
