"""The port: everything a protocol may touch of the world.

A protocol is an ``async def`` function over a ``Port``. It reads top to bottom, and nothing in it
touches a clock, dice, a client or an event loop, so that one text serves three worlds:

- ``AsyncPort`` awaits straight through;
- ``SyncPort`` never suspends, so ``run_sync`` drives a protocol with a single ``send(None)``;
- ``SimPort`` (in ``fencepost.testing``) offers every step to an explorer, which runs it on a real
  server in the order that it chooses.

Rules for protocols: no ``await`` in a ``finally`` and none while a generator is closed (clean up
in ``except (Exception, Cancelled)``); state lives in locals; every loop is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fencepost.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from fencepost._core.script import Call

T = TypeVar("T")


class OtherServer(Unavailable):
    """The connection leads to another server than the call is meant for; nothing was sent."""


class Task(Protocol):
    """Work that was spawned beside a protocol."""

    def cancel(self) -> Any:
        """Ask it to stop; it ends at its next step."""


class Port(Protocol):
    """What a protocol may do. Every verb that does I/O is awaited; the others answer at once."""

    async def run(self, call: Call[T]) -> T:
        """Run a script or a command on the server.

        Raises:
            Unavailable: It was not sent, or was refused whole.
            OutcomeUnknown: It was sent and the reply was lost.
            OtherServer: The call is meant ``only`` for a server that is not there any more.
            Overloaded: The link is full, or the server is out of memory.
            ServerError: The server answered with an error.
        """
        ...

    async def all(self, calls: Sequence[Call[T]]) -> list[T]:
        """Run several calls at once, in one write where they go to one server.

        Returns:
            Their results in order. Every reply is awaited before the first error is raised.
        """
        ...

    async def call(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Call the user's function: a loader, a saver or an SQL step.

        The async port awaits a coroutine function and runs a plain one in a thread.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Task:
        """Run a protocol beside this one."""
        ...

    async def wait(self, task: Any) -> Any:
        """Wait for spawned work and return its result (or raise its error)."""
        ...

    def token(self) -> str:
        """A new unpredictable token: 128 bits, 22 characters."""
        ...

    def chance(self) -> float:
        """A number in [0, 1)."""
        ...

    def now(self) -> float:
        """Seconds on a clock that never goes back and runs while the machine sleeps."""
        ...

    def server_ms(self) -> float:
        """The server's clock in milliseconds, by an estimate that is half a round trip off at most."""
        ...


class Cancelled(BaseException):
    """Raised in a protocol that a thread or an explorer stops; asyncio raises its own."""


def run_sync(protocol: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
    """Drive a protocol over a port that never suspends.

    Args:
        protocol: A coroutine whose every await goes to a ``SyncPort``.

    Returns:
        What the protocol returns.

    Raises:
        RuntimeError: It suspended, so it awaited something else than its port.
    """
    step = protocol.__await__()
    try:
        next(step)
    except StopIteration as stop:
        result: T = stop.value
        return result
    step.close() if hasattr(step, "close") else None
    raise RuntimeError("a protocol awaited something else than its port")
