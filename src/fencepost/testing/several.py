"""Several servers for an explorer or a play: each request is a step of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fencepost.errors import FencepostError, OutcomeUnknown, Unavailable
from fencepost.testing.simulated import SimPort
from fencepost.wire.fan import UNASKED

Answers = Sequence[Any]


@dataclass
class SimFan:
    """Several servers whose requests arrive one after the other, in the order that is given.

    Args:
        io: Whose.
        order: In which the requests of a round arrive.
        clock_ms: What the caller's wall clock says; 0: nothing that helps a fence.
    """

    io: SimPort
    order: tuple[int, ...]
    clock_ms: float = 0.0
    last: Answers = ()

    async def each(
        self,
        calls: Sequence[Any],
        enough: Callable[[Answers], bool],
        late: Callable[[Answers], None] | None = None,
    ) -> list[Any]:
        answers: list[Any] = [UNASKED if call is None else None for call in calls]
        for number in self.order:
            if calls[number] is not None:
                answers[number] = await self._run(calls[number], number)
        if late is not None:
            late(answers)
        return answers

    async def columns(self, calls: Sequence[Sequence[Any]]) -> list[list[Any]]:
        columns: list[list[Any]] = [[] for _ in calls]
        for number in self.order:
            for call in calls[number]:
                columns[number].append(await self._run(call, number))
        return columns

    async def _run(self, call: Any, number: int) -> Any:
        try:
            answer = await self.io.run(call)
        except (Unavailable, OutcomeUnknown) as error:
            return type(error)(str(error))
        except FencepostError as error:
            return error
        if hasattr(answer, "server"):  # they are one server here, and must not seem so
            return replace(answer, server=f"s{number}")
        return answer

    def now(self) -> float:
        return self.io.now()

    def server_ms(self) -> float:
        return self.clock_ms

    def token(self) -> str:
        return self.io.token()

    def chance(self) -> float:
        return self.io.chance()

    async def call(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return await self.io.call(fn, *args)
