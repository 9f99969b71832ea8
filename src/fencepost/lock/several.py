"""Several locks in one acquire, all or none; both faces, the docstrings on the async one.

They are taken one after the other in the order of their names, everywhere the same, so that no two
callers ever wait for each other in a ring. Each is a lock of its own: with its own fence, on whatever
slot its name lies. While the later ones are waited for, those that are held already are prolonged.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fencepost._core.aio import clock
from fencepost.errors import FencepostError, LockTimeout, Refused
from fencepost.lock.guard import Guard
from fencepost.lock.lease import report

if TYPE_CHECKING:
    from fencepost.lock.api import AsyncLease, AsyncLock, Lease, Lock
    from fencepost.lock.lease import Held

L = TypeVar("L", bound="Held")


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """The names in the order in which everybody takes them.

    Raises:
        Refused: There is none, one comes twice, or a single text was given.
    """
    if isinstance(names, str):
        raise Refused(
            f"give several names, not the one text {names!r}; for one lock there is lock()"
        )
    given = list(names)
    if not given or not all(isinstance(name, str) for name in given):
        raise Refused(f"give one name or more, each a text, got {given!r}")
    if len(set(given)) < len(given):
        raise Refused(f"a name comes twice: {sorted(given)}; it would wait for itself")
    return tuple(sorted(given))


class _Leases(Generic[L]):
    """What both faces share: together they stand as long as the first of them that ends."""

    def __init__(self, leases: dict[str, L]) -> None:
        self._leases = leases

    def __getitem__(self, name: str) -> L:
        return self._leases[name]

    @property
    def name(self) -> str:
        """Of all of them, for messages."""
        return ", ".join(self._leases)

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each lock, by its name: give each resource that of its own."""
        return {name: lease.fence for name, lease in self._leases.items()}

    @property
    def lost(self) -> bool:
        """Whether any of them ended before it was released."""
        return any(lease.lost for lease in self._leases.values())

    @property
    def released(self) -> bool:
        """Whether all were given back."""
        return all(lease.released for lease in self._leases.values())

    @property
    def why(self) -> str:
        """How the first of them was lost; empty if none was."""
        return next((f"{one.name!r}: {one.why}" for one in self._leases.values() if one.lost), "")

    def remaining(self) -> float:
        """Seconds for which all of them may still be trusted."""
        return min(lease.remaining() for lease in self._leases.values())

    def check(self, at_least: float = 0.0) -> float:
        """Make sure that all stand; see ``AsyncLease.check``."""
        return min([lease.check(at_least) for lease in self._leases.values()])

    def _watch(self, watcher: Callable[[], None]) -> None:
        for lease in self._leases.values():
            lease._watch(watcher)  # noqa: SLF001  # the same part

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        for lease in self._leases.values():
            lease._unwatch(watcher)  # noqa: SLF001

    def _abandon(self) -> None:
        """Give all back in the background."""
        for lease in self._leases.values():
            lease._abandon()  # noqa: SLF001


def _left(wait: float, deadline: float, held: dict[str, Any]) -> float:
    """Seconds that are left for the next one: the first may take all of them."""
    return max(deadline - clock(), 0.0) if held else wait


class AsyncLeases(_Leases["AsyncLease"]):
    """Leases on several locks, by name: ``leases["a"].fence``."""

    _guard: Guard | None = None

    async def release(self) -> bool:
        """Give all back, the last one first.

        Returns:
            False if one had been lost before.

        Raises:
            Unavailable: One was not given back; it is tried on in the background.
            OutcomeUnknown: Likewise.
        """
        kept, failed = True, None
        for lease in reversed(self._leases.values()):
            try:
                kept = await lease.release() and kept
            except FencepostError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return kept

    async def __aenter__(self) -> AsyncLeases:
        if self._guard is not None:
            raise Refused(f"the leases on {self.name} guard a body already")
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
        if self.lost:
            # No await between our cancel and its taking back: another one could come meanwhile.
            self._abandon()
        try:
            with contextlib.suppress(FencepostError):  # then it is done in the background
                await self.release()
        except BaseException:
            self._abandon()  # cut short: the rest is given back by somebody who is not cancelled
            raise
        guard.settle(error)


class Leases(_Leases["Lease"]):
    """Leases on several locks, for threads; see ``AsyncLeases``."""

    def release(self) -> bool:
        kept, failed = True, None
        for lease in reversed(self._leases.values()):
            try:
                kept = lease.release() and kept
            except FencepostError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return kept

    def __enter__(self) -> Leases:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with contextlib.suppress(FencepostError):
                self.release()
        except BaseException:
            self._abandon()
            raise
        if self.why:
            report(self, error)


class AsyncLocks:
    """Several locks in one acquire, as ``AsyncClient.lock_all`` makes it: all, or none.

    Args:
        locks: In the order in which they are taken.
    """

    def __init__(self, locks: Iterable[AsyncLock]) -> None:
        self._locks = tuple(locks)
        self._inside: dict[Any, list[AsyncLeases]] = {}

    async def acquire(self, *, wait: float | None = None) -> AsyncLeases:
        """Take all of them.

        Args:
            wait: Seconds to wait for all together; None is the locks', 0 tries each once.

        Raises:
            LockTimeout: One was held by somebody else; none is held then.
            LeaseLost: One was lost while the others were waited for; none is held then.
            Unavailable: The server could not be reached in that time; none is held then.
            OutcomeUnknown: Replies were lost; whatever they did is undone in the background.
        """
        wait = self._locks[0].options.wait if wait is None else wait
        held: dict[str, AsyncLease] = {}
        leases, deadline = AsyncLeases(held), clock() + wait
        try:
            for lock in self._locks:
                held[lock.name] = await lock.acquire(wait=_left(wait, deadline, held))
            leases.check()
        except BaseException:
            leases._abandon()  # noqa: SLF001  # the same part
            raise
        return leases

    async def try_acquire(self) -> AsyncLeases | None:
        """Take all of them if all are free at once; None if one is not."""
        try:
            return await self.acquire(wait=0)
        except LockTimeout:
            return None

    async def __aenter__(self) -> AsyncLeases:
        leases = await self.acquire()
        try:
            await leases.__aenter__()
        except BaseException:
            leases._abandon()  # noqa: SLF001  # one ran out before the body began
            raise
        self._inside.setdefault(asyncio.current_task(), []).append(leases)
        return leases

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leases = _leave(self._inside, asyncio.current_task())
        await leases.__aexit__(kind, error, trace)


class Locks:
    """Several locks in one acquire, for threads; see ``AsyncLocks``."""

    def __init__(self, locks: Iterable[Lock]) -> None:
        self._locks = tuple(locks)
        self._inside: dict[Any, list[Leases]] = {}

    def acquire(self, *, wait: float | None = None) -> Leases:
        wait = self._locks[0].options.wait if wait is None else wait
        held: dict[str, Lease] = {}
        leases, deadline = Leases(held), clock() + wait
        try:
            for lock in self._locks:
                held[lock.name] = lock.acquire(wait=_left(wait, deadline, held))
            leases.check()
        except BaseException:
            leases._abandon()  # noqa: SLF001  # the same part
            raise
        return leases

    def try_acquire(self) -> Leases | None:
        try:
            return self.acquire(wait=0)
        except LockTimeout:
            return None

    def __enter__(self) -> Leases:
        leases = self.acquire()
        try:
            leases.__enter__()
        except BaseException:
            leases._abandon()  # noqa: SLF001  # one ran out before the body began
            raise
        self._inside.setdefault(threading.get_ident(), []).append(leases)
        return leases

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _leave(self._inside, threading.get_ident()).__exit__(kind, error, trace)


T = TypeVar("T")


def _leave(inside: dict[Any, list[T]], who: Any) -> T:
    entered = inside[who]
    leases = entered.pop()
    if not entered:
        del inside[who]
    return leases
