"""What callers send, checked: each message names its field and says what would fit."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fencepost._core.keys import bounded
from fencepost.campus.activities import ID_MAX, NewActivity
from fencepost.campus.problems import Problem, invalid
from fencepost.campus.tables import TEXT_MAX, USER_MAX
from fencepost.errors import Refused
from fencepost.likes import DURABILITIES, Durability

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from starlette.requests import Request

T = TypeVar("T")
CAPACITY_MAX = 100_000
LIMIT_MAX = 100
LIMIT_DEFAULT = 20
_YEARS = range(2000, 2200)
FIELDS = ("title", "place", "starts_at", "capacity")
_DIGITS = re.compile(r"[0-9]{1,19}")
_HIDDEN = {"Cc", "Cs", "Zl", "Zp", "Cn", "Co"}
_OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Misfit(ValueError):
    """A field's value that does not fit; the message says what would."""


async def read_json(request: Request) -> dict[str, Any]:
    """The body of a request as a JSON object.

    Raises:
        Problem: It is not JSON (400), of another type (415), or not an object (422).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        accept = "Accept-Patch" if request.method == "PATCH" else "Accept-Post"
        raise Problem(
            "unsupported-media-type",
            f"The body is {kind or 'of no stated type'}; send application/json.",
            headers={accept: "application/json"},
        )
    try:
        body = msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem("bad-request", f"The body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise invalid({"body": "must be a JSON object with title, place, starts_at and capacity"})
    return body


def new_activity(body: Mapping[str, Any]) -> NewActivity:
    """A whole activity from a JSON object; all that is wrong is told at once.

    Raises:
        Problem: Some fields do not fit (422).
    """
    missing = {name: "is missing" for name in FIELDS if name not in body}
    return NewActivity(**_checked(body, missing))


def changes(body: Mapping[str, Any]) -> dict[str, Any]:
    """Some fields of an activity from a JSON object.

    Raises:
        Problem: There is none, or some do not fit (422).
    """
    nothing = {} if body else {"body": f"must change something: {', '.join(FIELDS)}"}
    return _checked(body, nothing)


def _checked(body: Mapping[str, Any], errors: dict[str, str]) -> dict[str, Any]:
    checks = {"title": text, "place": text, "starts_at": instant, "capacity": capacity}
    values: dict[str, Any] = {}
    for name, value in body.items():
        if name not in checks:
            errors[_shown(name)] = f"is not known; known are {', '.join(FIELDS)}"
            continue
        try:
            values[name] = checks[name](value)
        except Misfit as misfit:
            errors[name] = str(misfit)
    if errors:
        raise invalid(errors)
    return values


def text(value: object) -> str:
    """A line of text: 1 to 200 characters, without control characters, blanks trimmed."""
    if not isinstance(value, str):
        raise Misfit("must be text")
    line = value.strip()
    if not 1 <= len(line) <= TEXT_MAX:
        raise Misfit(f"must have 1 to {TEXT_MAX} characters, has {len(line)}")
    if hidden := _hidden(line):
        raise Misfit(f"must not contain the character {hidden}")
    if not _visible(line):
        raise Misfit("must have a character that can be seen")
    return line


def instant(value: object) -> datetime:
    """An ISO 8601 time with its offset from UTC."""
    example = "such as 2026-03-01T18:30:00+01:00"
    if not isinstance(value, str):
        raise Misfit(f"must be an ISO 8601 time, {example}")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise Misfit(f"must be an ISO 8601 time, {example}") from error
    if moment.tzinfo is None:
        raise Misfit(f"must say its offset from UTC, {example}")
    if moment.year not in _YEARS:
        raise Misfit(f"must be in the years {_YEARS[0]} to {_YEARS[-1]}")
    return moment.astimezone(UTC).replace(microsecond=0)


def capacity(value: object) -> int:
    """How many people fit: 1 to 100,000."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= CAPACITY_MAX:
        raise Misfit(f"must be a whole number from 1 to {CAPACITY_MAX}")
    return value


def number(value: str, name: str, top: int = ID_MAX) -> int:
    """A whole number from 1 to ``top``, as it stands in an address.

    Raises:
        Problem: It is none (422).
    """
    if not _DIGITS.fullmatch(value) or not 1 <= int(value) <= top:
        raise invalid({name: f"must be a whole number from 1 to {top}"})
    return int(value)


def user_name(value: object, name: str = "user") -> str:
    """A user's name: 1 to 64 visible characters, in one of the several ways to write them.

    Raises:
        Problem: It does not fit (422).
    """
    if not isinstance(value, str) or not 1 <= len(value) <= USER_MAX:
        raise invalid({name: f"must have 1 to {USER_MAX} characters"})
    if value != value.strip():
        raise invalid({name: "must not begin or end with a blank"})
    if (hidden := _hidden(value)) or "\ufffd" in value:
        raise invalid({name: f"must not contain the character {hidden or 'U+FFFD'}"})
    if "/" in value or value in (".", ".."):
        raise invalid({name: "must fit into an address: no slash, and not only dots"})
    if not _visible(value):
        raise invalid({name: "must have a character that can be seen"})
    if not unicodedata.is_normalized("NFC", value):
        raise invalid({name: "must be in Unicode's composed form (NFC)"})
    try:
        bounded(value)
    except Refused as error:
        raise invalid({name: "is too long once it is written as UTF-8"}) from error
    return value


def durability(value: str) -> Durability:
    """When a like is to be answered.

    Raises:
        Problem: It is none of the three (422).
    """
    for one in DURABILITIES:
        if value == one:
            return one
    raise invalid({"durability": f"must be one of {', '.join(DURABILITIES)}"})


async def at_cursor(page: Awaitable[T]) -> T:
    """A page of likes, whose cursor is the one thing that its caller did not check.

    Raises:
        Problem: The cursor is none of that list's (422).
    """
    try:
        return await page
    except Refused as error:
        raise invalid({"after": "must be the next that the page before gave"}) from error


def _hidden(value: str) -> str:
    """The first character that can't be seen or turns text around, as U+XXXX."""
    for char in value:
        if char in _OVERRIDES or unicodedata.category(char) in _HIDDEN:
            return f"U+{ord(char):04X}"
    return ""


def _visible(value: str) -> bool:
    return any(unicodedata.category(char) not in ("Cf", "Zs", "Mn", "Me") for char in value)


def _shown(name: str) -> str:
    return "".join(char if not _hidden(char) else "\ufffd" for char in name[:40]) or "(no name)"
