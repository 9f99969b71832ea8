"""The page: complete as plain forms and links; with its script, the same forms answer in place.

A like form states how things shall be (``liked=1`` or ``0``), never "the other way round", so a
second click, a repeated request and a stale page do no harm.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fencepost.campus import html
from fencepost.campus.forms import CAPACITY_MAX, new_activity, number, user_name
from fencepost.campus.problems import KINDS, Problem, to_problem
from fencepost.campus.service import Campus, Card, Page
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from fencepost.campus.security import Session
    from fencepost.likes import LikeStatus

PAGE_SIZE: Final = 10
PULSE_MAX: Final = 200
NOTICES: Final = {
    "created": "Your activity is on the board.",
    "signed-in": "Welcome! The hearts are yours to click.",
    "signed-out": "Signed out.",
    "name-first": "Choose a name first, then like what you like.",
}


@dataclass(frozen=True)
class Visit:
    """One request to the page: the service, who asks, and the form that was sent."""

    request: Request
    campus: Campus
    session: Session

    @property
    def name(self) -> str | None:
        return self.session.name

    def context(self) -> dict[str, Any]:
        """What every template knows."""
        sessions = self.campus.sessions
        return {
            "visitor": self.name,
            "csrf": sessions.csrf(self.session),
            "needs_token": not sessions.trusted(self.session),
            "capacity_max": CAPACITY_MAX,
        }

    def reply(self, template: str, *, status: int = 200, **context: Any) -> Response:
        response = html.page(template, status=status, **self.context(), **context)
        if self.session.fresh:
            self.campus.sessions.write(self.request, response, self.session)
        return response

    async def form(self) -> dict[str, str]:
        """The posted form, once its CSRF token is checked.

        Raises:
            Problem: It is no form (415), or it was not made for this session (403).
        """
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise Problem("unsupported-media-type", "Send application/x-www-form-urlencoded.")
        body = (await self.request.body()).decode(errors="replace")
        try:
            fields = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=20))
        except ValueError as error:
            raise Problem("bad-request", "The form has too many fields.") from error
        self.campus.sessions.check_csrf(self.session, fields.get("csrf", ""))
        return fields


def _visit(request: Request) -> Visit:
    campus: Campus = request.app.state.campus
    return Visit(request, campus, campus.sessions.read(request))


def _trusted(request: Request) -> Visit:
    visit = _visit(request)
    if not visit.campus.sessions.trusted(visit.session):
        raise Problem("unauthorized", "Sign in with the access token first, on the first page.")
    return visit


def _after(given: str | None) -> int | None:
    return number(given, "after") if given else None


async def _feed(visit: Visit, after: int | None) -> Page:
    return await visit.campus.page(visit.name, after, PAGE_SIZE)


async def _board(
    visit: Visit,
    *,
    status: int = 200,
    after: int | None = None,
    notice: str = "",
    draft: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
) -> Response:
    """The whole page; ``draft`` and ``errors`` are a form that did not fit."""
    trusted = visit.campus.sessions.trusted(visit.session)
    feed = await _feed(visit, after) if trusted else Page([], None)
    return visit.reply(
        "board.html",
        status=status,
        feed=feed,
        after=after,
        notice=NOTICES.get(notice, ""),
        draft=draft or {},
        errors=errors or {},
    )


async def home(request: Request) -> Response:
    query = request.query_params
    visit = _visit(request)
    return await _board(visit, after=_after(query.get("after")), notice=query.get("notice", ""))


async def more(request: Request) -> Response:
    """The next cards, for "Load more" in place."""
    visit = _trusted(request)
    after = _after(request.query_params.get("after"))
    return visit.reply("_cards.html", feed=await _feed(visit, after), after=after)


async def pulse(request: Request) -> Response:
    """The hearts that are not as the page shows them: each card says what it has ``seen``."""
    visit = _trusted(request)
    seen: dict[int, str] = {}
    for text in request.query_params.getlist("seen")[:PULSE_MAX]:
        seen[number(text.partition(".")[0], "seen")] = text
    try:
        known = await visit.campus.statuses(seen, visit.name)
    except FencepostError as error:
        to_problem(error)
        known = {}
    found = [
        await _card(visit, each, known.get(each))
        for each, word in seen.items()
        if word != html.seen(each, known.get(each))
    ]
    cards = [card for card in found if card is not None]
    return visit.reply("_hearts.html", cards=cards) if cards else Response(status_code=204)


async def _card(visit: Visit, activity_id: int, status: LikeStatus | None) -> Card | None:
    activity = await run_in_threadpool(visit.campus.activities.get, activity_id)
    return None if activity is None else Card(activity, status)


async def like(request: Request) -> Response:
    visit = _trusted(request)
    form = await visit.form()
    activity_id = number(request.path_params["id"], "id")
    after = _after(form.get("after"))
    if visit.name is None:
        return _see("name-first", after=after, request=request, anchor="sign-in")
    if form.get("liked") not in ("0", "1"):
        raise Problem("invalid-input", "liked: must be 0 or 1.")
    try:
        await visit.campus.like(activity_id, visit.name, liked=form["liked"] == "1")
    except FencepostError as error:
        if not html.is_htmx(request):
            raise
        return await _failed_like(visit, activity_id, to_problem(error))
    if not html.is_htmx(request):
        return _see("", after=after, request=request, anchor=f"activity-{activity_id}")
    status = (await visit.campus.statuses([activity_id], visit.name)).get(activity_id)
    card = await _card(visit, activity_id, status)
    if card is None:
        raise Problem("not-found", "There is no such activity.")
    return visit.reply("_liked.html", card=card, after=after, popped=form["liked"] == "1")


async def _failed_like(visit: Visit, activity_id: int, problem: Problem) -> Response:
    """A notice, and the heart as unknown until the next pulse says better."""
    card = await _card(visit, activity_id, None)
    response = visit.reply(
        "_failed.html", status=problem.status, problem=problem, cards=[card] if card else []
    )
    response.headers.update({**problem.headers, "HX-Retarget": "#notice"})
    response.headers["HX-Reswap"] = "innerHTML"
    return response


async def create(request: Request) -> Response:
    visit = _trusted(request)
    form = await visit.form()
    names = ("title", "place", "starts_at", "capacity")
    draft = {name: form.get(name, "") for name in names}
    body: dict[str, Any] = dict(draft)
    body["starts_at"] = html.with_zone(draft["starts_at"])
    if draft["capacity"].isascii() and draft["capacity"].isdecimal():
        body["capacity"] = int(draft["capacity"][:9])
    try:
        activity = await visit.campus.create(new_activity(body))
    except Problem as problem:
        return await _board(visit, status=problem.status, draft=draft, errors=_by_field(problem))
    return _see("created", request=request, anchor=f"activity-{activity.id}")


def _by_field(problem: Problem) -> dict[str, str]:
    return {each["field"]: each["message"] for each in problem.extra.get("errors", ())}


async def sign_in(request: Request) -> Response:
    visit = _visit(request)
    form = await visit.form()
    sessions = visit.campus.sessions
    proof: str | None = visit.session.proof
    if not sessions.trusted(visit.session):
        proof = sessions.proof(form.get("token", ""))
    wanted = unicodedata.normalize("NFC", " ".join(form.get("name", "").split()))
    errors: dict[str, str] = {}
    if proof is None:
        errors |= {"token": "this is not the right token"}
    try:
        user_name(wanted, "name")
    except Problem as problem:
        errors |= _by_field(problem)
    if errors or proof is None:
        status = 422 if proof is not None else 403
        return await _board(visit, status=status, draft={"name": wanted}, errors=errors)
    response = _see("signed-in", request=request, after=_after(form.get("after")))
    sessions.write(request, response, sessions.signed_in(wanted, proof))
    return response


async def sign_out(request: Request) -> Response:
    visit = _visit(request)
    await visit.form()
    response = _see("signed-out", request=request)
    visit.campus.sessions.write(request, response, visit.campus.sessions.signed_out(visit.session))
    return response


async def explain(request: Request) -> Response:
    """What a problem's ``type`` means."""
    slug = request.path_params["slug"]
    if slug not in KINDS:
        raise Problem("not-found", "There is no such problem.")
    kind = KINDS[slug]
    return html.page("explain.html", slug=slug, kind=kind)


def _see(notice: str, *, request: Request, after: int | None = None, anchor: str = "") -> Response:
    """Go back to the board, so that a reload repeats nothing."""
    query = "&".join(
        f"{key}={value}" for key, value in (("after", after), ("notice", notice)) if value
    )
    url = "/" + (f"?{query}" if query else "") + (f"#{anchor}" if anchor else "")
    if html.is_htmx(request):
        return Response(status_code=204, headers={"HX-Redirect": url})
    return RedirectResponse(url, 303)


ROUTES = [
    Route("/", home),
    Route("/more", more),
    Route("/pulse", pulse),
    Route("/activities", create, methods=["POST"]),
    Route("/activities/{id}/like", like, methods=["POST"]),
    Route("/sign-in", sign_in, methods=["POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
    Route("/problems/{slug}", explain),
]
