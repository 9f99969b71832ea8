"""How jobs get from an outbox into their queue, each once, whoever dies or is paused on the way.

A row is read, its job is added under the row's id, the row is deleted, and the id is let go. Why a job
is added once, however many relays there are:

1. While the row stands, its id is remembered from the first time that the job was added, for a month.
   Whoever reads the row again adds nothing.
2. A row that is deleted can only be in the hands of relays that read it before. What they ask for is
   refused by the server's clock ``PATIENCE`` after they looked at it, which was before they read; and
   from the deletion on the id is remembered for twice as long. So whoever comes late finds the id, or
   is refused.

And why none is lost: a row is deleted only after the server has said what became of its job.

Where it ends: a server that loses what it had acknowledged (a failover) loses jobs whose rows are gone,
and ids with them. And a relay that dies between adding and deleting, with no other for a month.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fencepost._core import commands
from fencepost._core.port import Port
from fencepost._core.script import Script, load_script
from fencepost.jobs.protocol import LOOK, Place, ms

PATIENCE: Final = 600.0
"""Seconds after which what a relay has read is too old to be added."""
REMEMBER: Final = 30 * 86_400.0
"""Seconds for which an id is remembered while its row stands."""


@dataclass(frozen=True, slots=True)
class Row:
    """A job in an outbox.

    Args:
        number: Of the row.
        id: Of the job.
        queue: Where it belongs.
        when: ``+n`` milliseconds from when the row was written, or milliseconds since 1970.
        moves: One that waits and has its unique key is moved.
        record: Its head and its body.
        age_ms: Since the row was written, by the database's clock.
    """

    number: int
    id: str
    queue: str
    when: str
    moves: bool
    record: bytes
    age_ms: int

    @property
    def left(self) -> str:
        """When it is due, as the server is told."""
        if not self.when.startswith("+"):
            return self.when
        return f"+{max(int(self.when) - self.age_ms, 0)}"


class Store(Protocol):
    """An outbox. Coroutine functions or plain ones; each is one transaction."""

    def read(self, most: int) -> Any:
        """The oldest rows."""

    def delete(self, numbers: Sequence[int]) -> Any:
        """Delete rows; those that are gone already are no error."""


def _relayed(reply: list[bytes]) -> str | None:
    """A letter of each job; None if it was too late."""
    return None if reply[0] == b"LATE" else b"".join(reply[::2]).decode()


@dataclass(frozen=True, slots=True)
class RelayScripts:
    """The scripts of a relay; tests put others in their place to see a guard matter."""

    relay: Script[str | None]
    let_go: Script[bool]


SCRIPTS: Final = RelayScripts(
    load_script(__package__, "relay", _relayed), load_script(__package__, "let_go", bool)
)


async def relay(
    io: Port,
    place_of: Callable[[str], Place],
    store: Store,
    most: int,
    scripts: RelayScripts = SCRIPTS,
) -> int:
    """Carry the oldest rows over; how many are done.

    Raises:
        Unavailable: The database or the server could not be reached; nothing is lost, do it again.
        OutcomeUnknown: Likewise.
    """
    # The clock first: what is read after it is never older than it says.
    seconds, micros = await io.run(commands.read("TIME"))
    until_ms = int(seconds) * 1000 + int(micros) // 1000 + ms(PATIENCE)
    rows: list[Row] = await io.call(store.read, most)
    done = 0
    for queue in dict.fromkeys(row.queue for row in rows):
        mine = [row for row in rows if row.queue == queue]
        keys = place_of(queue).keys
        words: list[Any] = [ms(LOOK), until_ms, ms(REMEMBER)]
        for row in mine:
            words += (row.id, row.left, "m" if row.moves else "k", row.record)
        names = (keys.bodies, keys.due, keys.ready, keys.claims)
        more = (keys.unique, keys.remembered, keys.wake)
        if await io.run(scripts.relay((*names, *more), words)) is None:
            continue
        # Only now: a row that is deleted before its job is there is a job that is lost.
        await io.call(store.delete, [row.number for row in mine])
        ids = [row.id for row in mine]
        await io.run(scripts.let_go((keys.remembered,), (2 * ms(PATIENCE), *ids)))
        done += len(mine)
    return done
