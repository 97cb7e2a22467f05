"""One Chromium for the whole ring, one loaded page for all tests that only need the tiny model, one for those of the real one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable

import pytest
from playwright.sync_api import Page, sync_playwright

from tools.browsers import CHROMIUM_FLAGS
from tools.server import Server, Site

READY_MS = 240_000
WEB_PAGE = "<!doctype html><title>Not found</title><p>There is nothing here.</p>" + " " * 2000


def pytest_collection_modifyitems(items) -> None:
    """Tests with Playwright's browser come last: it keeps an event loop running in this thread, and others use asyncio.run."""
    items.sort(key=lambda item: "chromium" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def chromium(chromium_path, tiny_chat):
    """A headless Chromium on SwiftShader; tiny-chat is made before it, with asyncio."""
    flags = [f for f in CHROMIUM_FLAGS if not f.startswith("--remote-debugging")]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium_path), args=[*flags, "--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(dist_dir, tiny_chat, tmp_path_factory) -> Server:
    """dist/ with the small models and the files that are no models, under local/."""
    folder = tmp_path_factory.mktemp("e2e")
    (folder / "page.gguf").write_text(WEB_PAGE)
    with Server(Site(dist_dir, {"tiny": tiny_chat, "odd": folder})) as server:
        yield server


@dataclass
class Opened:
    """A page in a context of its own, what its console said, and the addresses it asked for."""

    page: Page
    console: list[str]
    requests: list[str]

    def call(self, op: str, args: dict | None = None) -> dict:
        """window.app.call: {"value": ...} or {"error": {code, message, hint}}."""
        return self.page.evaluate(CALL, [op, args or {}])

    def wait(self, claim: Callable[[], object], what: str, seconds: float = 60):
        """Polls until `claim` is true and returns what it gave."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = claim()
            if found:
                return found
            self.page.wait_for_timeout(20)
        raise AssertionError(f"{what} did not come in {seconds} s; the console said {self.console[-3:]}")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def phase(self) -> str:
        return self.page.evaluate("document.body.dataset.phase")

    def ready(self) -> "Opened":
        self.wait(lambda: self.phase() != "loading", "the model", READY_MS / 1e3)
        assert self.phase() == "ready", self.text("#fault")
        return self

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.keyboard.press("Enter")

    def answer(self) -> str:
        """The last answer so far, and nothing while there is none."""
        return self.page.evaluate("document.querySelector('.assistant:last-child .said')?.textContent ?? ''")

    def answered(self, seconds: float = 120) -> None:
        self.wait(lambda: self.page.locator(".assistant:last-child .note").count(), "the end of the answer", seconds)


CALL = """([op, args]) => app.call(op, args).then(
    (value) => ({ value }), ({ code, message, hint }) => ({ error: { code, message, hint } }))"""


@pytest.fixture(scope="session")
def open_page(chromium, site):
    """A function (query, setup=None, **context options) -> Opened; `setup` gets the page before it goes anywhere."""
    contexts = []

    def open_(query: str = "", setup: Callable[[Page], None] | None = None, server: Server | None = None, **options) -> Opened:
        contexts.append(chromium.new_context(viewport={"width": 820, "height": 900}, **options))
        page = contexts[-1].new_page()
        opened = Opened(page, [], [])
        page.on("console", lambda message: opened.console.append(message.text))
        page.on("pageerror", lambda error: opened.console.append(f"pageerror: {error}"))
        page.on("request", lambda request: opened.requests.append(request.url))
        if setup:
            setup(page)
        page.goto((server or site).url + query)
        return opened

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def tiny_page(open_page) -> Opened:
    """The page with tiny-chat loaded; tests leave it with a model and without an answer running."""
    return open_page("?model=local/tiny/tiny-chat.gguf").ready()


@pytest.fixture(scope="session")
def smol_page(open_page) -> Opened:
    """The page as a person opens it: SmolLM2 loaded."""
    return open_page().ready()
