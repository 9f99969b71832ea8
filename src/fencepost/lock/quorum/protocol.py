"""How a lock is held on a majority of several independent servers.

What holds while clocks run at one rate (1 % is taken off) and no majority loses its memory at once:

1. At most one attempt has a majority. A server votes for one attempt at a time, and what is trusted
   is ``sent + ttl - drift``, ``sent`` taken before the *first* request of the round.
2. A server that may have forgotten a vote gives none, and prolongs none, until the longest lease that
   there can be is over: one that is empty, that is another process than its birth record names (the
   last second of its journal may be gone with the record still there), or whose record is gone. It is
   asked inside the script that votes, so that nothing lies between the look and the vote.
3. Fences increase: the highest of the majority counts, and is written back where it is not known, to
   a majority, before the lease is handed out. The next majority shares a server with this one. A
   server that was born anew may be the only one they share: before it votes again it is told the
   greatest fence that a majority of the others knows.
4. A renewal is a new majority with a new deadline, counted from servers that *still* had the vote. A
   server that has lost it is asked for it anew, and counts from the next renewal on: a lock that was
   taken away on a majority is never taken back behind its next holder.
5. What was given up is ended at every server, also where a reply is late: an attempt's end leaves a
   mark that stops its requests.

Where it ends: all of it rests on clocks. A newborn whose wall clock is set forward votes too early. If
so many servers lose their memory at once that no majority of the others remembers, the next fence is
read from clocks. And no lock closes the gap between a check and the act: a gate does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from fencepost._core import commands
from fencepost.errors import ClientClosed, FencepostError, OutcomeUnknown, Unavailable
from fencepost.lock.protocol import Ask, Bell, Ending, Grant, Place, Renewal, Tried, drift
from fencepost.lock.quorum.place import Answers, Fan, Polls, Votes
from fencepost.lock.quorum.scripts import Agreed, Denial, Open, Vote
from fencepost.lock.quorum.tally import (
    MANY,
    count,
    decided,
    defeat,
    everybody,
    holder,
    pause,
    prolonged,
    refuse_twins,
    ripe,
)
from fencepost.lock.scripts import Holder, Lost, Released, Renewed, Undone


@dataclass(frozen=True, slots=True)
class QuorumPlace(Place):
    """One lock on several servers, with the verbs of one on one server."""

    polls: Polls = field(kw_only=True)

    async def acquire(self, io: Any, ask: Ask, bell: Bell, tried: Tried) -> Grant:
        return await acquire(io, self, ask, bell, tried)

    async def release(self, io: Any, attempt: str, tried: Tried, end: Callable[[], None]) -> bool:
        return await release(io, self, attempt, tried, end)

    async def look(self, io: Any) -> Holder | None:
        return await look(io, self)

    async def force_release(self, io: Any) -> Holder | None:
        return await force_release(io, self)

    def new_tried(self) -> Votes:
        return Votes()


# -- taking


async def acquire(io: Fan, place: QuorumPlace, ask: Ask, bell: Bell, tried: Any) -> Grant:
    """Take a majority. If this raises and ``tried.open`` is set, end the attempt at every server.

    Args:
        io: The port to the servers.
        place: Which lock.
        ask: The attempt.
        bell: Hears calls of the servers.
        tried: ``Votes``: told what may be left behind.

    Returns:
        The grant; at that moment it may be trusted.

    Raises:
        LockTimeout: Others had it for all of ``ask.wait``.
        Unavailable: Too few servers answered or may vote.
        ConfigMismatch: The servers were born with another ``max_ttl``.
        Refused: Two of them are one, or one does not say who it is.
    """
    polls, deadline = place.polls, io.now() + ask.wait
    rounds, admitted, listening = 0, 0, False
    try:
        refuse_twins(io.last)
        while True:
            rounds = min(rounds + 1, MANY)
            # Taken before the first request: time that replies take must not lengthen a lease.
            sent, tried.open = io.now(), True
            ballot = polls.votes(ask, int(io.server_ms() * 1000))
            before = io.last
            answers = await io.each(ballot, lambda some: decided(some, polls.majority))
            tried.note(answers)
            io.last = answers
            refuse_twins(answers)
            # Who answers too late to count is heard the next time: it must be let in, too.
            told = [old if new is None else new for new, old in zip_longest(answers, before)]
            if any(map(ripe, told)) and admitted < len(answers):
                opened = await admit(io, place, told)
                admitted += opened
                if opened and count(answers, Vote) < polls.majority:
                    continue
            if count(answers, Vote) >= polls.majority:
                grant = await conclude(io, place, ask, sent, answers)
                if grant is not None:
                    return grant
            # Some votes are of no use to us, and keep others from theirs.
            if not await hand_back(io, place, ask.attempt, answers):
                # What gives a vote back may come late, and would take it from the next round.
                ask = replace(ask, attempt=tried.abandon(ask.attempt, io.token()))
            elif ask.wait <= 0:
                tried.open = False  # it did not even queue
            left = deadline - io.now()
            if rounds == 1 and any(isinstance(one, OutcomeUnknown) for one in answers):
                continue  # once more even without time: a connection may just have been stale
            closed = any(isinstance(one, ClientClosed) for one in answers)
            unheard = count(answers, Vote) + count(answers, Denial) < polls.majority
            if left <= 0 or closed or (unheard and not ask.insists):
                raise defeat(place, polls, ask, answers)
            if not listening:
                # Listen, then try again: a release between the two would never be heard.
                listening = True
                await io.call(bell.listen)
                continue
            await io.call(bell.hear, pause(polls.majority, answers, rounds, left, io.chance()))
    finally:
        if listening:
            bell.close()


async def conclude(
    io: Fan, place: QuorumPlace, ask: Ask, sent: float, answers: Answers
) -> Grant | None:
    """Make a majority of votes a lease: agree upon the fence, look at the clock."""
    polls = place.polls
    votes = {n: one for n, one in enumerate(answers) if isinstance(one, Vote)}
    fence = max(one.fence for one in votes.values())
    behind = [n in votes and votes[n].fence < fence for n in range(len(answers))]
    know = len(votes) - sum(behind)
    if know < polls.majority:
        # Before it is handed out: else the next majority may know only the lower ones, and draw one
        # between them.
        calls = polls.agree(ask.attempt, fence, behind)

        def enough(some: Answers) -> bool:
            agreed = know + count(some, Agreed)
            return agreed >= polls.majority or agreed + some.count(None) < polls.majority

        if know + count(await io.each(calls, enough), Agreed) < polls.majority:
            return None
    until = sent + ask.ttl - drift(ask.ttl)
    return Grant(fence, sent, until, ask.attempt) if io.now() < until else None


async def hand_back(io: Fan, place: QuorumPlace, attempt: str, answers: Answers) -> bool:
    """Give back the votes of a round that came to nothing; whether nothing is left or on its way."""
    doubtful = [one is None or isinstance(one, OutcomeUnknown) for one in answers]
    asked = [isinstance(one, Vote) or doubt for one, doubt in zip(answers, doubtful, strict=True)]
    if not any(asked):
        return True
    calls = [place.polls.release(n, attempt) if yes else None for n, yes in enumerate(asked)]
    voted = [n for n, one in enumerate(answers) if isinstance(one, Vote)]
    given = await io.each(calls, lambda some: all(some[n] is not None for n in voted))
    return not any(doubtful) and all(isinstance(given[n], Released | Lost) for n in voted)


# -- servers that came back


async def admit(io: Fan, place: QuorumPlace, told: Answers) -> int:
    """Let those vote again that have waited long enough, once they know the greatest fence.

    Args:
        io: The port to the servers.
        place: Which lock asks.
        told: What they said just now.

    Returns:
        How many may vote that might not.
    """
    polls = place.polls
    # A majority of the others: it shares a server with each majority that this one was part of.
    needed = (len(told) - 1) // 2 + 1 if len(told) > 1 else 0
    asked = await io.each(
        polls.births(), lambda some: everybody(some) or count(some, Open) >= max(needed, 1)
    )
    known = [old if new is None else new for old, new in zip(told, asked, strict=True)]
    refuse_twins(known)
    calls: list[Any] = [None] * len(known)
    for number, one in enumerate(known):
        if not ripe(one):
            continue
        others = [
            o for n, o in enumerate(known) if n != number and (isinstance(o, Open) or ripe(o))
        ]
        if len(others) < needed:
            continue
        by_clock = count(others, Open) < max(needed, 1)
        floor = max([other.high for other in others], default=0)
        if by_clock:  # too few remember: the clocks' word, of this machine and of that one
            floor = max(floor, int(io.server_ms() * 1000))
        durable = await lasting(io, number, len(known))
        words = (one.since, floor, int(by_clock), int(durable))
        calls[number] = polls.admit(number, words)
    return count(await io.each(calls, everybody), Open) if any(calls) else 0


async def lasting(io: Fan, server: int, servers: int) -> bool:
    """Whether every write of a server is on its disk before it is answered."""
    calls = [
        commands.raw("CONFIG", "GET", "*append*") if n == server else None for n in range(servers)
    ]
    answer = (await io.each(calls, everybody))[server]
    if isinstance(answer, list):
        answer = dict(zip(answer[::2], answer[1::2], strict=True))
    return isinstance(answer, dict) and (
        answer.get(b"appendonly"),
        answer.get(b"appendfsync"),
        answer.get(b"no-appendfsync-on-rewrite"),
    ) == (b"yes", b"always", b"no")


# -- holding


async def tend(
    io: Fan, renewals: Sequence[Renewal], endings: Sequence[Ending]
) -> list[Renewed | Lost | Undone | FencepostError]:
    """Prolong leases and end attempts at every server.

    Returns:
        An answer each, in order; an error where too few servers answered: do it again.
    """
    places: list[Any] = [one.place for one in renewals]
    places += [one.place for one in endings]
    servers = len(places[0].polls.keys)
    rows = [places[n].polls.prolong(one) for n, one in enumerate(renewals)]
    rows += [
        [place.polls.undo(server, one.attempt) for server in range(servers)]
        for place, one in zip(places[len(renewals) :], endings, strict=True)
    ]
    columns = await io.columns([[row[server] for row in rows] for server in range(servers)])
    judged: list[Any] = []
    newborn: tuple[Any, Answers] | None = None
    for number, place in enumerate(places):
        answers = [column[number] for column in columns]
        if number >= len(renewals):
            failed = [one for one in answers if not isinstance(one, Undone)]
            error = next((one for one in failed if one is not None), None)
            judged.append(error or Unavailable("a server was silent") if failed else Undone())
            continue
        judged.append(prolonged(answers, place.polls.majority))
        if any(map(ripe, answers)):
            newborn = place, answers
    if newborn is not None:  # else only who takes locks would let it vote again
        await admit(io, *newborn)
    return judged


# -- giving back


async def release(
    io: Fan, place: QuorumPlace, attempt: str, tried: Any, end: Callable[[], None]
) -> bool:
    """Give a lock back at every server.

    Args:
        io: The port to the servers.
        place: Which lock.
        attempt: Whose.
        tried: ``Votes``: what of the attempt may be left.
        end: Called, perhaps later, if it is not sure that nothing is left.

    Returns:
        False if it is sure that it had been lost before.

    Raises:
        Unavailable: It is not known to be given back at a majority.
    """
    polls, servers = place.polls, len(place.polls.keys)
    # Where a request may still be on its way, a mark stops it; elsewhere none is needed.
    unsure = [tried.unsure(server) for server in range(servers)]
    calls = [
        polls.undo(server, attempt) if unsure[server] else polls.release(server, attempt)
        for server in range(servers)
    ]

    def enough(some: Answers) -> bool:
        back = count(some, Released) + count(some, Undone)
        return back >= polls.majority or back + some.count(None) < polls.majority

    def late(some: Answers) -> None:
        failed = [n for n, one in enumerate(some) if not isinstance(one, Released | Undone | Lost)]
        if any(unsure[n] or tried.given(n) or isinstance(some[n], OutcomeUnknown) for n in failed):
            end()

    answers = await io.each(calls, enough, late)
    if count(answers, Released) + count(answers, Undone) >= polls.majority:
        return True
    if count(answers, Lost) > servers - polls.majority:
        return False
    errors = [one for one in answers if isinstance(one, Exception)]
    raise Unavailable(
        f"{place.name!r} is given back at too few of {servers} servers; it is tried on in the background"
        + (f": {errors[0]}" if errors else "")
    )


# -- for people


async def look(io: Fan, place: QuorumPlace) -> Holder | None:
    """Who has a majority.

    Raises:
        Unavailable: Too few servers answered.
    """
    scripts = place.polls.scripts
    calls = [scripts.look((k.lock, k.queue)) for k in place.polls.keys]
    return holder(await io.each(calls, everybody), place.polls.majority)


async def force_release(io: Fan, place: QuorumPlace) -> Holder | None:
    """Take the lock from whoever holds it, at every server.

    Raises:
        Unavailable: Too few servers answered; where they did, it is taken away.
    """
    scripts = place.polls.scripts
    calls = [
        scripts.force_release((k.lock, k.queue, k.alive), (k.channel,)) for k in place.polls.keys
    ]
    return holder(await io.each(calls, everybody), place.polls.majority)
