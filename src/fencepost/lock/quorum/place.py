"""A lock on several servers: where it is, what is asked of each, and when enough of them have said so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fencepost._core.keys import LockKeys, birth_record, lock_keys
from fencepost._core.port import Port
from fencepost._core.script import SERVER, Call
from fencepost.errors import OutcomeUnknown
from fencepost.lock.protocol import REMEMBER, STAY, STRAGGLER, Ask, Renewal, Tried, ms
from fencepost.lock.quorum.scripts import VOTE_SCRIPTS, Vote, VoteScripts

Answers = Sequence[Any]
"""What each server said: a value, an error, or None as long as it has not answered."""


class Fan(Port, Protocol):
    """A port to several servers.

    Attributes:
        last: What they said in the latest round of votes.
    """

    last: Answers

    async def each(
        self,
        calls: Sequence[Call[Any] | None],
        enough: Callable[[Answers], bool],
        late: Callable[[Answers], None] | None = None,
    ) -> list[Any]:
        """Ask all servers at once, and return when enough have answered.

        Args:
            calls: One a server, in order; None asks it nothing.
            enough: Whether these answers are. Who is silent for its patience has answered, too: with
                an error.
            late: Called once, with all answers, when the last of them is in: now, or later.

        Returns:
            The answers. Those that come later are written into the same list.
        """
        ...

    async def columns(self, calls: Sequence[Sequence[Call[Any]]]) -> list[list[Any]]:
        """Ask each server several things in one write, and wait for who answers in time."""
        ...


@dataclass(slots=True)
class Votes(Tried):
    """What an attempt may have left at each server."""

    rounds: list[Answers] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    name: str = ""

    def note(self, answers: Answers) -> None:
        """Remember a round as long as a request of it may still be on its way."""
        self.rounds = [one for one in self.rounds if any(map(_open, one))]
        self.rounds.append(answers)

    def left(self, attempt: str) -> list[str]:
        now = [self.name or attempt] if self.open else []
        return now + self.abandoned

    def unsure(self, server: int) -> bool:
        """Whether a request to a server may still be on its way."""
        return self.doubt or any(_open(answers[server]) for answers in self.rounds)

    def abandon(self, attempt: str, new: str) -> str:
        """Go on under another name: what bears the old one must be ended."""
        self.abandoned.append(attempt)
        self.rounds, self.name = [], new
        return new

    def given(self, server: int) -> bool:
        """Whether a server gave its vote in the last round."""
        return bool(self.rounds) and isinstance(self.rounds[-1][server], Vote)


def _open(answer: Any) -> bool:
    return answer is None or isinstance(answer, OutcomeUnknown)


@dataclass(frozen=True, slots=True)
class Polls:
    """Where the keys of one lock are, and what is asked of each server.

    Args:
        keys: Those of the lock, a server each.
        born: The key of the birth record, a server each.
        max_ttl: Seconds of the longest lease there can be.
        scripts: What runs on the servers.
    """

    keys: tuple[LockKeys, ...]
    born: tuple[str, ...]
    max_ttl: float
    scripts: VoteScripts = VOTE_SCRIPTS

    @property
    def majority(self) -> int:
        """How many servers two different majorities can't both have."""
        return len(self.keys) // 2 + 1

    def votes(self, ask: Ask, near_us: int) -> list[Call[Any]]:
        """The calls that ask for the votes."""
        alone, stay = len(self.keys) == 1, ms(STAY) if ask.wait > 0 else 0
        # Two servers may have two orders of waiting; were they kept, nobody might get a majority.
        overtakes = ask.overtakes if alone else 2**53
        more = (ask.floor, near_us, overtakes, stay, ms(REMEMBER), ms(self.max_ttl), SERVER)
        words = (ask.attempt, ask.owner, ms(ask.ttl), *more)
        return [
            self.scripts.vote(
                (k.lock, k.fences, k.queue, k.alive, k.ended(ask.attempt), born), words
            )
            for k, born in zip(self.keys, self.born, strict=True)
        ]

    def agree(self, attempt: str, fence: int, behind: Sequence[bool]) -> list[Call[Any] | None]:
        """The calls that write the fence back, where it is not known."""
        words = (attempt, fence, ms(self.max_ttl), SERVER)
        return [
            self.scripts.agree((k.lock, born), words) if asked else None
            for k, born, asked in zip(self.keys, self.born, behind, strict=True)
        ]

    def prolong(self, one: Renewal) -> list[Call[Any]]:
        """The calls that prolong a lease; a vote that is missing is asked for where there are others."""
        joins = int(len(self.keys) > 1)
        words = (one.attempt, one.owner, ms(one.ttl), one.fence, joins, ms(self.max_ttl), SERVER)
        return [
            self.scripts.prolong((k.lock, k.ended(one.attempt), born), words)
            for k, born in zip(self.keys, self.born, strict=True)
        ]

    def release(self, server: int, attempt: str) -> Call[Any]:
        """The call that gives a vote back."""
        k = self.keys[server]
        return self.scripts.release((k.lock, k.queue, k.alive), (attempt, k.channel))

    def undo(self, server: int, attempt: str) -> Call[Any]:
        """The call that ends an attempt at a server for ever."""
        k = self.keys[server]
        return self.scripts.undo(
            (k.lock, k.queue, k.alive, k.ended(attempt)), (attempt, k.channel, ms(STRAGGLER))
        )

    def admit(self, server: int, words: tuple[int, ...]) -> Call[Any]:
        """The call that lets a newborn vote: its birth, the fence, whether clocks count, if it lasts."""
        return self.scripts.admit((self.born[server],), (*words, ms(self.max_ttl), SERVER))

    def births(self) -> list[Call[Any]]:
        """The calls that ask whether the servers may vote."""
        return [self.scripts.births((born,), (ms(self.max_ttl), SERVER)) for born in self.born]


def polls(namespace: str, name: str, servers: int, max_ttl: float) -> Polls:
    """The lock ``name`` on so many servers."""
    return Polls(
        (lock_keys(namespace, name),) * servers, (birth_record(namespace),) * servers, max_ttl
    )
