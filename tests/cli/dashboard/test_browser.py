"""What an operator does, in headless Chromium: by names and roles of what is on the page, as a screen reader finds it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import trio
from playwright.sync_api import Browser, Page, expect, sync_playwright

from ledgermq.testing.embedded import StartedEmbedded, start_embedded

from ..conftest import Start
from ..secured import SECURED
from .conftest import ADMIN, fill, fill_secured

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE_MS = 30_000
TEN_TIMES_AS_OFTEN = "const every = setInterval; window.setInterval = (task, ms, ...given) => every(task, ms / 10, ...given)"
"""Lets a page ask for its news each half second instead of each five."""
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian has it in chromium)")


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def group() -> Generator[StartedEmbedded]:
    """A DLedger group of three nodes, filled."""
    with start_embedded(mode="dledger", nodes=3) as embedded:
        trio.run(fill, embedded.namesrv)
        yield embedded


@contextmanager
def visited(browser: Browser, start: Start, namesrv: str, *options: str) -> Generator[Page]:
    """The first page of a dashboard; whatever the console of the browser complains about fails the test."""
    dashboard = start("dashboard", "--port", "0", "-n", namesrv, *options)
    url = dashboard.wait_for(r"The dashboard is at (\S+)")[1]
    complaints: list[str] = []
    context = browser.new_context(base_url=url)
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(TEN_TIMES_AS_OFTEN)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto("/")
    yield page
    context.close()
    assert dashboard.stop() == 0
    assert complaints == []


@pytest.mark.slow
def test_the_page_follows_the_cluster_by_itself(browser: Browser, start: Start, group: StartedEmbedded) -> None:
    """A node that dies is seen without a click; and again when it is back."""
    with visited(browser, start, group.namesrv) as page:
        picture = page.get_by_role("img", name="broker-a: leader")
        expect(picture).to_have_attribute(
            "aria-label", re.compile(r"follower n\d: in sync; follower n\d: in sync"), timeout=PATIENCE_MS
        )
        follower = next(address for address in group.addresses if address != group.master())

        group.kill(follower)
        expect(picture).to_have_attribute("aria-label", re.compile("not connected"), timeout=PATIENCE_MS)
        expect(page.get_by_role("alert").first).to_contain_text("broker-a")
        group.start(follower)
        expect(picture).not_to_have_attribute("aria-label", re.compile("not connected"), timeout=PATIENCE_MS)


@pytest.mark.slow
def test_a_lagging_group_is_found(browser: Browser, start: Start, group: StartedEmbedded) -> None:
    with visited(browser, start, group.namesrv) as page:
        page.get_by_role("link", name="Groups").click()
        first = page.get_by_role("row").nth(1)
        expect(first).to_contain_text("slow")
        first.get_by_role("link", name="slow").click()

        expect(page.get_by_role("heading", name="Group slow")).to_be_visible()
        expect(page.get_by_role("row", name=re.compile(r"orders broker-a 0 32 .*10 42 .*nobody"))).to_be_visible()


def test_a_message_is_found_by_its_key(browser: Browser, start: Start, group: StartedEmbedded) -> None:
    with visited(browser, start, group.namesrv) as page:
        page.get_by_role("link", name="Messages").click()
        page.get_by_label("Topic").fill("orders")
        page.get_by_label("Key or id").fill("order-3")
        page.keyboard.press("Enter")

        expect(page.get_by_role("heading", name="Message of orders")).to_be_visible()
        expect(page.get_by_text("order 3", exact=True)).to_be_visible()
        expect(page.get_by_text("has read past it")).to_be_visible()
        page.get_by_role("link", name="dead letter").click()
        expect(page.get_by_role("heading", name="Dead letters of slow")).to_be_visible()


def test_hostile_bodies_run_no_script(browser: Browser, start: Start, group: StartedEmbedded) -> None:
    """A dialog would be a complaint, because nobody answers it."""
    with visited(browser, start, group.namesrv) as page:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        page.goto("/messages?topic=orders&text=%22%3E%3Cscript%3Ealert('key')%3C/script%3E")
        expect(page.get_by_text("alert('body')")).to_be_visible()
        assert dialogs == []


@pytest.mark.slow
def test_dead_letters_are_handed_out_again(browser: Browser, start: Start) -> None:
    with start_embedded() as cluster, visited(browser, start, cluster.namesrv, "--allow-changes") as page:
        trio.run(fill, cluster.namesrv)
        page.get_by_role("link", name="Groups").click()
        page.get_by_role("link", name="Dead letters").click()
        expect(page.get_by_text("Dead letters: 2, of which not handed out again: 2.")).to_be_visible()
        page.get_by_label("Hand out to the group once more").fill("1")
        page.get_by_role("button", name="Redrive").click()

        expect(page.get_by_role("status")).to_have_text("Dead letters handed out to slow again: 1.")
        expect(page.get_by_text("Dead letters: 2, of which not handed out again: 1.")).to_be_visible()
        assert page.get_by_text("handed out again", exact=True).count() == 1


@pytest.mark.slow
def test_leadership_is_handed_over(browser: Browser, start: Start, group: StartedEmbedded) -> None:
    with visited(browser, start, group.namesrv, "--allow-changes") as page:
        page.get_by_role("link", name="broker-a").click()
        button = page.get_by_role("button", name=re.compile("Let n. lead")).first
        node = button.inner_text().split()[1]
        button.click()

        expect(page.get_by_role("status")).to_have_text(f"{node} leads broker-a.")
        expect(page.get_by_role("img", name=f"broker-a: leader {node}")).to_be_visible(timeout=PATIENCE_MS)
        assert group.master() == group.addresses[int(node[1:])]


def test_a_user_is_disabled(browser: Browser, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is as narrow and as legible as the others."""
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", ADMIN.access_key)
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", ADMIN.secret_key)
    with (
        start_embedded(settings=SECURED) as cluster,
        visited(browser, start, cluster.namesrv, "--allow-changes") as page,
    ):
        trio.run(fill_secured, cluster.namesrv)
        page.get_by_role("link", name="Users").click()
        check_legible_on_a_phone(page)
        page.get_by_role("row", name=re.compile("^bob")).get_by_role("button", name="Disable").click()

        expect(page.get_by_role("status")).to_have_text("User bob of broker-a is disabled.")
        expect(page.get_by_role("row", name=re.compile("^bob disabled"))).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("^alice enabled .*Topic:orders from 127.0.0.1"))).to_be_visible()


def test_who_may_only_look_finds_nothing_to_change(browser: Browser, start: Start, group: StartedEmbedded) -> None:
    with visited(browser, start, group.namesrv) as page:
        page.get_by_role("link", name="broker-a").click()
        expect(page.get_by_text("Nodes of the DLedger group")).to_be_visible()
        expect(page.get_by_text("read-only")).to_be_visible()
        assert page.get_by_role("button").count() == 0


@pytest.mark.slow
def test_what_was_opened_stays_open_while_the_page_follows(browser: Browser, start: Start, group: StartedEmbedded) -> None:
    with visited(browser, start, group.namesrv) as page:
        page.goto("/broker?broker=broker-a")
        page.get_by_text("All that leader").click()
        version = page.get_by_text("broker_version_desc").first
        expect(version).to_be_visible()
        with page.expect_response(re.compile("/broker")):
            pass
        before = page.locator(".now").last.inner_text()
        expect(page.locator(".now").last).not_to_have_text(before, timeout=PATIENCE_MS)
        expect(version).to_be_visible()


@pytest.mark.slow
def test_a_password_lets_in(browser: Browser, start: Start, group: StartedEmbedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_DASHBOARD_PASSWORD", "correct horse battery")
    with visited(browser, start, group.namesrv) as page:
        page.get_by_label("Password").fill("correct horse battery")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Password")).to_be_visible()


@pytest.mark.slow
def test_pages_fit_a_phone_and_are_legible(browser: Browser, start: Start, group: StartedEmbedded) -> None:
    """No page is wider than the window, and text stands out from its background by the ratio of WCAG, light and dark."""
    paths = ("/", "/broker?broker=broker-a", "/topic?topic=orders", "/groups", "/group?group=slow", "/letters?group=slow")
    with visited(browser, start, group.namesrv, "--allow-changes") as page:
        for path in paths:
            page.goto(path)
            check_legible_on_a_phone(page)


def check_legible_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") == 360, page.url
    page.emulate_media(color_scheme="light")
    assert page.evaluate(FAINT_TEXTS) == [], page.url
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(FAINT_TEXTS) == [], page.url


FAINT_TEXTS = """() => {
  const parts = color => color.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = color => { const [r, g, b] = parts(color).map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = node => { for (; node; node = node.parentElement) { const color = getComputedStyle(node).backgroundColor;
    if ((parts(color)[3] ?? 1) > 0) return color; } return "rgb(255, 255, 255)"; };
  return [...document.querySelectorAll("body *")].filter(node => node.checkVisibility() && !node.closest("svg") &&
      [...node.childNodes].some(each => each.nodeType == 3 && each.data.trim())).filter(node => {
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => b - a);
    return (a + .05) / (b + .05) < 4.5; }).map(node => node.outerHTML.slice(0, 100));
}"""
