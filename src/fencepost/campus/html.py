"""Templates, and answers that are pages: autoescaped, never cached, static files by their hash."""

from __future__ import annotations

import hashlib
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from starlette.responses import HTMLResponse, Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from fencepost.campus.problems import Problem
    from fencepost.campus.service import Card
    from fencepost.likes import LikeStatus

HERE = Path(__file__).parent
STATIC = HERE / "static"
_DATA_PATHS = ("/api/", "/healthz", "/metrics", "/openapi.json")


@cache
def static_url(name: str) -> str:
    """The address of a static file; it changes with the content, so browsers may keep it."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def _local(moment: datetime) -> datetime:
    return moment.astimezone()


def zone() -> str:
    """The offset of the campus's own time, as people write it."""
    offset = f"{datetime.now().astimezone():%z}"
    return f"UTC{offset[:3]}:{offset[3:5]}"


_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters["local"] = _local
_templates.globals["static"] = static_url
_templates.globals["zone"] = zone


def render(name: str, **context: Any) -> str:
    return _templates.get_template(name).render(context)


def page(
    name: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **context: Any
) -> Response:
    """An HTML answer from a template."""
    return HTMLResponse(render(name, **context), status, headers=dict(headers or {}))


def is_htmx(request: Request) -> bool:
    """Whether the page's script asks, and wants a fragment."""
    return request.headers.get("hx-request") == "true"


def answer(request: Request, problem: Problem) -> Response:
    """A problem as its reader wants it: JSON, a page, or a notice in the page that is open."""
    path = request.url.path
    wants_page = "text/html" in request.headers.get("accept", "")
    if path.startswith(_DATA_PATHS) or not (wants_page or is_htmx(request)):
        return problem.response()
    if is_htmx(request):
        headers = {**problem.headers, "HX-Retarget": "#notice", "HX-Reswap": "innerHTML"}
        return page("_notice.html", status=problem.status, headers=headers, problem=problem)
    return page("problem.html", status=problem.status, headers=problem.headers, problem=problem)


def seen(activity_id: int, status: LikeStatus | None) -> str:
    """What a card shows of its likes, in a word that the page can send back."""
    if status is None:
        return f"{activity_id}.x"
    return f"{activity_id}.{int(status.liked)}.{status.count}"


def _seen(card: Card) -> str:
    return seen(card.activity.id, card.status)


def with_zone(local: str) -> str:
    """A ``datetime-local`` field's value, with the offset of the campus's own time."""
    try:
        return datetime.fromisoformat(local).astimezone().isoformat()
    except (ValueError, OverflowError):
        return local


def without_zone(moment: datetime) -> str:
    """An instant as a ``datetime-local`` field takes it, in the campus's own time."""
    return f"{_local(moment):%Y-%m-%dT%H:%M}"


_templates.filters["seen"] = _seen
