"""The pages that change an activity: the form that edits it, and the question before it is deleted."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from fencepost.campus import html
from fencepost.campus.forms import new_activity, number
from fencepost.campus.problems import Problem
from fencepost.campus.service import Card
from fencepost.campus.visit import Spot, Visit, by_field, drafted, enter_trusted, see
from fencepost.errors import UnknownItem

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from fencepost.campus.activities import Activity


async def edit(request: Request) -> Response:
    """Show an activity in a form (GET), and change it (POST)."""
    visit = enter_trusted(request)
    activity_id = number(request.path_params["id"], "id")
    form = await visit.form() if request.method == "POST" else request.query_params
    spot = Spot.read(form)
    if visit.name is None:
        return see(request, "name-to-edit", spot=spot, anchor="sign-in")
    activity = await _activity(visit, activity_id)
    if request.method != "POST":
        return visit.reply("edit.html", it=activity, spot=spot, draft=_shown(activity), errors={})
    draft, body = drafted(form)
    if draft["starts_at"] == _shown(activity)["starts_at"]:
        body["starts_at"] = activity.starts_at.isoformat()  # a form knows no seconds
    try:
        await visit.campus.change(activity_id, vars(new_activity(body)))
    except Problem as problem:
        errors = by_field(problem)
        if not errors:
            raise
        return visit.reply(
            "edit.html", status=problem.status, it=activity, spot=spot, draft=draft, errors=errors
        )
    return see(request, "changed", spot=spot, anchor=f"activity-{activity_id}")


def _shown(activity: Activity) -> dict[str, str]:
    """An activity as its form shows it."""
    return {
        "title": activity.title,
        "place": activity.place,
        "starts_at": html.without_zone(activity.starts_at),
        "capacity": str(activity.capacity),
    }


async def delete(request: Request) -> Response:
    """Ask whether an activity shall be deleted (GET), and delete it (POST)."""
    visit = enter_trusted(request)
    activity_id = number(request.path_params["id"], "id")
    form = await visit.form() if request.method == "POST" else request.query_params
    spot = Spot.read(form)
    if visit.name is None:
        return see(request, "name-to-delete", spot=spot, anchor="sign-in")
    if request.method != "POST":
        activity = await _activity(visit, activity_id)
        status = (await visit.campus.statuses([activity_id], visit.name)).get(activity_id)
        return visit.reply("delete.html", card=Card(activity, status), spot=spot)
    with contextlib.suppress(UnknownItem):  # a form sent twice; it is as it shall be
        await visit.campus.delete(activity_id)
    return see(request, "deleted", spot=spot)


async def _activity(visit: Visit, activity_id: int) -> Activity:
    activity = await visit.campus.activities.get(activity_id)
    if activity is None:
        raise Problem("not-found", "There is no such activity.")
    return activity
