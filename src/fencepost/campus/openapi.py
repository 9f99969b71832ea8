"""The OpenAPI document, made from the table of operations."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from fencepost import __version__
from fencepost.campus.activities import ID_MAX
from fencepost.campus.api import OPERATIONS
from fencepost.campus.forms import CAPACITY_MAX, LIMIT_DEFAULT, LIMIT_MAX
from fencepost.campus.problems import KINDS
from fencepost.campus.seating import DAYS_MAX
from fencepost.campus.tables import TEXT_MAX, USER_MAX
from fencepost.likes import DURABILITIES

if TYPE_CHECKING:
    from fencepost.campus.operations import Operation

_ID: Final = {"type": "integer", "minimum": 1, "maximum": ID_MAX}
_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": TEXT_MAX}
_USER: Final = {"type": "string", "minLength": 1, "maxLength": USER_MAX}
_TIME: Final = {"type": "string", "format": "date-time"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_CURSOR: Final = {"type": "string", "minLength": 1}
_CAPACITY: Final = {"type": "integer", "minimum": 1, "maximum": CAPACITY_MAX}

PARAMETERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "id": ("The activity.", _ID),
    "user": ("Who it is.", _USER),
    "limit": (
        "How many at most.",
        {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
    ),
    "durability": (
        "When to answer. behind: when the like server has it. replicated: when its replicas have"
        " it too, or the disk of the server that campus runs itself. committed: when it is in the"
        " database. If that is not known in time the answer is outcome-unknown: it may well be"
        " applied.",
        {"type": "string", "enum": list(DURABILITIES), "default": DURABILITIES[0]},
    ),
    "limit:rows": (
        "How many at most. The first page may be longer by what has just been liked, and a page"
        " shorter by what has just been taken back; next alone tells whether it is the last.",
        {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
    ),
    "after": ("Where to go on: the next of the page before.", _ID),
    "after:cursor": (
        "Where to go on: the next of the page before. Likes that come meanwhile move nothing"
        " below it.",
        _CURSOR,
    ),
}


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _or_null(schema: dict[str, Any], why: str) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"], "description": f"null: {why}"}


_NEW: Final = {"title": _TEXT, "place": _TEXT, "starts_at": _TIME, "capacity": _CAPACITY}
_RULE: Final = {
    "zone": {"type": "string", "minLength": 1, "maxLength": 64},
    "days": {"type": "integer", "minimum": 0, "maximum": DAYS_MAX},
    "at": {"type": "string", "minLength": 5, "maxLength": 5},
}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "NewActivity": _object(_NEW),
    "ActivityChange": _object(_NEW, optional=tuple(_NEW)) | {"minProperties": 1},
    "Activity": _object(
        {
            "id": _ID,
            **_NEW,
            "created_at": _TIME,
            "like_count": _or_null(_COUNT, "not known right now"),
            "liked": _or_null({"type": "boolean"}, "no user was asked about, or not known"),
        }
    ),
    "ActivityPage": _object(
        {
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/Activity"}},
            "next": _or_null(_ID, "this is the last page"),
        }
    ),
    "LikedPage": _object(
        {
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/Activity"}},
            "next": _or_null(_CURSOR, "this is the last page"),
        }
    ),
    "LikerPage": _object(
        {
            "items": {"type": "array", "items": _object({"user": _USER})},
            "next": _or_null(_CURSOR, "this is the last page"),
        }
    ),
    "Like": _object(
        {"liked": {"type": "boolean"}, "like_count": _COUNT, "changed": {"type": "boolean"}}
    ),
    "Room": _object(dict.fromkeys(("capacity", "held", "taken", "free"), _COUNT)),
    "Seat": _object(
        {
            "state": {"type": "string", "enum": ["held", "taken"]},
            "until": _or_null(_TIME, "it is taken for good"),
        }
    ),
    "NewReminder": _object(_RULE),
    "Reminder": _object({**_RULE, "due": _TIME}),
    "Notices": _object(
        {
            "items": {
                "type": "array",
                "items": _object(
                    {"activity": _ID, "title": _TEXT, "starts_at": _TIME, "sent_at": _TIME}
                ),
            }
        }
    ),
    "Health": _object(
        {
            **{name: {"type": "string", "const": "ok"} for name in ("status", "database", "likes")},
            "leader": {
                "type": "string",
                "description": "Who audits and makes the digests, as this service knows; empty: unknown.",
            },
            "leads": {"type": "boolean", "description": "Whether that is this service."},
        }
    ),
    "Problem": {
        "type": "object",
        "description": "RFC 9457. Each type is also the address of a page that explains it.",
        "properties": {
            "type": {"type": "string", "enum": [f"/problems/{slug}" for slug in KINDS]},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "remedy": {"type": "string"},
            "retry_after": {"type": "integer"},
            "errors": {
                "type": "array",
                "items": _object({"field": {"type": "string"}, "message": {"type": "string"}}),
            },
        },
        "required": ["type", "title", "status", "detail", "remedy"],
    },
}
# What any operation may answer with.
_ALWAYS: Final = (
    "host-refused",
    "unauthorized",
    "forbidden",
    "method-not-allowed",
    "body-too-large",
    "internal",
)


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document of this API."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "campus",
            "version": __version__,
            "summary": "A notice board with hearts.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Where the service was started with a token.",
                }
            },
        },
        "security": [{}, {"token": []}],
    }


def _describe(operation: Operation) -> dict[str, Any]:
    answer = operation.answer
    content: dict[str, Any] = {}
    if answer.schema:
        content = {"schema": _ref(answer.schema), "example": answer.example}
    success: dict[str, Any] = {"description": answer.says}
    if answer.media:
        success["content"] = {answer.media: content}
    if answer.headers:
        success["headers"] = {name: {"schema": {"type": "string"}} for name in answer.headers}
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "parameters": [
            *(_parameter(name, "path") for name in re.findall(r"{(\w+)}", operation.path)),
            *(_parameter(name, "query") for name in operation.query),
        ],
        "responses": {str(answer.status): success, **_failures(operation)},
    }
    if operation.body:
        schema, example = operation.body
        media = {"application/json": {"schema": _ref(schema), "example": example}}
        described["requestBody"] = {"required": True, "content": media}
    return described


def _failures(operation: Operation) -> dict[str, Any]:
    by_status: dict[str, list[str]] = {}
    for slug in (*operation.fails, *_ALWAYS):
        by_status.setdefault(str(KINDS[slug].status), []).append(slug)
    return {
        status: {
            "description": "; ".join(f"{KINDS[slug].title} ({slug})" for slug in slugs),
            "content": {"application/problem+json": {"schema": _ref("Problem")}},
        }
        for status, slugs in sorted(by_status.items())
    }


def _parameter(name: str, where: str) -> dict[str, Any]:
    says, schema = PARAMETERS[name]
    return {
        "name": name.partition(":")[0],
        "in": where,
        "required": where == "path",
        "description": says,
        "schema": schema,
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
