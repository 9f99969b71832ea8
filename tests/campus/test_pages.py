"""The page without a script: links and forms do everything, and refuse what they must."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from campus.running import BASE, Forms, heart, open_app
from campus.test_api import Broken, campus, flushed
from fencepost.campus.html import STATIC
from fencepost.errors import OutcomeUnknown, Unavailable
from support.servers import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from fencepost.campus.settings import Settings

HTMX = {"HX-Request": "true"}


@pytest.fixture
async def page(api: httpx.AsyncClient) -> httpx.AsyncClient:
    """A browser of a sort: it follows redirects and prefers pages."""
    return as_browser(api)


def as_browser(client: httpx.AsyncClient) -> httpx.AsyncClient:
    client.follow_redirects = True
    client.headers["Accept"] = "text/html"
    return client


async def submit(
    page: httpx.AsyncClient,
    action: str,
    fields: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Fill in a form of the board and send it."""
    form = Forms((await page.get("/")).text).forms[action]
    return await page.post(action, data=form | (fields or {}), headers=headers)


async def sign_in(page: httpx.AsyncClient, name: str = "ada", **fields: str) -> httpx.Response:
    return await submit(page, "/sign-in", {"name": name, **fields})


async def likes_of(page: httpx.AsyncClient, item: int) -> int:
    shown = await page.get(f"/api/activities/{item}")
    return int(shown.json()["like_count"])


# -- what it does


async def test_sign_in_like_reload_and_unlike_with_forms_alone(page: httpx.AsyncClient) -> None:
    assert heart((await page.get("/")).text, 12) == ("false", 0)
    welcome = await sign_in(page, "Ada  Lovelace ")
    assert "Ada Lovelace" in welcome.text
    liked = await submit(page, "/activities/12/like")
    assert liked.status_code == 200
    assert liked.history[0].status_code == 303
    assert heart(liked.text, 12) == ("true", 1)
    assert heart((await page.get("/")).text, 12) == ("true", 1)
    assert heart((await submit(page, "/activities/12/like")).text, 12) == ("false", 0)
    assert heart((await page.get("/")).text, 12) == ("false", 0)


async def test_a_form_states_how_things_shall_be_so_sending_it_twice_changes_nothing(
    page: httpx.AsyncClient,
) -> None:
    await sign_in(page)
    form = Forms((await page.get("/")).text).forms["/activities/12/like"]
    for _ in range(2):
        shown = await page.post("/activities/12/like", data=form)
        assert heart(shown.text, 12) == ("true", 1)


async def test_signing_out_empties_the_hearts_and_signing_in_fills_them(
    page: httpx.AsyncClient,
) -> None:
    await sign_in(page)
    await submit(page, "/activities/12/like")
    out = await submit(page, "/sign-out")
    assert heart(out.text, 12) == ("false", 1)
    assert "/sign-in" in Forms(out.text).forms
    assert heart((await sign_in(page)).text, 12) == ("true", 1)


async def test_a_like_without_a_name_leads_to_the_sign_in_form(page: httpx.AsyncClient) -> None:
    answer = await submit(page, "/activities/12/like")
    assert answer.url.fragment == "sign-in"
    assert "Choose a name first" in answer.text
    assert await likes_of(page, 12) == 0


@pytest.mark.parametrize("name", ["", "   ", "x" * 65, "a\x07b"])
async def test_a_name_that_does_not_fit_is_told_beside_its_field(
    page: httpx.AsyncClient, name: str
) -> None:
    answer = await sign_in(page, name)
    assert answer.status_code == 422
    assert 'aria-describedby="h-name"' in answer.text
    assert "/sign-in" in Forms(answer.text).forms


async def test_load_more_leads_through_all_activities(page: httpx.AsyncClient) -> None:
    first = (await page.get("/")).text
    found = re.search(r'href="(/\?after=\d+)"', first)
    assert found
    second = (await page.get(found[1])).text
    ids = [int(each) for each in re.findall(r'id="activity-(\d+)"', first + second)]
    assert ids == list(range(12, 0, -1))
    assert "Load more" not in second
    await sign_in(page)
    form = Forms((await page.get(found[1])).text).forms["/activities/1/like"]
    liked = await page.post("/activities/1/like", data=form)
    assert heart(liked.text, 1) == ("true", 1)  # back on the page that was left


async def test_an_activity_is_made_with_the_form(page: httpx.AsyncClient) -> None:
    new = {"title": "Tea", "place": "Roof", "starts_at": "2026-05-01T16:00", "capacity": "9"}
    shown = await submit(page, "/activities", new)
    assert "on the board" in shown.text
    assert shown.url.fragment == "activity-13"
    assert "16:00" in shown.text
    assert heart(shown.text, 13) == ("false", 0)


async def test_a_form_that_does_not_fit_comes_back_with_what_was_typed(
    page: httpx.AsyncClient,
) -> None:
    wrong = {"title": "", "place": "Roof", "starts_at": "soon", "capacity": "many"}
    shown = await submit(page, "/activities", wrong)
    assert shown.status_code == 422
    for name in ("title", "starts_at", "capacity"):
        assert f'id="h-{name}"' in shown.text
    assert Forms(shown.text).forms["/activities"]["place"] == "Roof"
    assert len((await page.get("/api/activities")).json()["items"]) == 12


async def test_text_from_people_is_text(page: httpx.AsyncClient) -> None:
    evil = """<script>alert(1)</script>"' onclick=x {{ 7*7 }}"""
    await sign_in(page, "<b>eve</b>")
    new = {"title": evil, "place": evil, "starts_at": "2026-05-01T16:00", "capacity": "9"}
    shown = (await submit(page, "/activities", new)).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "<script>" not in shown
    assert "<b>eve" not in shown
    assert "{{ 7*7 }}" in shown
    again = (await submit(page, "/activities", new | {"capacity": '"><img src=x>'})).text
    assert "<img" not in again


# -- what I like


async def test_my_likes_lists_what_the_visitor_likes_and_nobody_else(
    page: httpx.AsyncClient,
) -> None:
    out = (await page.get("/likes")).text
    assert "/likes" not in Forms(out).links
    form = Forms(out).forms["/sign-in"]
    assert form["from"] == "likes"
    empty = await page.post("/sign-in", data=form | {"name": "ada"})
    assert empty.url.path == "/likes"  # back where the visitor was
    assert "No hearts yet" in empty.text
    for item in (3, 12, 7):
        await submit(page, f"/activities/{item}/like")
        await flushed(page)  # rows are told apart by the time of their flush
    await page.put("/api/activities/5/likes/bob")
    await flushed(page)
    assert "/likes" in Forms((await page.get("/")).text).links
    mine = (await page.get("/likes")).text
    assert re.findall(r'id="activity-(\d+)"', mine) == ["7", "12", "3"]
    assert heart(mine, 7) == ("true", 1)
    form = Forms(mine).forms["/activities/12/like"]
    assert (form["liked"], form["from"]) == ("0", "likes")
    less = await page.post("/activities/12/like", data=form)
    assert less.url.path == "/likes"
    assert re.findall(r'id="activity-(\d+)"', less.text) == ["7", "3"]


async def test_load_more_leads_through_all_that_the_visitor_likes(page: httpx.AsyncClient) -> None:
    await sign_in(page, "ada")
    for item in range(12, 0, -1):
        await page.put(f"/api/activities/{item}/likes/ada")
        await flushed(page)
    first = (await page.get("/likes")).text
    found = re.search(
        r'href="(/likes\?after=[^"]+)"[^>]* hx-get="(/likes/more\?after=[^"]+)"', first
    )
    assert found
    second = (await page.get(found[1])).text
    ids = [int(each) for each in re.findall(r'id="activity-(\d+)"', first + second)]
    assert ids == list(range(1, 13))
    assert "Load more" not in second
    more = (await page.get(found[2], headers=HTMX)).text
    assert "<html" not in more
    assert set(Forms(more).forms) == {"/activities/11/like", "/activities/12/like"}
    form = Forms(second).forms["/activities/11/like"]
    less = await page.post("/activities/11/like", data=form)
    assert str(less.url).startswith(f"{BASE}{found[1]}")  # back on the page that was left
    assert re.findall(r'id="activity-(\d+)"', less.text) == ["12"]
    wrong = await page.get("/likes?after=nonsense")
    assert wrong.status_code == 422


# -- deleting


async def test_an_activity_is_deleted_after_a_question_with_forms_alone(
    page: httpx.AsyncClient,
) -> None:
    await page.put("/api/activities/12/likes/bob")
    assert not [link for link in Forms((await page.get("/")).text).links if "delete" in link]
    await sign_in(page)
    assert "/activities/12/delete" in Forms((await page.get("/")).text).links
    asked = await page.get("/activities/12/delete")
    assert "Metropolis" in asked.text
    assert "does its one like" in asked.text
    assert "/#activity-12" in Forms(asked.text).links
    assert await likes_of(page, 12) == 1  # asking did nothing
    form = Forms(asked.text).forms["/activities/12/delete"]
    assert (await page.post("/activities/12/delete", data=form | {"csrf": "x"})).status_code == 403
    assert await likes_of(page, 12) == 1
    for _ in range(2):  # twice is as good as once
        gone = await page.post("/activities/12/delete", data=form)
        assert gone.status_code == 200
        assert gone.url.path == "/"
        assert "The activity is gone" in gone.text
        assert 'id="activity-12"' not in gone.text
    assert (await page.get("/activities/12/delete")).status_code == 404
    assert (await page.get("/api/activities/12")).status_code == 404


async def test_deleting_leads_back_to_the_list_where_it_began(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    for item in (5, 12):
        await page.put(f"/api/activities/{item}/likes/ada")
    found = [each for each in Forms((await page.get("/likes")).text).links if "delete" in each]
    assert set(found) == {f"/activities/{item}/delete?from=likes" for item in (5, 12)}
    asked = await page.get("/activities/5/delete?from=likes")
    assert "/likes#activity-5" in Forms(asked.text).links
    gone = await page.post(
        "/activities/5/delete", data=Forms(asked.text).forms["/activities/5/delete"]
    )
    assert gone.url.path == "/likes"
    assert re.findall(r'id="activity-(\d+)"', gone.text) == ["12"]
    below = (await page.get("/activities/1/delete?after=3")).text
    assert "/?after=3#activity-1" in Forms(below).links


async def test_a_visitor_without_a_name_deletes_nothing(page: httpx.AsyncClient) -> None:
    shown = await page.get("/activities/12/delete")
    assert shown.url.fragment == "sign-in"
    csrf = Forms(shown.text).forms["/sign-in"]["csrf"]
    answer = await page.post("/activities/12/delete", data={"csrf": csrf})
    assert "Choose a name first" in answer.text
    assert 'id="activity-12"' in answer.text


# -- in place, as the script asks


async def test_a_like_in_place_is_answered_with_that_heart_alone(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    answer = await submit(page, "/activities/12/like", headers=HTMX)
    assert heart(answer.text, 12) == ("true", 1)
    assert "<html" not in answer.text


async def test_the_pulse_brings_only_hearts_that_have_changed(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    seen = [f"{item}.0.0" for item in (12, 11, 10)]
    assert (await page.get("/pulse", params={"seen": seen}, headers=HTMX)).status_code == 204
    await page.put("/api/activities/11/likes/bob")
    await page.put("/api/activities/10/likes/ada")
    fresh = (await page.get("/pulse", params={"seen": seen}, headers=HTMX)).text
    assert set(Forms(fresh).forms) == {"/activities/11/like", "/activities/10/like"}
    assert heart(fresh, 11) == ("false", 1)
    assert heart(fresh, 10) == ("true", 1)
    seen = [form["seen"] for form in Forms(fresh).forms.values()]
    assert (await page.get("/pulse", params={"seen": seen}, headers=HTMX)).status_code == 204


async def test_cards_of_deleted_activities_leave_open_pages(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    form = Forms((await page.get("/")).text).forms["/activities/11/like"]
    for item in (11, 10):
        assert (await page.delete(f"/api/activities/{item}")).status_code == 204
    seen = ["12.0.0", "11.0.0", "10.x"]  # one was shown as unknown while it was being deleted
    fresh = (await page.get("/pulse", params={"seen": seen}, headers=HTMX)).text
    assert re.findall(r'<li id="activity-(\d+)" hx-swap-oob="delete">', fresh) == ["11", "10"]
    assert Forms(fresh).forms == {}
    late = await page.post("/activities/11/like", data=form, headers=HTMX)
    assert late.status_code == 404
    assert '<li id="activity-11" hx-swap-oob="delete">' in late.text


@pytest.mark.parametrize("seen", ["", "x", "1e3.0.0", "-1.0.0", "9" * 30])
async def test_the_pulse_refuses_nonsense(page: httpx.AsyncClient, seen: str) -> None:
    assert (await page.get("/pulse", params={"seen": seen}, headers=HTMX)).status_code == 422


async def test_a_like_in_place_that_fails_leaves_an_unknown_heart_and_a_notice(
    page: httpx.AsyncClient,
) -> None:
    await sign_in(page)
    form = Forms((await page.get("/")).text).forms["/activities/12/like"]
    campus(page).likes = Broken(OutcomeUnknown("lost"))
    answer = await page.post("/activities/12/like", data=form, headers=HTMX)
    assert answer.status_code == 503
    assert answer.headers["hx-retarget"] == "#notice"
    assert "may or may not have been saved" in answer.text
    assert heart(answer.text, 12) == (None, None)


# -- what it refuses


async def test_a_form_without_the_token_of_its_session_changes_nothing(
    page: httpx.AsyncClient,
) -> None:
    await sign_in(page)
    form = Forms((await page.get("/")).text).forms["/activities/12/like"]
    other = httpx.AsyncClient(transport=page._transport, base_url=BASE)
    foreign = Forms((await other.get("/")).text).forms["/activities/12/like"]["csrf"]
    for csrf in ("", "x", foreign):
        answer = await page.post("/activities/12/like", data=form | {"csrf": csrf})
        assert answer.status_code == 403
        assert "Nothing was changed" in answer.text
    assert await likes_of(page, 12) == 0
    for action in ("/activities", "/sign-out", "/sign-in"):
        assert (await page.post(action, data={"name": "eve"})).status_code == 403
    assert (await page.post("/activities/12/like", data=form)).status_code == 200
    assert await likes_of(page, 12) == 1


async def test_a_token_from_before_sign_in_is_worth_nothing_after_it(
    page: httpx.AsyncClient,
) -> None:
    form = Forms((await page.get("/")).text).forms["/activities/12/like"]
    await sign_in(page)
    assert (await page.post("/activities/12/like", data=form)).status_code == 403
    assert await likes_of(page, 12) == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_form_sent_by_another_site_changes_nothing(
    page: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    await sign_in(page)
    answer = await submit(page, "/activities/12/like", headers=headers)
    assert answer.status_code == 403
    assert await likes_of(page, 12) == 0
    own = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
    assert (await submit(page, "/activities/12/like", headers=own)).status_code == 200
    assert await likes_of(page, 12) == 1


async def test_forms_of_another_type_or_size_are_refused(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    answer = await page.post("/activities/12/like", json={"liked": "1"})
    assert answer.status_code == 415
    assert (await submit(page, "/activities", {"title": "x" * 20_000})).status_code == 413
    many = {f"f{number}": "" for number in range(50)}
    assert (await submit(page, "/activities", many)).status_code == 400


async def test_a_forged_or_foreign_cookie_is_nobody(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    cookie = page.cookies["campus"]
    page.cookies.clear()
    # Not its last letter: that one carries two bits which the decoder drops.
    altered = cookie[:-2] + ("A" if cookie[-2] != "A" else "B") + cookie[-1]
    for forged in (altered, "x", "", "é".encode()):
        text = forged if isinstance(forged, str) else forged.decode("latin-1")
        shown = await page.get("/", headers={"Cookie": f"campus={text}".encode("latin-1")})
        assert "/sign-in" in Forms(shown.text).forms
    shown = await page.get("/", headers={"Cookie": f"campus={cookie}"})
    assert "/sign-out" in Forms(shown.text).forms


async def test_the_session_cookie_is_out_of_reach(page: httpx.AsyncClient) -> None:
    cookie = (await page.get("/")).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie
    page.cookies.clear()
    over_tls = await page.get("https://localhost/")
    assert "Secure" in over_tls.headers["set-cookie"]


async def test_the_signing_key_is_for_its_owner_alone(
    page: httpx.AsyncClient, settings: Settings
) -> None:
    assert (settings.data / "secret").stat().st_mode & 0o777 == 0o600
    assert settings.data.stat().st_mode & 0o777 == 0o700


async def test_with_a_token_the_page_shows_nothing_before_it_was_given(settings: Settings) -> None:
    async with open_app(replace(settings, token="open sesame")) as client:
        page = as_browser(client)
        closed = (await page.get("/")).text
        assert "Metropolis" not in closed
        assert set(Forms(closed).forms) == {"/sign-in"}
        assert set(Forms((await page.get("/likes")).text).forms) == {"/sign-in"}
        for path in ("/more", "/likes/more", "/pulse", "/activities/12/delete"):
            assert (await page.get(path)).status_code == 401
        csrf = Forms(closed).forms["/sign-in"]["csrf"]
        for action in ("/activities/12/like", "/activities/12/delete", "/activities"):
            assert (await page.post(action, data={"csrf": csrf})).status_code == 401
        wrong = await sign_in(page, token="open says me")
        assert wrong.status_code == 403
        assert 'id="h-token"' in wrong.text
        assert "Metropolis" not in wrong.text
        opened = await sign_in(page, token="open sesame")
        assert "Metropolis" in opened.text
        assert heart((await submit(page, "/activities/12/like")).text, 12) == ("true", 1)
        out = await submit(page, "/sign-out")
        assert "Metropolis" in out.text  # the token is asked for once
        cookie = page.cookies["campus"]
    async with open_app(replace(settings, token="another word")) as client:
        shown = await client.get("/", headers={"Cookie": f"campus={cookie}"})
        assert "Metropolis" not in shown.text


async def test_every_answer_carries_the_security_headers(page: httpx.AsyncClient) -> None:
    for path in ("/", "/nowhere", "/static/campus.css", "/api/activities", "/pulse?seen=x"):
        headers = (await page.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-frame-options"] == "DENY"
    assert (await page.get("/")).headers["cache-control"] == "no-store"


async def test_the_page_needs_nothing_that_its_policy_forbids(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    for path in ("/", "/likes", "/activities/12/delete"):
        shown = (await page.get(path)).text
        assert "style=" not in shown
        assert "<style" not in shown
        assert not re.search(r"\son\w+=", shown)
        assert not re.search(r"<script(?![^>]* src=)", shown)
        assert not re.search(r"""(?:src|href|action)="(?!/|#)""", shown)


async def test_a_host_that_is_not_ours_gets_no_page(page: httpx.AsyncClient) -> None:
    answer = await page.get("/", headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert "Metropolis" not in answer.text
    assert "set-cookie" not in answer.headers


# -- when parts fail


async def test_what_is_unknown_is_shown_as_unknown(tmp_path: Path, settings: Settings) -> None:
    with ServerProcess("valkey", aof="always") as server:
        async with open_app(replace(settings, url=server.url, budget=1.0)) as client:
            page = as_browser(client)
            await sign_in(page)
            assert heart((await submit(page, "/activities/12/like")).text, 12) == ("true", 1)
            form = Forms((await page.get("/")).text).forms["/activities/12/like"]
            server.kill()
            shown = await page.get("/")
            assert shown.status_code == 200
            assert "can’t be shown right now" in shown.text
            assert heart(shown.text, 12) == (None, None)
            assert "disabled" in Forms(shown.text).buttons["/activities/12/like"]
            failed = await page.post("/activities/12/like", data=form | {"liked": "0"})
            assert failed.status_code == 503
            assert failed.headers["content-type"].startswith("text/html")
            assert "does not answer" in failed.text
            pulse = await page.get("/pulse", params={"seen": "12.1.1"}, headers=HTMX)
            assert heart(pulse.text, 12) == (None, None)


async def test_errors_are_pages_for_people_and_json_for_programs(page: httpx.AsyncClient) -> None:
    lost = await page.get("/nowhere")
    assert lost.status_code == 404
    assert "<h1>Not found</h1>" in lost.text
    plain = await page.get("/nowhere", headers={"Accept": "*/*"})
    assert plain.headers["content-type"] == "application/problem+json"
    campus(page).activities = Broken(RuntimeError("a secret detail"))
    broken = await page.get("/")
    assert broken.status_code == 500
    assert "secret" not in broken.text
    assert "in the log as" in broken.text


async def test_a_like_that_fails_is_a_page_that_says_what_is_safe(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    form = Forms((await page.get("/")).text).forms["/activities/12/like"]
    campus(page).likes = Broken(Unavailable("gone"))
    answer = await page.post("/activities/12/like", data=form)
    assert answer.status_code == 503
    assert "Nothing was changed" in answer.text
    assert answer.headers["retry-after"] == "1"


# -- static files


def test_vendored_files_are_what_they_are_said_to_be() -> None:
    vendored: dict[str, dict[str, Any]] = json.loads((STATIC / "vendored.json").read_text())
    ours = {"campus.css", "campus.js", "icon.svg", "vendored.json"}
    assert {path.name for path in STATIC.iterdir()} == ours | vendored.keys()
    for name, said in vendored.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == said["sha256"], name
        assert said["name"]
        assert said["version"]
        assert said["licence"]
        assert said.get("licence_file", name) in vendored


async def test_static_files_may_be_kept_since_their_address_changes_with_them(
    page: httpx.AsyncClient,
) -> None:
    shown = (await page.get("/")).text
    links = re.findall(r'"(/static/[^"]+)"', shown)
    assert len(links) == 4
    for link in links:
        answer = await page.get(link)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert "immutable" not in (await page.get("/static/campus.css")).headers["cache-control"]
    for path in ("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py"):
        assert (await page.get(path)).status_code == 404
