"""A load that is under way, as its loader may see it: how long it may take, and whether it is for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fencepost._core.aio import clock
from fencepost.errors import FencepostError, LeaseLost, WaitTimeout

_current: ContextVar[UnderWay | None] = ContextVar("fencepost_load", default=None)


class Stopped(FencepostError):
    """A load was stopped since its lease was lost: what it brings could not be published.

    Args:
        reason: As in ``RefreshRejected``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the lease was lost ({reason})")
        self.reason = reason


class UnderWay:
    """One load. ``this_load()`` gives it to the loader.

    A coroutine that loads is cancelled when its lease is lost or ``load_limit`` is over. A thread can't
    be: it goes on until it returns, and what it returns is dropped. One that takes long should look.
    """

    __slots__ = ("error", "lost", "stop", "stoppable", "until")

    def __init__(self) -> None:
        self.error: BaseException | None = None  # what the loader raised
        self.lost = ""
        """Why the lease was lost, one word; '' while it stands, as far as this process knows."""
        self.until = 0.0
        self.stoppable = True  # False: its own caller takes what it brings, published or not
        self.stop: Callable[[], None] | None = None

    def left(self) -> float:
        """Seconds until it is given up."""
        return self.until - clock()

    def check(self) -> None:
        """Return if what is loaded may still be of use.

        Raises:
            LeaseLost: The key was invalidated, or this process lost its lease otherwise.
            WaitTimeout: ``load_limit`` is over.
        """
        self.check_lease()
        if self.over:
            raise WaitTimeout("the load took longer than load_limit, and looked")

    def check_lease(self) -> None:
        """The same, of the lease alone."""
        if self.lost and self.stoppable:
            raise LeaseLost(f"the load is for nothing: its lease was lost ({self.lost})")

    @contextmanager
    def running(self, limit: float) -> Iterator[None]:
        """The loader runs in the block, for so many seconds at most."""
        self.until = clock() + limit
        before = _current.set(self)
        try:
            yield
        except LeaseLost as error:
            if self.lost:
                raise Stopped(self.lost) from error
            raise
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.stop = None
            _current.reset(before)

    def lose(self, reason: str) -> None:
        """Its lease is lost: stop it, if nobody would take what it brings."""
        self.lost = reason
        if self.stoppable and self.stop is not None:
            self.stop()

    @property
    def over(self) -> bool:
        """Whether it runs for longer than it may: nobody should wait for it any more."""
        return self.until > 0 and self.left() < 0


def this_load() -> UnderWay | None:
    """The load in which a loader is called: ask it now and then with ``check()`` if that takes long.

    Returns:
        None outside of a loader, and in a thread that the loader began itself.
    """
    return _current.get()
