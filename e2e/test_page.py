"""The page: what a person sees and can do before, while and after the model answers (tiny-chat, Chromium)."""

from __future__ import annotations

import re

import pytest

TINY = "?model=local/tiny/tiny-chat.gguf"
STORY = "Tell me a story that is as long as you can make it."


@pytest.fixture
def chat(tiny_page):
    """The shared page with an empty conversation."""
    tiny_page.page.click("#new")
    tiny_page.wait(lambda: tiny_page.page.locator("#send").is_visible(), "the end of the last answer")
    return tiny_page


def test_typing_and_sending_work_before_the_engine_is_up(open_page):
    opened = open_page(TINY)
    assert opened.phase() == "loading"
    opened.say("hello")
    assert opened.text(".user .said") == "hello"
    assert opened.page.input_value("#text") == ""
    stages = set()

    def is_answering():
        stages.add(opened.text("#stage"))
        return opened.answer()

    opened.wait(is_answering, "the answer to a message sent early", 240)
    assert any("weights" in stage.lower() for stage in stages) or len(stages) > 1
    opened.page.keyboard.press("Escape")
    opened.answered()
    third = [url for url in opened.requests if not url.startswith(opened.page.url.partition("?")[0])]
    assert third == []
    assert not [line for line in opened.console if "pageerror" in line or "Content Security Policy" in line], opened.console
    opened.page.context.close()


def test_the_answer_streams_in_and_its_figures_stand_below(chat):
    chat.say("What is the capital of France?")
    seen = []

    def grew():
        text = chat.answer()
        if text and (not seen or text != seen[-1]):
            seen.append(text)
        return len(seen) >= 4

    chat.wait(grew, "four steps of a streaming answer")
    assert all(later.startswith(earlier) for earlier, later in zip(seen, seen[1:], strict=False))
    assert chat.page.locator(".assistant").last.get_attribute("aria-busy") == "true"
    assert re.search(r"\d+ tokens", chat.text("#figures"))
    chat.page.keyboard.press("Escape")
    chat.answered()
    assert re.search(r"\d+ tokens in [\d.]+ s .* tok/s .* stopped", chat.text(".assistant:last-child .note"))


def test_stop_shows_nothing_more_and_the_next_message_is_answered(chat):
    chat.say(STORY)
    chat.wait(chat.answer, "the first word")
    chat.page.click("#stop")
    chat.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))")
    shown = chat.answer()
    chat.answered()
    assert chat.answer() == shown
    chat.say("again")
    chat.wait(lambda: chat.page.locator(".assistant").count() == 2 and chat.answer(), "the next answer")


def test_stop_ends_within_a_step(chat):
    chat.say(STORY)
    chat.wait(lambda: len(chat.answer()) > 20, "some words")
    counts = chat.page.evaluate(
        """async () => {
            let after = 0, before = 0;
            const off = app.on("token", () => (stopped ? after++ : before++));
            let stopped = false;
            await new Promise((r) => setTimeout(r, 500));
            const id = (await app.call("abort")).aborted;
            stopped = true;
            await new Promise((r) => setTimeout(r, 500));
            off();
            return { before, after, id };
        }"""
    )
    assert counts["before"] > 0 and counts["after"] == 0 and len(counts["id"]) == 1
    chat.answered()


def test_a_message_sent_while_loading_can_be_taken_back(open_page):
    opened = open_page(TINY)
    opened.say("too early")
    opened.page.keyboard.press("Escape")
    assert opened.page.input_value("#text") == "too early"
    assert opened.page.locator(".turn").count() == 0
    assert opened.page.locator("#empty").is_visible()
    opened.page.context.close()


def test_markup_in_messages_is_shown_as_it_was_typed(chat):
    chat.say("<img src=x onerror=alert(1)> & <b>bold</b>")
    assert chat.text(".user .said") == "<img src=x onerror=alert(1)> & <b>bold</b>"
    assert chat.page.locator("#log img, #log b").count() == 0


def test_shift_enter_makes_a_line_and_enter_alone_sends_nothing_empty(chat):
    chat.page.fill("#text", "")
    chat.page.focus("#text")
    chat.page.keyboard.press("Enter")
    assert chat.page.locator(".turn").count() == 0
    chat.page.keyboard.type("one")
    chat.page.keyboard.press("Shift+Enter")
    chat.page.keyboard.type("two")
    assert chat.page.input_value("#text") == "one\ntwo"
    chat.page.fill("#text", "")


def test_the_conversation_goes_on_with_what_was_said(chat):
    chat.say("My name is Ada.")
    chat.wait(chat.answer, "an answer")
    chat.page.keyboard.press("Escape")
    chat.answered()
    chat.say("What is my name?")
    chat.wait(lambda: chat.page.locator(".assistant").count() == 2 and chat.answer(), "an answer")
    asked = chat.page.evaluate("app.call('info')")
    assert asked["loaded"] is True
    chat.page.click("#new")
    assert chat.page.locator(".turn").count() == 0


@pytest.mark.parametrize("width", [390, 820, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_and_text_can_be_read(chat, width, scheme):
    page = chat.page
    chat.say("a-word-without-any-break-" * 12)
    chat.wait(chat.answer, "an answer")
    page.keyboard.press("Escape")
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("#new", "#model", "#text", "#send, #stop"):
        box = page.locator(name).locator("visible=true").first.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["height"] >= 40, name
    for name in (".user .said", ".assistant .said", "#status", "#new", "#text"):
        assert contrast(page, name) >= 4.5, name
    page.set_viewport_size({"width": 820, "height": 900})
    page.emulate_media(color_scheme="light")


def contrast(page, selector: str) -> float:
    """WCAG contrast of an element's text with the first ground behind it."""
    front, back = page.evaluate(
        """(selector) => {
            let e = document.querySelector(selector);
            const front = getComputedStyle(e).color;
            while (e && getComputedStyle(e).backgroundColor === "rgba(0, 0, 0, 0)") e = e.parentElement;
            return [front, getComputedStyle(e ?? document.body).backgroundColor].map((c) => c.match(/[\\d.]+/g).slice(0, 3).map(Number));
        }""",
        selector,
    )

    def luminance(rgb):
        parts = [v / 255 for v in rgb]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(front), luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_everything_that_can_be_worked_has_a_name(chat):
    names = chat.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, progress, [role=log], [role=status]")].map((e) =>
            [e.id, e.ariaLabel || e.labels?.[0]?.textContent.trim() || e.textContent.trim() || (e.getAttribute("aria-labelledby") ?? "")])"""
    )
    assert [id_ for id_, name in names if not name and id_ != "status"] == []
    assert chat.page.locator("#log").get_attribute("aria-live") == "polite"


def test_a_file_of_the_persons_own_can_be_opened(chat, tiny_chat):
    chat.page.set_input_files("#file", str(tiny_chat / "tiny-chat.gguf"))
    chat.wait(lambda: chat.phase() == "loading", "the load of a file")
    chat.ready()
    chat.say("hello")
    chat.wait(chat.answer, "an answer")


def test_a_second_visit_tests_no_kernel_again(open_page):
    opened = open_page(TINY).ready()
    assert opened.call("info")["value"]["selftest_ms"] > 0
    opened.page.reload()
    opened.ready()
    assert opened.call("info")["value"]["selftest_ms"] == 0
    opened.say("hello")
    opened.answered()
    opened.page.context.close()
