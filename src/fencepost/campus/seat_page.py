"""The page of an activity's seats: hold one, confirm it, give it back; plain forms all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse

from fencepost.campus.forms import number
from fencepost.campus.problems import Problem
from fencepost.campus.visit import Spot, Visit, enter_trusted, see

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

NOTICES: Final = {
    "held": "The seat is held for you. Confirm it before the time is over.",
    "confirmed": "The seat is yours.",
    "given-back": "The seat is free again.",
    "full": "All seats are taken or held. One that nobody confirms comes free.",
    "hold-over": "The seat was not held any more. Hold one again, if one is free.",
}


async def seat(request: Request) -> Response:
    """Show how many seats there are and what the visitor has (GET), and change that (POST)."""
    visit = enter_trusted(request)
    activity_id = number(request.path_params["id"], "id")
    form = await visit.form() if request.method == "POST" else request.query_params
    spot = Spot.read(form)
    if visit.name is None:
        return see(request, "name-for-seat", spot=spot, anchor="sign-in")
    if request.method == "POST":
        notice = await _act(visit, activity_id, visit.name, form.get("act", ""))
        return RedirectResponse(spot.seat(activity_id, notice), 303)
    desk = visit.campus.desk
    activity = await visit.campus.activities.get(activity_id)
    if activity is None:
        raise Problem("not-found", "There is no such activity.")
    return visit.reply(
        "seat.html",
        it=activity,
        spot=spot,
        room=await desk.room(activity_id),
        seat=await desk.seat(activity_id, visit.name),
        rule=await desk.rule(activity_id),
        notice=NOTICES.get(form.get("notice", ""), ""),
    )


async def _act(visit: Visit, activity_id: int, name: str, act: str) -> str:
    """What was done, as the page will tell it."""
    desk = visit.campus.desk
    try:
        match act:
            case "hold":
                await desk.hold(activity_id, name)
                return "held"
            case "confirm":
                await desk.confirm(activity_id, name)
                return "confirmed"
            case "give-back":
                await desk.give_back(activity_id, name)
                return "given-back"
    except Problem as problem:
        if problem.slug not in NOTICES:
            raise
        return problem.slug
    raise Problem("invalid-input", "act: must be hold, confirm or give-back.")
