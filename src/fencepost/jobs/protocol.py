"""How jobs wait, run once at a time, and come back when their worker is lost.

What holds, whatever pauses, crashes or loses a reply, while the server keeps its data:

1. A job that was added runs to its end at least once, and nothing about it counts but the words of
   whoever holds its claim: each claim has an epoch of its own (the greatest of the server's clock in
   microseconds and the last epoch + 1, one counter a queue), and acknowledgement, retry and renewal
   carry it.
2. Nothing begins before its time by the server's clock; no other clock is asked.
3. A lost worker's jobs are ready again when their leases end. That is counted as a crash, not as a
   failure, and only if the worker had said that it knew of the claim.
4. A turn that is repeated is the same turn: it carries its worker and a number, and the server keeps
   what it answered last. So a lost reply neither loses an acknowledgement nor orphans a claim.
5. In a turn acknowledgements come first, then what is due, then what is lost, then what is taken.
6. Who sleeps looks by itself within two seconds; a token wakes one sooner, and whoever leaves work
   behind pushes the next token.

Where it ends: a worker that is paused may go on after its claim was given to another. Its words are
refused and it is told, but what it does elsewhere only the resource can refuse: by ``job.fence``. A
server that loses its data loses jobs; epochs go on all the same, unless its clock went back too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from fencepost._core import commands
from fencepost._core.backoff import Backoff
from fencepost._core.keys import JobKeys
from fencepost._core.port import Port
from fencepost._core.script import Call
from fencepost.errors import ClientClosed, Denied, OutcomeUnknown, Overloaded, Unavailable
from fencepost.jobs.scripts import (
    SCRIPTS,
    Added,
    Cancelling,
    Dead,
    Figures,
    JobStatus,
    Late,
    Moved,
    NotMoved,
    Scripts,
    Turned,
)

LOOK: Final = 2.0
"""Seconds after which a worker that sleeps looks by itself, at the latest."""
REMEMBER: Final = 86_400.0
"""Seconds of silence after which a worker's last turn is forgotten: longer than any lease."""
PROMOTE: Final = 200
"""How many jobs become ready, and how many lost ones are taken back, in one turn at most."""
RETRY: Final = Backoff(0.02, 1.0)
RESENDS: Final = 3
POLL: Final = 1.0
WAITS: Final = 10.0
"""Seconds for which one who waits for an end is to be told of it; it says so again and again."""
ENDED: Final = frozenset({"done", "cancelled", "dead", "gone"})


@dataclass(frozen=True, slots=True)
class Place:
    """One queue, as its protocols see it."""

    name: str
    keys: JobKeys
    scripts: Scripts = SCRIPTS
    history: int = 0


class New(NamedTuple):
    """A job to add.

    Args:
        id: Its id; a job that has it already stays as it is.
        when: ``+n`` milliseconds from now by the server's clock, or milliseconds since 1970.
        record: Its head and its body.
        moves: One that waits and has its unique key is moved, and takes its arguments.
        remember: Seconds for which the id is not used again, whatever becomes of the job.
        kept: What becomes of it is kept, so that a repeated request can see that it has ended.
    """

    id: str
    when: str
    record: bytes
    moves: bool = False
    remember: float = 0.0
    kept: bool = False


class Ack(NamedTuple):
    """What a worker says of a job that it has run.

    Args:
        id: Of the job.
        epoch: Of the claim.
        verdict: ``D`` done, ``C`` cancelled by itself, ``R`` failed and to be tried again, ``S`` put off,
            ``B`` handed back, ``X`` failed for good, ``P`` not to be read.
        number: Milliseconds: after how long it is tried again, or for how long the outcome is kept.
        text: The outcome, or what went wrong.
    """

    id: str
    epoch: int
    verdict: str
    number: int = 0
    text: bytes | str = b""


@dataclass(slots=True)
class Me:
    """A worker, as the server knows it.

    Args:
        name: Unpredictable in its last part, and never used again.
        turn: The number of its last turn that was answered.
    """

    name: str
    turn: int = 0


class Bell(Protocol):
    """Hears when a job has ended. A coroutine function each for loops, plain ones for threads."""

    def listen(self) -> Any:
        """Begin to listen; what is told after this is heard."""

    def hear(self, seconds: float) -> Any:
        """Return when told, or after so many seconds."""

    def close(self) -> None:
        """Listen no more."""


def ms(seconds: float) -> int:
    """Whole milliseconds, never fewer than were meant."""
    return -int(-seconds * 1000 // 1)


# -- adding


async def add(io: Port, place: Place, jobs: Sequence[New]) -> list[Added]:
    """Add jobs, each once, even where a reply is lost.

    Returns:
        What became of each, in order.

    Raises:
        Unavailable: None was added.
        OutcomeUnknown: Some were added or not, and it could not be learned.
    """
    unknown: OutcomeUnknown | None = None
    for number in range(RESENDS + 1):
        try:
            return await io.run(adding(place, jobs, again=unknown is not None))
        except OutcomeUnknown as error:
            unknown = error
            # Of a job whose outcome nobody keeps, nobody could tell whether it has run meanwhile.
            if not all(job.kept or job.remember for job in jobs):
                raise
        except Unavailable:
            if unknown is None:
                raise
        await io.sleep(RETRY.delay(number, io.chance()))
    raise unknown or AssertionError


def adding(place: Place, jobs: Sequence[New], again: bool = False) -> Call[list[Added]]:
    """The call that adds jobs; ``again`` once a reply to it was lost."""
    keys = place.keys
    names: tuple[str, ...] = (
        keys.bodies,
        keys.due,
        keys.ready,
        keys.claims,
        keys.unique,
        keys.remembered,
        keys.wake,
        keys.history,
    )
    words: list[Any] = [ms(LOOK), place.history]
    for job in jobs:
        mode = "m" if job.moves else "k"
        words += (job.id, job.when, mode, ms(job.remember) if job.remember else 0, job.record)
    if again:
        names += tuple(keys.result(job.id) for job in jobs)
    return place.scripts.add(names, words)


# -- one job


async def cancel(io: Port, place: Place, job: str, running: bool) -> Cancelling:
    """Take a job out of the queue.

    Raises:
        OutcomeUnknown: It was cancelled or not; do it again, it is harmless.
    """
    keys, unknown = place.keys, False
    names = (
        *(keys.bodies, keys.due, keys.ready, keys.claimed, keys.claims, keys.counts),
        *(keys.unique, keys.remembered, keys.dead, keys.result(job), keys.head),
    )
    for number in range(RESENDS + 1):
        try:
            answer = await io.run(place.scripts.cancel(names, (job, int(running), keys.channel)))
        except OutcomeUnknown:
            unknown = True
            if number == RESENDS:
                raise
            continue
        if unknown and answer is Cancelling.GONE:
            # Perhaps the work of the request whose reply was lost.
            seen = await look(io, place, job)
            return Cancelling.CANCELLED if seen.state == "cancelled" else answer
        return answer
    raise AssertionError("unreachable")


async def move(io: Port, place: Place, job: str, when: str) -> Moved | NotMoved:
    """Give a job that waits another time."""
    keys = place.keys
    names = (keys.bodies, keys.due, keys.ready, keys.claims, keys.wake)
    return await io.run(place.scripts.move(names, (job, when, ms(LOOK))))


async def look(io: Port, place: Place, job: str) -> JobStatus:
    """Where a job is, and what became of it."""
    keys = place.keys
    names = (
        *(keys.bodies, keys.due, keys.ready, keys.claims, keys.counts, keys.dead),
        keys.result(job),
    )
    return await io.run(place.scripts.look(names, (job,)))


async def ended(io: Port, place: Place, job: str, wait: float, bell: Bell) -> JobStatus:
    """Wait until a job has ended or was given up; where it is if it has not in that time."""
    deadline, listening = io.now() + wait, False
    try:
        while True:
            seen = await look(io, place, job)
            left = deadline - io.now()
            if seen.state in ENDED or left <= 0:
                return seen
            if not listening:
                # Listen, then look again: an end between the two would never be heard.
                listening = True
                await io.call(bell.listen)
                continue
            # Else nobody is told: most jobs end and nobody waits for it.
            until = int(io.server_ms()) + ms(WAITS)
            await io.run(commands.raw("HSET", place.keys.head, "waits", until))
            seen = await look(io, place, job)
            if seen.state not in ENDED:
                await io.call(bell.hear, min(left, POLL))
    finally:
        if listening:
            bell.close()


# -- a worker


def turning(
    place: Place, me: Me, room: int, acks: Sequence[Ack], limit: int = 0, most: int = PROMOTE
) -> Call[Turned | Late]:
    """The call of a worker's next turn; the same each time until ``me.turn`` is raised."""
    keys = place.keys
    words: list[Any] = [me.name, me.turn + 1, room, limit, max(most, room), ms(LOOK), ms(REMEMBER)]
    words += (keys.channel, place.history)
    for ack in acks:
        words += ack
    outcome = keys.result("")
    return place.scripts.turn((*keys.turn, *[outcome + ack.id for ack in acks]), words)


async def turn(
    io: Port, place: Place, me: Me, room: int, acks: Sequence[Ack], limit: int = 0
) -> Turned | Late:
    """Do a worker's next turn, and go on until the server has answered it.

    Args:
        io: The port.
        place: Which queue.
        me: Which worker; one turn at a time.
        room: How many jobs it has room for.
        acks: What it has to say of jobs that it ran.
        limit: How many jobs may run over all workers; 0 is no limit.

    Returns:
        What the server answered. ``Late`` if another process uses the worker's name.

    Raises:
        ClientClosed: Of an embedded server, whose client is closed.
        Denied: Wrong credentials or certificate.
        ServerError: The server answered with an error.
    """
    call, failures = turning(place, me, room, acks, limit), 0
    while True:
        try:
            answer = await io.run(call)
        except (Unavailable, OutcomeUnknown, Overloaded) as error:
            if isinstance(error, ClientClosed | Denied):
                raise  # no try helps
            failures += 1
            await io.sleep(RETRY.delay(failures, io.chance()))
            continue
        me.turn += 1
        return answer


def knowing(place: Place, me: Me) -> Call[Any]:
    """The call by which a worker says, before it runs them, that it knows of its claims."""
    return commands.raw("HSET", place.keys.known, me.name, me.turn)


async def renew(io: Port, place: Place, me: Me, held: Sequence[tuple[str, int, float]]) -> str:
    """Prolong claims.

    Args:
        io: The port.
        place: Which queue.
        me: Whose.
        held: The id, the epoch and the lease in seconds of each.

    Returns:
        A letter each: ``R`` renewed, ``L`` lost.
    """
    keys = place.keys
    words: list[Any] = [me.name, me.turn]
    for job, epoch, lease in held:
        words += (job, epoch, ms(lease))
    return await io.run(place.scripts.renew((keys.claimed, keys.claims, keys.known), words))


# -- for people


async def dead_list(io: Port, place: Place, first: int, most: int) -> list[Dead]:
    """Jobs that were given up, the latest first."""
    keys = place.keys
    return await io.run(
        place.scripts.dead_list((keys.dead, keys.bodies, keys.counts), (first, most))
    )


async def revive(io: Port, place: Place, jobs: Sequence[str]) -> int:
    """Run jobs again that were given up; how many were."""
    keys = place.keys
    names = (keys.bodies, keys.due, keys.ready, keys.counts, keys.unique, keys.dead, keys.wake)
    return await io.run(place.scripts.revive(names, jobs)) if jobs else 0


async def discard(io: Port, place: Place, jobs: Sequence[str]) -> int:
    """Forget jobs that were given up; how many were."""
    keys = place.keys
    names = (keys.bodies, keys.counts, keys.dead)
    return await io.run(place.scripts.discard(names, jobs)) if jobs else 0


async def pause(io: Port, place: Place, paused: bool) -> None:
    """Let no job begin any more, or let them begin again."""
    await io.run(place.scripts.pause((place.keys.head, place.keys.wake), (int(paused),)))


async def count(io: Port, place: Place) -> Figures:
    """How much there is."""
    keys = place.keys
    names = (keys.due, keys.ready, keys.claimed, keys.dead, keys.head)
    return await io.run(place.scripts.count(names))


def trusted(sent: float, lease: float) -> float:
    """Until when a claim may be trusted by a request that was sent then.

    A tenth is left out: clocks run differently, and that of a server that takes over may be ahead.
    """
    return sent + lease * 0.9
