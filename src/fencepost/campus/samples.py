"""A dozen activities, so that a first look is not an empty page."""

from __future__ import annotations

from datetime import datetime, timedelta

from fencepost.campus.activities import NewActivity

# title, place, days from now, (hour, minute) in local time, capacity; shown last to first
_SAMPLES = [
    ("Bicycle repair, bring your own wheel", "Workshop behind the library", 20, (15, 0), 12),
    ("Debate night: should lectures start at ten?", "Assembly Hall", 18, (19, 30), 180),
    ("Swing dance for beginners", "Old gymnasium", 16, (20, 0), 60),
    ("Rust and tea: an evening of ownership", "Room 2.14, Computer Science", 14, (18, 0), 30),
    ("Life drawing with charcoal", "Studio C, School of Art", 12, (17, 30), 18),
    ("Five-a-side football, mixed teams", "Sports field east", 11, (16, 15), 40),
    ("Silent reading party", "Reading room, third floor", 9, (19, 0), 45),
    ("How to fail an exam well", "Lecture Theatre 1", 8, (12, 15), 240),
    ("Star gazing: the rings of Saturn", "Observatory roof", 6, (21, 45), 25),
    ("Dumplings from scratch", "Kitchen, Hall of Residence B", 5, (18, 30), 16),
    ("Chess evening, all strengths", "Café Turing", 3, (19, 0), 32),
    ("Open-air film: Metropolis, with live piano", "South lawn", 2, (20, 30), 400),
]


def samples(now: datetime) -> list[NewActivity]:
    """The sample activities, all of them in the days after ``now``."""

    def at(days: int, hour: int, minute: int) -> datetime:
        day = (now.astimezone() + timedelta(days=days)).replace(tzinfo=None)
        return day.replace(hour=hour, minute=minute, second=0, microsecond=0).astimezone()

    return [
        NewActivity(title=title, place=place, starts_at=at(days, *clock), capacity=capacity)
        for title, place, days, clock, capacity in _SAMPLES
    ]
