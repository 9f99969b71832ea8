"""Schedules: jobs that come by the calendar, with any number of schedulers and no leader.

Each worker looks at the server's clock, finds the times that have come, and asks for their jobs. Why a
time comes once, whoever asks:

1. An occurrence is its schedule's name and its moment in UTC: all schedulers find the same ones, and
   the job's id is made of them. An id is remembered for a day after it was added, and for as long as
   its job is there.
2. The server notes up to when a schedule has been looked at, in the script that adds the jobs. Who
   comes later, by a second or a week, finds its times behind that mark.

Why none is left out: the mark moves only together with the jobs up to it. When all workers were away,
the first one back finds the mark where it was, and all times since: that is what ``missed`` decides on.

Where it ends: a server that loses its data loses marks and ids. A scheduler that lives goes on from
where it was, so a time comes at least once; it may come twice. Put ``once`` in SQL where that matters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fencepost._core import commands
from fencepost._core.backoff import Backoff
from fencepost._core.keys import bounded
from fencepost._core.observe import log
from fencepost._core.port import Port
from fencepost._core.script import Script, load_script
from fencepost.errors import ClientClosed, FencepostError, Refused
from fencepost.jobs.cron import Cron
from fencepost.jobs.protocol import LOOK, Place, ms
from fencepost.jobs.record import given_id

LATE: Final = 60.0
"""Seconds after which a time that has come counts as missed."""
MOST: Final = 100
"""How many missed times ``missed="all"`` makes up for: the latest ones."""
KEEP: Final = 31 * 86_400.0
"""Seconds for which a schedule that nobody looks at is kept; longer outages are not made up for."""
REMEMBER: Final = 86_400.0
REST: Final = 60.0
"""Seconds after which the clock is looked at again, if nothing is due before: it may have been set."""
NOTE: Final = 3600.0
"""Seconds after which a schedule that had nothing to do is noted as looked at."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Up to when a schedule had been looked at, the server's clock, and a letter for each time."""

    seen_ms: int
    now_ms: int
    said: str


@dataclass(frozen=True, slots=True)
class Early:
    """The server's clock is not that far; nothing was done."""

    now_ms: int


def _occurred(reply: list[Any]) -> Seen | Early:
    if reply[0] == b"EARLY":
        return Early(int(reply[1]))
    return Seen(int(reply[1]), int(reply[2]), reply[3].decode())


RETRY: Final = Backoff(0.1, 5.0)
OCCUR: Final[Script[Seen | Early]] = load_script(__package__, "occur", _occurred)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a task comes by itself.

    Args:
        name: Of the task; what its occurrences are called by.
        cron: The expression and its zone.
        missed: What becomes of times at which no worker was there to see them come: ``one`` runs the
            latest of them, ``all`` runs each (the latest 100), ``skip`` none.
        overlap: What becomes of a time whose predecessor has not ended: ``skip`` leaves it out,
            ``allow`` runs both.
        record: Of each job.

    Raises:
        Refused: A word that is not known, or two that contradict each other.
    """

    name: str
    cron: Cron
    missed: str = "one"
    overlap: str = "skip"
    record: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        check_words(self.missed, self.overlap)

    @property
    def key(self) -> str:
        """What the server knows it by: a changed expression is another schedule, which begins now."""
        return f"{bounded(self.name)} {self.cron.expression}|{self.cron.zone.key}"

    def id(self, at: datetime) -> str:
        """The id of the job of a time, as it is stored."""
        return given_id(f"{self.name}@{at.astimezone(UTC):%Y-%m-%dT%H%M%S}Z")

    def chosen(self, after_ms: int, now_ms: int) -> tuple[list[int], int, int]:
        """Of the times that have come since it was looked at: those to run, the latest, and how many.

        Args:
            after_ms: When it was looked at, in milliseconds since 1970.
            now_ms: Now.
        """
        start, now = _at(max(after_ms, now_ms - ms(KEEP))), _at(now_ms)
        count, kept = 0, deque[int](maxlen=1 if self.missed == "one" else MOST)
        for at in self.cron.between(start, now):
            kept.append(_ms(at))
            count += 1
        if not kept:
            return [], 0, 0
        times = list(kept)
        if self.missed == "skip":
            times = [at for at in times if now_ms - at <= ms(LATE)]
        return times, kept[-1], count

    def next_ms(self, after_ms: int) -> int:
        """The first time later than a moment; very far away if there is none."""
        return next((_ms(at) for at in self.cron.after(_at(after_ms))), 1 << 52)


def check_words(missed: str, overlap: str) -> None:
    """Refuse words that are not known, or that contradict each other.

    Raises:
        Refused: Likewise.
    """
    if missed not in ("one", "all", "skip"):
        raise Refused(f"missed is 'one', 'all' or 'skip', got {missed!r}")
    if overlap not in ("skip", "allow"):
        raise Refused(f"overlap is 'skip' or 'allow', got {overlap!r}")
    if (missed, overlap) == ("all", "skip"):
        raise Refused(
            "missed='all' runs several at once, overlap='skip' leaves out all but one: choose"
        )


def _at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def _ms(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


@dataclass(slots=True)
class Watch:
    """One schedule as one scheduler knows it.

    Args:
        schedule: Which.
        mark_ms: Up to when it has been looked at; 0 before the server has told.
        next_ms: The time after that, once it is known.
        noted_ms: When the server was last told.
        added: How many jobs this scheduler added.
        skipped: How many it left out because another was there.
    """

    schedule: Schedule
    mark_ms: int = 0
    next_ms: int = 0
    noted_ms: int = 0
    added: int = 0
    skipped: int = 0


async def look(io: Port, place: Place, watches: Iterable[Watch], occur: Any = OCCUR) -> float:
    """Look at the clock once, and add the jobs of all times that have come.

    Returns:
        Seconds until it is worth looking again.

    Raises:
        Unavailable: The server could not be reached; do it again, nothing is left out.
        OutcomeUnknown: Likewise.
    """
    seconds, micros = await io.run(commands.read("TIME"))
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    rest_ms = ms(REST)
    for watch in watches:
        if not watch.mark_ms:
            await _say(io, place, watch, (), 0, occur)
        if watch.mark_ms and (not watch.next_ms or now_ms >= watch.next_ms):
            schedule = watch.schedule
            times, latest_ms, _ = await io.call(schedule.chosen, watch.mark_ms, now_ms)
            if latest_ms:
                await _say(io, place, watch, times, latest_ms, occur)
            watch.next_ms = await io.call(schedule.next_ms, watch.mark_ms)
        elif now_ms - watch.noted_ms > ms(NOTE):
            # So that it is not forgotten. A little behind: what has come since is looked at first.
            await _say(io, place, watch, (), min(now_ms - 1000, watch.next_ms - 1), occur)
        rest_ms = min(rest_ms, max(watch.next_ms - now_ms, 1))
    return rest_ms / 1000


async def keep(
    io: Port,
    place: Place,
    schedules: Sequence[Schedule],
    counts: dict[str, int],
    rounds: int | None = None,
) -> None:
    """Look again and again, whatever goes wrong; until it is cancelled, or its client is closed.

    Args:
        io: The port.
        place: Which queue.
        schedules: All of it.
        counts: Where to count what was ``scheduled`` and ``skipped``.
        rounds: How often to look; None: for ever.
    """
    watches, failures = [Watch(one) for one in schedules], 0
    while True:
        try:
            rest = await look(io, place, watches)
            failures = 0
        except ClientClosed:
            return
        except FencepostError as error:
            failures += 1
            log.warning("schedules of %s wait: %s", place.name, error)
            rest = RETRY.delay(failures, io.chance())
        except Exception:  # whatever it is, the next time must not be missed for it
            failures += 1
            log.exception("schedules of %s", place.name)
            rest = RETRY.delay(failures, io.chance())
        counts["scheduled"] = sum(one.added for one in watches)
        counts["skipped"] = sum(one.skipped for one in watches)
        rounds = rounds and rounds - 1
        if rounds == 0:
            return
        await io.sleep(rest)


async def _say(
    io: Port, place: Place, watch: Watch, times: Sequence[int], upto_ms: int, occur: Any
) -> None:
    schedule, keys = watch.schedule, place.keys
    words: list[Any] = [schedule.key, watch.mark_ms, upto_ms, ms(LOOK), ms(REMEMBER), ms(KEEP)]
    words.append(place.history)
    for at in times:
        words += (schedule.id(_at(at)), at, schedule.record)
    names = (keys.bodies, keys.due, keys.ready, keys.claims, keys.unique, keys.remembered)
    answer = await io.run(occur((*names, keys.wake, keys.schedules, keys.history), words))
    if isinstance(answer, Early):
        return  # its clock was set back; the next look finds the time again
    watch.mark_ms = max(answer.seen_ms, upto_ms)
    watch.noted_ms = answer.now_ms
    watch.added += answer.said.count("C")
    watch.skipped += answer.said.count("K") + answer.said.count("R")
