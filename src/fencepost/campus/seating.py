"""The JSON API of seats and reminders."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response

from fencepost.campus.forms import LIMIT_DEFAULT, LIMIT_MAX, number, read_json, user_name
from fencepost.campus.operations import Answer, Operation
from fencepost.campus.problems import invalid
from fencepost.campus.seats import Rule
from fencepost.errors import Refused
from fencepost.jobs.cron import zone_of

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from fencepost.campus.desk import Desk
    from fencepost.campus.seats import Room, Seat

DAYS_MAX: Final = 30
_TIME: Final = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]")


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.campus.desk
    return desk


def _place(request: Request) -> tuple[int, str]:
    return number(request.path_params["id"], "id"), user_name(request.path_params["user"])


def _instant(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def _seat(seat: Seat) -> dict[str, Any]:
    return {"state": seat.state, "until": None if seat.until is None else _instant(seat.until)}


def _room(room: Room) -> dict[str, Any]:
    return {**vars(room), "free": room.free}


async def list_seats(request: Request) -> Response:
    room = await _desk(request).room(number(request.path_params["id"], "id"))
    return JSONResponse(_room(room))


async def hold_seat(request: Request) -> Response:
    return JSONResponse(_seat(await _desk(request).hold(*_place(request))))


async def confirm_seat(request: Request) -> Response:
    return JSONResponse(_seat(await _desk(request).confirm(*_place(request))))


async def give_seat_back(request: Request) -> Response:
    await _desk(request).give_back(*_place(request))
    return Response(status_code=204)


def rule_in(body: dict[str, Any]) -> Rule:
    """When people are to be reminded, from a JSON object; all that is wrong is told at once.

    Raises:
        Problem: Some fields do not fit (422).
    """
    wrong: dict[str, str] = {name: "is not known" for name in body if name not in _RULE}
    zone, days, at = (body.get(name) for name in _RULE)
    try:
        zone_of(zone)  # type: ignore[arg-type]  # whatever it is, it is a zone or refused
    except Refused:
        wrong["zone"] = "must be a name of the tz database, such as Europe/Berlin"
    if type(days) is not int or not 0 <= days <= DAYS_MAX:
        wrong["days"] = f"must be a whole number from 0 to {DAYS_MAX}"
    if not isinstance(at, str) or not _TIME.fullmatch(at):
        wrong["at"] = "must be a time of day, such as 18:00"
    if wrong:
        raise invalid(wrong)
    assert isinstance(days, int)  # noqa: S101  # told to the type checker
    return Rule(str(zone), days, str(at))


async def remind_people(request: Request) -> Response:
    activity_id = number(request.path_params["id"], "id")
    rule = rule_in(await read_json(request))
    due = await _desk(request).set_rule(activity_id, rule)
    return JSONResponse({**vars(rule), "due": _instant(due)})


async def list_notices(request: Request) -> Response:
    limit = number(request.query_params.get("limit", str(LIMIT_DEFAULT)), "limit", LIMIT_MAX)
    found = await _desk(request).notices(user_name(request.path_params["user"]), limit)
    items = [
        {
            "activity": row.activity_id,
            "title": row.title,
            "starts_at": _instant(row.starts_at),
            "sent_at": _instant(row.sent_at),
        }
        for row in found
    ]
    return JSONResponse({"items": items})


_RULE: Final = {"zone": "Europe/Berlin", "days": 1, "at": "18:00"}
_SEAT: Final = "/api/activities/{id}/seats/{user}"
_HELD: Final = {"state": "held", "until": "2026-03-01T17:40:00Z"}
_FAILS: Final = ("invalid-input", "outcome-unknown", "database-unavailable")
_NOTICE: Final = {
    "activity": 12,
    "title": "Chess evening, all strengths",
    "starts_at": "2026-03-01T17:30:00Z",
    "sent_at": "2026-02-28T17:00:00Z",
}

OPERATIONS: Final = [
    Operation(
        "GET",
        "/api/activities/{id}/seats",
        list_seats,
        "How many seats are free, held and taken",
        Answer(200, "As it is now.", "Room", {"capacity": 32, "held": 3, "taken": 20, "free": 9}),
        fails=("not-found", *_FAILS),
    ),
    Operation(
        "PUT",
        _SEAT,
        hold_seat,
        "Hold a seat for ten minutes; repeating it is safe, and prolongs nothing",
        Answer(200, "The seat that this user has.", "Seat", _HELD),
        fails=("not-found", "full", *_FAILS),
    ),
    Operation(
        "DELETE",
        _SEAT,
        give_seat_back,
        "Give a seat back, held or taken; repeating it is safe",
        Answer(204, "This user has no seat.", media=""),
        fails=_FAILS,
    ),
    Operation(
        "PUT",
        _SEAT + "/confirmation",
        confirm_seat,
        "Take the held seat for good; repeating it is safe",
        Answer(200, "It is taken.", "Seat", {"state": "taken", "until": None}),
        fails=("hold-over", *_FAILS),
    ),
    Operation(
        "PUT",
        "/api/activities/{id}/reminder",
        remind_people,
        "Remind everybody who has a seat, at a time of the activity's own clock; it moves with it",
        Answer(200, "When that will be.", "Reminder", {**_RULE, "due": "2026-02-28T17:00:00Z"}),
        body=("NewReminder", _RULE),
        fails=("bad-request", "not-found", "unsupported-media-type", *_FAILS),
    ),
    Operation(
        "GET",
        "/api/users/{user}/notices",
        list_notices,
        "What a user was reminded of, newest first",
        Answer(200, "The last ones.", "Notices", {"items": [_NOTICE]}),
        query=("limit",),
        fails=_FAILS,
    ),
]
