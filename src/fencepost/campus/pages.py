"""The page: complete as plain forms and links; with its script, the same forms answer in place.

A like form states how things shall be (``liked=1`` or ``0``), never "the other way round", so a
second click, a repeated request and a stale page do no harm.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.routing import Route

from fencepost.campus import changes, html, seat_page
from fencepost.campus.forms import at_cursor, new_activity, number, user_name
from fencepost.campus.problems import KINDS, Problem, to_problem
from fencepost.campus.service import Card, Page
from fencepost.campus.visit import BOARD, Spot, Visit, by_field, drafted, enter, enter_trusted, see
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from fencepost.likes import LikeStatus

PAGE_SIZE: Final = 10
PULSE_MAX: Final = 200
NOTICES: Final = {
    "created": "Your activity is on the board.",
    "changed": "The activity is as you put it.",
    "deleted": "The activity is gone, and its likes with it.",
    "signed-in": "Welcome! The hearts are yours to click.",
    "signed-out": "Signed out.",
    "name-first": "Choose a name first, then like what you like.",
    "name-to-edit": "Choose a name first, then change what has to be otherwise.",
    "name-for-seat": "Choose a name first, then hold a seat.",
    "name-to-delete": "Choose a name first, then delete what has to go.",
}


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
    spot: Spot = BOARD,
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
    return await _board(enter(request), spot=spot, notice=query.get("notice", ""))


async def more(request: Request) -> Response:
    """The next cards of either, for "Load more" in place."""
    visit = enter_trusted(request)
    spot = Spot.read(request.query_params, request.url.path.removesuffix("more").rstrip("/") or "/")
    return visit.reply("_cards.html", feed=await _feed(visit, spot), spot=spot)


async def pulse(request: Request) -> Response:
    """What is not as the page shows it, hearts and cards: each card says what it has ``seen``."""
    visit = enter_trusted(request)
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
    there = await visit.campus.activities.some(doubtful) if doubtful else {}
    cards = [Card(there[each], known.get(each)) for each in news if each in there]
    gone = [each for each in dict.fromkeys(doubtful) if each not in there]
    if not cards and not gone:
        return Response(status_code=204)
    return visit.reply("_hearts.html", cards=cards, gone=gone)


async def _card(visit: Visit, activity_id: int, status: LikeStatus | None) -> Card | None:
    activity = await visit.campus.activities.get(activity_id)
    return None if activity is None else Card(activity, status)


async def like(request: Request) -> Response:
    visit = enter_trusted(request)
    form = await visit.form()
    activity_id = number(request.path_params["id"], "id")
    spot = Spot.read(form)
    if visit.name is None:
        return see(request, "name-first", spot=spot, anchor="sign-in")
    if form.get("liked") not in ("0", "1"):
        raise Problem("invalid-input", "liked: must be 0 or 1.")
    try:
        await visit.campus.like(activity_id, visit.name, liked=form["liked"] == "1")
    except FencepostError as error:
        if not html.is_htmx(request):
            raise
        return await _failed_like(visit, activity_id, to_problem(error))
    if not html.is_htmx(request):
        return see(request, spot=spot, anchor=f"activity-{activity_id}")
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
    visit = enter_trusted(request)
    draft, body = drafted(await visit.form())
    try:
        activity = await visit.campus.create(new_activity(body))
    except Problem as problem:
        return await _board(visit, status=problem.status, draft=draft, errors=by_field(problem))
    return see(request, "created", anchor=f"activity-{activity.id}")


async def sign_in(request: Request) -> Response:
    visit = enter(request)
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
        errors |= by_field(problem)
    if errors or proof is None:
        status = 422 if proof is not None else 403
        draft = {"name": wanted}
        return await _board(visit, status=status, spot=spot, draft=draft, errors=errors)
    response = see(request, "signed-in", spot=spot)
    sessions.write(request, response, sessions.signed_in(wanted, proof))
    return response


async def sign_out(request: Request) -> Response:
    visit = enter(request)
    await visit.form()
    response = see(request, "signed-out")
    visit.campus.sessions.write(request, response, visit.campus.sessions.signed_out(visit.session))
    return response


async def explain(request: Request) -> Response:
    """What a problem's ``type`` means."""
    slug = request.path_params["slug"]
    if slug not in KINDS:
        raise Problem("not-found", "There is no such problem.")
    kind = KINDS[slug]
    return html.page("explain.html", slug=slug, kind=kind)


ROUTES = [
    Route("/", home),
    Route("/more", more),
    Route("/likes", home),
    Route("/likes/more", more),
    Route("/pulse", pulse),
    Route("/activities", create, methods=["POST"]),
    Route("/activities/{id}/like", like, methods=["POST"]),
    Route("/activities/{id}/edit", changes.edit, methods=["GET", "POST"]),
    Route("/activities/{id}/delete", changes.delete, methods=["GET", "POST"]),
    Route("/activities/{id}/seat", seat_page.seat, methods=["GET", "POST"]),
    Route("/sign-in", sign_in, methods=["POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
    Route("/problems/{slug}", explain),
]
