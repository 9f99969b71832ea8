"""Seats and reminders in SQL: plain, synchronous, each function within a transaction that the caller has.

A seat is held for ten minutes, then confirmed or free again. Every row counts against the capacity,
whatever its age, and rows are added and counted under the lock of the activity's row: so there are
never more than fit, and no clock has a say in it. What releases a hold is a job, which compares the
hold it was made for in the same statement that deletes it: a seat that was confirmed, or given back and
held again, is not its seat any more.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, func, select, update

from fencepost.campus.tables import activities, notices, reminders, seats
from fencepost.errors import UnknownItem
from fencepost.jobs.cron import zone_of
from fencepost.sql.fence import insert_ignoring, upsert

if TYPE_CHECKING:
    from sqlalchemy import Connection

HELD, TAKEN = "held", "taken"


@dataclass(frozen=True)
class Seat:
    """A user's seat: ``held`` until about then, or ``taken`` for good."""

    state: str
    until: datetime | None


@dataclass(frozen=True)
class Room:
    """How many seats an activity has, and what has become of them."""

    capacity: int
    held: int
    taken: int

    @property
    def free(self) -> int:
        return max(self.capacity - self.held - self.taken, 0)


@dataclass(frozen=True)
class Rule:
    """When those who have a seat are reminded: at a time of the clock in a zone, some days before."""

    zone: str
    days: int
    at: str

    def due(self, starts_at: datetime) -> datetime:
        """When that is; a time that the clock jumps over comes as much later as it jumps."""
        zone = zone_of(self.zone)
        day = starts_at.astimezone(zone).date() - timedelta(days=self.days)
        return datetime.combine(day, time.fromisoformat(self.at), zone).astimezone(UTC)


def _mine(activity_id: int, user: str) -> Any:
    return and_(seats.c.activity_id == activity_id, seats.c.user_id == user)


def _locked(connection: Connection, activity_id: int) -> Any:
    """An activity's capacity and start; nobody else adds to it or changes it until the commit.

    Raises:
        UnknownItem: There is none.
    """
    query = select(activities.c.capacity, activities.c.starts_at)
    row = connection.execute(query.where(activities.c.id == activity_id).with_for_update()).first()
    if row is None:
        raise UnknownItem(f"there is no activity {activity_id}")
    return row


def find(connection: Connection, activity_id: int, user: str) -> Seat | None:
    """A user's seat."""
    query = select(seats.c.state, seats.c.until).where(_mine(activity_id, user))
    row = connection.execute(query).first()
    return None if row is None else Seat(*row)


def room(connection: Connection, activity_id: int) -> Room:
    """How many seats there are.

    Raises:
        UnknownItem: There is no such activity.
    """
    capacity = connection.execute(
        select(activities.c.capacity).where(activities.c.id == activity_id)
    ).scalar()
    if capacity is None:
        raise UnknownItem(f"there is no activity {activity_id}")
    query = select(seats.c.state, func.count()).where(seats.c.activity_id == activity_id)
    rows = connection.execute(query.group_by(seats.c.state))
    counts = {row[0]: row[1] for row in rows}
    return Room(capacity, counts.get(HELD, 0), counts.get(TAKEN, 0))


def hold(
    connection: Connection, activity_id: int, user: str, seconds: float
) -> tuple[Seat | None, str]:
    """Hold a seat; the one that the user has, if there is one.

    Returns:
        The seat, None if no seat is free; and what names this hold, empty if none was made.

    Raises:
        UnknownItem: There is no such activity.
    """
    capacity, _ = _locked(connection, activity_id)
    if mine := find(connection, activity_id, user):
        return mine, ""
    # Counted under the lock: two that counted before either inserted would both fit.
    query = select(func.count()).select_from(seats).where(seats.c.activity_id == activity_id)
    if connection.execute(query).scalar_one() >= capacity:
        return None, ""
    name = secrets.token_hex(8)
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).replace(microsecond=0)
    row = {"activity_id": activity_id, "user_id": user, "state": HELD, "hold": name}
    connection.execute(seats.insert().values(**row, until=until))
    return Seat(HELD, until), name


def confirm(connection: Connection, activity_id: int, user: str) -> bool:
    """Take the seat that is held for good; again is harmless. False if none is held."""
    done = connection.execute(
        update(seats).where(_mine(activity_id, user)).values(state=TAKEN, until=None)
    )
    return done.rowcount == 1


def give_back(connection: Connection, activity_id: int, user: str) -> bool:
    """Let a seat go, held or taken; whether there was one."""
    return connection.execute(delete(seats).where(_mine(activity_id, user))).rowcount == 1


def release(connection: Connection, activity_id: int, user: str, name: str) -> bool:
    """Let a hold go whose time is over, if it is still that hold."""
    mine = and_(_mine(activity_id, user), seats.c.state == HELD, seats.c.hold == name)
    return connection.execute(delete(seats).where(mine)).rowcount == 1


# -- reminders


def rule_of(connection: Connection, activity_id: int) -> Rule | None:
    """When its people are reminded; None if they are not."""
    query = select(reminders.c.zone, reminders.c.days, reminders.c.at)
    row = connection.execute(query.where(reminders.c.activity_id == activity_id)).first()
    return None if row is None else Rule(*row)


def set_rule(connection: Connection, activity_id: int, rule: Rule) -> datetime:
    """Remind its people; when that will be.

    Raises:
        UnknownItem: There is no such activity.
    """
    _, starts_at = _locked(connection, activity_id)
    values = {"activity_id": activity_id, **vars(rule)}
    statement = upsert(connection, reminders, ["activity_id"], ["zone", "days", "at"])
    connection.execute(statement, values)
    return rule.due(starts_at)


def due(connection: Connection, activity_id: int) -> datetime | None:
    """When the people of an activity are to be reminded; None if they are not, or it is gone."""
    query = select(activities.c.starts_at).where(activities.c.id == activity_id)
    starts_at = connection.execute(query.with_for_update()).scalar()
    rule = rule_of(connection, activity_id)
    return None if starts_at is None or rule is None else rule.due(starts_at)


def remind(connection: Connection, activity_id: int) -> int:
    """Leave a notice for everybody who has a seat, once for each time that it starts at; how many."""
    starts_at = connection.execute(
        select(activities.c.starts_at).where(activities.c.id == activity_id)
    ).scalar_one()
    people = connection.execute(
        select(seats.c.user_id).where(seats.c.activity_id == activity_id, seats.c.state == TAKEN)
    ).scalars()
    now = datetime.now(UTC).replace(microsecond=0)
    rows = [
        {"activity_id": activity_id, "user_id": user, "starts_at": starts_at, "sent_at": now}
        for user in people
    ]
    if rows:
        connection.execute(insert_ignoring(connection, notices), rows)
    return len(rows)


def notices_of(connection: Connection, user: str, most: int) -> list[Any]:
    """What a user was reminded of, the newest first: activity, title, its start, when."""
    query = (
        select(notices.c.activity_id, activities.c.title, notices.c.starts_at, notices.c.sent_at)
        .join(activities, activities.c.id == notices.c.activity_id)
        .where(notices.c.user_id == user)
        .order_by(notices.c.sent_at.desc(), notices.c.activity_id.desc())
        .limit(most)
    )
    return list(connection.execute(query))
