"""The five fields of a cron expression, each read into what it matches; what is wrong names its field.

As Debian's cron reads them: lists, ranges, steps over a range or ``*``, names of months and days, 7
for Sunday. Beyond it, for days only: ``L`` (the month's last), ``LW`` (its last weekday), ``FRIL``
(its last Friday), ``FRI#2`` (its second).
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fencepost.errors import Refused

if TYPE_CHECKING:
    from datetime import date

_MONTHS: Final = (
    "JAN",
    "FEB",
    "MAR",
    "APR",
    "MAY",
    "JUN",
    "JUL",
    "AUG",
    "SEP",
    "OCT",
    "NOV",
    "DEC",
)
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, slots=True)
class _Field:
    """One field: what it is called, and what its numbers and names may be."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def fault(self, text: str, why: str) -> Refused:
        return Refused(f"{self.name} {text!r}: {why}")

    def number(self, text: str) -> int:
        """A number or a name within the field's bounds."""
        if text in self.names:
            return self.names.index(text) + self.low
        if not (text.isascii() and text.isdecimal()):
            named = f" or {self.names[0]} … {self.names[-1]}" if self.names else ""
            raise self.fault(text, f"a number from {self.low} to {self.high}{named} is meant here")
        if not self.low <= (value := int(text)) <= self.high:
            raise self.fault(text, f"it goes from {self.low} to {self.high}")
        return value

    def values(self, text: str) -> set[int]:
        """What one item of a list matches: ``*``, ``7``, ``1-5``, ``*/10`` or ``8-18/2``."""
        base, slash, step_text = text.partition("/")
        first, dash, last = base.partition("-")
        if base == "*":
            low, high = self.low, self.high
        elif dash:
            low, high = self.number(first), self.number(last)
            if self.names is _DAYS and high == 0 < low:
                high = 7  # a week may end with its Sunday
            if low > high:
                raise self.fault(text, "a range does not end before it begins; give two of them")
        else:
            low = high = self.number(first)
            if slash:
                raise self.fault(text, f"a step needs a range: {first}-{self.high}/{step_text}")
        if slash and not (step_text.isascii() and step_text.isdecimal() and int(step_text) > 0):
            raise self.fault(text, f"the step {step_text!r} is not a number from 1 on")
        return set(range(low, high + 1, int(step_text) if slash else 1))


_MINUTE: Final = _Field("minute", 0, 59)
_HOUR: Final = _Field("hour", 0, 23)
_DAY: Final = _Field("day of month", 1, 31)
_MONTH: Final = _Field("month", 1, 12, _MONTHS)
_WEEKDAY: Final = _Field("day of week", 0, 7, _DAYS)
_ORDER: Final = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)


@dataclass(frozen=True, slots=True)
class Fields:
    """What an expression matches, of a local date and of a local time.

    Args:
        minutes: Of the hour, in order.
        hours: Of the day, in order.
        days: Of the month.
        months: Of the year.
        weekdays: 0 is Sunday.
        last_day: The month's last day.
        last_workday: The month's last day that is no Saturday or Sunday.
        nth: (weekday, n): its n-th of the month; n is -1 for the last.
        both: Day of month and day of week must both match, not either.
        fixed: Neither minutes nor hours begin with a star.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    last_day: bool
    last_workday: bool
    nth: frozenset[tuple[int, int]]
    both: bool
    fixed: bool

    def on(self, day: date) -> bool:
        """Whether a date matches."""
        if day.month not in self.months:
            return False
        if self.both:
            return self._of_month(day) and self._of_week(day)
        return self._of_month(day) or self._of_week(day)

    def _of_month(self, day: date) -> bool:
        if day.day in self.days:
            return True
        if day.day < 26 or not (self.last_day or self.last_workday):
            return False
        end = calendar.monthrange(day.year, day.month)[1]
        if self.last_day and day.day == end:
            return True
        weekday = day.weekday()
        return self.last_workday and (
            (weekday < 5 and day.day == end) or (weekday == 4 and day.day >= end - 2)
        )

    def _of_week(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        if weekday in self.weekdays:
            return True
        if not self.nth:
            return False
        last = day.day + 7 > calendar.monthrange(day.year, day.month)[1]
        return (weekday, (day.day + 6) // 7) in self.nth or (last and (weekday, -1) in self.nth)


def read(expression: str) -> Fields:
    """Read an expression of five fields, or one of ``@hourly`` … ``@yearly``.

    Raises:
        Refused: It can't be read; the message names the field.
    """
    try:
        return _read(expression)
    except Refused as fault:
        raise Refused(f"cron expression {expression!r}: {fault}") from None


def _read(expression: str) -> Fields:
    if expression.startswith("@") and expression not in _ALIASES:
        raise Refused(f"known are {', '.join(_ALIASES)}")
    parts = _ALIASES.get(expression, expression).upper().split()
    if len(parts) != len(_ORDER):
        raise Refused(
            f"five fields are meant ({', '.join(one.name for one in _ORDER)}), these are {len(parts)}"
        )
    minutes, hours, days, months, weekdays = parts
    of_month, last_day, last_workday = _days(days)
    of_week, nth = _weekdays(weekdays)
    return Fields(
        minutes=tuple(sorted(_plain(_MINUTE, minutes))),
        hours=tuple(sorted(_plain(_HOUR, hours))),
        days=frozenset(of_month),
        months=frozenset(_plain(_MONTH, months)),
        weekdays=frozenset(one % 7 for one in of_week),
        last_day=last_day,
        last_workday=last_workday,
        nth=frozenset(nth),
        # Debian's cron: a day field that begins with a star narrows the other one, `*/2` too.
        both=days.startswith("*") or weekdays.startswith("*"),
        fixed=not minutes.startswith("*") and not hours.startswith("*"),
    )


def _plain(field: _Field, text: str) -> set[int]:
    return {value for item in text.split(",") for value in field.values(item)}


def _days(text: str) -> tuple[set[int], bool, bool]:
    """Days of the month; whether its last, and its last weekday, count."""
    items = text.split(",")
    plain = [item for item in items if item not in ("L", "LW")]
    found = {value for item in plain for value in _DAY.values(item)}
    return found, "L" in items, "LW" in items


def _weekdays(text: str) -> tuple[set[int], set[tuple[int, int]]]:
    """Days of the week; those of one week of the month."""
    plain: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for item in text.split(","):
        day, sign, count = item.partition("#")
        if sign:
            if count not in ("1", "2", "3", "4", "5"):
                raise _WEEKDAY.fault(item, "a month has a first to a fifth: #1 to #5")
            nth.add((_WEEKDAY.number(day) % 7, int(count)))
        elif item.endswith("L") and len(item) > 1:
            nth.add((_WEEKDAY.number(item[:-1]) % 7, -1))
        else:
            plain |= _WEEKDAY.values(item)
    return plain, nth
