"""The simulated port: every step of a protocol is offered to whoever drives it, and waits.

A protocol over a ``SimPort`` suspends at each verb with a ``Step``; the driver decides when the step
happens, what really happens (it runs, it is lost, it fails), and sends the result in. Tokens, dice
and the clock are the driver's too: the same decisions give the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fencepost._core.script import Call

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """What a protocol wants to do next.

    Args:
        kind: ``run`` and ``all`` (calls to the server), ``call`` (a function of the user's),
            ``sleep``, ``wait`` (for a spawned protocol), or ``until`` (a condition).
        label: The name in schedules: the verb of the script or command, or the function's name.
        calls: The calls of a ``run`` or ``all``.
        fn: The function of a ``call``; the condition of an ``until``.
        args: Its arguments, or the seconds of a ``sleep``.
    """

    kind: str
    label: str
    calls: tuple[Call[Any], ...] = ()
    fn: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()

    def __await__(self) -> Generator[Step, Any, Any]:
        return (yield self)

    def __str__(self) -> str:
        return self.label


class Spawned:
    """A protocol that another one spawned; the driver steps it like any actor."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work = work
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass(slots=True)
class SimPort:
    """A port whose every step waits for its driver. See ``Port``.

    Args:
        name: Of the actor; its tokens begin with it.
        dice: Called for each ``chance()``.
        clock: Called for each ``now()``, seconds.
        server_clock: Called for each ``server_ms()``.
    """

    name: str = "a"
    dice: Callable[[], float] = lambda: 0.5
    clock: Callable[[], float] = lambda: 0.0
    server_clock: Callable[[], float] = lambda: 1_000_000.0
    tokens: int = 0
    spawned: list[Spawned] = field(default_factory=list)

    async def run(self, call: Call[T]) -> T:
        result: T = await Step("run", call.verb, (call,))
        return result

    async def all(self, calls: Sequence[Call[T]]) -> list[T]:
        if not calls:
            return []
        result: list[T] = await Step("all", calls[0].verb, tuple(calls))
        return result

    async def call(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return await Step("call", getattr(fn, "__name__", "call"), fn=fn, args=args)

    async def sleep(self, seconds: float) -> None:
        await Step("sleep", "sleep", args=(seconds,))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Spawned:
        task = Spawned(work)
        self.spawned.append(task)
        return task

    async def wait(self, task: Spawned) -> Any:
        return await Step("wait", "wait", args=(task,))

    async def until(self, holds: Callable[[Any], bool], name: str = "until") -> None:
        """Wait for a condition; for actors of a test, protocols have no such verb.

        Args:
            holds: Judges what a check sees (``View``); the step can be taken only while it is true.
            name: The step's label.
        """
        await Step("until", name, fn=holds)

    def token(self) -> str:
        self.tokens += 1
        return f"{self.name}.{self.tokens}"

    def chance(self) -> float:
        return self.dice()

    def now(self) -> float:
        return self.clock()

    def server_ms(self) -> float:
        return self.server_clock()
