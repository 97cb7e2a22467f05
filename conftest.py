"""What tests and e2e share: dist/, the bundled model, the browsers, a server, and a job run in the real page."""

from __future__ import annotations

import os
from pathlib import Path

# Before numpy: its threads wait by spinning, which on a busy machine made a decode step on the numpy device eight times slower;
# and sums do not depend on the number of cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

from tools import browsers, checkpoint, jobs
from tools import dist as dist_room
from tools.server import Server, Site


@pytest.fixture(scope="session")
def dist_dir() -> Path:
    """dist/ built from the working tree (nothing is fetched when the cache is full)."""
    return dist_room.build()


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The SmolLM2 GGUF in the cache."""
    return dist_room.model_file("smollm2")


@pytest.fixture(scope="session")
def tiny_chat(model_path) -> Path:
    """A folder with tiny-chat.gguf and hf/ (the same seeded two-layer llama in HF's form), SmolLM2's tokenizer."""
    return checkpoint.make(model_path)


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The machine's Chromium; `build.py test` has installed one, so its absence is a failure."""
    path = browsers.find("chromium")
    assert path is not None, "no Chromium: run `python3 build.py test`, which installs one"
    return path


@pytest.fixture(scope="session")
def firefox_path() -> Path:
    """The machine's Firefox; there is none where build.py cannot install one (not Debian, or not root)."""
    path = browsers.find("firefox")
    if path is None:
        pytest.skip("no Firefox on this machine")
    return path


@pytest.fixture
def serve_dist(dist_dir):
    """A function that serves dist/ on a free port and returns the Server (its `url` ends in a slash).

    Keyword arguments are Site's: mounts, job, on_report, report_file.
    """
    servers = []

    def start(**site) -> Server:
        servers.append(Server(Site(dist_dir, **site)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def run_page(dist_dir):
    """A function (page, job, browser="chromium", mounts=None, timeout_s=300) -> (last report, all reports)."""

    def run(page: str, job: dict | None = None, browser: str = "chromium", mounts: dict | None = None, timeout_s: float = 300):
        events: list[dict] = []
        choice = browsers.Choice(browser)
        last = jobs.run_page(jobs.PageRun(dist_dir, page, job, mounts or {}, choice, timeout_s), events.append)
        return last, events

    return run
