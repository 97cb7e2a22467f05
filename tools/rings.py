"""build.py plan and test: run the project's Python in the environment."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools import browsers, pins
from tools import dist as dist_room
from tools.env import ROOT, BuildError, apt_install, error_line, pip_install, python, say

LAVAPIPE = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")


def plan(args: argparse.Namespace) -> int:
    """Print the decode plan of a model."""
    pip_install(pins.RUN_REQUIREMENTS, "run")
    if args.model in {model.name for model in pins.MODELS}:
        path = dist_room.model_file(args.model)
    else:
        path = Path(args.model).expanduser()
        if not path.exists():
            raise BuildError(f"plan {args.model}: no such file or folder, and no bundled model of that name.")
    command = [str(python()), "-m", "jird.engine.cli_plan", str(path)]
    command += ["--features", args.features] if args.features else []
    command += ["--max-storage-buffers", str(args.max_storage_buffers)]
    sys.stdout.flush()
    return subprocess.run(command, env=dict(os.environ, PYTHONPATH=str(ROOT / "py"))).returncode


def test(args: argparse.Namespace) -> int:
    """Install what the tests need, build dist/, and run tests/ and e2e/ in one pytest; its status is ours."""
    pip_install(pins.TEST_REQUIREMENTS, "test")
    pip_install(pins.RUN_REQUIREMENTS, "run")
    install_browsers()
    dist_room.build()
    sys.stdout.flush()
    return subprocess.run([str(python()), "-m", "pytest", *args.rest], cwd=ROOT).returncode


def install_browsers() -> None:
    """Chromium, Firefox and lavapipe from Debian where we are root there; elsewhere Playwright's Chromium.

    Raises: BuildError when a browser is missing and cannot be had.
    """
    if shutil.which("apt-get"):
        missing = [package for package, is_there in debian_needs().items() if not is_there]
        if not missing:
            return
        if os.geteuid() == 0:
            apt_install(missing)
            return
        say(f"not root, so apt-get cannot install {', '.join(missing)}; trying Playwright's Chromium")
    if browsers.find("chromium") is None:
        say("playwright install chromium")
        done = subprocess.run([str(python()), "-m", "playwright", "install", "chromium"], capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"Chromium could not be had from Playwright ({error_line(done.stderr)}).")
    if browsers.find("firefox") is None:
        say("no Firefox is here: the tests that need it are skipped")


def debian_needs() -> dict[str, bool]:
    """Debian package -> whether what it brings is on this machine."""
    has_lavapipe = any(list(Path(folder).glob("lvp_icd*.json")) for folder in LAVAPIPE)
    return {
        "chromium": browsers.find("chromium") is not None,
        "firefox-esr": browsers.find("firefox") is not None,
        "mesa-vulkan-drivers": has_lavapipe,
    }
