"""What goes wrong is said: a typed error with a hint, and the page goes on (tiny-chat, Chromium)."""

from __future__ import annotations

import pytest

from tools.server import Server, Site

TINY = "local/tiny/tiny-chat.gguf"
LONG = "the quick brown fox jumps over the lazy dog " * 80


@pytest.fixture
def page(tiny_page):
    """The shared page with nothing running; its model is loaded anew after a test that lost it."""
    tiny_page.wait(lambda: tiny_page.call("abort")["value"]["aborted"] == [], "the end of what ran")
    yield tiny_page
    if not tiny_page.call("info")["value"]["loaded"]:
        assert "value" in load(tiny_page, TINY)


def load(page, url: str, **args) -> dict:
    return page.page.evaluate(
        """([url, args]) => app.call("load", { url: new URL(url, document.baseURI).href, ...args }).then(
            (value) => ({ value }), ({ code, message, hint }) => ({ error: { code, message, hint } }))""",
        [url, args],
    )


def test_of_two_loads_at_once_the_second_is_refused_and_the_first_goes_on(page):
    first, second = page.page.evaluate(
        """async (url) => {
            const args = { url: new URL(url, document.baseURI).href };
            const both = await Promise.allSettled([app.call("load", args), app.call("load", args)]);
            return both.map((s) => s.value ?? { code: s.reason.code, hint: s.reason.hint });
        }""",
        TINY,
    )
    assert first["loaded"] is True
    assert second["code"] == "busy" and second["hint"]


def test_a_load_can_be_aborted_and_another_can_follow(page):
    code = page.page.evaluate(
        """async (url) => {
            const loading = app.call("load", { url: new URL(url, document.baseURI).href });
            await app.abort(loading.id);
            return loading.then(() => "loaded", (error) => error.code);
        }""",
        TINY,
    )
    assert code == "aborted"
    refused = page.call("chat", {"raw": "hello"})["error"]
    assert refused["code"] == "bad_request" and "no model is loaded" in refused["message"]
    assert load(page, TINY)["value"]["loaded"] is True


def test_an_answer_can_be_aborted_during_prefill(page):
    result = page.page.evaluate(
        """async (text) => {
            const asked = app.call("chat", { raw: text, options: { max_new: 50 } });
            let tokens = 0;
            const off = app.on("token", () => tokens++);
            await app.abort(asked.id);
            const { finish_reason, ids } = await asked;
            off();
            return { finish_reason, ids, tokens };
        }""",
        LONG,
    )
    assert result == {"finish_reason": "abort", "ids": [], "tokens": 0}
    assert len(page.call("chat", {"raw": "hello", "options": {"max_new": 2}})["value"]["ids"]) == 2


def test_a_web_page_where_weights_were_expected_is_named(page):
    error = load(page, "local/odd/page.gguf")["error"]
    assert error["code"] in ("bad_checkpoint", "fetch_failed")
    assert "HTML" in error["message"] or "web page" in error["message"].lower()
    assert error["hint"]


def test_a_missing_file_is_named_with_its_status(page):
    error = load(page, "local/odd/nothing.gguf")["error"]
    assert error["code"] == "fetch_failed" and "404" in error["message"] and error["hint"]


@pytest.mark.parametrize(
    "args, code, words",
    [
        ({"raw": ""}, "bad_request", "empty"),
        ({"messages": []}, "bad_request", "not empty"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "bad_request", "role"),
        ({"raw": LONG * 4}, "context_exceeded", "1024"),
        ({"raw": "a", "options": {"temperature": -1}}, "bad_request", "temperature"),
        ({"raw": "a", "options": {"top_p": 7}}, "bad_request", "top_p"),
        ({"raw": "a", "options": {"speed": 1}}, "bad_request", "speed"),
        ({"ids": [10**9]}, "bad_request", "vocabulary"),
        ({"raw": "a", "force_ids": []}, "bad_request", "force_ids"),
    ],
)
def test_a_request_that_cannot_be_served_says_why(page, args, code, words):
    error = page.call("chat", args)["error"]
    assert error["code"] == code and words in error["message"]


def test_nan_settings_are_refused(page):
    code = page.page.evaluate("app.call('chat', { raw: 'a', options: { temperature: NaN } }).catch((error) => error.code)")
    assert code == "bad_request"


def test_the_page_shows_an_error_with_its_hint_and_tries_again(open_page, tmp_path, dist_dir, tiny_chat):
    model = tmp_path / "model.gguf"
    model.write_text("<!doctype html><p>Please sign in</p>" + " " * 500)
    with Server(Site(dist_dir, {"model.gguf": model})) as server:
        opened = open_page("?model=local/model.gguf", server=server)
        opened.wait(lambda: opened.page.locator("#fault").is_visible(), "the error", 240)
        assert opened.page.locator("#send").is_disabled()
        assert opened.page.locator("#fault").get_attribute("data-code") in ("bad_checkpoint", "fetch_failed")
        assert opened.text("#fault-message") and opened.text("#fault-hint")
        model.write_bytes((tiny_chat / "tiny-chat.gguf").read_bytes())
        opened.page.click("#retry")
        opened.ready()
        assert not opened.page.locator("#fault").is_visible()
        opened.page.context.close()


def with_first_line(page, line: str) -> None:
    """Puts a line before the worker's script."""
    page.context.route("**/worker.js", lambda route: fulfil(route, line))


def fulfil(route, first_line: str) -> None:
    answer = route.fetch()
    route.fulfill(response=answer, body=first_line + answer.text())


HIDE_GPU = "Object.defineProperty(navigator, 'gpu', { value: undefined });\n"
# The first buffer over 1 MB is asked for with a size that no GPU has.
GREEDY = """{
    const make = GPUDevice.prototype.createBuffer;
    let isFirst = true;
    GPUDevice.prototype.createBuffer = function (d) {
        const isGreedy = isFirst && d.size > 1e6;
        isFirst &&= !isGreedy;
        return make.call(this, isGreedy ? { ...d, size: 2 ** 45 } : d);
    };
}
"""


def test_a_buffer_that_cannot_be_made_is_out_of_memory_and_the_next_load_works(open_page):
    opened = open_page(f"?model={TINY}", lambda page: with_first_line(page, GREEDY))
    opened.say("hello")
    opened.wait(lambda: opened.page.locator("#fault").is_visible(), "the error", 240)
    assert opened.page.locator("#fault").get_attribute("data-code") == "out_of_memory"
    assert "bytes" in opened.text("#fault-message") and opened.text("#fault-hint")
    assert opened.page.locator(".turn").count() == 0 and opened.page.input_value("#text") == "hello"
    opened.page.click("#retry")
    opened.ready()
    assert len(opened.call("chat", {"raw": "hello", "options": {"max_new": 2}})["value"]["ids"]) == 2
    opened.page.context.close()


def test_a_browser_without_webgpu_is_told_so(open_page):
    opened = open_page(f"?model={TINY}", lambda page: with_first_line(page, HIDE_GPU))
    opened.wait(lambda: opened.page.locator("#fault").is_visible(), "the error", 240)
    assert opened.page.locator("#fault").get_attribute("data-code") == "no_webgpu"
    assert "WebGPU" in opened.text("#fault-message") and "https" in opened.text("#fault-hint")
    opened.page.context.close()


def test_a_worker_that_cannot_start_is_an_error_and_not_a_silence(open_page):
    opened = open_page(f"?model={TINY}", lambda page: page.context.route("**/pyodide.mjs", lambda route: route.abort()))
    opened.wait(lambda: opened.page.locator("#fault").is_visible(), "the error")
    assert opened.page.locator("#fault").get_attribute("data-code") in ("boot_failed", "worker_failed")
    opened.page.context.close()
