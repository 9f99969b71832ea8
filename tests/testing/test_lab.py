"""The lab: the usual code fails where it is told to fail, and ours does not."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from fencepost.cli import main
from fencepost.testing import PlayError, ScratchServer
from fencepost.testing.lab import STORIES, Column, Performed, Story, peers, run
from fencepost.testing.lab.page import as_data, render
from support.require import require
from support.servers import find_binary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

SENTINEL_FAILS = {"R1", "R2", "R3", "R25"}


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer() as server:
        yield server


def of(kind: str) -> list[Any]:
    """Every column of a kind, as parameters."""
    return [
        pytest.param(story, column, id=f"{story.name}:{column.name}")
        for story in STORIES.values()
        for column in story.columns
        if column.kind == kind
    ]


def play(server: ScratchServer, story: Story, column: Column) -> Performed:
    [performed] = run(story, server.url, lambda one: one is column)
    return performed


@pytest.mark.parametrize(("story", "column"), of("ours"))
def test_ours_comes_out_right(scratch: ScratchServer, story: Story, column: Column) -> None:
    performed = play(scratch, story, column)
    assert performed.verdict.holds, performed.verdict.text


@pytest.mark.parametrize(("story", "column"), of("usual"))
def test_the_usual_code_fails(scratch: ScratchServer, story: Story, column: Column) -> None:
    performed = play(scratch, story, column)
    assert not performed.verdict.holds, performed.verdict.text


def test_the_sentinel_mends_the_last_unlike_and_nothing_else(scratch: ScratchServer) -> None:
    """It keeps the set of nobody alive. Whether the set is *right* is another question: R1, R2, R3, R25."""
    with_sentinel = {
        story.race or story.name: play(scratch, story, column).verdict.holds
        for story in STORIES.values()
        for column in story.columns
        if column.name == "sentinel"
    }
    assert with_sentinel == {"last-unlike": True, **dict.fromkeys(SENTINEL_FAILS, False)}


@pytest.mark.parametrize(
    ("story", "column"), [one for one in of("fix") if "sentinel" not in str(one.id)]
)
def test_the_other_usual_fixes_fail_too(
    scratch: ScratchServer, story: Story, column: Column
) -> None:
    assert not play(scratch, story, column).verdict.holds


def test_every_step_is_noted_with_what_it_left(scratch: ScratchServer) -> None:
    story = STORIES["last-unlike"]
    for performed in run(story, scratch.url):
        schedule = performed.column.schedule.split()
        assert [f"{beat.actor}.{beat.step}" for beat in performed.beats[1:]] == schedule
        assert all(beat.note and beat.picture for beat in performed.beats)
        first, last = performed.beats[0].picture, performed.beats[-1].picture
        assert first["SQL rows"] == last["SQL rows"] == "{ann}"  # nothing was flushed


def test_a_schedule_that_does_not_fit_is_no_verdict(scratch: ScratchServer) -> None:
    story = STORIES["last-unlike"]
    stale = Column(
        name="stale",
        kind="usual",
        title="",
        by="",
        schedule="ann.fill",
        scene=story.columns[0].scene,
    )
    with pytest.raises(PlayError, match=r"ann waits at 'exists'"):
        play(scratch, Story(name="", title="", sense="", columns=(stale,)), stale)


# -- the command


def lab(*options: str) -> Any:
    require("valkey", find_binary("valkey") is not None)
    return CliRunner().invoke(main, ["lab", *options])


def test_the_command_shows_columns_and_ends_with_0_when_ours_holds() -> None:
    told = lab("zombie-flusher", "last-unlike")
    assert told.exit_code == 0, told.output
    for words in ("the usual code", "the usual fix", "fencepost", "✗", "✓", "zombie commit"):
        assert words in told.output


def test_json_holds_every_step() -> None:
    told = json.loads(lab("lost-reply", "--json").output)
    columns = {one["name"]: one for one in told[0]["columns"]}
    assert columns["defaults"]["beats"][-1]["picture"]["count"] == "2"  # redis-py sent it twice
    assert columns["fencepost"]["beats"][-1]["picture"]["count"] == "1"


def test_against_a_library_prints_who_fails_with_the_schedule() -> None:
    told = lab("last-unlike", "--against", "redis-py")
    assert told.exit_code == 1
    assert "ann.exists ann.unlike page.exists page.select page.fill page.show" in told.output
    assert "1 of 2 designs on redis-py came out right" in told.output
    assert lab("last-unlike", "--against", "fencepost").exit_code == 0


@pytest.mark.parametrize("library", ["theine", "arq"])
def test_a_library_without_an_adapter_is_said_to_have_none(library: str) -> None:
    told = lab("--against", library)
    assert told.exit_code == 2
    assert f"there is no adapter for {library} yet" in told.output


# -- other people's caches

STAMPEDE = {"redis-py", "aiocache", "dogpile.cache", "django-redis"}
"""Whose locks end before a load that is slow, and let the next one load beside it."""


def of_peers(*libraries: str) -> list[Any]:
    return [
        pytest.param(story, column, id=f"{story.name}:{column.name}")
        for story in STORIES.values()
        for column in story.peers
        if column.name in libraries
    ]


@pytest.mark.parametrize(("story", "column"), of_peers("redis-py"))
def test_a_library_is_played_in_processes_of_its_own(
    scratch: ScratchServer, story: Story, column: Column
) -> None:
    """redis-py's own lock is there wherever fencepost is."""
    performed = play(scratch, story, column)
    assert not performed.verdict.holds, performed.verdict.text
    schedule = column.schedule.split()
    assert [f"{beat.actor}.{beat.step}" for beat in performed.beats[1:]] == schedule


@pytest.mark.slow
@pytest.mark.parametrize(("story", "column"), of_peers(*set(peers.MODULES) - {"redis-py"}))
def test_what_other_libraries_do(scratch: ScratchServer, story: Story, column: Column) -> None:
    try:
        peers.python_of(column.name)
    except peers.NoPeer as error:
        require("peers", False, str(error))
    fails = story.name != "stampede" or column.name in STAMPEDE
    performed = play(scratch, story, column)
    assert performed.verdict.holds is not fails, performed.verdict.text


def test_against_a_library_that_is_not_there_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "places", lambda: [tmp_path])
    monkeypatch.setitem(peers.MODULES, "dogpile.cache", "no_module_of_this_name")
    told = lab("paused-loader", "--against", "dogpile")
    assert told.exit_code == 1
    assert "'python -m benches.peers dogpile.cache' makes an environment" in told.output


def test_against_a_library_prints_each_failure_with_its_schedule() -> None:
    told = lab("invalidated-load", "--against", "redis-py")
    assert told.exit_code == 1
    assert "reader.get writer.save writer.forget reader.end" in told.output
    assert "0 of 3 designs on redis-py came out right" in told.output


def test_an_unknown_story_is_said_to_be_unknown() -> None:
    told = lab("nonsense")
    assert told.exit_code == 1
    assert "there is no story nonsense; there are last-unlike" in told.output


# -- the page


def test_no_text_of_a_story_ends_the_script() -> None:
    page = render([{"title": "</script><script>alert(1)</script>"}])
    assert page.count("</script>") == 2
    assert "<script>alert" not in page


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = render([]).replace("http://www.w3.org/2000/svg", "")
    for outside in ("http:", "https:", "src=", "@import", "url("):
        assert outside not in page


@pytest.fixture(scope="module")
def page_file(scratch: ScratchServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    told = {name: run(STORIES[name], scratch.url) for name in ("last-unlike", "rpop-crash")}
    path = tmp_path_factory.mktemp("lab") / "lab.html"
    path.write_text(render(as_data(told, STORIES)), encoding="utf-8")
    return path


@pytest.fixture
def page(page_file: Path) -> Iterator[Page]:
    """The page in a browser without a network; a complaint of it fails the test."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    require("browser", chromium is not None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(offline=True)
        page, complaints = context.new_page(), list[str]()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(page_file.as_uri())
        yield page
        browser.close()
        assert complaints == []


@pytest.mark.browser
def test_the_page_steps_with_keys_and_buttons(page: Page) -> None:
    from playwright.sync_api import expect

    cards = page.locator(".card")
    expect(cards).to_have_count(3)
    expect(page.locator("#at")).to_have_text("step 0 of 6")
    page.keyboard.press("ArrowRight")
    page.get_by_label("One step on").click()
    expect(page.locator("#at")).to_have_text("step 2 of 6")
    expect(cards.nth(0).locator(".note b")).to_have_text("ann.unlike")
    expect(cards.nth(0).locator("tr.changed")).to_have_text(["likersno key", "queue[ann:0]"])
    expect(cards.nth(2)).to_have_class("card ours good")  # two steps are all it takes
    page.keyboard.press("End")
    expect(cards.nth(0)).to_have_class("card usual bad")
    expect(cards.nth(0).locator(".verdict")).to_contain_text("the unlike is undone")
    expect(cards.nth(1)).to_have_class("card fix good")
    page.keyboard.press("ArrowDown")
    expect(page.locator("h2")).to_contain_text("A worker dies")
    expect(page.locator("#at")).to_have_text("step 0 of 14")
    page.get_by_label("Play", exact=True).click()
    expect(page.locator("#at")).not_to_have_text("step 0 of 14")
    page.get_by_label("Pause").click()
    page.locator(".card").nth(1).locator(".beat").nth(4).click()
    expect(page.locator("#at")).to_have_text("step 5 of 14")
    assert page.url.endswith("#rpop-crash/5")


@pytest.mark.browser
def test_the_page_is_light_and_dark(page: Page) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = []
    for theme in ("light", "dark"):
        page.locator("#theme").click()
        assert page.locator("html").get_attribute("data-theme") == theme
        colours.append(page.evaluate(paper))
    assert colours[0] != colours[1]
