"""A scenario: who acts, what the world does meanwhile, and what must hold.

source = Cell(1)
scenario = Scenario(
    actors={"reader": lambda io: read(io), "writer": lambda io: write(io)},
    environment={"x": expiry()},
    cells=[source],
    final=lambda view: "stale" if view.value("{k}:v") not in (None, str(source.state)) else None,
)
explore(scenario).check()
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fencepost._core.script import Call, Word
from fencepost.errors import FencepostError, Refused
from fencepost.testing.environment import Move
from fencepost.testing.simulated import SimPort, Step
from fencepost.testing.world import Restorable, ServerState, View

Actor = Callable[[SimPort], Coroutine[Any, Any, Any]]
Check = Callable[[View], str | None]
Observer = Callable[[str, Call[Any] | None, Any], None]

FAULTS = ("lost", "dropped", "cut", "resent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What may go wrong on the way, at any step.

    Args:
        times: How often in one run.
        on: At which steps (their labels); None: at every one.
        kinds: ``lost`` (applied, the reply is lost: ``OutcomeUnknown``), ``dropped`` (not applied,
            and the caller can't know: ``OutcomeUnknown``), ``cut`` (not sent: ``Unavailable``),
            ``resent`` (applied, the reply is lost, and the link sends it again later; only calls
            whose script declares that harmless).
    """

    times: int = 1
    on: frozenset[str] | None = None
    kinds: tuple[str, ...] = FAULTS

    def __post_init__(self) -> None:
        if unknown := set(self.kinds) - set(FAULTS):
            raise Refused(
                f"unknown faults {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}"
            )

    def of(self, step: Step) -> tuple[str, ...]:
        """Which faults a step can meet."""
        if step.kind not in ("run", "all", "call") or (
            self.on is not None and step.label not in self.on
        ):
            return ()
        resend = bool(step.calls) and all(call.resend for call in step.calls)
        return tuple(kind for kind in self.kinds if kind != "resent" or resend)


@dataclass(slots=True, kw_only=True)
class Scenario:
    """What is explored.

    The actors' protocols keep what they know in locals; what they share is on the server or in a
    cell. Anything else that they change behind the explorer's back makes its answer worthless.

    Args:
        actors: Protocols by name, each a function from a port to a coroutine. A pause and a resume
            need no word: an actor that is not scheduled is paused.
        environment: What the world may do, by name; see ``fencepost.testing.environment``. All of it
            is optional: a run may end without.
        cells: What has state beside the server: ``Cell``, ``ModelLikes``.
        setup: Commands that make the first state of the server.
        server: Where ``setup`` begins.
        faults: What may go wrong on the way.
        crashes: Actors that may die at any step (all but one of them, or all).
        invariant: Judges every state: what is wrong, or None.
        final: Judges every state in which all actors have ended.
        heal: A protocol that is run alone from *every* state, as if all actors had died there.
        healed: Judges what that leads to; ``view.results["heal"]`` is what it returned.
        observe: Called after a step was applied (even if its reply was lost), by label, with the
            actor's name, the call and its result; may change cells, in the same atomic step.
        allowed: Errors that actors may end with; any other is a finding.
        preemptions: How often a schedule may leave an actor that could go on; None: any number.
        reset: For re-execution: brings everything outside the server (a real database) back to the
            start.
    """

    actors: Mapping[str, Actor]
    environment: Mapping[str, Move] = field(default_factory=dict)
    cells: Sequence[Restorable] = ()
    setup: Sequence[Sequence[Word]] = ()
    server: ServerState = field(default_factory=ServerState)
    faults: Faults = Faults(times=0)
    crashes: frozenset[str] = frozenset()
    invariant: Check | None = None
    final: Check | None = None
    heal: Actor | None = None
    healed: Check | None = None
    observe: Mapping[str, Observer] = field(default_factory=dict)
    allowed: tuple[type[BaseException], ...] = (FencepostError,)
    preemptions: int | None = None
    reset: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if both := set(self.actors) & set(self.environment):
            raise Refused(f"{', '.join(sorted(both))} names an actor and a move of the environment")
        for name in (*self.actors, *self.environment):
            if not name.isidentifier():
                raise Refused(
                    f"names of actors stand in schedules: letters, digits and _, got {name!r}"
                )
        if missing := self.crashes - set(self.actors):
            raise Refused(f"crashes names no actor: {', '.join(sorted(missing))}")
        if (self.heal is None) != (self.healed is None):
            raise Refused("heal and healed belong together")
