"""The two faces of a lock, side by side; the docstrings stand on the async one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from fencepost._core.aio import clock, token
from fencepost._core.keys import lock_keys
from fencepost._core.port import run_sync
from fencepost.errors import FencepostError, LockTimeout, Refused
from fencepost.lock.guard import Guard
from fencepost.lock.keeper import straggling
from fencepost.lock.lease import Held, report
from fencepost.lock.options import LockOptions, check_floor, check_wait
from fencepost.lock.protocol import OVERTAKES, Ask, Ending, Grant, Place, Tried
from fencepost.lock.scripts import Holder
from fencepost.wire.bells import AsyncBell, SyncBell

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client
    from fencepost.lock.hub import Hub

F = TypeVar("F", bound=Callable[..., Any])


class AsyncLease(Held):
    """A lease on a lock; ``async with lease:`` cancels its body when it is lost, and releases it.

    Attributes:
        name: Of the lock.
        fence: Greater than that of every holder before: give it to what the lock protects.
        token: Who drew the fence.
        owner: What the holder calls itself.
        lost: Whether it ended before it was released, by the clock.
        released: Whether it was given back.
    """

    _guard: Guard | None = None

    async def release(self) -> bool:
        """Give the lock back, from any task; a second time is harmless.

        Returns:
            False if it had been lost before.

        Raises:
            Unavailable: It was not given back; it is tried on in the background.
            OutcomeUnknown: Likewise; it was given back or not.
        """
        return await self._give_back()

    async def wait_lost(self, within: float | None = None) -> bool:
        """Wait until the lease is over.

        Args:
            within: Seconds to wait at most; None waits as long as it lives.

        Returns:
            True if it was lost, False if it was released or still stands.
        """
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        end = None if within is None else clock() + within
        self._watch(told)  # first watch, then look: what is told between the two counts
        try:
            while not self.lost and not self.released:
                left = self.remaining() + 0.0005
                if end is not None:
                    left = min(left, end - clock())
                    if left <= 0:
                        return False
                timer = loop.call_later(left, changed.set)
                try:
                    await changed.wait()
                finally:
                    timer.cancel()
                changed.clear()
        finally:
            self._unwatch(told)
        return self.lost

    async def __aenter__(self) -> AsyncLease:
        if self._guard is not None:
            raise Refused(f"the lease on {self.name!r} guards a body already")
        self.check()
        self._guard = Guard(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        guard, self._guard = self._guard, None
        if guard is None:
            return
        guard.close()
        with contextlib.suppress(FencepostError):  # then it is done in the background
            await self._give_back()
        guard.settle(error)


class Lease(Held):
    """A lease on a lock, for threads; see ``AsyncLease``. A body can't be cancelled: ``check`` in it."""

    def release(self) -> bool:
        return run_sync(self._give_back())

    def wait_lost(self, within: float | None = None) -> bool:
        changed = threading.Event()
        end = None if within is None else clock() + within
        self._watch(changed.set)
        try:
            while not self.lost and not self.released:
                left = self.remaining() + 0.0005
                if end is not None:
                    left = min(left, end - clock())
                    if left <= 0:
                        return False
                changed.wait(left)
                changed.clear()
        finally:
            self._unwatch(changed.set)
        return self.lost

    def __enter__(self) -> Lease:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(FencepostError):  # then it is done in the background
            run_sync(self._give_back())
        if self.why:
            report(self, error)


class _Lock:
    """What both faces share: the name, the options, and who is inside by which task or thread."""

    def __init__(self, client: AsyncClient | Client, name: str, options: LockOptions) -> None:
        self.name = name
        self.options = options
        self._place = Place(name, lock_keys(client.namespace, name))
        self._client: Any = client
        self._inside: dict[Any, list[Any]] = {}

    def _hub(self) -> Hub:
        hub: Hub = self._client._lock_hub()  # noqa: SLF001  # a client's parts share it
        return hub

    def _ask(self, hub: Hub, wait: float | None, floor: int) -> Ask:
        options = self.options
        if wait is not None:
            check_wait(wait)
        check_floor(floor)
        return Ask(
            token(),
            options.owner or hub.owner,
            options.ttl,
            options.wait if wait is None else wait,
            0 if options.fair else OVERTAKES,
            floor,
        )

    def _granted(self, lease: type[Any], hub: Hub, ask: Ask, grant: Grant, tried: Tried) -> Any:
        options = self.options
        return lease(
            hub.keeper,
            self._client.port,
            self._place,
            ask.attempt,
            ask.owner,
            ask.ttl,
            options.max_hold,
            grant,
            tried,
        )

    def _give_up(self, hub: Hub, ask: Ask, tried: Tried) -> None:
        """Whatever became of the attempt, nothing of it stays; by somebody who can't be cancelled."""
        if tried.open:
            hub.keeper.end(Ending(self._place, ask.attempt), straggling(ask.ttl))

    def _again(self, who: Any) -> Any:
        """The lease that this task or thread entered by and is still inside of, counted once more."""
        entered = self._inside.get(who)
        if entered is None or not entered[-1][0].remaining():
            return None
        if not self.options.reentrant:
            raise Refused(
                f"whoever holds {self.name!r} would wait for itself; use one lock, or reentrant=True"
            )
        entered[-1][1] += 1
        return entered[-1][0]

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


class AsyncLock(_Lock):
    """A lock on one server, as ``AsyncClient.lock`` makes it; any number of tasks may use one object.

    ``async with client.lock("invoice:42") as lease:`` takes it, and gives it back. The lease is
    prolonged while the body runs. If it is lost, the body is cancelled and ``LeaseLost`` raised.
    What this promises and what no lock can is written in ``docs/locks.md``.
    """

    async def acquire(self, *, wait: float | None = None, floor: int = 0) -> AsyncLease:
        """Take the lock; the caller releases the lease.

        Args:
            wait: Seconds to wait; None is the lock's, 0 tries once.
            floor: The fence is at least this: one more than that of a gate that refused.

        Returns:
            A lease that is prolonged until it is released, lost, or held for ``max_hold``.

        Raises:
            LockTimeout: Somebody else held it all the time; says who.
            Unavailable: The server could not be reached in that time.
            OutcomeUnknown: Replies were lost. Whatever they did is undone in the background.
        """
        hub = self._hub()
        ask, tried = self._ask(hub, wait, floor), self._place.new_tried()
        bell = AsyncBell(hub.listener, self._place.keys.channel, ask.attempt)
        try:
            grant = await self._place.acquire(self._client.port, ask, bell, tried)
            lease: AsyncLease = self._granted(AsyncLease, hub, ask, grant, tried)
        except BaseException:
            self._give_up(hub, ask, tried)
            raise
        return lease

    async def try_acquire(self, *, floor: int = 0) -> AsyncLease | None:
        """Take the lock if it is free at once; None if somebody else holds it."""
        try:
            return await self.acquire(wait=0, floor=floor)
        except LockTimeout:
            return None

    async def locked_by(self) -> Holder | None:
        """Who holds the lock by the server, be it this process or another; None if nobody does."""
        return await self._place.look(self._client.port)

    async def force_release(self) -> Holder | None:
        """Take the lock from whoever holds it; for operators.

        The holder learns of it when it next tells the server that it lives: within a third of its
        ttl. Until then it goes on, and only gates that compare fences refuse it.

        Returns:
            Who held it; None if nobody did.
        """
        return await self._place.force_release(self._client.port)

    async def __aenter__(self) -> AsyncLease:
        who = asyncio.current_task()
        lease: AsyncLease | None = self._again(who)
        if lease is None:
            lease = await self.acquire()
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
        """Decorate a coroutine function: each call of it holds the lock.

        Raises:
            Refused: It is no coroutine function.
        """
        if not inspect.iscoroutinefunction(function):
            raise Refused(f"{function!r} is no coroutine function; use Client.lock for it")

        @functools.wraps(function)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return locked  # type: ignore[return-value]  # the same parameters and result


class Lock(_Lock):
    """A lock on one server, for threads; see ``AsyncLock``."""

    def acquire(self, *, wait: float | None = None, floor: int = 0) -> Lease:
        hub = self._hub()
        ask, tried = self._ask(hub, wait, floor), self._place.new_tried()
        bell = SyncBell(hub.listener, self._place.keys.channel, ask.attempt)
        try:
            grant = run_sync(self._place.acquire(self._client.port, ask, bell, tried))
            lease: Lease = self._granted(Lease, hub, ask, grant, tried)
        except BaseException:
            self._give_up(hub, ask, tried)
            raise
        return lease

    def try_acquire(self, *, floor: int = 0) -> Lease | None:
        try:
            return self.acquire(wait=0, floor=floor)
        except LockTimeout:
            return None

    def locked_by(self) -> Holder | None:
        return run_sync(self._place.look(self._client.port))

    def force_release(self) -> Holder | None:
        return run_sync(self._place.force_release(self._client.port))

    def __enter__(self) -> Lease:
        who = threading.get_ident()
        lease: Lease | None = self._again(who)
        if lease is None:
            lease = self.acquire()
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
            raise Refused(f"{function!r} is a coroutine function; use AsyncClient.lock for it")

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return locked  # type: ignore[return-value]  # the same parameters and result
