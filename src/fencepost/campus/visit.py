"""A visit to the page: who asks, where they are, and the form that they sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.responses import RedirectResponse, Response

from fencepost.campus import html
from fencepost.campus.forms import CAPACITY_MAX, FIELDS, number
from fencepost.campus.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from fencepost.campus.security import Session
    from fencepost.campus.service import Campus


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

    def edit(self, activity_id: int) -> str:
        """The page that changes an activity."""
        return _address(f"/activities/{activity_id}/edit", self.fields)

    def seat(self, activity_id: int, notice: str = "") -> str:
        """The page of an activity's seats."""
        return _address(f"/activities/{activity_id}/seat", {**self.fields, "notice": notice})

    def delete(self, activity_id: int) -> str:
        """The page that asks whether an activity shall be deleted."""
        return _address(f"/activities/{activity_id}/delete", self.fields)


def _address(path: str, given: Mapping[str, str]) -> str:
    query = urlencode({name: value for name, value in given.items() if value})
    return f"{path}?{query}" if query else path


BOARD: Final = Spot()


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
            "spot": BOARD,
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


def enter(request: Request) -> Visit:
    """What a request is, to the page."""
    campus: Campus = request.app.state.campus
    return Visit(request, campus, campus.sessions.read(request))


def enter_trusted(request: Request) -> Visit:
    """Likewise, for who may see it.

    Raises:
        Problem: The access token was never given (401).
    """
    seen = enter(request)
    if not seen.campus.sessions.trusted(seen.session):
        raise Problem("unauthorized", "Sign in with the access token first, on the first page.")
    return seen


def see(request: Request, notice: str = "", *, spot: Spot = BOARD, anchor: str = "") -> Response:
    """Go back to a list, so that a reload repeats nothing."""
    url = spot.url(notice, anchor)
    if html.is_htmx(request):
        return Response(status_code=204, headers={"HX-Redirect": url})
    return RedirectResponse(url, 303)


def drafted(form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """What was typed into the fields of an activity: as it was, and as ``new_activity`` takes it."""
    draft = {name: form.get(name, "") for name in FIELDS}
    body: dict[str, Any] = {**draft, "starts_at": html.with_zone(draft["starts_at"])}
    if draft["capacity"].isascii() and draft["capacity"].isdecimal():
        body["capacity"] = int(draft["capacity"][:9])
    return draft, body


def by_field(problem: Problem) -> dict[str, str]:
    """What does not fit, as templates show it beside its field."""
    return {each["field"]: each["message"] for each in problem.extra.get("errors", ())}
