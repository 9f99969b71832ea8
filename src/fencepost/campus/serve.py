"""Running the service: one line when it is up, a drain when it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn
from sqlalchemy.exc import SQLAlchemyError

from fencepost.campus.app import create_app
from fencepost.campus.settings import bracketed
from fencepost.errors import FencepostError, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.campus.service import Campus
    from fencepost.campus.settings import Settings

_GRACE = 10.0  # seconds past the drain after which a stop is forced


class CannotServe(Exception):
    """The service can't run; the message is one line that says why and what to do."""


class _Server(uvicorn.Server):
    """uvicorn, whose signals are ours: a stop is a return, not a signal raised again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(settings: Settings, say: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return.

    Args:
        settings: How.
        say: Where the lines for a person go.

    Raises:
        CannotServe: It could not start.
    """
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    listener = listen(settings)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(settings, listener, say))
    except Refused as error:
        raise CannotServe(str(error)) from error
    except SQLAlchemyError as error:
        first = str(error).partition("\n")[0]
        raise CannotServe(f"the database does not answer: {first}") from error
    except FencepostError as error:
        where = "FENCEPOST_URL" if settings.url else "the embedded server"
        raise CannotServe(f"no like server ({where}): {error}") from error
    finally:
        listener.close()


def listen(settings: Settings) -> socket.socket:
    """The listening socket, taken before anything else is started.

    Raises:
        CannotServe: The port is taken or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        # it listens at once: two starters could both *bind* the port
        return socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        where = f"{bracketed(settings.host)}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            hint = "stop the program that has it, or choose another with --port"
            raise CannotServe(f"{where} is taken: {hint}") from error
        raise CannotServe(f"can't listen on {where}: {error.strerror or error}") from error


async def _serve(settings: Settings, listener: socket.socket, say: Callable[[str], None]) -> None:
    app = create_app(settings)
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",  # ours, below: what it raises is a line, not a trace
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, int(settings.drain)),
        )
    )
    _stop_on_signals(server, settings.drain, say)
    async with app.router.lifespan_context(app):
        campus: Campus = app.state.campus
        port = listener.getsockname()[1]
        likes = "server of FENCEPOST_URL" if settings.url else "embedded server"
        say(
            f"campus is on http://{bracketed(settings.host)}:{port}"
            f" (data in {settings.data}, likes on the {likes}; Ctrl-C stops it)"
        )
        await server.serve(sockets=[listener])
        say("campus is stopping: no new requests, likes go to the database")
    say(_farewell(campus.left))


def _farewell(left: int | None) -> str:
    match left:
        case 0:
            return "campus has stopped; every like is in the database"
        case None:
            return "campus has stopped; likes not in the database yet are in the journal"
        case _:
            return (
                f"campus has stopped; likes of {left} activities wait in the journal for a next run"
            )


def _stop_on_signals(server: uvicorn.Server, drain: float, say: Callable[[str], None]) -> None:
    def stop() -> None:
        if server.should_exit:
            server.force_exit = True
            return
        server.should_exit = True
        # a thread, not the loop: what hangs may be a worker thread after the loop has ended
        last_resort = threading.Timer(2 * drain + _GRACE, give_up)
        last_resort.daemon = True
        last_resort.start()

    def give_up() -> None:
        say("campus did not stop in time and was cut off; acknowledged likes are in the journal")
        sys.stdout.flush()
        os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
