"""Errors that a person understands: ``application/problem+json``, or a page for browsers.

Every way a request can fail is one entry of ``KINDS``; its slug is the last part of the problem's
``type``, which is also the address of a page that explains it. No answer carries a stack trace:
what is unexpected goes to the log under an id, and the answer names that id.
"""

from __future__ import annotations

import logging
import math
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from fencepost.errors import (
    FencepostError,
    OutcomeUnknown,
    Overloaded,
    Refused,
    UnknownItem,
    WaitTimeout,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("fencepost.campus")


@dataclass(frozen=True)
class Kind:
    """One way to fail: its status, its title, and what a caller can do."""

    status: int
    title: str
    remedy: str


KINDS: Final = {
    "bad-request": Kind(400, "The request can't be read", "Mend the request; nothing was changed."),
    "host-refused": Kind(
        400, "This address is not served here", "Use a name that the service was started with."
    ),
    "unauthorized": Kind(401, "A token is needed", "Send Authorization: Bearer with the token."),
    "forbidden": Kind(403, "Refused", "Go back, reload the page and try again from there."),
    "not-found": Kind(404, "Not found", "Look at the address; what it names may be gone."),
    "method-not-allowed": Kind(405, "That can't be done here", "Use a method that Allow names."),
    "full": Kind(
        409, "No seat is free", "Try again later: a held seat that nobody confirms comes free."
    ),
    "hold-over": Kind(409, "The seat is not held any more", "Hold one again, if one is free."),
    "body-too-large": Kind(413, "The request is too large", "Send less; nothing was changed."),
    "unsupported-media-type": Kind(
        415, "The body has the wrong type", "Send the type that the answer names."
    ),
    "invalid-input": Kind(
        422, "Some input does not fit", "Mend the fields that are named; nothing was changed."
    ),
    "internal": Kind(
        500, "Something went wrong on our side", "Try again later; the log has more under the id."
    ),
    "unavailable": Kind(
        503, "The like server does not answer", "Nothing was changed; try again in a moment."
    ),
    "outcome-unknown": Kind(
        503,
        "The like may or may not have been saved",
        "The answer of the like server was lost. Repeating the same request is safe: it states"
        " how things shall be, so doing it twice changes nothing.",
    ),
    "overloaded": Kind(
        503, "Too busy at the moment", "Nothing was changed; try again after Retry-After seconds."
    ),
    "database-unavailable": Kind(503, "The database does not answer", "Try again in a moment."),
}
_BY_STATUS: Final = {
    400: "bad-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    413: "body-too-large",
    415: "unsupported-media-type",
    422: "invalid-input",
}


@dataclass
class Problem(Exception):
    """A request that fails in a known way.

    Args:
        slug: A key of ``KINDS``.
        detail: What happened, one sentence for a person.
        headers: Further headers of the answer.
        extra: Further members of the JSON, such as ``errors``.
    """

    slug: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        return KINDS[self.slug]

    @property
    def status(self) -> int:
        return self.kind.status

    def as_json(self) -> dict[str, Any]:
        return {
            "type": f"/problems/{self.slug}",
            "title": self.kind.title,
            "status": self.status,
            "detail": self.detail,
            "remedy": self.kind.remedy,
            **self.extra,
        }

    def response(self) -> JSONResponse:
        return JSONResponse(
            self.as_json(),
            self.status,
            headers=dict(self.headers),
            media_type="application/problem+json",
        )


def invalid(errors: Mapping[str, str]) -> Problem:
    """Input that does not fit, told by field."""
    return Problem(
        "invalid-input",
        " ".join(f"{name}: {message}." for name, message in errors.items()),
        extra={"errors": [{"field": name, "message": text} for name, text in errors.items()]},
    )


def not_durable(durability: str, error: FencepostError) -> Problem:
    """A like that can't be as durable as was asked, or is not known to be."""
    # its words may name addresses and tables: they are for the log
    log.warning("a like is not %s: %s", durability, error)
    if isinstance(error, Refused):
        who = "database" if durability == "committed" else "like server"
        return invalid({"durability": f"{durability} is refused by the {who}; the log says why"})
    return _later(
        "outcome-unknown",
        f"It may well be applied, and is not known to be {durability}; repeating is safe.",
    )


def unchanged(error: FencepostError) -> Problem:
    """A change to an activity that was not made, since those who show it could not be told."""
    log.warning("an activity was not changed: %s", error)
    return _later("unavailable", "Activities can be read, but not changed right now.")


def database_away(error: FencepostError) -> Problem:
    """A database that did nothing."""
    log.warning("the database failed: %s", error)
    return _later("database-unavailable", "Seats can't be read or changed right now.")


def to_problem(error: BaseException) -> Problem:
    """The problem that an error is told as; logs those that nobody expected."""
    match error:
        case Problem():
            return error
        case HTTPException():
            return _from_http(error)
        case UnknownItem():
            return Problem("not-found", "There is no such activity.")
        case Refused():
            return Problem("invalid-input", f"{error}.")
        case OutcomeUnknown():
            return _later("outcome-unknown", "The reply was lost on its way; repeating is safe.")
        case Overloaded():
            return _later("overloaded", "A limit is reached.", error.retry_after)
        case WaitTimeout():
            return _later("overloaded", "The database takes its time.")
        case FencepostError():
            # its words may name addresses: they are for the log
            log.warning("the like server failed: %s", error)
            return _later("unavailable", "Likes can't be read or changed right now.")
        case SQLAlchemyError():
            log.warning("the database failed: %s", _first_line(error))
            return _later("database-unavailable", "Activities can't be read or changed right now.")
        case _:
            ticket = secrets.token_hex(4)
            log.error("unexpected error %s", ticket, exc_info=error)
            return Problem(
                "internal", f"An unexpected error, in the log as {ticket}.", extra={"id": ticket}
            )


def _from_http(error: HTTPException) -> Problem:
    slug = _BY_STATUS.get(error.status_code, "bad-request")
    headers = dict(error.headers or {})
    match slug:
        case "not-found":
            detail = "There is nothing at this address."
        case "method-not-allowed":
            detail = f"This address knows {headers.get('Allow', 'other methods')}."
        case _:
            detail = error.detail
    return Problem(slug, detail, headers=headers)


def _later(slug: str, detail: str, seconds: float = 1.0) -> Problem:
    after = max(1, math.ceil(seconds))
    return Problem(slug, detail, headers={"Retry-After": str(after)}, extra={"retry_after": after})


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
