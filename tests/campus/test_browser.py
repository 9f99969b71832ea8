"""The page in a real browser: the heart that was emptied stays empty, with a script and without."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from campus.running import Serve
from support.require import require
from support.servers import find_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Locator

pytestmark = pytest.mark.browser

ROUNDS = 25
ROUNDS_WITHOUT_SCRIPT = 5  # nothing there is asynchronous: each round is the same four requests
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PULSE_MS = 4_000
PHONE = {"width": 360, "height": 740}
REPORT_CSP = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error("CSP", event.violatedDirective, event.blockedURI));
"""


@pytest.fixture(scope="module")  # its event loop must end before other tests begin theirs
def browser() -> Iterator[Browser]:
    require("browser", CHROMIUM is not None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    require("valkey", find_binary("valkey") is not None)
    process = Serve("--data", str(tmp_path_factory.mktemp("campus") / "data"))
    complained = ""
    try:
        yield process
    finally:
        complained = process.kill()
    assert "unexpected error" not in complained, complained


@dataclass
class Visitor:
    """Somebody at the page, and everything that went wrong in their browser."""

    page: Page
    service: Serve
    faults: list[str] = field(default_factory=list)

    def sign_in(self, name: str) -> None:
        self.page.goto(self.service.url)
        self.page.get_by_label("Your name").fill(name)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("button", name="Sign out")).to_be_visible()
        # Before its script runs, a form goes the way of a page without one: a new page.
        self.page.wait_for_load_state("load")

    def later(self) -> None:
        """Let the page's own clock pass to its next pulse."""
        self.page.clock.fast_forward(PULSE_MS)

    def heart(self, item: int) -> Locator:
        return self.page.locator(f"#heart-{item}")

    def sees(self, item: int, liked: bool | None, count: str) -> None:
        """Wait until the heart shows this."""
        pressed = {True: "true", False: "false"}
        if liked is None:
            expect(self.heart(item)).to_have_attribute("data-state", "unknown")
        else:
            expect(self.heart(item)).to_have_attribute("aria-pressed", pressed[liked])
        expect(self.heart(item).locator(".count")).to_have_text(count)

    def shows(self, item: int, liked: bool, count: str) -> None:
        """The heart shows this now, without waiting."""
        assert self.heart(item).get_attribute("aria-pressed") == str(liked).lower()
        assert self.heart(item).locator(".count").inner_text() == count


@pytest.fixture
def visit(browser: Browser, service: Serve) -> Callable[..., Any]:
    """``with visit(options of a browser context) as visitor``; a fault in the page fails the test.

    With ``clock`` the test can move the page's clock on.
    """

    @contextmanager
    def visit(*, forgive: bool = False, clock: bool = False, **options: Any) -> Iterator[Visitor]:
        context = browser.new_context(**options)
        if clock:
            context.clock.install()  # runs as clocks do, until a test moves it on
        context.add_init_script(REPORT_CSP)
        visitor = Visitor(context.new_page(), service)
        visitor.page.on(
            "console",
            lambda said: visitor.faults.append(said.text) if said.type == "error" else None,
        )
        visitor.page.on("pageerror", lambda error: visitor.faults.append(str(error)))
        try:
            yield visitor
            assert forgive or visitor.faults == []
        finally:
            context.close()

    return visit


@pytest.fixture
def item(service: Serve) -> int:
    """A new activity, at the top of the board."""
    return make(service, "Tea on the roof")


def make(service: Serve, title: str) -> int:
    new = {"title": title, "place": "Roof", "starts_at": "2026-05-01T16:00Z", "capacity": 9}
    with service.client() as client:
        return int(client.post("/api/activities", json=new).json()["id"])


def in_api(service: Serve, item: int, user: str) -> tuple[bool, int]:
    with service.client() as client:
        shown = client.get(f"/api/activities/{item}", params={"user": user}).json()
    return shown["liked"], shown["like_count"]


@pytest.mark.parametrize(
    ("script", "rounds"),
    [(True, ROUNDS), (False, ROUNDS_WITHOUT_SCRIPT)],
    ids=["script", "no-script"],
)
def test_the_last_like_taken_back_stays_taken_back_over_reloads(
    visit: Callable[..., Any], item: int, service: Serve, script: bool, rounds: int
) -> None:
    with visit(java_script_enabled=script) as visitor:
        visitor.sign_in(f"ada {script}")
        visitor.sees(item, False, "0")
        for _ in range(rounds):
            visitor.heart(item).click()
            visitor.sees(item, True, "1")
            visitor.page.reload()
            visitor.shows(item, True, "1")
            visitor.heart(item).click()
            visitor.sees(item, False, "0")
            for _ in range(2):
                visitor.page.reload()
                visitor.shows(item, False, "0")
        assert in_api(service, item, f"ada {script}") == (False, 0)


def test_a_like_from_elsewhere_arrives_without_a_reload(
    visit: Callable[..., Any], item: int, service: Serve
) -> None:
    with visit(clock=True) as visitor, service.client() as client:
        visitor.sign_in("ada")
        visitor.sees(item, False, "0")
        client.put(f"/api/activities/{item}/likes/bob")
        visitor.later()
        visitor.sees(item, False, "1")
        client.put(f"/api/activities/{item}/likes/ada")
        visitor.later()
        visitor.sees(item, True, "2")
        client.delete(f"/api/activities/{item}/likes/ada")
        visitor.later()
        visitor.sees(item, False, "1")


def test_however_wild_the_clicks_the_heart_ends_as_the_server_has_it(
    visit: Callable[..., Any], item: int
) -> None:
    with visit() as visitor:
        visitor.sign_in("ada")
        for _ in range(3):
            for _ in range(4):
                visitor.heart(item).dblclick(no_wait_after=True)
            visitor.heart(item).evaluate("heart => { for (let n = 0; n < 7; n++) heart.click() }")
            expect(visitor.page.locator(".htmx-request")).to_have_count(0)
            agree(visitor, item, "ada")


def test_a_reload_in_the_middle_of_a_click_ends_as_the_server_has_it(
    visit: Callable[..., Any], item: int
) -> None:
    with visit(forgive=True) as visitor:
        visitor.sign_in("ada")
        for _ in range(5):
            visitor.heart(item).evaluate("heart => heart.click()")
            visitor.page.reload()
            expect(visitor.heart(item)).to_have_attribute("aria-pressed", re.compile("."))
        agree(visitor, item, "ada")


def agree(visitor: Visitor, item: int, user: str) -> None:
    """Wait until the page shows what the server has."""
    heart = visitor.heart(item)
    deadline = time.monotonic() + 30
    while True:
        pressed, count = heart.get_attribute("aria-pressed"), heart.locator(".count").inner_text()
        liked, likes = in_api(visitor.service, item, user)
        if (pressed, count) == (str(liked).lower(), str(likes)):
            return
        assert time.monotonic() < deadline, f"{pressed} {count} in the page, {liked} {likes} there"


def test_a_heart_works_by_keyboard_and_keeps_the_focus(
    visit: Callable[..., Any], item: int
) -> None:
    with visit() as visitor:
        visitor.sign_in("ada")
        visitor.heart(item).focus()
        for liked, count in ((True, "1"), (False, "0"), (True, "1")):
            visitor.page.keyboard.press("Enter")
            visitor.sees(item, liked, count)
            expect(visitor.heart(item)).to_be_focused()


PRESS_AT_ONCE = """async item => {
  const heart = () => document.getElementById(`heart-${item}`);
  window.mark = "this page";
  await new Promise(done => {
    const again = () => setTimeout(() => { heart().click(); done(); });
    document.addEventListener("htmx:afterSwap", again, {once: true});
    heart().click();
  });
}"""


@pytest.mark.parametrize("settles", [None, 20])
def test_a_heart_that_was_just_swapped_in_is_clicked_without_a_new_page(
    visit: Callable[..., Any], item: int, settles: int | None
) -> None:
    """What was swapped in is bound at once; with the time that htmx takes by default, a click that comes
    before goes the way of a page without script, and the focus is lost."""
    with visit() as visitor:
        visitor.sign_in("ada")
        if settles is not None:
            visitor.page.evaluate("ms => { htmx.config.defaultSettleDelay = ms }", settles)
        visitor.page.evaluate(PRESS_AT_ONCE, item)
        visitor.sees(item, False, "0")
        visitor.page.wait_for_load_state("load")
        assert visitor.page.evaluate("window.mark ?? ''") == ("" if settles else "this page")


def test_without_an_answer_the_heart_is_unknown_until_there_is_one(
    visit: Callable[..., Any], item: int
) -> None:
    with visit(forgive=True) as visitor:
        visitor.sign_in("ada")
        visitor.sees(item, False, "0")
        visitor.page.context.set_offline(True)
        visitor.heart(item).click()
        visitor.sees(item, None, "?")
        expect(visitor.page.locator("#offline")).to_be_visible()
        visitor.page.context.set_offline(False)
        visitor.sees(item, False, "0")
        expect(visitor.page.locator("#offline")).to_be_hidden()


def test_load_more_adds_cards_whose_hearts_work(visit: Callable[..., Any], service: Serve) -> None:
    with visit(clock=True) as visitor:
        visitor.sign_in("ada")
        expect(visitor.heart(1)).to_have_count(0)
        while visitor.heart(1).count() == 0:
            shown = visitor.page.locator(".card").count()
            visitor.page.get_by_text("Load more").click()
            expect(visitor.page.locator(".card").nth(shown)).to_be_attached()
        visitor.heart(1).click()
        visitor.sees(1, True, "1")
        with service.client() as client:
            client.put("/api/activities/1/likes/bob")
        visitor.later()
        visitor.sees(1, True, "2")
        cards = visitor.page.locator(".card")
        ids = cards.evaluate_all("all => all.map(each => each.id)")
        assert len(ids) == len(set(ids))


def test_an_activity_can_be_added_in_the_browser(visit: Callable[..., Any]) -> None:
    with visit() as visitor:
        visitor.sign_in("ada")
        page = visitor.page
        page.get_by_label("What").fill("<i>Soup</i> & song")
        page.get_by_label("Where").fill("Kitchen")
        page.get_by_label("When").fill("2026-06-01T18:00")
        page.get_by_label("How many").fill("many")
        page.get_by_role("button", name="Put it on the board").click()
        expect(page.get_by_text("must be a whole number")).to_be_visible()
        visitor.faults.clear()  # the browser itself notes that the answer was 422
        page.get_by_label("How many").fill("12")
        page.get_by_role("button", name="Put it on the board").click()
        expect(page.get_by_role("heading", name="<i>Soup</i> & song")).to_be_visible()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_an_activity_is_deleted_after_a_question_and_leaves_every_open_page(
    visit: Callable[..., Any], item: int, service: Serve, script: bool
) -> None:
    with (
        visit(java_script_enabled=script) as visitor,
        visit(clock=True) as other,
        service.client() as client,
    ):
        client.put(f"/api/activities/{item}/likes/ada")
        for each in (visitor, other):
            each.sign_in("ada")
            each.sees(item, True, "1")
        page = visitor.page
        page.locator(f"#activity-{item}").get_by_role("link", name="Delete").click()
        expect(page.get_by_role("heading", name="Delete this activity?")).to_be_visible()
        page.get_by_role("link", name="Keep it").click()
        visitor.sees(item, True, "1")
        page.locator(f"#activity-{item}").get_by_role("link", name="Delete").click()
        page.get_by_role("button", name="Delete it").click()
        expect(page.get_by_text("The activity is gone")).to_be_visible()
        expect(visitor.heart(item)).to_have_count(0)
        other.later()
        expect(other.heart(item)).to_have_count(0)
        assert client.get(f"/api/activities/{item}").status_code == 404


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_an_activity_is_changed_in_the_browser_and_keeps_its_likes(
    visit: Callable[..., Any], item: int, service: Serve, script: bool
) -> None:
    with visit(java_script_enabled=script) as visitor, service.client() as client:
        client.put(f"/api/activities/{item}/likes/ada")
        visitor.sign_in("ada")
        page = visitor.page
        page.locator(f"#activity-{item}").get_by_role("link", name="Change").click()
        expect(page.get_by_role("heading", name="Change this activity")).to_be_visible()
        expect(page.get_by_label("What")).to_have_value("Tea on the roof")
        page.get_by_role("link", name="Leave it as it was").click()
        expect(page.get_by_role("heading", name="Tea on the roof").first).to_be_visible()
        page.locator(f"#activity-{item}").get_by_role("link", name="Change").click()
        page.get_by_label("What").fill("")
        page.get_by_label("Where").fill("<b>Cellar</b>")
        page.get_by_role("button", name="Save it").click()
        expect(page.get_by_text("Must have 1 to 200 characters")).to_be_visible()
        expect(page.get_by_label("Where")).to_have_value("<b>Cellar</b>")
        visitor.faults.clear()  # the browser itself notes that the answer was 422
        page.get_by_label("What").fill("Tea in the cellar")
        page.get_by_role("button", name="Save it").click()
        expect(page.get_by_text("The activity is as you put it.")).to_be_visible()
        card = page.locator(f"#activity-{item}")
        expect(card.get_by_role("heading")).to_have_text("Tea in the cellar")
        expect(card.locator(".place")).to_have_text("<b>Cellar</b>")
        visitor.sees(item, True, "1")
        visitor.heart(item).click()
        visitor.sees(item, False, "0")
        page.reload()
        expect(card.get_by_role("heading")).to_have_text("Tea in the cellar")
        assert client.get(f"/api/activities/{item}").json()["place"] == "<b>Cellar</b>"


def test_my_likes_shows_what_was_liked_and_more_of_it(
    visit: Callable[..., Any], service: Serve
) -> None:
    with visit() as visitor, service.client() as client:
        items = [make(service, f"Walk {number}") for number in range(13)]
        for item in items:
            client.put(f"/api/activities/{item}/likes/grace?durability=committed")
        page = visitor.page
        visitor.sign_in("grace")
        page.get_by_role("link", name="My likes").click()
        expect(page.get_by_role("heading", name="My likes")).to_be_visible()
        expect(page.locator(".card")).to_have_count(10)
        page.get_by_text("Load more").click()
        expect(page.locator(".card")).to_have_count(13)
        shown = page.locator(".card").evaluate_all("all => all.map(each => each.id)")
        assert shown == [f"activity-{item}" for item in reversed(items)]
        visitor.heart(items[0]).click()
        visitor.sees(items[0], False, "0")  # it stays, for who clicked by mistake
        page.reload()
        expect(visitor.heart(items[-1])).to_have_attribute("aria-pressed", "true")
        page.get_by_text("Load more").click()
        expect(page.locator(".card")).to_have_count(12)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_all_without_scrolling_sideways(
    visit: Callable[..., Any], service: Serve, scheme: str
) -> None:
    item = make(service, "W" * 200)
    make(service, "Ein sehr langer Titel mit vielen Wörtern " * 4)
    with visit(viewport=PHONE, color_scheme=scheme, has_touch=True) as visitor:
        visitor.page.goto(visitor.service.url)
        assert overflow(visitor.page) == 0
        visitor.sign_in("W" * 64)
        visitor.heart(item).click()
        visitor.sees(item, True, "1")
        for path in ("/", "/likes", f"/activities/{item}/edit", f"/activities/{item}/delete"):
            visitor.page.goto(visitor.service.url + path)
            assert overflow(visitor.page) == 0
            targets = visitor.page.locator("button:visible, a:visible, input:visible")
            for box in targets.evaluate_all("all => all.map(each => each.getBoundingClientRect())"):
                assert box["height"] >= 44
                assert box["width"] >= 44


def overflow(page: Page) -> int:
    """How many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def test_the_listeners_for_faults_hear_them(visit: Callable[..., Any]) -> None:
    with visit(forgive=True) as visitor:
        visitor.page.goto(visitor.service.url)
        assert visitor.faults == []
        visitor.page.evaluate("document.body.setAttribute('style', 'color: red')")
        visitor.page.evaluate("setTimeout(() => { throw new Error('thrown') })")
        visitor.page.evaluate("new Promise(done => setTimeout(done))")
        assert any(fault.startswith("CSP style-src") for fault in visitor.faults)
        assert any("thrown" in fault for fault in visitor.faults)
        wide = "document.body.insertAdjacentHTML('beforeend', '<pre>' + 'W'.repeat(2000))"
        visitor.page.evaluate(wide)
        assert overflow(visitor.page) > 0
