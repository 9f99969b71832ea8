"""The front door, one layer: who may come in, how much they may bring, and what they get back.

It stands outside everything else, so that every answer carries the security headers and is
counted, and no error leaves as a stack trace.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request

from fencepost.campus.html import answer
from fencepost.campus.problems import Problem, to_problem
from fencepost.campus.security import check_source

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fencepost.campus.service import Campus

BODY_MAX: Final = 16 * 1024
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_BEHIND_TOKEN: Final = ("/api/", "/metrics", "/openapi.json")
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    # not no-referrer: with it browsers send "Origin: null" with our own forms
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class FrontDoor:
    """ASGI middleware; needs the running ``Campus`` in the application's state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        campus: Campus = scope["app"].state.campus
        began = time.perf_counter()
        status = 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _guard(scope, message)
            await send(message)

        try:
            await self._enter(campus, scope, receive, send_guarded)
        except ClientDisconnect:
            pass  # nobody is there to be answered
        except Exception as error:
            if status:
                raise  # the answer has begun; only the broken connection can tell
            problem = to_problem(error)
            await answer(Request(scope), problem)(scope, receive, send_guarded)
            campus.metrics.problems.labels(problem.slug).inc()
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if route != "none" else "any"
            campus.metrics.requests.labels(method, route, str(status)).inc()
            campus.metrics.seconds.labels(route).observe(time.perf_counter() - began)

    async def _enter(self, campus: Campus, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        _check_host(headers, campus.settings.hosts)
        if scope["method"] not in SAFE:
            check_source(headers)
        if scope["path"].startswith(_BEHIND_TOKEN):
            campus.sessions.check_bearer(headers)
        await self._app(scope, _limited(headers, receive), send)


def _check_host(headers: Headers, allowed: frozenset[str]) -> None:
    """A page elsewhere that points its own name at us (DNS rebinding) is not served."""
    host = headers.get("host", "").lower()
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name not in allowed:
        raise Problem(
            "host-refused",
            f"This service does not know itself as {name[:100] or 'nothing'!r}; start it with"
            " --allow-host to serve that name.",
        )


def _limited(headers: Headers, receive: Receive) -> Receive:
    """``receive``, but a body of more than ``BODY_MAX`` bytes is a problem (413)."""
    too_large = Problem("body-too-large", f"The body may have up to {BODY_MAX} bytes.")
    stated = headers.get("content-length", "0")
    if not stated.isdecimal() or int(stated) > BODY_MAX:
        raise too_large
    seen = 0

    async def receive_limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_MAX:
            raise too_large
        return message

    return receive_limited


def _guard(scope: Scope, message: Message) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    if not scope["path"].startswith("/static/"):
        # hearts differ by visitor, and Back must not show one from before a click
        headers["Cache-Control"] = "no-store"
    elif scope["query_string"].startswith(b"v=") and message["status"] == 200:
        headers["Cache-Control"] = "public, max-age=31536000, immutable"
    else:
        headers["Cache-Control"] = "no-cache"
