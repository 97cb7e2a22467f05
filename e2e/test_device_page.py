"""The web device in a real browser: programs, copies, typed errors, and what a step costs. The checks are in device_page/checks.py."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tools import browsers, jobs
from tools.browsers import CHROMIUM_FLAGS

PAGE = Path(__file__).parent / "device_page"
NAMES = re.findall(r"^async def check_(\w+)", (PAGE / "checks.py").read_text("utf-8"), re.M)


def run_checks(dist_dir, browser: str) -> dict[str, dict]:
    events: list[dict] = []
    site_page = "local/device/page.html"
    last = jobs.run_page(jobs.PageRun(dist_dir, site_page, None, {"device": PAGE}, browsers.Choice(browser), 240), events.append)
    assert last["ev"] == "result", last
    return {e["name"]: e for e in events if e["ev"] == "check"}


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def checks(request, dist_dir):
    request.getfixturevalue(f"{request.param}_path")
    return run_checks(dist_dir, request.param)


@pytest.mark.parametrize("name", NAMES)
def test_device(checks, name):
    assert checks[name]["ok"], checks[name].get("message")


def wait_for(page, event: str, seconds: float) -> list[dict]:
    """The page's reports once one has this `ev`, or an error has come in its place."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reports = page.evaluate("window.reports ?? []")
        if {event, "error"} & {r["ev"] for r in reports}:
            return reports
        page.wait_for_timeout(50)
    raise AssertionError(f"no {event} in {seconds} s, but {reports}")


def test_a_crash_of_the_gpu_process_is_a_lost_device_and_another_can_be_opened(chromium, chromium_path, serve_dist):
    server = serve_dist(mounts={"device": PAGE}, on_report=lambda event: None)
    flags = [f for f in CHROMIUM_FLAGS if not f.startswith("--remote-debugging")]
    browser = chromium.browser_type.launch(executable_path=str(chromium_path), args=[*flags, "--no-sandbox"])
    try:
        page = browser.new_page()
        page.goto(server.url + "local/device/page.html?script=crash.py")
        wait_for(page, "submitting", 120)
        browser.new_browser_cdp_session().send("Browser.crashGpuProcess")
        reports = wait_for(page, "result", 60)
    finally:
        browser.close()
    assert [r["ev"] for r in reports] == ["submitting", "lost", "result"], reports
    assert "lost" in reports[1]["message"]
