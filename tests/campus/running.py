"""Running campus: as an app in this process, and as ``fencepost serve``."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import asynccontextmanager, closing
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import httpx

from fencepost.campus.app import create_app
from support.process import bytecode
from support.servers import ended, ends_with_us

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from fencepost.campus.settings import Settings

BASE = "http://localhost"
SOON = 60.0


@asynccontextmanager
async def open_app(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app in this process; ``client.app`` is the app."""
    app = create_app(settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=BASE) as client,
    ):
        client.app = app  # type: ignore[attr-defined]
        yield client


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until ``check()`` holds."""
    deadline = time.monotonic() + SOON
    while not await check():
        assert time.monotonic() < deadline, f"never came true: {check}"
        # time itself: a process starts or comes back when the machine lets it
        await asyncio.sleep(0.01)


class Forms(HTMLParser):
    """The forms of a page by their action: their fields, their buttons' attributes; and its links."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.forms: dict[str, dict[str, str]] = {}
        self.buttons: dict[str, dict[str, str | None]] = {}
        self.links: list[str] = []
        self._action = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._action = given["action"] or ""
            self.forms[self._action] = {}
        elif tag == "input" and given.get("name"):
            self.forms[self._action][given["name"] or ""] = given.get("value") or ""
        elif tag == "a":
            self.links.append(given["href"] or "")
        elif tag == "button":
            self.buttons[self._action] = given


def heart(page: str, activity: int) -> tuple[str | None, int | None]:
    """What a page shows of an activity: ``aria-pressed`` and the count; None is unknown."""
    found = re.search(rf'<form class="like" id="like-{activity}".*?</form>', page, re.S)
    assert found, f"no heart of {activity} in {page}"
    pressed = re.search(r'aria-pressed="(\w+)"', found[0])
    count = re.search(r'class="count"[^>]*>([\d,?]+)<', found[0])
    assert count
    known = count[1].replace(",", "")
    return pressed and pressed[1], int(known) if known != "?" else None


class Serve:
    """One ``fencepost serve`` process on a free port."""

    def __init__(self, *options: str, env: dict[str, str] | None = None) -> None:
        clean = {name: text for name, text in os.environ.items() if "FENCEPOST" not in name}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fencepost.cli", "serve", "--port", "0", *options],
            env={**clean, "PYTHONUNBUFFERED": "1", **bytecode(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        ends_with_us(self._process)
        self._url: str | None = None
        self.said = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        """Where it answers; waits for the line that says so."""
        if self._url is None:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            self.said += line
            found = re.search(r"http://\S+", line)
            if not found:
                code, said, complained = self.wait()
                raise AssertionError(f"it did not start ({code}): {line}{said}{complained}")
            self._url = found[0]
        return self._url

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def tell(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, standard output, standard error."""
        said, complained = self._process.communicate(timeout=SOON)
        ended(self._process)
        self.said += said
        return self._process.returncode, self.said, complained

    def stop(self) -> tuple[int, str, str]:
        self.tell(signal.SIGTERM)
        return self.wait()

    def kill(self) -> str:
        """Kill it if it runs; what it wrote on standard error since."""
        if self._process.poll() is not None:
            return ""
        self._process.kill()
        complained = self._process.communicate()[1]
        ended(self._process)
        return complained


def in_sql(data: Path) -> dict[int, tuple[int, int]]:
    """Of each activity that is liked by the database: its rows, and its like_count."""
    query = """
        SELECT a.id, COUNT(l.user_id), a.like_count FROM activities a
        LEFT JOIN activities_likes l ON l.activity_id = a.id
        GROUP BY a.id HAVING COUNT(l.user_id) > 0 OR a.like_count <> 0
    """
    with closing(sqlite3.connect(data / "campus.sqlite3")) as connection:
        return {item: (rows, count) for item, rows, count in connection.execute(query)}
