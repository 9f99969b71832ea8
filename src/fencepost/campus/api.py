"""The JSON API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from fencepost.campus import metrics, seating
from fencepost.campus.forms import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    at_cursor,
    changes,
    durability,
    new_activity,
    number,
    read_json,
    user_name,
)
from fencepost.campus.operations import Answer, Operation
from fencepost.campus.problems import Problem
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from fencepost.campus.activities import Activity
    from fencepost.campus.service import Campus
    from fencepost.likes import LikeStatus


def _campus(request: Request) -> Campus:
    campus: Campus = request.app.state.campus
    return campus


def _user(request: Request) -> str | None:
    given = request.query_params.get("user")
    return None if given is None else user_name(given)


def _limit(request: Request) -> int:
    return number(request.query_params.get("limit", str(LIMIT_DEFAULT)), "limit", LIMIT_MAX)


def as_json(activity: Activity, status: LikeStatus | None, user: str | None) -> dict[str, Any]:
    """An activity as the API shows it; what is not known, or was not asked, is null."""
    return {
        "id": activity.id,
        "title": activity.title,
        "place": activity.place,
        "starts_at": _instant(activity.starts_at),
        "capacity": activity.capacity,
        "created_at": _instant(activity.created_at),
        "like_count": None if status is None else status.count,
        "liked": None if status is None or user is None else status.liked,
    }


def _instant(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


async def create_activity(request: Request) -> Response:
    new = new_activity(await read_json(request))
    activity = await _campus(request).create(new)
    body = as_json(activity, None, None) | {"like_count": 0}
    return JSONResponse(body, 201, headers={"Location": f"/api/activities/{activity.id}"})


async def list_activities(request: Request) -> Response:
    query = request.query_params
    user = _user(request)
    after = number(query["after"], "after") if "after" in query else None
    page = await _campus(request).page(user, after, _limit(request))
    if page.outage is not None:
        raise page.outage
    items = [as_json(card.activity, card.status, user) for card in page.cards]
    return JSONResponse({"items": items, "next": page.next})


async def get_activity(request: Request) -> Response:
    campus, user = _campus(request), _user(request)
    activity_id = number(request.path_params["id"], "id")
    activity = await campus.activities.get(activity_id)
    if activity is None:
        raise Problem("not-found", "There is no such activity.")
    known = await campus.statuses([activity_id], user)
    return JSONResponse(as_json(activity, known.get(activity_id), user))


async def replace_activity(request: Request) -> Response:
    return await _change(request, vars(new_activity(await read_json(request))))


async def change_activity(request: Request) -> Response:
    return await _change(request, changes(await read_json(request)))


async def _change(request: Request, fields: dict[str, Any]) -> Response:
    campus = _campus(request)
    activity_id = number(request.path_params["id"], "id")
    activity = await campus.change(activity_id, fields)
    try:
        known = await campus.statuses([activity_id], None)
    except FencepostError:
        known = {}  # it is changed all the same
    return JSONResponse(as_json(activity, known.get(activity_id), None))


async def delete_activity(request: Request) -> Response:
    await _campus(request).delete(number(request.path_params["id"], "id"))
    return Response(status_code=204)


async def _set_like(request: Request, *, liked: bool) -> Response:
    campus = _campus(request)
    activity_id = number(request.path_params["id"], "id")
    user = user_name(request.path_params["user"])
    when = durability(request.query_params.get("durability", "behind"))
    result = await campus.like(activity_id, user, liked=liked, durability=when)
    return JSONResponse(
        {"liked": result.liked, "like_count": result.count, "changed": result.changed}
    )


async def put_like(request: Request) -> Response:
    return await _set_like(request, liked=True)


async def delete_like(request: Request) -> Response:
    return await _set_like(request, liked=False)


async def list_likers(request: Request) -> Response:
    activity_id = number(request.path_params["id"], "id")
    after = request.query_params.get("after")
    page = await at_cursor(_campus(request).likers(activity_id, after, _limit(request)))
    return JSONResponse({"items": [{"user": user} for user in page.items], "next": page.after})


async def list_liked(request: Request) -> Response:
    user = user_name(request.path_params["user"])
    after = request.query_params.get("after")
    page = await at_cursor(_campus(request).liked(user, after, _limit(request)))
    items = [as_json(card.activity, card.status, user) for card in page.cards]
    return JSONResponse({"items": items, "next": page.next})


async def healthz(request: Request) -> Response:
    checks = await _campus(request).health()
    if all(state == "ok" for state in checks.values()):
        return JSONResponse({"status": "ok", **checks, **_campus(request).duties.shown()})
    slug = "unavailable" if checks["database"] == "ok" else "database-unavailable"
    detail = "; ".join(f"{name}: {state}" for name, state in checks.items())
    raise Problem(slug, f"{detail}.", headers={"Retry-After": "1"}, extra={"checks": checks})


async def prometheus(request: Request) -> Response:
    text = await _campus(request).measure()
    return Response(text, headers={"Content-Type": metrics.CONTENT_TYPE})


async def openapi_document(request: Request) -> Response:
    from fencepost.campus.openapi import document  # it reads the table below

    return JSONResponse(document())


_NEW = {
    "title": "Chess evening, all strengths",
    "place": "Café Turing",
    "starts_at": "2026-03-01T18:30:00+01:00",
    "capacity": 32,
}
_ACTIVITY = {
    "id": 12,
    **_NEW,
    "starts_at": "2026-03-01T17:30:00Z",
    "created_at": "2026-02-01T09:00:00Z",
    "like_count": 0,
    "liked": None,
}
_LIKED = _ACTIVITY | {"like_count": 41, "liked": True}
_SERVERS = ("unavailable", "outcome-unknown", "overloaded", "database-unavailable")
_CHANGES = (
    "bad-request",
    "not-found",
    "unsupported-media-type",
    "invalid-input",
    "unavailable",
    "overloaded",
    "database-unavailable",
)
_LIKE = "/api/activities/{id}/likes/{user}"
_CURSOR = "WzE3NzI0NDU2MDAwMDAwMDAsImFkYSJd"

OPERATIONS = [
    Operation(
        "POST",
        "/api/activities",
        create_activity,
        "Make an activity",
        Answer(201, "The activity.", "Activity", _ACTIVITY, headers=("Location",)),
        body=("NewActivity", _NEW),
        fails=("bad-request", "unsupported-media-type", "invalid-input", "database-unavailable"),
    ),
    Operation(
        "GET",
        "/api/activities",
        list_activities,
        "List activities, newest first",
        Answer(200, "A page.", "ActivityPage", {"items": [_LIKED], "next": 12}),
        query=("user", "limit", "after"),
        fails=("invalid-input", *_SERVERS),
    ),
    Operation(
        "GET",
        "/api/activities/{id}",
        get_activity,
        "Get an activity",
        Answer(200, "The activity.", "Activity", _LIKED),
        query=("user",),
        fails=("not-found", "invalid-input", *_SERVERS),
    ),
    Operation(
        "PUT",
        "/api/activities/{id}",
        replace_activity,
        "Change an activity as a whole; repeating it is safe",
        Answer(200, "The activity, as everybody sees it from now on.", "Activity", _ACTIVITY),
        body=("NewActivity", _NEW),
        fails=_CHANGES,
    ),
    Operation(
        "PATCH",
        "/api/activities/{id}",
        change_activity,
        "Change some fields of an activity; repeating it is safe",
        Answer(
            200,
            "The activity, as everybody sees it from now on.",
            "Activity",
            _ACTIVITY | {"place": "South lawn"},
        ),
        body=("ActivityChange", {"place": "South lawn"}),
        fails=_CHANGES,
    ),
    Operation(
        "DELETE",
        "/api/activities/{id}",
        delete_activity,
        "Delete an activity and its likes",
        Answer(204, "It is gone, and nothing brings its likes back.", media=""),
        fails=("not-found", "invalid-input", *_SERVERS),
    ),
    Operation(
        "GET",
        "/api/activities/{id}/likes",
        list_likers,
        "List who likes an activity, newest first",
        Answer(200, "A page.", "LikerPage", {"items": [{"user": "ada"}], "next": _CURSOR}),
        query=("limit:rows", "after:cursor"),
        fails=("not-found", "invalid-input", *_SERVERS),
    ),
    Operation(
        "GET",
        "/api/users/{user}/likes",
        list_liked,
        "List what a user likes, newest first",
        Answer(200, "A page.", "LikedPage", {"items": [_LIKED], "next": None}),
        query=("limit:rows", "after:cursor"),
        fails=("invalid-input", *_SERVERS),
    ),
    Operation(
        "PUT",
        _LIKE,
        put_like,
        "Like; repeating it is safe",
        Answer(200, "How it is now.", "Like", {"liked": True, "like_count": 41, "changed": True}),
        query=("durability",),
        fails=("not-found", "invalid-input", *_SERVERS),
    ),
    Operation(
        "DELETE",
        _LIKE,
        delete_like,
        "Take a like back; repeating it is safe",
        Answer(200, "How it is now.", "Like", {"liked": False, "like_count": 40, "changed": True}),
        query=("durability",),
        fails=("not-found", "invalid-input", *_SERVERS),
    ),
    *seating.OPERATIONS,
    Operation(
        "GET",
        "/healthz",
        healthz,
        "Whether the database and the like server answer",
        Answer(
            200,
            "Both do.",
            "Health",
            {
                "status": "ok",
                "database": "ok",
                "likes": "ok",
                "leader": "web-1:4711",
                "leads": False,
            },
        ),
        fails=("unavailable", "database-unavailable"),
    ),
    Operation(
        "GET",
        "/metrics",
        prometheus,
        "Figures for Prometheus",
        Answer(200, "Figures.", media="text/plain"),
    ),
    Operation(
        "GET",
        "/openapi.json",
        openapi_document,
        "This document",
        Answer(200, "OpenAPI 3.1.", media="application/json"),
    ),
]
