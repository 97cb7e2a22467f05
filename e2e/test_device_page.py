"""The web device in a real browser: programs, copies, typed errors, and what a step costs. The checks are in device_page/checks.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent / "device_page"
NAMES = re.findall(r"^async def check_(\w+)", (PAGE / "checks.py").read_text("utf-8"), re.M)


def run_checks(dist_dir, browser: str) -> dict[str, dict]:
    from tools import browsers, jobs, server

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
