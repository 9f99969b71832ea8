"""When a cron expression comes due in a zone, changes of its clock included. Pure: no clock, no I/O.

The rule is Debian's. Where neither minutes nor hours begin with a star, an expression names *times*:
each named time of each day comes once. One that the clock jumps over comes when it has jumped; one
that the clock shows twice comes the first time. Every other expression counts *elapsed time*: what
the clock never shows does not come, what it shows twice comes twice.

Why the walk below keeps that rule: it goes through UTC a day at a time, where nothing jumps. In a
stretch without a change local time is UTC plus a constant, so a stretch is a plain list; a day with
a change is two stretches and the moment between them. No zone has changed twice within a day since
1972 (looked up in every one). A change of a whole day (Samoa had no 30 December 2011) is another
date, not another time: nothing is made up for.
"""

from __future__ import annotations

import zoneinfo
from bisect import bisect_left
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from fencepost.errors import Refused
from fencepost.jobs.cron_fields import read

if TYPE_CHECKING:
    from collections.abc import Iterator

_DAY: Final = timedelta(days=1)
_SECOND: Final = timedelta(seconds=1)
_ERA: Final = 146_097  # days until the calendar repeats itself, weekdays and all
_LAST: Final = datetime.max - 4 * _DAY


class Cron:
    """One expression in one zone.

    Args:
        expression: Minute, hour, day of month, month, day of week; or ``@daily`` and its kind.
        tz: The zone whose clock it means, by its name in the tz database.

    Raises:
        Refused: The expression can't be read (the message names the field), never comes, or the
            zone is not known here.
    """

    def __init__(self, expression: str, tz: str | ZoneInfo = "UTC") -> None:
        self.fields = read(expression)
        self.expression = " ".join(expression.split())
        self.zone = zone_of(tz)
        if self._next_day(date(2000, 1, 1)) is None:
            raise Refused(
                f"cron expression {expression!r}: no month has such a day, it never comes"
            )

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, tz={self.zone.key!r})"

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The times later than a moment, in order, in UTC.

        Args:
            moment: Aware.

        Raises:
            Refused: The moment is naive.
        """
        start = _utc(moment).replace(tzinfo=None)
        return (at.replace(tzinfo=UTC) for at in self._walk(start) if at > start)

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The times later than ``after`` and not later than ``until``, both aware; in UTC."""
        # Two times of one zone compare by what the clock shows: in an hour that comes twice, wrongly.
        end = _utc(until)
        return takewhile(lambda at: at <= end, self.after(after))

    def preview(self, n: int, after: datetime) -> list[datetime]:
        """The next ``n`` times later than an aware moment, as the zone's clock shows them."""
        return [at.astimezone(self.zone) for at in islice(self.after(after), n)]

    # -- the walk, in naive UTC

    def _walk(self, start: datetime) -> Iterator[datetime]:
        """Every time from the beginning of ``start``'s day on, in order."""
        begin = datetime.combine(start.date(), time())
        while begin < _LAST:
            # Local dates within this day of UTC: its own and its neighbours.
            near = begin.date() - _DAY
            if (found := self._next_day(near)) is None:
                return
            if found - near > 2 * _DAY:
                begin = datetime.combine(found - _DAY, time())
            yield from self._day(begin, begin + _DAY)
            begin += _DAY

    def _next_day(self, day: date) -> date | None:
        """The first date that matches, from ``day`` on."""
        for _ in range(_ERA):
            if self.fields.on(day):
                return day
            if day.month not in self.fields.months:
                day = (day.replace(day=1) + 32 * _DAY).replace(day=1)
            else:
                day += _DAY
            if day.year >= _LAST.year:
                break
        return None

    def _day(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        old, new = self._offset(begin), self._offset(end)
        if old == new:
            yield from self._stretch(begin, end, old)
            return
        change = self._change(begin, end, old)
        yield from self._stretch(begin, change, old)
        jumped = self.fields.fixed and timedelta() < new - old < _DAY
        if jumped and any(True for _ in self._local(change + old, change + new)):
            yield change
            # Named as well: the same moment, not a second one.
            change += _SECOND
        yield from self._stretch(change, end, new)

    def _stretch(self, begin: datetime, end: datetime, offset: timedelta) -> Iterator[datetime]:
        for local in self._local(begin + offset, end + offset):
            if not (self.fields.fixed and self._shown_before(local, offset)):
                yield local - offset

    def _local(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """The times that are named within a stretch of local time."""
        day = begin.date()
        while (midnight := datetime.combine(day, time())) < end:
            if self.fields.on(day):
                first = bisect_left(self._times, begin - midnight)
                for since in islice(self._times, first, None):
                    if (at := midnight + since) >= end:
                        return
                    yield at
            day += _DAY

    @cached_property
    def _times(self) -> list[timedelta]:
        """Of a day that matches, since its midnight."""
        return [
            timedelta(hours=hour, minutes=minute)
            for hour in self.fields.hours
            for minute in self.fields.minutes
        ]

    def _shown_before(self, local: datetime, offset: timedelta) -> bool:
        """Whether the clock shows a time for the second time, at this offset."""
        earlier = local.replace(tzinfo=self.zone, fold=0).utcoffset() or timedelta()
        # In a gap fold 0 has the smaller offset; there is no such local time in a stretch.
        return timedelta() < earlier - offset < _DAY

    def _offset(self, at: datetime) -> timedelta:
        return at.replace(tzinfo=UTC).astimezone(self.zone).utcoffset() or timedelta()

    def _change(self, begin: datetime, end: datetime, old: timedelta) -> datetime:
        """The first second of a day at which the offset is not the old one any more."""
        low, high = 0, int((end - begin) / _SECOND)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(begin + middle * _SECOND) == old:
                low = middle
            else:
                high = middle
        return begin + high * _SECOND


def _utc(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise Refused(f"{moment!r} has no zone; give an aware datetime")
    return moment.astimezone(UTC)


def zone_of(tz: str | ZoneInfo) -> ZoneInfo:
    """A zone of the tz database.

    Raises:
        Refused: It is not known here.
    """
    if isinstance(tz, ZoneInfo):
        if not tz.key:
            raise Refused(
                "a zone without a name can't be told from another; give one of the tz database"
            )
        return tz
    try:
        return ZoneInfo(tz)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        missing = not zoneinfo.available_timezones()
        why = (
            "this machine has no tz database: pip install tzdata"
            if missing
            else "use a name of the tz database such as Europe/Berlin"
        )
        raise Refused(f"unknown time zone {tz!r}; {why}") from None
