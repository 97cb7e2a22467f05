"""build.py plan, make-checkpoint and test: run the project's Python in the environment."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools import browsers, pins
from tools import dist as dist_room
from tools.env import ROOT, BuildError, apt_install, error_line, named_path, pip_install, python, say

LAVAPIPE = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")


def plan(args: argparse.Namespace) -> int:
    """Print the decode plan of a model."""
    pip_install(pins.RUN_REQUIREMENTS, "run")
    if args.model in {model.name for model in pins.MODELS}:
        path = dist_room.model_file(args.model)
    else:
        path = named_path(args.model)
        if path is None:
            raise BuildError(f"plan {args.model[:200]}: no such file or folder, and no bundled model of that name.")
    command = [str(python()), "-m", "jird.engine.cli_plan", str(path)]
    command += ["--features", args.features] if args.features else []
    command += ["--max-storage-buffers", str(args.max_storage_buffers)]
    sys.stdout.flush()
    return subprocess.run(command, env=dict(os.environ, PYTHONPATH=str(ROOT / "py"))).returncode


def make_checkpoint(args: argparse.Namespace) -> int:
    """Make a test checkpoint; says where it is."""
    pip_install(pins.TEST_REQUIREMENTS, "test")
    command = [str(python()), "-m", "tools.checkpoint", str(dist_room.model_file("smollm2"))]
    path = os.pathsep.join((str(ROOT / "py"), str(ROOT)))
    return subprocess.run(command, cwd=ROOT, env=dict(os.environ, PYTHONPATH=path)).returncode


def test(args: argparse.Namespace) -> int:
    """Install what the tests need, build dist/, and run tests/ and e2e/ in one pytest; its status is ours."""
    pip_install(pins.TEST_REQUIREMENTS, "test")
    install_browsers()
    dist_room.build()
    sys.stdout.flush()
    return subprocess.run([str(python()), "-m", "pytest", *args.rest], cwd=ROOT).returncode


def install_browsers() -> None:
    """Chromium, Firefox and lavapipe from Debian where we are root there; elsewhere Playwright's Chromium.

    Raises: BuildError when Chromium is missing and cannot be had.
    """
    is_root = os.name == "posix" and os.geteuid() == 0
    missing = [package for package, is_there in debian_needs().items() if not is_there]
    if is_debian() and is_root and missing:
        apt_install(missing)
    if browsers.find("chromium") is None:
        say("playwright install chromium")
        command = [str(python()), "-m", "playwright", "install", *(["--with-deps"] if is_root else []), "chromium"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"Chromium could not be had from Playwright ({error_line(done.stderr + done.stdout)}).")
    for package, is_there in debian_needs().items():
        if not is_there:
            say(f"{package} is not here: the tests that need it are skipped")


def is_debian() -> bool:
    """Whether this is Debian itself: Ubuntu's packages of the browsers are snaps."""
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return "ID=debian" in lines and shutil.which("apt-get") is not None


def debian_needs() -> dict[str, bool]:
    """Debian package -> whether what it brings is on this machine."""
    has_lavapipe = any(list(Path(folder).glob("lvp_icd*.json")) for folder in LAVAPIPE)
    return {
        "chromium": browsers.find("chromium") is not None,
        "firefox-esr": browsers.find("firefox") is not None,
        "mesa-vulkan-drivers": has_lavapipe,
    }
