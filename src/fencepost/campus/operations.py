"""The API as a table: the router and the OpenAPI document are both made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Iterable

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Answer:
    """One way an operation answers when it succeeds; without a ``media`` it has no body."""

    status: int
    says: str
    schema: str | None = None
    example: Any = None
    media: str = "application/json"
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    Args:
        method: The HTTP method.
        path: The route's template.
        handler: What serves it.
        summary: One line.
        answer: How it answers on success.
        query: Query parameters, explained in ``openapi.PARAMETERS``; what follows a colon tells
            those apart that share a name.
        body: The name of the body's schema, and an example of it.
        fails: Slugs of the problems it may answer with, besides those that any may.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Answer
    query: tuple[str, ...] = ()
    body: tuple[str, Any] | None = None
    fails: tuple[str, ...] = ()


def routes(operations: Iterable[Operation]) -> list[Route]:
    """One route a path, so that a wrong method is answered with all the right ones."""
    by_path: dict[str, dict[str, Handler]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation.handler
    return [
        Route(path, _dispatcher(handlers), methods=list(handlers))
        for path, handlers in by_path.items()
    ]


def _dispatcher(handlers: dict[str, Handler]) -> Handler:
    async def dispatch(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return dispatch
