"""The JSON API: what it says when it can, and what it says when it can't."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import create_engine, select, update
from sqlalchemy.exc import OperationalError

from campus.running import BASE, eventually, in_sql, open_app
from fencepost.campus.middleware import BODY_MAX
from fencepost.campus.settings import Settings
from fencepost.campus.tables import activities, activities_likes
from fencepost.errors import OutcomeUnknown, Overloaded, Refused, Unavailable
from support.servers import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

NEW = {
    "title": "Chess evening",
    "place": "Café Turing",
    "starts_at": "2026-03-01T18:30:00+01:00",
    "capacity": 32,
}


class Broken:
    """Stands in for a part whose every method fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> Any:
            raise self._error

        return fail


def campus(api: httpx.AsyncClient) -> Any:
    return api.app.state.campus  # type: ignore[attr-defined]


def check_problem(answer: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["type"] == f"/problems/{slug}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert "Traceback" not in answer.text
    return problem


async def make(api: httpx.AsyncClient, **fields: Any) -> int:
    answer = await api.post("/api/activities", json=NEW | fields)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


# -- activities


async def test_an_activity_is_made_and_found_where_location_says(api: httpx.AsyncClient) -> None:
    answer = await api.post("/api/activities", json=NEW)
    assert answer.status_code == 201
    made = answer.json()
    assert made["starts_at"] == "2026-03-01T17:30:00Z"
    assert (made["title"], made["place"], made["capacity"]) == ("Chess evening", "Café Turing", 32)
    assert made["like_count"] == 0
    found = await api.get(answer.headers["location"])
    assert found.json() == made


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", ""),
        ("title", "   "),
        ("title", "\u200b"),
        ("title", "x" * 201),
        ("title", "a\x00b"),
        ("title", "evil \u202egnp.exe"),
        ("title", 7),
        ("place", None),
        ("starts_at", "2026-03-01T18:30:00"),
        ("starts_at", "tomorrow"),
        ("starts_at", "0001-01-01T00:00:00+14:00"),
        ("starts_at", 1_700_000_000),
        ("capacity", 0),
        ("capacity", 100_001),
        ("capacity", True),
        ("capacity", "12"),
        ("capacity", 1.5),
        ("colour", "red"),
    ],
)
async def test_a_field_that_does_not_fit_is_named(
    api: httpx.AsyncClient, field: str, value: object
) -> None:
    before = (await api.get("/api/activities")).json()
    answer = await api.post("/api/activities", json=NEW | {field: value})
    problem = check_problem(answer, 422, "invalid-input")
    assert [each["field"] for each in problem["errors"]] == [field]
    assert field in problem["detail"]
    assert (await api.get("/api/activities")).json() == before


async def test_all_that_is_wrong_is_told_at_once(api: httpx.AsyncClient) -> None:
    problem = check_problem(await api.post("/api/activities", json={}), 422, "invalid-input")
    named = {each["field"] for each in problem["errors"]}
    assert named == {"title", "place", "starts_at", "capacity"}


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"title": NaN}', b"\xff\xfe", b"[" * 10_000, b'{"title": "\\ud800"}']
)
async def test_a_body_that_is_not_json_is_400(api: httpx.AsyncClient, body: bytes) -> None:
    answer = await api.post(
        "/api/activities", content=body, headers={"Content-Type": "application/json"}
    )
    check_problem(answer, 400, "bad-request")


async def test_json_that_is_no_object_is_422(api: httpx.AsyncClient) -> None:
    check_problem(await api.post("/api/activities", json=[NEW]), 422, "invalid-input")


async def test_another_content_type_is_415(api: httpx.AsyncClient) -> None:
    answer = await api.post(
        "/api/activities", content=b"{}", headers={"Content-Type": "text/plain"}
    )
    check_problem(answer, 415, "unsupported-media-type")


async def test_a_large_body_is_413_whether_or_not_its_length_is_said(
    api: httpx.AsyncClient,
) -> None:
    before = (await api.get("/api/activities")).json()
    said = await api.post("/api/activities", json=NEW | {"title": "x" * BODY_MAX})
    check_problem(said, 413, "body-too-large")

    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * (BODY_MAX // 16)

    unsaid = await api.post(
        "/api/activities", content=chunks(), headers={"Content-Type": "application/json"}
    )
    check_problem(unsaid, 413, "body-too-large")
    assert (await api.get("/api/activities")).json() == before


async def test_pages_of_the_list_hold_each_activity_once_newest_first(
    api: httpx.AsyncClient,
) -> None:
    for number in range(5):
        await make(api, title=f"More {number}")
    seen: list[int] = []
    params: dict[str, Any] = {"limit": 4}
    while True:
        page = (await api.get("/api/activities", params=params)).json()
        assert len(page["items"]) <= 4
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        params["after"] = page["next"]
    assert len(seen) == 12 + 5
    assert seen == sorted(set(seen), reverse=True)


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("/api/activities/abc", "id"),
        ("/api/activities/0", "id"),
        ("/api/activities/-1", "id"),
        ("/api/activities/٣", "id"),
        ("/api/activities/9223372036854775808", "id"),
        (f"/api/activities/{'9' * 400}", "id"),
        ("/api/activities?limit=0", "limit"),
        ("/api/activities?limit=101", "limit"),
        ("/api/activities?after=x", "after"),
        ("/api/activities?user=", "user"),
        (f"/api/activities?user={'u' * 65}", "user"),
        ("/api/activities/1?user=a%00b", "user"),
        ("/api/activities?user=%20ada", "user"),
        ("/api/activities?user=a/b", "user"),
        ("/api/activities?user=..", "user"),
        ("/api/activities?user=e%CC%81", "user"),
        (f"/api/activities?user={'%F0%9F%8C%BB' * 64}", "user"),
        ("/api/activities/x/likes", "id"),
        ("/api/activities/1/likes?limit=0", "limit"),
        ("/api/users/%07/likes", "user"),
        ("/api/users/ada/likes?limit=many", "limit"),
    ],
)
async def test_what_an_address_says_is_checked(
    api: httpx.AsyncClient, url: str, field: str
) -> None:
    problem = check_problem(await api.get(url), 422, "invalid-input")
    assert [each["field"] for each in problem["errors"]] == [field]


async def test_what_is_not_there_is_404_and_a_wrong_method_names_the_right_ones(
    api: httpx.AsyncClient,
) -> None:
    check_problem(await api.get("/api/activities/4711"), 404, "not-found")
    check_problem(await api.get("/api/nothing"), 404, "not-found")
    wrong = await api.delete("/api/activities")
    check_problem(wrong, 405, "method-not-allowed")
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


async def test_a_deleted_activity_is_gone_everywhere_with_its_likes(
    api: httpx.AsyncClient, settings: Settings
) -> None:
    item = await make(api)
    like = f"/api/activities/{item}/likes/"
    for user in ("ada", "bob"):
        await api.put(like + user)
    await flushed(api)
    await api.put(like + "eve")  # may still wait in the journal
    answer = await api.delete(f"/api/activities/{item}")
    assert (answer.status_code, answer.content) == (204, b"")
    check_problem(await api.get(f"/api/activities/{item}"), 404, "not-found")
    check_problem(await api.put(like + "ada"), 404, "not-found")
    check_problem(await api.delete(like + "ada"), 404, "not-found")
    check_problem(await api.get(like.rstrip("/")), 404, "not-found")
    check_problem(await api.delete(f"/api/activities/{item}"), 404, "not-found")
    assert item not in [each["id"] for page in await pages(api, "/api/activities") for each in page]
    for user in ("ada", "bob", "eve"):
        assert (await api.get(f"/api/users/{user}/likes")).json()["items"] == []
    await flushed(api)
    assert in_sql(settings.data) == {}
    assert await make(api) == item + 1


async def test_what_waits_in_the_journal_is_dropped_with_its_activity(settings: Settings) -> None:
    async with open_app(replace(settings, flusher=False)) as api:
        for user in ("ada", "bob"):
            await api.put(f"/api/activities/5/likes/{user}")
        await api.put("/api/activities/6/likes/ada")
        assert (await campus(api).likes.backlog()).items == 2
        assert (await api.delete("/api/activities/5")).status_code == 204
        assert (await campus(api).likes.backlog()).items == 1
        liked = (await api.get("/api/users/ada/likes")).json()["items"]
        assert [each["id"] for each in liked] == [6]
        await flushed(api)
        assert (await campus(api).likes.audit()).differences == ()
    assert in_sql(settings.data) == {6: (1, 1)}


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_likes_that_come_while_an_activity_is_deleted_are_404_from_then_on(
    settings: Settings, database: str, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        settings = replace(settings, database=request.getfixturevalue("postgres_url"))
    async with open_app(settings) as one, open_app(settings) as two:
        for item in (3, 4, 5):
            counts: dict[int, int] = {}

            async def click(
                api: httpx.AsyncClient, user: str, item: int, n: dict[int, int]
            ) -> None:
                gone = False
                while not gone:
                    for send in (api.put, api.delete):
                        answer = await send(f"/api/activities/{item}/likes/{user}")
                        assert answer.status_code == 404 if gone else True, answer.text
                        gone = answer.status_code == 404
                        assert gone or answer.status_code == 200, answer.text
                        n[answer.status_code] = n.get(answer.status_code, 0) + 1

            clicks = [
                asyncio.create_task(click(api, f"u{number}", item, counts))
                for number, api in enumerate((one, two) * 4)
            ]
            while counts.get(200, 0) < 40:
                await one.get("/healthz")
            answers = await asyncio.gather(
                *(api.delete(f"/api/activities/{item}") for api in (one, two))
            )
            assert {answer.status_code for answer in answers} <= {204, 404}
            assert 204 in [answer.status_code for answer in answers]
            await asyncio.gather(*clicks)
            check_problem(await two.get(f"/api/activities/{item}"), 404, "not-found")
        await flushed(one)
        report = await campus(two).likes.audit()
        assert report.differences == ()
        found = (await one.get("/api/activities", params={"limit": 100})).json()["items"]
        assert {each["id"] for each in found} == set(range(1, 13)) - {3, 4, 5}
        assert {each["like_count"] for each in found} == {0}


async def test_a_deletion_that_was_cut_off_is_finished_by_the_next(
    api: httpx.AsyncClient, settings: Settings
) -> None:
    await api.put("/api/activities/5/likes/ada")
    await flushed(api)
    real = campus(api).likes
    removed = campus(api).activities.table.remove(5)  # all that was done of the first
    assert removed
    assert (await api.put("/api/activities/5/likes/bob")).status_code == 200  # from the cache
    check_problem(await api.delete("/api/activities/5"), 404, "not-found")
    await flushed(api)
    check_problem(await api.put("/api/activities/5/likes/bob"), 404, "not-found")
    assert in_sql(settings.data) == {}
    campus(api).likes = Broken(Unavailable("gone"))
    check_problem(await api.delete("/api/activities/6"), 503, "unavailable")
    campus(api).likes = real
    assert (await api.delete("/api/activities/6")).status_code == 204


async def test_only_an_activity_that_exists_can_be_deleted(api: httpx.AsyncClient) -> None:
    coming = await make(api) + 1
    check_problem(await api.delete(f"/api/activities/{coming}"), 404, "not-found")
    check_problem(await api.delete("/api/activities/none"), 422, "invalid-input")
    cross = {"Sec-Fetch-Site": "cross-site"}
    check_problem(await api.delete("/api/activities/1", headers=cross), 403, "forbidden")
    assert (await api.get("/api/activities/1")).status_code == 200
    assert await make(api) == coming
    assert (await api.put(f"/api/activities/{coming}/likes/ada")).status_code == 200


# -- likes


async def test_a_like_is_set_once_however_often_it_is_sent(api: httpx.AsyncClient) -> None:
    item = await make(api)
    like = f"/api/activities/{item}/likes/ada"
    assert (await api.put(like)).json() == {"liked": True, "like_count": 1, "changed": True}
    assert (await api.put(like)).json() == {"liked": True, "like_count": 1, "changed": False}
    await api.put(f"/api/activities/{item}/likes/bob")
    shown = (await api.get(f"/api/activities/{item}", params={"user": "ada"})).json()
    assert (shown["liked"], shown["like_count"]) == (True, 2)
    assert (await api.delete(like)).json() == {"liked": False, "like_count": 1, "changed": True}
    assert (await api.delete(like)).json() == {"liked": False, "like_count": 1, "changed": False}
    feed = (await api.get("/api/activities", params={"user": "ada"})).json()["items"]
    assert {each["liked"] for each in feed} == {False}


async def test_without_a_user_liked_is_null_not_no(api: httpx.AsyncClient) -> None:
    item = await make(api)
    await api.put(f"/api/activities/{item}/likes/ada")
    shown = (await api.get(f"/api/activities/{item}")).json()
    assert (shown["liked"], shown["like_count"]) == (None, 1)


@pytest.mark.parametrize("user", ["Ada Lovelace", "#n", "{x}:%", "名前", "🌻", "a" * 64])
async def test_users_may_be_called_anything_visible(api: httpx.AsyncClient, user: str) -> None:
    item = await make(api)
    quoted = httpx.QueryParams({"u": user})
    path = f"/api/activities/{item}/likes/{str(quoted).removeprefix('u=').replace('+', '%20')}"
    assert (await api.put(path)).json()["like_count"] == 1
    shown = (await api.get(f"/api/activities/{item}", params={"user": user})).json()
    assert shown["liked"] is True


async def test_a_like_of_nothing_is_404(api: httpx.AsyncClient) -> None:
    check_problem(await api.put("/api/activities/4711/likes/ada"), 404, "not-found")
    check_problem(await api.delete("/api/activities/4711/likes/ada"), 404, "not-found")
    check_problem(await api.put("/api/activities/1/likes/%07"), 422, "invalid-input")


async def test_an_id_that_was_asked_for_too_early_can_be_liked_once_it_exists(
    api: httpx.AsyncClient,
) -> None:
    coming = await make(api)
    for _ in range(10):
        coming += 1
        like = f"/api/activities/{coming}/likes/ada"
        check_problem(await api.put(like), 404, "not-found")
        check_problem(await api.get(f"/api/activities/{coming}"), 404, "not-found")
        assert await make(api) == coming
        assert (await api.put(like)).json() == {"liked": True, "like_count": 1, "changed": True}


async def test_an_id_that_is_asked_for_all_the_time_can_be_liked_once_it_exists(
    api: httpx.AsyncClient,
) -> None:
    coming = await make(api) + 1
    like = f"/api/activities/{coming}/likes/"
    made = asyncio.Event()

    async def ask(user: str) -> None:
        while not made.is_set():
            assert (await api.put(like + user)).status_code in (404, 200)
        assert (await api.put(like + user)).status_code == 200

    asking = [asyncio.create_task(ask(user)) for user in ("ada", "bob", "eve")]
    for _ in range(5):
        check_problem(await api.put(like + "dan"), 404, "not-found")
    assert await make(api) == coming
    made.set()
    await asyncio.gather(*asking)
    assert (await api.get(f"/api/activities/{coming}")).json()["like_count"] == 3


async def test_an_activity_is_made_also_while_the_like_server_is_gone(tmp_path: Path) -> None:
    with ServerProcess("valkey", aof="always") as server:
        settings = Settings(data=tmp_path / "data", url=server.url, drain=5.0)
        async with open_app(settings) as api:
            server.kill()
            item = await make(api)
            server.restart()

            async def back() -> bool:
                return (await api.put(f"/api/activities/{item}/likes/ada")).status_code == 200

            await eventually(back)


# -- how durable a like is


async def test_a_committed_like_is_in_the_database_when_it_is_answered(
    api: httpx.AsyncClient, settings: Settings
) -> None:
    for number, (send, rows) in enumerate(
        ((api.put, 1), (api.put, 1), (api.delete, 0), (api.delete, 0))
    ):
        answer = await send("/api/activities/1/likes/ada?durability=committed")
        assert answer.status_code == 200, answer.text
        assert answer.json()["changed"] is (number % 2 == 0)
        assert in_sql(settings.data) == ({1: (1, 1)} if rows else {})
    many = [api.put(f"/api/activities/2/likes/u{n}?durability=committed") for n in range(20)]
    assert {answer.status_code for answer in await asyncio.gather(*many)} == {200}
    assert in_sql(settings.data) == {2: (20, 20)}
    answer = await api.put("/api/activities/4711/likes/ada?durability=committed")
    check_problem(answer, 404, "not-found")


async def test_a_like_that_is_not_known_to_be_replicated_says_so_and_is_applied(
    api: httpx.AsyncClient,
) -> None:
    like = "/api/activities/1/likes/ada"
    assert (await api.put(f"{like}?durability=behind")).json()["like_count"] == 1
    # the server of the tests has no replica
    problem = check_problem(
        await api.delete(f"{like}?durability=replicated"), 503, "outcome-unknown"
    )
    assert "not known to be replicated" in problem["detail"]
    assert "safe" in problem["remedy"]
    assert (await api.get("/api/activities/1?user=ada")).json()["liked"] is False


async def test_a_like_that_can_not_be_as_durable_as_was_asked_is_422(
    api: httpx.AsyncClient,
) -> None:
    for value in ("", "Committed", "fsync", "behind,committed"):
        for send in (api.put, api.delete):
            answer = await send("/api/activities/1/likes/ada", params={"durability": value})
            problem = check_problem(answer, 422, "invalid-input")
            assert [each["field"] for each in problem["errors"]] == ["durability"]
            for name in ("behind", "replicated", "committed"):
                assert name in problem["detail"]
    campus(api).likes = Broken(Refused("no WAITAOF at 10.0.0.1"))
    answer = await api.put("/api/activities/1/likes/ada?durability=replicated")
    problem = check_problem(answer, 422, "invalid-input")
    assert [each["field"] for each in problem["errors"]] == ["durability"]
    assert "10.0.0.1" not in answer.text


# -- who likes what


async def pages(api: httpx.AsyncClient, url: str, **params: Any) -> list[list[Any]]:
    """The items of each page of a list, to its end."""
    found = []
    while True:
        answer = await api.get(url, params=params)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        if answer.json()["next"] is None:
            return found
        params["after"] = answer.json()["next"]


async def flushed(api: httpx.AsyncClient) -> None:
    assert await campus(api).likes.drain(60) == 0


async def test_likers_are_listed_newest_first_each_once(api: httpx.AsyncClient) -> None:
    users = [f"user {number}" for number in range(7)]
    for user in users:
        await api.put(f"/api/activities/1/likes/{user}")
        await flushed(api)
    await api.delete("/api/activities/1/likes/user 3")
    await flushed(api)
    found = await pages(api, "/api/activities/1/likes", limit=2)
    assert [len(page) for page in found] == [2, 2, 2]
    listed = [each["user"] for page in found for each in page]
    assert listed == [user for user in reversed(users) if user != "user 3"]


async def test_what_a_user_likes_is_listed_newest_first_each_once(api: httpx.AsyncClient) -> None:
    for item in (4, 9, 2, 7, 5):
        await api.put(f"/api/activities/{item}/likes/ada")
        await api.put(f"/api/activities/{item}/likes/bob")
        await flushed(api)
    await api.delete("/api/activities/7/likes/ada")
    await flushed(api)
    found = [each for page in await pages(api, "/api/users/ada/likes", limit=2) for each in page]
    assert [each["id"] for each in found] == [5, 2, 9, 4]
    assert {(each["liked"], each["like_count"]) for each in found} == {(True, 2)}
    assert (await api.get("/api/activities/5?user=ada")).json() == found[0]


async def test_lists_of_likes_know_what_is_not_in_the_database_yet(settings: Settings) -> None:
    async with open_app(replace(settings, flusher=False)) as api:
        for user in ("ada", "bob", "eve"):
            await api.put(f"/api/activities/1/likes/{user}")
        await api.put("/api/activities/2/likes/ada")
        await api.delete("/api/activities/1/likes/bob")
        likers = (await api.get("/api/activities/1/likes")).json()
        assert likers == {"items": [{"user": "eve"}, {"user": "ada"}], "next": None}
        ids = [each["id"] for each in (await api.get("/api/users/ada/likes")).json()["items"]]
        assert ids == [2, 1]
        assert (await api.get("/api/users/bob/likes")).json() == {"items": [], "next": None}


async def test_likes_that_come_meanwhile_move_nothing_below_the_cursor(
    api: httpx.AsyncClient,
) -> None:
    for item in (1, 2, 3, 4):
        for user in ("ada", f"u{item}"):
            await api.put(f"/api/activities/{item}/likes/{user}")
            await api.put(f"/api/activities/9/likes/u{item}")
            await flushed(api)
    for url, first, rest, add in (
        ("/api/users/ada/likes", [4, 3], [2, 1], "/api/activities/12/likes/ada"),
        ("/api/activities/9/likes", ["u4", "u3"], ["u2", "u1"], "/api/activities/9/likes/new"),
    ):
        page = (await api.get(url, params={"limit": 2})).json()
        assert [each.get("id", each.get("user")) for each in page["items"]] == first
        await api.put(add)
        await flushed(api)
        below = (await api.get(url, params={"limit": 2, "after": page["next"]})).json()
        assert [each.get("id", each.get("user")) for each in below["items"]] == rest
        assert below["next"] is None


async def test_a_page_ends_where_it_says_also_when_all_of_it_was_taken_back(
    settings: Settings,
) -> None:
    async with open_app(settings) as api:
        for item in (1, 2, 3, 4):
            await api.put(f"/api/activities/{item}/likes/ada")
            await flushed(api)
    async with open_app(replace(settings, flusher=False)) as api:
        for item in (3, 4):
            await api.delete(f"/api/activities/{item}/likes/ada")
        found = await pages(api, "/api/users/ada/likes", limit=2)
        assert [[each["id"] for each in page] for page in found] == [[], [2, 1]]


def forged(*what: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(what).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_cursor_that_no_page_gave_is_refused(
    settings: Settings, database: str, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        settings = replace(settings, database=request.getfixturevalue("postgres_url"))
    async with open_app(settings) as api:
        for cursor in (
            *("", "x", "é", "!!!!", "a" * 5_000, "12", forged(1), forged(1, 2, 3), forged("1", 2)),
            *(forged(10**40, 1), forged(-(10**18), 1), forged(10**18, "ada"), forged(1, None)),
            *(forged(1, 1.5), forged(1, 2**70), forged(1, True), forged(1, ["ada"])),
        ):
            for url in ("/api/activities/1/likes", "/api/users/ada/likes"):
                answer = await api.get(url, params={"after": cursor})
                problem = check_problem(answer, 422, "invalid-input")
                assert [each["field"] for each in problem["errors"]] == ["after"], cursor
        # each list's cursors are its own
        for url, other in (("/api/activities/1/likes", 7), ("/api/users/ada/likes", "ada")):
            answer = await api.get(url, params={"after": forged(1, other)})
            check_problem(answer, 422, "invalid-input")
        for other in ("", "u" * 65, "\0"):
            answer = await api.get("/api/users/ada/likes", params={"after": forged(1, other)})
            check_problem(answer, 422, "invalid-input")


async def test_who_likes_nothing_or_does_not_exist_is_told_apart(api: httpx.AsyncClient) -> None:
    nobody = {"items": [], "next": None}
    assert (await api.get("/api/activities/3/likes")).json() == nobody
    assert (await api.get("/api/users/nobody/likes")).json() == nobody
    check_problem(await api.get("/api/activities/4711/likes"), 404, "not-found")


async def test_counts_come_from_the_likes_not_from_sql(
    api: httpx.AsyncClient, settings: Settings
) -> None:
    item = await make(api)
    await api.put(f"/api/activities/{item}/likes/ada")
    engine = create_engine(f"sqlite:///{settings.sqlite_path}")
    with engine.begin() as connection:
        connection.execute(update(activities).values(like_count=99))
    engine.dispose()
    assert (await api.get(f"/api/activities/{item}")).json()["like_count"] == 1


async def test_two_services_on_one_server_and_database_behave_as_one(
    api: httpx.AsyncClient, settings: Settings
) -> None:
    async with open_app(settings) as other:
        item = await make(other)
        assert (await api.put(f"/api/activities/{item}/likes/ada")).json()["changed"]
        assert not (await other.put(f"/api/activities/{item}/likes/ada")).json()["changed"]
        assert (await other.delete(f"/api/activities/{item}/likes/ada")).json()["like_count"] == 0
        shown = (await api.get(f"/api/activities/{item}?user=ada")).json()
        assert (shown["liked"], shown["like_count"]) == (False, 0)
        assert len((await api.get("/api/activities?limit=100")).json()["items"]) == 13


async def test_several_services_start_at_once_on_postgresql(
    settings: Settings, postgres_url: str
) -> None:
    settings = replace(settings, database=postgres_url)
    async with AsyncExitStack() as stack:
        opening = [stack.enter_async_context(open_app(settings)) for _ in range(4)]
        one, two, *_ = await asyncio.gather(*opening)
        assert len((await one.get("/api/activities?limit=100")).json()["items"]) == 12
        item = await make(one)
        assert item == 13
        assert (await two.put(f"/api/activities/{item}/likes/ada")).json()["changed"]
        assert not (await one.put(f"/api/activities/{item}/likes/ada")).json()["changed"]
        await two.put(f"/api/activities/{item}/likes/bob")
        assert (await one.delete(f"/api/activities/{item}/likes/ada")).json()["like_count"] == 1
        shown = (await two.get(f"/api/activities/{item}?user=ada")).json()
        assert (shown["liked"], shown["like_count"]) == (False, 1)
        assert shown["starts_at"] == "2026-03-01T17:30:00Z"
        check_problem(await two.put("/api/activities/4711/likes/ada"), 404, "not-found")
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        rows = connection.execute(select(activities_likes.c.user_id)).scalars().all()
        counts = select(activities.c.like_count).where(activities.c.id == item)
        assert (rows, connection.execute(counts).scalar()) == (["bob"], 1)
    engine.dispose()


# -- when parts fail


async def test_a_like_server_that_is_gone_is_503_and_comes_back(tmp_path: Path) -> None:
    with ServerProcess("valkey", aof="always") as server:
        settings = Settings(data=tmp_path / "data", url=server.url, drain=5.0, budget=1.0)
        async with open_app(settings) as api:
            assert (await api.put("/api/activities/1/likes/ada")).status_code == 200
            server.kill()
            for answer in (
                await api.get("/api/activities"),
                await api.get("/api/activities/1"),
                await api.put("/api/activities/1/likes/bob"),
                await api.get("/healthz"),
            ):
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["type"].startswith("/problems/")
                assert str(server.socket) not in answer.text
            assert "campus_like_server_up 0.0" in (await api.get("/metrics")).text
            server.restart()

            async def back() -> bool:
                return (await api.get("/healthz")).status_code == 200

            await eventually(back)
            shown = (await api.get("/api/activities/1?user=ada")).json()
            assert (shown["liked"], shown["like_count"]) == (True, 1)
            assert "campus_like_server_up 1.0" in (await api.get("/metrics")).text


@pytest.mark.parametrize(
    ("error", "slug", "after"),
    [
        (OutcomeUnknown("lost"), "outcome-unknown", "1"),
        (Overloaded("full", retry_after=2.3), "overloaded", "3"),
        (Unavailable("10.0.0.1:6379 does not answer"), "unavailable", "1"),
    ],
)
async def test_a_like_that_fails_says_what_is_safe(
    api: httpx.AsyncClient, error: Exception, slug: str, after: str
) -> None:
    campus(api).likes = Broken(error)
    answer = await api.put("/api/activities/1/likes/ada")
    problem = check_problem(answer, 503, slug)
    assert answer.headers["retry-after"] == after
    assert ("safe" in problem["remedy"]) == (slug == "outcome-unknown")
    assert "10.0.0.1" not in answer.text


async def test_a_database_that_is_gone_is_503(api: httpx.AsyncClient) -> None:
    campus(api).activities.table = Broken(OperationalError("SELECT secret", {}, Exception("gone")))
    for answer in (await api.get("/api/activities"), await api.get("/healthz")):
        check_problem(answer, 503, "database-unavailable")
        assert "secret" not in answer.text


async def test_an_unexpected_error_is_a_number_that_the_log_explains(
    api: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    campus(api).activities.table = Broken(RuntimeError("a secret detail"))
    with caplog.at_level(logging.ERROR, "fencepost.campus"):
        answer = await api.get("/api/activities")
    problem = check_problem(answer, 500, "internal")
    assert "secret" not in answer.text
    assert problem["id"] in caplog.text
    assert "a secret detail" in caplog.text


# -- who may ask


async def test_a_token_is_asked_for_everywhere_but_at_the_health_check(settings: Settings) -> None:
    async with open_app(replace(settings, token="open sesame")) as api:
        for given in ({}, {"Authorization": "Bearer open"}, {"Authorization": "Basic b3Blbg=="}):
            for path in ("/api/activities", "/metrics", "/openapi.json"):
                answer = await api.get(path, headers=given)
                check_problem(answer, 401, "unauthorized")
                assert answer.headers["www-authenticate"].startswith("Bearer")
            put = await api.put("/api/activities/1/likes/ada", headers=given)
            check_problem(put, 401, "unauthorized")
        assert (await api.get("/healthz")).status_code == 200
        api.headers["Authorization"] = "Bearer open sesame"
        shown = (await api.get("/api/activities/1?user=ada")).json()
        assert (shown["liked"], shown["like_count"]) == (False, 0)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
async def test_another_site_can_not_change_anything(
    api: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await api.put("/api/activities/1/likes/ada", headers=headers)
    check_problem(answer, 403, "forbidden")
    assert (await api.get("/api/activities/1")).json()["like_count"] == 0
    own = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
    assert (await api.put("/api/activities/1/likes/ada", headers=own)).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "127.0.0.1:x", "::1"]
)
async def test_a_host_that_is_not_ours_is_refused(api: httpx.AsyncClient, host: str) -> None:
    answer = await api.get("/api/activities", headers={"Host": host})
    check_problem(answer, 400, "host-refused")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:80"])
async def test_loopback_names_are_served(api: httpx.AsyncClient, host: str) -> None:
    assert (await api.get("/api/activities", headers={"Host": host})).status_code == 200


async def test_a_further_host_is_served_when_allowed(settings: Settings) -> None:
    async with open_app(replace(settings, allow_hosts=("campus.example",))) as api:
        headers = {"Host": "campus.example"}
        assert (await api.get("/api/activities", headers=headers)).status_code == 200


# -- figures


async def test_metrics_count_requests_by_route_and_likes_by_what_they_did(
    api: httpx.AsyncClient,
) -> None:
    await api.put("/api/activities/1/likes/ada")
    await api.put("/api/activities/1/likes/ada")
    await api.get("/api/activities/4711")
    await api.get("/no/such/place")
    text = (await api.get("/metrics")).text
    route = 'route="/api/activities/{id}/likes/{user}"'
    assert f'campus_requests_total{{method="PUT",{route},status="200"}} 2.0' in text
    assert 'campus_requests_total{method="any",route="none",status="404"} 1.0' in text
    assert 'campus_likes_total{action="like",changed="yes"} 1.0' in text
    assert 'campus_likes_total{action="like",changed="no"} 1.0' in text
    assert 'campus_problems_total{kind="not-found"} 2.0' in text
    assert f"campus_request_seconds_count{{{route}}} 2.0" in text
    assert "campus_like_server_up 1.0" in text
    assert "fencepost_likes_backlog_items" in text
    assert "fencepost_likes_sets_total 2.0" in text


async def test_metrics_show_the_journal_its_flushes_and_what_an_audit_found(
    settings: Settings,
) -> None:
    async with open_app(replace(settings, flusher=False)) as api:
        await api.put("/api/activities/1/likes/ada")
        assert await campus(api).likes.drain() == 0
        await api.put("/api/activities/1/likes/eve")
        text = (await api.get("/metrics")).text
    for line in (
        "# TYPE fencepost_likes_flush_seconds histogram",
        'fencepost_likes_flush_seconds_bucket{le="+Inf"} 1.0',
        "fencepost_likes_flush_seconds_count 1.0",
        "fencepost_likes_entries_total 1.0",
        "fencepost_likes_flush_refused_total 0.0",
        "fencepost_likes_cold_loads_total 1.0",
        "fencepost_likes_dirty_drains_total 0.0",
        "fencepost_likes_differences_total 0.0",
        "fencepost_likes_backlog_items 1.0",
        "fencepost_likes_backlog_changes 1.0",
        "# TYPE fencepost_likes_oldest gauge",
    ):
        assert line in text, line
    assert "\nfencepost_likes_backlog_seconds 0.0\n" not in text
