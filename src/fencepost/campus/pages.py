"""The page: complete as plain forms and links; with its script, the same forms answer in place.

A like form states how things shall be (``liked=1`` or ``0``), never "the other way round", so a
second click, a repeated request and a stale page do no harm.
"""

from __future__ import annotations

import contextlib
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fencepost.campus import html
from fencepost.campus.forms import CAPACITY_MAX, at_cursor, new_activity, number, user_name
from fencepost.campus.problems import KINDS, Problem, to_problem
from fencepost.campus.service import Campus, Card, Page
from fencepost.errors import FencepostError, UnknownItem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from fencepost.campus.security import Session
    from fencepost.likes import LikeStatus

PAGE_SIZE: Final = 10
PULSE_MAX: Final = 200
NOTICES: Final = {
    "created": "Your activity is on the board.",
    "deleted": "The activity is gone, and its likes with it.",
    "signed-in": "Welcome! The hearts are yours to click.",
    "signed-out": "Signed out.",
    "name-first": "Choose a name first, then like what you like.",
    "name-to-delete": "Choose a name first, then delete what has to go.",
}


@dataclass(frozen=True)
class Spot:
    """Where in which list a visitor is, so that every form and link leads back there.

    Args:
        path: The list: the board, or what the visitor likes.
        after: The cursor of the page; '' is its first.
    """

    path: str = "/"
    after: str = ""

    @classmethod
    def read(cls, given: Mapping[str, str], path: str = "") -> Spot:
        """From a form, or from an address whose path says which list it is.

        Raises:
            Problem: The cursor can't be one of the board's (422).
        """
        after = given.get("after", "")
        path = path or ("/likes" if given.get("from") == "likes" else "/")
        if path == "/" and after:
            number(after, "after")
        return cls(path, after)

    @property
    def fields(self) -> dict[str, str]:
        """What brings a visitor back here, as a form carries it."""
        fields = {"from": self.path[1:], "after": self.after}
        return {name: value for name, value in fields.items() if value}

    def url(self, notice: str = "", anchor: str = "") -> str:
        given = {"after": self.after, "notice": notice}
        return _address(self.path, given) + (f"#{anchor}" if anchor else "")

    def next(self, after: int | str) -> str:
        """The address of the page that begins below ``after``."""
        return _address(self.path, {"after": str(after)})

    def more(self, after: int | str) -> str:
        """The same page's cards alone."""
        return _address(self.path.rstrip("/") + "/more", {"after": str(after)})

    def delete(self, activity_id: int) -> str:
        """The page that asks whether an activity shall be deleted."""
        return _address(f"/activities/{activity_id}/delete", self.fields)


def _address(path: str, given: Mapping[str, str]) -> str:
    query = urlencode({name: value for name, value in given.items() if value})
    return f"{path}?{query}" if query else path


_BOARD: Final = Spot()


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
            "spot": _BOARD,
            "visitor": self.name,
            "csrf": sessions.csrf(self.session),
            "needs_token": not sessions.trusted(self.session),
            "capacity_max": CAPACITY_MAX,
        }

    def reply(self, template: str, *, status: int = 200, **context: Any) -> Response:
        response = html.page(template, status=status, **self.context() | context)
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


async def _feed(visit: Visit, spot: Spot) -> Page:
    """The cards of a page: of the board, or of what the visitor likes."""
    if spot.path == "/":
        return await visit.campus.page(visit.name, int(spot.after or 0) or None, PAGE_SIZE)
    if visit.name is None:
        return Page([], None)
    return await at_cursor(visit.campus.liked(visit.name, spot.after or None, PAGE_SIZE))


async def _board(
    visit: Visit,
    *,
    status: int = 200,
    spot: Spot = _BOARD,
    notice: str = "",
    draft: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
) -> Response:
    """The whole page; ``draft`` and ``errors`` are a form that did not fit."""
    trusted = visit.campus.sessions.trusted(visit.session)
    feed = await _feed(visit, spot) if trusted else Page([], None)
    return visit.reply(
        "board.html" if spot.path == "/" else "likes.html",
        status=status,
        feed=feed,
        spot=spot,
        notice=NOTICES.get(notice, ""),
        draft=draft or {},
        errors=errors or {},
    )


async def home(request: Request) -> Response:
    """The board, or what the visitor likes."""
    query = request.query_params
    spot = Spot.read(query, request.url.path)
    return await _board(_visit(request), spot=spot, notice=query.get("notice", ""))


async def more(request: Request) -> Response:
    """The next cards of either, for "Load more" in place."""
    visit = _trusted(request)
    spot = Spot.read(request.query_params, request.url.path.removesuffix("more").rstrip("/") or "/")
    return visit.reply("_cards.html", feed=await _feed(visit, spot), spot=spot)


async def pulse(request: Request) -> Response:
    """What is not as the page shows it, hearts and cards: each card says what it has ``seen``."""
    visit = _trusted(request)
    seen: dict[int, str] = {}
    for text in request.query_params.getlist("seen")[:PULSE_MAX]:
        seen[number(text.partition(".")[0], "seen")] = text
    try:
        known = await visit.campus.statuses(seen, visit.name)
    except FencepostError as error:
        to_problem(error)
        known = {}
    news = [each for each, word in seen.items() if word != html.seen(each, known.get(each))]
    # whose likes are not known may be gone, also when its heart was shown as unknown before
    doubtful = [*news, *(each for each in seen if each not in known)]
    there = await run_in_threadpool(visit.campus.activities.some, doubtful) if doubtful else {}
    cards = [Card(there[each], known.get(each)) for each in news if each in there]
    gone = [each for each in dict.fromkeys(doubtful) if each not in there]
    if not cards and not gone:
        return Response(status_code=204)
    return visit.reply("_hearts.html", cards=cards, gone=gone)


async def _card(visit: Visit, activity_id: int, status: LikeStatus | None) -> Card | None:
    activity = await run_in_threadpool(visit.campus.activities.get, activity_id)
    return None if activity is None else Card(activity, status)


async def like(request: Request) -> Response:
    visit = _trusted(request)
    form = await visit.form()
    activity_id = number(request.path_params["id"], "id")
    spot = Spot.read(form)
    if visit.name is None:
        return _see(request, "name-first", spot=spot, anchor="sign-in")
    if form.get("liked") not in ("0", "1"):
        raise Problem("invalid-input", "liked: must be 0 or 1.")
    try:
        await visit.campus.like(activity_id, visit.name, liked=form["liked"] == "1")
    except FencepostError as error:
        if not html.is_htmx(request):
            raise
        return await _failed_like(visit, activity_id, to_problem(error))
    if not html.is_htmx(request):
        return _see(request, spot=spot, anchor=f"activity-{activity_id}")
    status = (await visit.campus.statuses([activity_id], visit.name)).get(activity_id)
    card = await _card(visit, activity_id, status)
    if card is None:
        raise Problem("not-found", "There is no such activity.")
    return visit.reply("_liked.html", card=card, spot=spot, popped=form["liked"] == "1")


async def _failed_like(visit: Visit, activity_id: int, problem: Problem) -> Response:
    """A notice, and the heart as unknown until the next pulse says better; no card if it is gone."""
    card = await _card(visit, activity_id, None)
    response = visit.reply(
        "_failed.html",
        status=problem.status,
        problem=problem,
        cards=[card] if card else [],
        gone=[] if card else [activity_id],
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
    return _see(request, "created", anchor=f"activity-{activity.id}")


async def delete(request: Request) -> Response:
    """Ask whether an activity shall be deleted (GET), and delete it (POST)."""
    visit = _trusted(request)
    activity_id = number(request.path_params["id"], "id")
    form = await visit.form() if request.method == "POST" else request.query_params
    spot = Spot.read(form)
    if visit.name is None:
        return _see(request, "name-to-delete", spot=spot, anchor="sign-in")
    if request.method != "POST":
        activity = await run_in_threadpool(visit.campus.activities.get, activity_id)
        if activity is None:
            raise Problem("not-found", "There is no such activity.")
        status = (await visit.campus.statuses([activity_id], visit.name)).get(activity_id)
        return visit.reply("delete.html", card=Card(activity, status), spot=spot)
    with contextlib.suppress(UnknownItem):  # a form sent twice; it is as it shall be
        await visit.campus.delete(activity_id)
    return _see(request, "deleted", spot=spot)


def _by_field(problem: Problem) -> dict[str, str]:
    return {each["field"]: each["message"] for each in problem.extra.get("errors", ())}


async def sign_in(request: Request) -> Response:
    visit = _visit(request)
    form = await visit.form()
    sessions = visit.campus.sessions
    spot = Spot.read(form)
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
        draft = {"name": wanted}
        return await _board(visit, status=status, spot=spot, draft=draft, errors=errors)
    response = _see(request, "signed-in", spot=spot)
    sessions.write(request, response, sessions.signed_in(wanted, proof))
    return response


async def sign_out(request: Request) -> Response:
    visit = _visit(request)
    await visit.form()
    response = _see(request, "signed-out")
    visit.campus.sessions.write(request, response, visit.campus.sessions.signed_out(visit.session))
    return response


async def explain(request: Request) -> Response:
    """What a problem's ``type`` means."""
    slug = request.path_params["slug"]
    if slug not in KINDS:
        raise Problem("not-found", "There is no such problem.")
    kind = KINDS[slug]
    return html.page("explain.html", slug=slug, kind=kind)


def _see(request: Request, notice: str = "", *, spot: Spot = _BOARD, anchor: str = "") -> Response:
    """Go back to a list, so that a reload repeats nothing."""
    url = spot.url(notice, anchor)
    if html.is_htmx(request):
        return Response(status_code=204, headers={"HX-Redirect": url})
    return RedirectResponse(url, 303)


ROUTES = [
    Route("/", home),
    Route("/more", more),
    Route("/likes", home),
    Route("/likes/more", more),
    Route("/pulse", pulse),
    Route("/activities", create, methods=["POST"]),
    Route("/activities/{id}/like", like, methods=["POST"]),
    Route("/activities/{id}/delete", delete, methods=["GET", "POST"]),
    Route("/sign-in", sign_in, methods=["POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
    Route("/problems/{slug}", explain),
]
