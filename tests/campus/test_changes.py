"""What people wrote is read through a cache: who changes it is seen at once, everywhere, and cheaply."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from sqlalchemy import event, update

from campus.running import BASE, Forms, eventually, open_app
from fencepost.campus.app import create_app
from fencepost.campus.catalogue import Catalogue
from fencepost.campus.serve import _Server
from fencepost.campus.settings import Settings
from fencepost.campus.tables import activities
from support.servers import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

WHOLE = {
    "title": "Chess night",
    "place": "Café Lovelace",
    "starts_at": "2026-03-02T19:00:30+01:00",
    "capacity": 16,
}
BROWSERS = 50
SOON = 60.0


def campus(api: httpx.AsyncClient) -> Any:
    return api.app.state.campus  # type: ignore[attr-defined]


def patient(catalogue: Catalogue) -> None:
    """How slow the machine is, is not what is tested."""
    for cache in (catalogue.details, catalogue.board):
        for limit in ("wait", "lease", "load_limit"):
            object.__setattr__(cache.options, limit, SOON)
        # a load that was held up for seconds would rightly be refreshed early, by chance
        object.__setattr__(cache.options, "beta", 0.0)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """With time enough for a machine that has other things to do."""
    return replace(settings, budget=30.0)


def past_campus(api: httpx.AsyncClient, item: int, **values: Any) -> None:
    """Write to SQL as somebody who does not know of the cache."""
    with campus(api).activities.table._engine.begin() as connection:
        connection.execute(update(activities).where(activities.c.id == item).values(**values))


async def shown(api: httpx.AsyncClient, item: int) -> dict[str, Any]:
    """An activity as the API shows it; the board has to show the same."""
    found: dict[str, Any] = (await api.get(f"/api/activities/{item}")).json()
    board = (await api.get("/api/activities?limit=100")).json()["items"]
    assert found in board
    return found


# -- the API


async def test_an_activity_is_changed_as_a_whole_or_in_part_and_keeps_its_likes(
    api: httpx.AsyncClient,
) -> None:
    await api.put("/api/activities/5/likes/ada")
    before = await shown(api, 5)
    for _ in range(2):  # it states how things shall be
        answer = await api.put("/api/activities/5", json=WHOLE)
        assert answer.status_code == 200, answer.text
        after = await shown(api, 5)
        assert after == answer.json()
        assert after == before | WHOLE | {"starts_at": "2026-03-02T18:00:30Z"}
        assert after["like_count"] == 1
    for change in ({"capacity": 17}, {"title": "Chess", "place": "Roof"}):
        answer = await api.patch("/api/activities/5", json=change)
        assert answer.json() == await shown(api, 5) == after | change
        after = answer.json()


@pytest.mark.parametrize(
    ("method", "body", "fields"),
    [
        ("PUT", {"title": "Only this"}, ["place", "starts_at", "capacity"]),
        ("PUT", {**WHOLE, "capacity": "16"}, ["capacity"]),
        ("PATCH", {}, ["body"]),
        ("PATCH", {"title": "", "place": "x" * 201}, ["title", "place"]),
        ("PATCH", {"starts_at": "2026-03-02T19:00"}, ["starts_at"]),
        ("PATCH", {"like_count": 9}, ["like_count"]),
        ("PATCH", {"id": 9}, ["id"]),
        ("PATCH", {"title": None}, ["title"]),
    ],
)
async def test_a_change_that_does_not_fit_changes_nothing(
    api: httpx.AsyncClient, method: str, body: dict[str, Any], fields: list[str]
) -> None:
    before = await shown(api, 5)
    answer = await api.request(method, "/api/activities/5", json=body)
    assert answer.status_code == 422
    assert sorted(each["field"] for each in answer.json()["errors"]) == sorted(fields)
    assert await shown(api, 5) == before


async def test_a_change_is_refused_where_it_does_not_belong(api: httpx.AsyncClient) -> None:
    before = await shown(api, 5)
    assert (await api.patch("/api/activities/4711", json={"title": "x"})).status_code == 404
    assert (await api.get("/api/activities/4711")).status_code == 404
    wrong = await api.patch("/api/activities/5", content=b"title=x")
    assert (wrong.status_code, wrong.headers["accept-patch"]) == (415, "application/json")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        for method in ("PUT", "PATCH"):
            answer = await api.request(method, "/api/activities/5", json=WHOLE, headers=headers)
            assert answer.status_code == 403
    assert await shown(api, 5) == before


# -- the form


async def sign_in(page: httpx.AsyncClient) -> None:
    form = Forms((await page.get("/")).text).forms["/sign-in"]
    assert (await page.post("/sign-in", data=form | {"name": "ada"})).status_code == 200


@pytest.fixture
async def page(api: httpx.AsyncClient) -> httpx.AsyncClient:
    """A browser without a script."""
    api.headers["Accept"] = "text/html"
    api.follow_redirects = True
    return api


async def test_an_activity_is_changed_with_forms_alone(page: httpx.AsyncClient) -> None:
    await page.put("/api/activities/12", json=WHOLE)
    assert not [link for link in Forms((await page.get("/")).text).links if "edit" in link]
    await sign_in(page)
    assert "/activities/12/edit" in Forms((await page.get("/")).text).links
    asked = await page.get("/activities/12/edit")
    form = Forms(asked.text).forms["/activities/12/edit"]
    assert (form["title"], form["place"], form["capacity"]) == (
        "Chess night",
        "Café Lovelace",
        "16",
    )
    assert "/#activity-12" in Forms(asked.text).links
    for _ in range(2):  # twice is as good as once
        done = await page.post("/activities/12/edit", data=form | {"place": "<Roof> & sky"})
        assert (done.status_code, done.url.path, done.url.fragment) == (200, "/", "activity-12")
        assert "The activity is as you put it." in done.text
        assert "&lt;Roof&gt; &amp; sky" in done.text
    after = (await page.get("/api/activities/12")).json()
    # what the form does not show (seconds) stays as it was
    assert (after["place"], after["starts_at"]) == ("<Roof> & sky", "2026-03-02T18:00:30Z")
    moved = form | {"starts_at": "2026-03-02T20:15"}
    await page.post("/activities/12/edit", data=moved)
    assert (await page.get("/api/activities/12")).json()["starts_at"].endswith(":15:00Z")


async def test_changing_leads_back_to_the_list_where_it_began(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    await page.put("/api/activities/5/likes/ada")
    found = [each for each in Forms((await page.get("/likes")).text).links if "edit" in each]
    assert found == ["/activities/5/edit?from=likes"]
    form = Forms((await page.get(found[0])).text).forms["/activities/5/edit"]
    done = await page.post("/activities/5/edit", data=form | {"title": "Other"})
    assert done.url.path == "/likes"
    assert re.findall(r'id="activity-(\d+)"', done.text) == ["5"]
    assert "Other" in done.text


async def test_a_change_that_does_not_fit_comes_back_as_it_was_typed(
    page: httpx.AsyncClient,
) -> None:
    await sign_in(page)
    before = (await page.get("/api/activities/12")).json()
    form = Forms((await page.get("/activities/12/edit?after=13")).text).forms["/activities/12/edit"]
    typed = form | {"title": " ", "capacity": "many", "place": '"><script>'}
    answer = await page.post("/activities/12/edit", data=typed)
    assert answer.status_code == 422
    again = Forms(answer.text)
    assert again.forms["/activities/12/edit"] == typed
    assert "/?after=13#activity-12" in again.links
    assert answer.text.count('class="wrong"') == 2
    assert "<script>" not in answer.text.replace("<script src", "")
    assert (await page.get("/api/activities/12")).json() == before


async def test_nobody_else_changes_it_for_you(page: httpx.AsyncClient) -> None:
    before = (await page.get("/api/activities/12")).json()
    nobody = await page.get("/activities/12/edit")
    assert nobody.url.fragment == "sign-in"
    assert "change what has to be otherwise" in nobody.text
    csrf = Forms(nobody.text).forms["/sign-in"]["csrf"]
    typed = {"title": "x", "place": "y", "starts_at": "2026-03-02T20:15", "capacity": "3"}
    assert (
        "Choose a name first"
        in (await page.post("/activities/12/edit", data=typed | {"csrf": csrf})).text
    )
    await sign_in(page)
    form = Forms((await page.get("/activities/12/edit")).text).forms["/activities/12/edit"] | typed
    for token in ("", "x", csrf):  # the last is that of before the sign-in
        answer = await page.post("/activities/12/edit", data=form | {"csrf": token})
        assert answer.status_code == 403
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert (
            await page.post("/activities/12/edit", data=form, headers=headers)
        ).status_code == 403
    assert (await page.get("/api/activities/12")).json() == before
    assert (await page.get("/activities/4711/edit")).status_code == 404
    assert (await page.post("/activities/4711/edit", data=form)).status_code == 404
    own = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
    assert (await page.post("/activities/12/edit", data=form, headers=own)).status_code == 200
    assert (await page.get("/api/activities/12")).json()["title"] == "x"


# -- several services


async def test_what_one_service_changes_every_other_shows_at_once(
    api: httpx.AsyncClient, settings: Settings
) -> None:
    async with open_app(settings) as other:
        for each in (api, other):
            patient(campus(each).activities)
            await shown(each, 5)  # in the cache from now on, of both
        past_campus(other, 5, title="Nobody was told")
        assert (await shown(api, 5))["title"] != "Nobody was told"  # so it is a cache that answers
        assert (await shown(other, 5))["title"] != "Nobody was told"
        for number, (one, two) in enumerate(((api, other), (other, api)) * 5):
            title = f"Told {number}"
            await one.patch("/api/activities/5", json={"title": title})
            assert (await shown(two, 5))["title"] == title
            assert (await shown(one, 5))["title"] == title
        made = (await api.post("/api/activities", json=WHOLE)).json()["id"]
        await shown(other, made)
        assert (await other.delete(f"/api/activities/{made}")).status_code == 204
        for each in (api, other):
            assert (await each.get(f"/api/activities/{made}")).status_code == 404
            board = (await each.get("/api/activities?limit=100")).json()["items"]
            assert made not in [one["id"] for one in board]


class Statements:
    """What the engines of some services execute; each statement waits until ``go`` holds."""

    def __init__(self, *services: Any, go: Callable[[int], bool] = lambda count: True) -> None:
        self.seen: list[str] = []
        self._go, self._changed = go, threading.Condition()
        self._engines = [each.activities.table._engine for each in services]

    def arrived(self) -> None:
        """Look again whether statements may go on."""
        with self._changed:
            self._changed.notify_all()

    def _execute(self, _c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        with self._changed:
            self.seen.append(statement)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._go(len(self.seen)), SOON)

    def __enter__(self) -> Statements:
        for engine in self._engines:
            event.listen(engine, "before_cursor_execute", self._execute)
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._engines:
            event.remove(engine, "before_cursor_execute", self._execute)


async def test_who_reads_while_another_changes_does_not_bring_the_old_back(
    api: httpx.AsyncClient, settings: Settings
) -> None:
    """A reader is stopped between its SELECT and its publication, in another process than the change."""
    for told in (True, False):
        async with open_app(settings) as other:
            for each in (api, other):
                patient(campus(each).activities)
            await api.patch("/api/activities/5", json={"title": "Old"})
            await campus(api).activities.details.invalidate("5")
            read, go = threading.Event(), threading.Event()
            table = campus(other).activities.table

            def slow(number: int, get: Any = table.get, read: Any = read, go: Any = go) -> Any:
                row = get(number)
                read.set()
                assert go.wait(SOON)
                return row

            table.get = slow
            reading = asyncio.create_task(other.get("/api/activities/5"))
            await asyncio.to_thread(read.wait, SOON)
            if told:
                await api.patch("/api/activities/5", json={"title": "New"})
            else:  # the usual: SQL, and nothing that stops who has read before
                past_campus(api, 5, title="New")
            go.set()
            del table.get
            assert (await reading).status_code == 200
            after = (await api.get("/api/activities/5")).json()["title"]
            assert after == ("New" if told else "Old")


@asynccontextmanager
async def listening(
    settings: Settings, heard: Callable[[], None]
) -> AsyncIterator[tuple[Any, str]]:
    """A campus that serves HTTP on a port of its own, from this process."""
    app = create_app(settings)

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = app
        heard()
        await app(scope, receive, send)

    wrapped: ASGIApp = counting
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            wrapped,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=300,  # a browser's idle connection stays, however slow the machine is
        )
        server = _Server(config)
        async with app.router.lifespan_context(app):
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield app.state.campus, f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await serving


@dataclass
class Cost:
    """What fifty reloads cost of SQL.

    Args:
        least: Statements.
        most: Likewise.
        together: How many of them run at the same time, so that the others must wait for them.
    """

    least: int
    most: int
    together: int = 1


def as_it_is(catalogue: Catalogue, path: str) -> Cost:
    """The cache: one load for all. The board is two reads: which activities, and what they are."""
    del catalogue
    return Cost(2, 2) if path == "/" else Cost(1, 1)


def without_coalescing(catalogue: Catalogue, path: str) -> Cost:
    """A cache whose misses load alone, as most do."""
    del path
    object.__setattr__(catalogue.details.options, "coalesce", "none")
    return Cost(2, BROWSERS, together=2)


def without_cache(catalogue: Catalogue, path: str) -> Cost:
    """No cache."""
    del path

    async def get(number: int) -> Any:
        return await asyncio.to_thread(catalogue.table.get, number)

    catalogue.get = get  # type: ignore[method-assign]
    return Cost(BROWSERS, BROWSERS)


@pytest.mark.parametrize(
    ("path", "design"),
    [
        ("/api/activities/5", as_it_is),
        ("/", as_it_is),
        ("/api/activities/5", without_coalescing),
        ("/api/activities/5", without_cache),
    ],
)
async def test_fifty_browsers_that_reload_what_has_expired_cost_one_read(
    settings: Settings, path: str, design: Callable[[Catalogue, str], Cost]
) -> None:
    heard = 0
    statements: Statements | None = None

    def hear() -> None:
        nonlocal heard
        heard += 1
        if statements is not None:
            statements.arrived()

    settings = replace(
        settings, flusher=False, desk=False
    )  # their statements would be counted, too
    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(listening(settings, hear)) for _ in range(2)]
        for service, _ in services:
            patient(service.activities)
            cost = design(service.activities, path)
        # verify: no TLS here, and to read the certificates of the world takes longer than all else
        browsers = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=services[number % 2][1], timeout=SOON, verify=False)
            )
            for number in range(BROWSERS)
        ]
        for browser in browsers:  # connected, and the likes are warm
            assert (await browser.get(path)).status_code == 200
        await expire(services[0][0])
        heard = 0
        with Statements(
            *(service for service, _ in services),
            # nobody's read ends before all have asked (and, without coalescing, another one reads)
            go=lambda count: heard >= BROWSERS and count >= cost.together,
        ) as statements:
            answers = await asyncio.gather(*(browser.get(path) for browser in browsers))
        assert [answer.status_code for answer in answers] == [200] * BROWSERS
        assert cost.least <= len(statements.seen) <= cost.most, statements.seen


async def expire(service: Any) -> None:
    """Let every entry of the caches end, as their TTL does."""
    client = service.client
    keys = await client.command("KEYS", f"*{client.namespace}:cache:*:v")
    for key in keys:
        await client.command("PEXPIRE", key, 1)

    async def gone() -> bool:
        return not keys or await client.command("EXISTS", *keys) == 0

    await eventually(gone)


# -- when the server of the cache is away


async def test_without_its_server_all_is_shown_and_nothing_is_changed(tmp_path: Path) -> None:
    with ServerProcess("valkey", aof="always") as server:
        settings = Settings(data=tmp_path / "data", url=server.url, drain=5.0, budget=1.0)
        async with open_app(settings) as api:
            before = await shown(api, 5)
            server.kill()
            answer = await api.patch("/api/activities/5", json={"title": "Not now"})
            assert answer.status_code == 503
            assert answer.json()["type"] == "/problems/unavailable"
            assert "not changed right now" in answer.json()["detail"]
            board = (await api.get("/", headers={"Accept": "text/html"})).text
            assert "Hearts and counts can’t be shown right now" in board
            assert "Dumplings from scratch" in board
            server.restart()

            async def back() -> bool:
                return (await api.get("/healthz")).status_code == 200

            await eventually(back)
            assert (await shown(api, 5))["title"] == before["title"]

            async def changed() -> bool:
                answer = await api.patch("/api/activities/5", json={"title": "Now"})
                return answer.status_code == 200

            await eventually(changed)
            assert (await shown(api, 5))["title"] == "Now"


# -- figures


def series(text: str, name: str) -> Iterator[tuple[str, float]]:
    for cache, value in re.findall(rf'^{name}{{cache="(\w+)"}} (\S+)$', text, re.M):
        yield cache, float(value)


async def test_metrics_show_each_cache(api: httpx.AsyncClient) -> None:
    patient(campus(api).activities)
    for _ in range(3):
        await api.get("/api/activities/5")
        await api.get("/api/activities")
    text = (await api.get("/metrics")).text
    hits = dict(series(text, "fencepost_cache_hits_total"))
    loads = dict(series(text, "fencepost_cache_loads_total"))
    # 5 is on the first page of the board, too: it was known when that was asked for
    assert (loads["activities"], loads["board"]) == (2, 1)
    assert (hits["activities"], hits["board"]) == (2 + 1 + 2 * 12, 2)
    assert dict(series(text, "fencepost_cache_bypassed")) == {"activities": 0, "board": 0}
    assert "# TYPE fencepost_cache_load_p99 gauge" in text
