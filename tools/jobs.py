"""Run one page in a headless browser to its end: serve, start, hand out the job, take the reports, end everything."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from tools.browsers import Browser, Choice
from tools.env import BuildError
from tools.server import Server, Site, find

POLL_S = 0.25


@dataclass(frozen=True)
class PageRun:
    """A page to open and what it is given. Both limits are in seconds; `silence_s` counts from the last report."""

    dist: Path
    page: str
    job: dict | None = None
    mounts: dict[str, Path] = field(default_factory=dict)
    choice: Choice = Choice()
    timeout_s: float = 1800
    silence_s: float = 240


def run_page(run: PageRun, on_event: Callable[[dict], None] = lambda event: None) -> dict:
    """Open the page and return its last report, the one with "done": true.

    `on_event` is called in this thread with every report, in order.
    Raises: BuildError when the browser dies, falls silent or does not end in time; it quotes the page's console.
    """
    reports: queue.Queue[dict] = queue.Queue()
    site = Site(run.dist, dict(run.mounts), run.job, on_report=reports.put)
    if find(site, run.page) is None:
        raise BuildError(f"{run.dist.name}/ has no page {run.page.partition('?')[0]}.")
    with Server(site) as server, Browser(run.choice, server.url + run.page) as browser:
        begin = heard = time.monotonic()
        while True:
            try:
                event = reports.get(timeout=POLL_S)
            except queue.Empty:
                _check(run, browser, time.monotonic() - begin, time.monotonic() - heard)
                continue
            heard = time.monotonic()
            on_event(event)
            if event.get("done") is True:
                return event
            _check(run, browser, heard - begin, 0)


def _check(run: PageRun, browser: Browser, total_s: float, silent_s: float) -> None:
    if total_s > run.timeout_s:
        problem = f"{browser.name} did not finish {run.page} in {run.timeout_s:.0f} s"
    elif silent_s > run.silence_s:
        problem = f"{browser.name} on {run.page} reported nothing for {run.silence_s:.0f} s"
    elif browser.exit_status() is not None and silent_s > 1:
        problem = f"{browser.name} ended with status {browser.exit_status()} before {run.page} was done"
    else:
        return
    console = browser.console()
    raise BuildError(problem + ("; its console said: " + " | ".join(console) if console else "") + ".")
