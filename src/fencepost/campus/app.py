"""The application: routes, the front door, and a lifespan that opens and closes the service."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from fencepost.campus import pages
from fencepost.campus.api import OPERATIONS
from fencepost.campus.html import STATIC
from fencepost.campus.middleware import FrontDoor
from fencepost.campus.operations import routes
from fencepost.campus.service import open_campus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from fencepost.campus.settings import Settings


def create_app(settings: Settings) -> Starlette:
    """The ASGI application; everything is opened in its lifespan, as ``app.state.campus``."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with open_campus(settings) as campus:
            app.state.campus = campus
            yield

    return Starlette(
        routes=[
            *routes(OPERATIONS),
            *pages.ROUTES,
            Mount("/static", StaticFiles(directory=STATIC), name="static"),
        ],
        middleware=[Middleware(FrontDoor)],
        exception_handlers={HTTPException: _to_the_front_door},
        lifespan=lifespan,
    )


def _to_the_front_door(_request: Request, error: Exception) -> Response:
    raise error  # it answers every failure in one way
