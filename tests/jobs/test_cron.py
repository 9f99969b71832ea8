"""When a cron expression comes due: known outcomes around changes of the clock, and a stepper of minutes.

The stepper is Debian's own algorithm (a virtual clock that catches up minute by minute); the walk under
test never steps minutes. Each is wrong where the other is not, should either rule be broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost.errors import Refused
from fencepost.jobs import cron as module
from fencepost.jobs.cron import Cron
from fencepost.jobs.cron_fields import read

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
NEW_YORK = "America/New_York"
LORD_HOWE = "Australia/Lord_Howe"
SAO_PAULO = "America/Sao_Paulo"
ST_JOHNS = "America/St_Johns"


def times(expression: str, tz: str, first: str, n: int) -> list[str]:
    """The next n times from a local time on, as the clock there shows them, with their offset."""
    start = datetime.fromisoformat(first).replace(tzinfo=ZoneInfo(tz)) - timedelta(seconds=1)
    return [f"{at:%d %H:%M %z}" for at in Cron(expression, tz).preview(n, start)]


# -- changes of the clock, with known outcomes ------------------------------------------------------

TABLE = [
    # New York 2026: 02:00 becomes 03:00 on 8 March, 02:00 becomes 01:00 on 1 November.
    ("30 2 * * *", NEW_YORK, "2026-03-07", ["07 02:30 -0500", "08 03:00 -0400", "09 02:30 -0400"]),
    ("30 1 * * *", NEW_YORK, "2026-11-01", ["01 01:30 -0400", "02 01:30 -0500"]),
    (
        "*/30 * * * *",
        NEW_YORK,
        "2026-11-01T00:30",
        [
            *("01 00:30 -0400", "01 01:00 -0400", "01 01:30 -0400"),
            *("01 01:00 -0500", "01 01:30 -0500", "01 02:00 -0500"),
        ],
    ),
    ("*/30 * * * *", NEW_YORK, "2026-03-08T01:30", ["08 01:30 -0500", "08 03:00 -0400"]),
    # All that was jumped over comes in one moment, and what is named for it is no second one.
    (
        "0,30 2,3 * * *",
        NEW_YORK,
        "2026-03-08",
        ["08 03:00 -0400", "08 03:30 -0400", "09 02:00 -0400"],
    ),
    ("0 0 8 3 *", NEW_YORK, "2026-03-01", ["08 00:00 -0500"]),
    ("30 2 8 3 *", NEW_YORK, "2026-03-01", ["08 03:00 -0400"]),
    (
        "15 * * * *",
        NEW_YORK,
        "2026-11-01T01:00",
        ["01 01:15 -0400", "01 01:15 -0500", "01 02:15 -0500"],
    ),
    # Half an hour: 02:00 becomes 02:30 on 4 October, 02:00 becomes 01:30 on 5 April.
    ("15 2 * * *", LORD_HOWE, "2026-10-03", ["03 02:15 +1030", "04 02:30 +1100", "05 02:15 +1100"]),
    ("45 1 * * *", LORD_HOWE, "2026-04-05", ["05 01:45 +1100", "06 01:45 +1030"]),
    (
        "*/30 * * * *",
        LORD_HOWE,
        "2026-04-05T01:00",
        ["05 01:00 +1100", "05 01:30 +1100", "05 01:30 +1030", "05 02:00 +1030"],
    ),
    (
        "*/20 2 * * *",
        LORD_HOWE,
        "2026-04-05",
        ["05 02:00 +1030", "05 02:20 +1030", "05 02:40 +1030"],
    ),
    # Midnight itself is jumped over on 15 October 2017, and comes twice on 18 February 2018.
    ("0 0 * * *", SAO_PAULO, "2017-10-14", ["14 00:00 -0300", "15 01:00 -0200", "16 00:00 -0200"]),
    ("*/30 * 15 10 *", SAO_PAULO, "2017-10-14", ["15 01:00 -0200", "15 01:30 -0200"]),
    ("*/30 0 15 10 *", SAO_PAULO, "2017-10-14", []),  # elapsed time: there was no such hour
    ("30 23 * * *", SAO_PAULO, "2018-02-17", ["17 23:30 -0200", "18 23:30 -0300"]),
    ("0 23-23/1 17 2 *", SAO_PAULO, "2018-02-17", ["17 23:00 -0200"]),
    # 00:01 becomes 23:01 of the day before: two dates come one after the other, twice.
    (
        "*/30 * * * *",
        ST_JOHNS,
        "2010-11-06T23:30",
        ["06 23:30 -0230", "07 00:00 -0230", "06 23:30 -0330", "07 00:00 -0330"],
    ),
    ("0 0 * * *", ST_JOHNS, "2010-11-06T12:00", ["07 00:00 -0230", "08 00:00 -0330"]),
    # London: 01:00 becomes 02:00 on 29 March, 02:00 becomes 01:00 on 25 October.
    (
        "30 1 * * *",
        "Europe/London",
        "2026-03-28",
        ["28 01:30 +0000", "29 02:00 +0100", "30 01:30 +0100"],
    ),
    ("30 1 * * SUN", "Europe/London", "2026-10-24", ["25 01:30 +0100"]),
    # A day that never was (30 December 2011) is not made up for; nor is one that comes twice left out.
    ("0 12 * * *", "Pacific/Apia", "2011-12-29", ["29 12:00 -1000", "31 12:00 +1400"]),
    ("0 2 * * *", "Asia/Kathmandu", "2026-03-08", ["08 02:00 +0545", "09 02:00 +0545"]),
    ("30 2 * * *", "UTC", "2026-03-08", ["08 02:30 +0000", "09 02:30 +0000"]),
]


@pytest.mark.parametrize(("expression", "tz", "first", "expected"), TABLE)
def test_changes_of_the_clock(expression: str, tz: str, first: str, expected: list[str]) -> None:
    if expected:
        assert times(expression, tz, first, len(expected)) == expected
    else:
        year = int(first[:4])
        assert next(Cron(expression, tz).after(datetime(year, 10, 1, tzinfo=UTC))).year > year


@pytest.mark.parametrize("tz", [NEW_YORK, LORD_HOWE, SAO_PAULO, ST_JOHNS, "Antarctica/Troll"])
@pytest.mark.parametrize("expression", ["30 0 * * *", "30 1 * * *", "30 2 * * *"])
def test_a_fixed_time_comes_once_on_every_date(tz: str, expression: str) -> None:
    first, last = date(2005, 1, 1), date(2011, 12, 31)
    found = Cron(expression, tz).between(
        *(datetime(day.year, day.month, day.day, 12, tzinfo=UTC) for day in (first, last))
    )
    dates = [at.astimezone(ZoneInfo(tz)).date() for at in found]
    assert dates == [first + n * DAY for n in range(1, (last - first).days + 1)]


# -- against a stepper of minutes -------------------------------------------------------------------

# Windows with a change in the middle: New York's two, half an hour, midnight, two dates at once, two
# hours (Troll), negative summer time (Dublin), Ramadan (Casablanca), three hours (Casey), a day (Apia).
WINDOWS = [
    *((NEW_YORK, date(2026, 3, 8)), (NEW_YORK, date(2026, 11, 1))),
    *((LORD_HOWE, date(2026, 4, 5)), (LORD_HOWE, date(2026, 10, 4))),
    *((SAO_PAULO, date(2017, 10, 15)), (SAO_PAULO, date(2018, 2, 18))),
    *((ST_JOHNS, date(2010, 11, 7)), (ST_JOHNS, date(2011, 3, 13))),
    *(("Antarctica/Troll", date(2026, 3, 29)), ("Antarctica/Troll", date(2026, 10, 25))),
    *(("Europe/Dublin", date(2026, 3, 29)), ("Africa/Casablanca", date(2026, 3, 22))),
    *(("Antarctica/Casey", date(2020, 10, 4)), ("Antarctica/Casey", date(2021, 3, 14))),
    *(("Pacific/Apia", date(2011, 12, 30)), ("Pacific/Kwajalein", date(1993, 8, 21))),
    ("UTC", date(2024, 2, 29)),
]


@lru_cache
def clock(tz: str, middle: date) -> list[tuple[datetime, datetime]]:
    """Every minute of five days around a change: UTC, and what the clock shows."""
    zone, start = ZoneInfo(tz), datetime(middle.year, middle.month, middle.day) - 2 * DAY
    moments = (start + n * MINUTE for n in range(5 * 24 * 60))
    return [(at, at.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)) for at in moments]


def step(
    matches: Callable[[datetime], bool], fixed: bool, minutes: list[tuple[datetime, datetime]]
) -> list[datetime]:
    """What Debian's cron does, woken once a minute: fixed times follow a virtual clock."""
    found, virtual = [], minutes[0][1] - MINUTE
    before = virtual
    for at, local in minutes:
        if abs(local - before - MINUTE) >= DAY:
            virtual = local - MINUTE  # another date: the virtual clock is set, not caught up
        before = local
        if not fixed:
            due = matches(local)
        else:
            due = False
            while virtual < local:
                virtual += MINUTE
                due |= matches(virtual)
        if due:
            found.append(at)
    return found


@dataclass(frozen=True)
class Sample:
    """An expression, and what it means, told without reading it."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    both: bool
    fixed: bool

    def matches(self, local: datetime) -> bool:
        of_month, of_week = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        days = (of_month and of_week) if self.both else (of_month or of_week)
        return (
            days
            and local.minute in self.minutes
            and local.hour in self.hours
            and local.month in self.months
        )


def items(low: int, high: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A field's text and the numbers that it means."""
    number = st.integers(low, high)
    one = number.map(lambda n: (str(n), {n}))
    span = st.tuples(number, number, st.integers(1, high)).map(
        lambda t: (
            f"{min(t[:2])}-{max(t[:2])}/{t[2]}",
            set(range(min(t[:2]), max(t[:2]) + 1, t[2])),
        )
    )
    listed = st.lists(one | span, min_size=1, max_size=3).map(
        lambda parts: (",".join(t for t, _ in parts), frozenset().union(*(v for _, v in parts)))
    )
    star = st.integers(1, high).map(
        lambda n: ("*" if n == 1 else f"*/{n}", frozenset(range(low, high + 1, n)))
    )
    return listed | star


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    all_ = st.just
    minute, hour = draw(items(0, 59)), draw(items(0, 23))
    day = draw(all_(("*", frozenset(range(1, 32)))) | items(1, 31))
    month = draw(all_(("*", frozenset(range(1, 13)))) | items(1, 12))
    week = draw(all_(("*", frozenset(range(8)))) | items(0, 7))
    parts = (minute[0], hour[0], day[0], month[0], week[0])
    return Sample(
        " ".join(parts),
        *(minute[1], hour[1], day[1], month[1]),
        frozenset(one % 7 for one in week[1]),
        both=day[0].startswith("*") or week[0].startswith("*"),
        fixed=not (minute[0].startswith("*") or hour[0].startswith("*")),
    )


def found_in(cron: Cron, minutes: list[tuple[datetime, datetime]]) -> list[datetime]:
    first, last = (at.replace(tzinfo=UTC) for at in (minutes[0][0] - MINUTE, minutes[-1][0]))
    return [at.replace(tzinfo=None) for at in cron.between(first, last)]


@given(samples(), st.sampled_from(WINDOWS))
@settings(deadline=None, max_examples=60)
def test_agrees_with_a_stepper_of_minutes(sample: Sample, window: tuple[str, date]) -> None:
    try:
        cron = Cron(sample.text, window[0])
    except Refused as error:
        # A day that no month has: then the stepper never finds one either.
        assert "never comes" in str(error)  # noqa: PT017  # it may be read as well
        return
    minutes = clock(*window)
    assert found_in(cron, minutes) == step(sample.matches, sample.fixed, minutes)


@pytest.mark.parametrize(
    ("guard", "instead"),
    [
        ("_shown_before", lambda *_: False),  # what the clock shows twice comes twice
        ("_change", lambda _self, _begin, end, _old: end),  # the change is noticed a day late
    ],
)
def test_stepper_sees_a_walk_without_its_guards(
    guard: str, instead: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> bool:
        expressions = ("30 2 * * *", "30 1 * * *")
        return any(
            found_in(Cron(one, tz), clock(tz, day))
            != step(lambda at, one=one: f"{at.minute} {at.hour}" == one[:4], True, clock(tz, day))
            for one in expressions
            for tz, day in WINDOWS
        )

    assert not wrong()
    monkeypatch.setattr(module.Cron, guard, instead)
    assert wrong()


# -- days -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29"]),
        ("0 0 L * *", ["2026-01-31", "2026-02-28", "2026-03-31"]),
        ("0 0 LW * *", ["2026-01-30", "2026-02-27", "2026-03-31"]),
        ("0 0 1,L * *", ["2026-01-01", "2026-01-31", "2026-02-01"]),
        ("0 0 * * FRI#2", ["2026-01-09", "2026-02-13", "2026-03-13"]),
        ("0 0 * * friL", ["2026-01-30", "2026-02-27", "2026-03-27"]),
        ("0 0 * * 5#5", ["2026-01-30", "2026-05-29", "2026-07-31"]),
        ("0 0 13 * FRI", ["2026-01-02", "2026-01-09", "2026-01-13"]),  # either
        ("0 0 */13 * FRI", ["2026-02-27", "2026-03-27", "2026-05-01"]),  # both: a star narrows
        ("0 0 * jan-mar sat-sun", ["2026-01-03", "2026-01-04", "2026-01-10"]),
        ("0 0 * * 7", ["2026-01-04", "2026-01-11", "2026-01-18"]),
        ("@weekly", ["2026-01-04", "2026-01-11", "2026-01-18"]),
        ("@yearly", ["2026-01-01", "2027-01-01", "2028-01-01"]),
    ],
)
def test_days(expression: str, expected: list[str]) -> None:
    start = datetime(2025, 12, 31, 23, 59, tzinfo=UTC)
    assert [f"{at:%Y-%m-%d}" for at in Cron(expression).preview(3, start)] == expected


def test_a_time_is_later_than_the_moment_and_the_walk_goes_on() -> None:
    cron = Cron("0 * * * *", NEW_YORK)
    at = datetime(2026, 11, 1, 5, tzinfo=UTC)
    assert [one.hour for one in islice(cron.after(at), 3)] == [6, 7, 8]
    assert next(cron.after(at - timedelta(microseconds=1))) == at
    assert cron.preview(0, at) == []
    one_by_one, moment = [], at
    for _ in range(200):
        moment = next(cron.after(moment))
        one_by_one.append(moment)
    assert one_by_one == list(islice(cron.after(at), 200))


def test_bounds_in_an_hour_that_comes_twice() -> None:
    cron = Cron("*/30 * * * *", NEW_YORK)
    first, second = (
        datetime(2026, 11, 1, 1, 30, fold=fold, tzinfo=ZoneInfo(NEW_YORK)) for fold in (0, 1)
    )
    assert list(cron.between(first, first)) == []
    found = [f"{at:%H:%M}" for at in cron.between(first, second)]
    assert found == ["06:00", "06:30"]
    assert [f"{at:%H:%M %z}" for at in cron.preview(2, first)] == ["01:00 -0500", "01:30 -0500"]
    assert [f"{at:%H:%M %z}" for at in cron.preview(2, second)] == ["02:00 -0500", "02:30 -0500"]


@example("0 0 29 2 1", datetime(1999, 12, 31, tzinfo=UTC))
@given(
    samples().map(lambda sample: sample.text),
    st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
)
@settings(deadline=None, max_examples=30)
def test_what_comes_matches_its_own_fields(text: str, start: datetime) -> None:
    try:
        cron = Cron(text, "Europe/London")
    except Refused:
        return
    fields = read(text)
    for at in cron.preview(3, start):
        assert at.astimezone(UTC) > start
        made_up = fields.fixed and at.hour == 2 and at.minute == 0
        assert made_up or (at.hour in fields.hours and at.minute in fields.minutes)
        assert fields.on(at.date())


# -- what is refused, and why -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("60 * * * *", "minute '60': it goes from 0 to 59"),
        ("* 24 * * *", "hour '24': it goes from 0 to 23"),
        ("* * 0 * *", "day of month '0': it goes from 1 to 31"),
        ("* * * 13 *", "month '13': it goes from 1 to 12"),
        ("* * * * 8", "day of week '8': it goes from 0 to 7"),
        ("* * * FOO *", "month 'FOO': a number from 1 to 12 or JAN … DEC"),
        ("* * * * FRI#6", "day of week 'FRI#6': a month has a first to a fifth"),
        ("* * * * XL", "day of week 'X'"),
        ("* L * * *", "hour 'L'"),
        ("5/10 * * * *", "minute '5/10': a step needs a range: 5-59/10"),
        ("50-10 * * * *", "minute '50-10': a range does not end before it begins"),
        ("*/0 * * * *", "minute '*/0': the step '0'"),
        ("*/ * * * *", "minute '*/': the step ''"),
        ("1,,2 * * * *", "minute '': a number"),
        ("-5 * * * *", "minute '': a number"),
        ("¹ * * * *", "minute '¹': a number"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4,6,9,11 *", "never comes"),
        ("* * * *", "five fields are meant"),
        ("0 * * * * *", "these are 6"),
        ("", "these are 0"),
        ("@reboot", "known are @yearly"),
    ],
)
def test_what_cannot_be_read_names_its_field(expression: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        Cron(expression)
    assert why in str(refused.value)
    assert repr(expression) in str(refused.value)


@pytest.mark.parametrize(
    "tz", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "America", None]
)
def test_unknown_zones_are_refused(tz: str) -> None:
    with pytest.raises(Refused, match="unknown time zone"):
        Cron("* * * * *", tz)


def test_a_machine_without_zones_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.zoneinfo, "available_timezones", set)
    with pytest.raises(Refused, match="pip install tzdata"):
        Cron("* * * * *", "Mars/Olympus")


def test_naive_moments_are_refused() -> None:
    with pytest.raises(Refused, match="has no zone"):
        Cron("* * * * *").after(datetime(2026, 1, 1))  # that is the point
