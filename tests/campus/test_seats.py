"""Seats are held for a while, never more than there are; reminders come in the activity's own time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select

from campus.running import Forms, eventually, open_app
from fencepost.campus import seats as module
from fencepost.campus.seats import Rule
from fencepost.campus.tables import notices, seats
from fencepost.jobs import outbox
from fencepost.jobs.inspect import listed

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from fencepost.campus.settings import Settings

TOMORROW = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


def campus(api: httpx.AsyncClient) -> Any:
    return api.app.state.campus  # type: ignore[attr-defined]


def rows(api: httpx.AsyncClient, table: Any) -> list[Any]:
    with campus(api).desk._engine.connect() as connection:
        return list(connection.execute(select(table)))


async def make(api: httpx.AsyncClient, **fields: Any) -> int:
    new = {"title": "Chess", "place": "Café Turing", "starts_at": TOMORROW.isoformat()}
    made = await api.post("/api/activities", json=new | {"capacity": 2} | fields)
    return int(made.json()["id"])


async def settled(api: httpx.AsyncClient) -> None:
    """What was to happen by now has happened."""
    desk = campus(api).desk

    async def done() -> bool:
        with desk._engine.connect() as connection:
            waits = outbox.backlog(connection)[0]
        figures = await desk.queue.count()
        return waits == 0 and not figures.ready and not figures.running and not figures.overdue

    await eventually(done)


# -- seats


async def test_a_seat_is_held_confirmed_and_given_back(api: httpx.AsyncClient) -> None:
    item = await make(api)
    url = f"/api/activities/{item}/seats"
    held = await api.put(f"{url}/ada")
    assert (held.status_code, held.json()["state"]) == (200, "held")
    left = datetime.fromisoformat(held.json()["until"]) - datetime.now(UTC)
    assert timedelta(minutes=8) < left <= timedelta(minutes=10)
    assert (await api.put(f"{url}/ada")).json() == held.json()  # once more prolongs nothing
    assert (await api.get(url)).json() == {"capacity": 2, "held": 1, "taken": 0, "free": 1}
    for _ in range(2):
        taken = await api.put(f"{url}/ada/confirmation")
        assert taken.json() == {"state": "taken", "until": None}
    assert (await api.put(f"{url}/ada")).json()["state"] == "taken"
    assert (await api.put(f"{url}/bob")).status_code == 200
    full = await api.put(f"{url}/eve")
    assert (full.status_code, full.json()["type"]) == (409, "/problems/full")
    assert (await api.get(url)).json() == {"capacity": 2, "held": 1, "taken": 1, "free": 0}
    for _ in range(2):
        assert (await api.delete(f"{url}/ada")).status_code == 204
    assert (await api.put(f"{url}/eve")).status_code == 200
    over = await api.put(f"{url}/ada/confirmation")
    assert (over.status_code, over.json()["type"]) == (409, "/problems/hold-over")
    for method, path in (("PUT", "4711/seats/ada"), ("GET", "4711/seats"), ("PUT", "x/seats/ada")):
        answer = await api.request(method, f"/api/activities/{path}")
        assert answer.status_code == (422 if "x/" in path else 404)
    await api.delete(f"/api/activities/{item}")
    assert [row for row in rows(api, seats) if row.activity_id == item] == []


async def test_a_hold_that_nobody_confirms_comes_free(settings: Settings) -> None:
    async with open_app(replace(settings, hold=0.05)) as api:
        url = f"/api/activities/{await make(api, capacity=1)}/seats"
        await api.put(f"{url}/ada")

        async def free() -> bool:
            return bool((await api.get(url)).json()["free"] == 1)

        await eventually(free)
        assert (await api.put(f"{url}/ada/confirmation")).status_code == 409


async def test_the_job_of_an_old_hold_releases_no_other(settings: Settings) -> None:
    """Confirmed meanwhile, or given back and held again: its job runs, and changes nothing."""
    async with open_app(replace(settings, hold=600.0)) as api:
        desk = campus(api).desk
        item = await make(api)
        url = f"/api/activities/{item}/seats"
        for user in ("ada", "bob"):
            await api.put(f"{url}/{user}")
        old = {row.user_id: row.hold for row in rows(api, seats)}
        await api.put(f"{url}/ada/confirmation")
        await api.delete(f"{url}/bob")
        await api.put(f"{url}/bob")
        for user, name in old.items():
            await desk.release.send(item, user, name)
        await settled(api)
        assert (await api.get(url)).json() == {"capacity": 2, "held": 1, "taken": 1, "free": 0}
        # And the one it was made for does.
        current = {row.user_id: row.hold for row in rows(api, seats)}
        await desk.release.send(item, "bob", current["bob"])
        await settled(api)
        assert (await api.get(url)).json()["free"] == 1


async def crowd(api: httpx.AsyncClient, item: int, users: int) -> dict[int, int]:
    """Many ask at once; how often each status was answered."""
    url = f"/api/activities/{item}/seats"
    answers = await asyncio.gather(*[api.put(f"{url}/u{n}") for n in range(users)])
    codes = [one.status_code for one in answers]
    return {code: codes.count(code) for code in set(codes)}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_crowd_gets_as_many_seats_as_there_are(
    settings: Settings, database: str, request: pytest.FixtureRequest
) -> None:
    if database == "postgres":
        settings = replace(settings, database=request.getfixturevalue("postgres_url"))
    async with open_app(settings) as api:
        item = await make(api, capacity=5)
        assert await crowd(api, item, 24) == {200: 5, 409: 19}
        assert len(rows(api, seats)) == 5


async def test_counting_without_the_lock_oversells(
    settings: Settings, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: two that counted before either inserted both fit."""

    def unlocked(connection: Any, activity_id: int) -> Any:
        table = module.activities
        query = select(table.c.capacity, table.c.starts_at).where(table.c.id == activity_id)
        return connection.execute(query).one()

    monkeypatch.setattr(module, "_locked", unlocked)
    async with open_app(replace(settings, database=postgres_url)) as api:
        for _ in range(50):
            item = await make(api, capacity=1)
            codes = await crowd(api, item, 8)
            if codes[200] > 1:
                return
    raise AssertionError("the lock is not missed")


# -- reminders


def test_a_reminder_is_due_by_the_activitys_own_clock() -> None:
    starts = datetime(2026, 3, 8, 23, 0, tzinfo=UTC)  # 19:00 in New York, the day that has 23 hours
    for rule, due in (
        (Rule("America/New_York", 1, "18:00"), "2026-03-07 23:00"),
        (Rule("America/New_York", 0, "09:00"), "2026-03-08 13:00"),
        (Rule("America/New_York", 0, "02:30"), "2026-03-08 07:30"),  # jumped over: 03:30 there
        (Rule("Asia/Tokyo", 1, "18:00"), "2026-03-08 09:00"),  # there it begins on the 9th
        (Rule("UTC", 30, "00:00"), "2026-02-06 00:00"),
    ):
        assert f"{rule.due(starts):%Y-%m-%d %H:%M}" == due


async def reminders_of(api: httpx.AsyncClient) -> list[float]:
    """When the reminders are due that wait."""
    desk = campus(api).desk
    await settled(api)
    found = await listed(campus(api).client.port, desk.queue._place, "due", 100)
    return [one.at for one in found if one.task == "remind"]


RULE = {"zone": "America/New_York", "days": 1, "at": "18:00"}


async def test_a_reminder_moves_and_ends_with_its_activity(api: httpx.AsyncClient) -> None:
    start = datetime(2027, 3, 14, 18, tzinfo=UTC)
    item = await make(api, starts_at=start.isoformat())
    url = f"/api/activities/{item}"
    answer = await api.put(f"{url}/reminder", json=RULE)
    assert answer.json() == {**RULE, "due": "2027-03-13T23:00:00Z"}
    assert await reminders_of(api) == [datetime(2027, 3, 13, 23, tzinfo=UTC).timestamp()]
    # A day later New York's clock has changed.
    await api.patch(url, json={"starts_at": (start + timedelta(days=2)).isoformat()})
    assert await reminders_of(api) == [datetime(2027, 3, 15, 22, tzinfo=UTC).timestamp()]
    await api.put(f"{url}/reminder", json={**RULE, "at": "19:00"})
    assert await reminders_of(api) == [datetime(2027, 3, 15, 23, tzinfo=UTC).timestamp()]
    await api.delete(url)
    assert await reminders_of(api) == []
    assert (await campus(api).desk.queue.count()).dead == 0


async def test_who_has_a_seat_is_reminded_once_for_each_time(api: httpx.AsyncClient) -> None:
    item = await make(api, capacity=10)
    url = f"/api/activities/{item}"
    for user in ("ada", "bob", "eve"):
        await api.put(f"{url}/seats/{user}")
        await api.put(f"{url}/seats/{user}/confirmation")
    await api.put(f"{url}/seats/max")  # held, not confirmed
    await api.delete(f"{url}/seats/eve")
    rule = {"zone": "UTC", "days": 30, "at": "00:00"}  # long past, so it comes at once
    for _ in range(3):
        await api.put(f"{url}/reminder", json=rule)
        await settled(api)
    assert sorted(row.user_id for row in rows(api, notices)) == ["ada", "bob"]
    later = TOMORROW + timedelta(hours=1)
    await api.patch(url, json={"starts_at": later.isoformat()})
    await settled(api)
    items = (await api.get("/api/users/ada/notices")).json()["items"]
    starts = {datetime.fromisoformat(one["starts_at"]) for one in items}
    assert starts == {TOMORROW, later}
    assert all((one["activity"], one["title"]) == (item, "Chess") for one in items)
    assert (await api.get("/api/users/eve/notices")).json() == {"items": []}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"zone": 7}, "zone"),
        ({"days": -1}, "days"),
        ({"days": True}, "days"),
        ({"at": "24:00"}, "at"),
        ({"at": "6 pm"}, "at"),
        ({"why": "so"}, "why"),
    ],
)
async def test_a_reminder_that_does_not_fit_is_told_by_field(
    api: httpx.AsyncClient, change: dict[str, Any], field: str
) -> None:
    answer = await api.put("/api/activities/1/reminder", json=RULE | change)
    assert answer.status_code == 422
    assert [one["field"] for one in answer.json()["errors"]] == [field]
    assert (await api.put("/api/activities/4711/reminder", json=RULE)).status_code == 404


# -- the page


async def test_the_page_of_seats(api: httpx.AsyncClient) -> None:
    item = await make(api, capacity=1)
    board = Forms((await api.get("/")).text)
    csrf = board.forms["/sign-in"]
    page = await api.get(f"/activities/{item}/seat", follow_redirects=True)
    assert "Choose a name first, then hold a seat." in page.text
    await api.post("/sign-in", data={**csrf, "name": "ada"})
    board = Forms((await api.get("/")).text)
    [link] = [one for one in board.links if one == f"/activities/{item}/seat"]
    page = await api.get(link)
    assert "1 of 1 is free." in page.text

    async def press(act: str) -> str:
        form = Forms((await api.get(link)).text).forms[link]
        answer = await api.post(link, data={**form, "act": act}, follow_redirects=True)
        assert answer.status_code == 200
        return answer.text

    assert "The seat is held for you." in await press("hold")
    text = await press("confirm")
    assert "The seat is yours." in text
    assert "You have a seat." in text
    assert "The seat is free again." in await press("give-back")
    assert "was not held any more" in await press("confirm")
    await api.put(f"/api/activities/{item}/seats/bob")
    assert "All seats are taken or held." in await press("hold")
    assert 'value="hold" disabled' in (await api.get(link)).text
    form = Forms((await api.get(link)).text).forms[link]
    assert (await api.post(link, data={**form, "act": "dance"})).status_code == 422
    assert (
        await api.post(link, data={"act": "hold"})
    ).status_code == 403  # without the page's token


async def test_metrics_tell_of_the_desk(settings: Settings) -> None:
    async with open_app(replace(settings, hold=0.05)) as api:
        await api.put(f"/api/activities/{await make(api)}/seats/ada")
        await settled(api)

        async def told() -> bool:
            text = (await api.get("/metrics")).text
            return "fencepost_jobs_done_total 1.0" in text

        await eventually(told)
        text = (await api.get("/metrics")).text
        assert 'fencepost_jobs_queue{state="due"} 0.0' in text
        assert "fencepost_jobs_late_seconds 0.0" in text
        assert "fencepost_jobs_refused_total 0.0" in text


async def test_a_campus_without_a_desk_holds_seats_and_leaves_the_rest_to_others(
    settings: Settings, tmp_path: Path
) -> None:
    async with open_app(replace(settings, desk=False, hold=0.05)) as api:
        url = f"/api/activities/{await make(api)}/seats"
        await api.put(f"{url}/ada")
        with campus(api).desk._engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(outbox.outbox)).scalar() == 1
        async with open_app(replace(settings, hold=0.05)) as other:

            async def free() -> bool:
                return bool((await other.get(url)).json()["held"] == 0)

            await eventually(free)
