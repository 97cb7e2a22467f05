"""Find a browser, start it headless on one page in a fresh profile, know when it dies, clean up after it."""

from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.env import BuildError

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
FIREFOX_NAMES = ("firefox-esr", "firefox")
MAC_APPS = {
    "chromium": ("Google Chrome.app/Contents/MacOS/Google Chrome", "Chromium.app/Contents/MacOS/Chromium"),
    "firefox": ("Firefox.app/Contents/MacOS/firefox",),
}
PLAYWRIGHT_FOLDERS = ("~/.cache/ms-playwright", "~/Library/Caches/ms-playwright", "~/AppData/Local/ms-playwright")
PLAYWRIGHT_CHROMIUM = (
    "chromium-*/chrome-*/chrome",
    "chromium-*/chrome-*/chrome.exe",
    "chromium-*/chrome-*/*.app/Contents/MacOS/*",
)

CHROMIUM_FLAGS = (
    "--enable-unsafe-webgpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--autoplay-policy=no-user-gesture-required",
    "--remote-debugging-port=0",
    "--enable-logging=stderr",
)
NVIDIA_FLAGS = ("--use-angle=vulkan", "--enable-features=Vulkan", "--disable-vulkan-surface", "--ignore-gpu-blocklist")

FIREFOX_PREFS = {
    "dom.webgpu.enabled": True,
    "dom.webgpu.workers.enabled": True,
    "gfx.webgpu.ignore-blocklist": True,
    "devtools.console.stdout.content": True,
    "browser.shell.checkDefaultBrowser": False,
    "browser.aboutwelcome.enabled": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    "datareporting.policy.firstRunURL": "",
    "toolkit.telemetry.reportingpolicy.firstRun": False,
    "app.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "browser.safebrowsing.downloads.remote.enabled": False,
    "services.settings.server": "",
    "dom.ipc.processHangMonitor": False,
    "dom.max_script_run_time": 0,
}


@dataclass(frozen=True)
class Choice:
    """Which browser, on what. `gpu` is "software" (SwiftShader, lavapipe) or "nvidia"; `has_f16` shows shader-f16 there."""

    kind: str = "chromium"
    path: Path | None = None
    gpu: str = "software"
    has_f16: bool = False
    flags: tuple[str, ...] = ()


def find(kind: str) -> Path | None:
    """The machine's Chromium (Debian's, Chrome, Playwright's) or Firefox, or None."""
    for name in CHROMIUM_NAMES if kind == "chromium" else FIREFOX_NAMES:
        found = shutil.which(name)
        if found:
            return Path(found)
    if sys.platform == "darwin":
        for app in MAC_APPS[kind]:
            for folder in (Path("/Applications"), Path.home() / "Applications"):
                if (folder / app).exists():
                    return folder / app
    return _playwright_chromium() if kind == "chromium" else None


def _playwright_chromium() -> Path | None:
    folders = (os.environ.get("PLAYWRIGHT_BROWSERS_PATH", ""), *PLAYWRIGHT_FOLDERS)
    for folder in filter(None, folders):
        for pattern in PLAYWRIGHT_CHROMIUM:
            found = sorted(glob.glob(os.path.join(os.path.expanduser(folder), pattern)))
            if found:
                return Path(found[-1])
    return None


class Browser:
    """A headless browser on one page; close() ends all its processes and removes its profile.

    Raises: BuildError when there is none or it cannot be started.
    """

    def __init__(self, choice: Choice, url: str):
        exe = choice.path or find(choice.kind)
        if exe is None:
            raise BuildError(f"No {choice.kind} is on this machine; `python3 build.py test` installs one, or install it yourself.")
        self.name = f"{choice.kind} ({exe})"
        self._folder = Path(tempfile.mkdtemp(prefix="jird-browser-"))
        self._log = self._folder / "log.txt"
        profile = self._folder / "profile"
        profile.mkdir()
        if choice.kind == "chromium":
            command = chromium_command(exe, choice, profile)
        else:
            command = firefox_command(exe, profile)
        with open(self._log, "wb") as log:
            try:
                self._process = subprocess.Popen([*command, url], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            except OSError as error:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise BuildError(f"{self.name} cannot be started ({error.strerror}).") from None

    def exit_status(self) -> int | None:
        """The exit status of a browser that ended by itself, else None."""
        return self._process.poll()

    def console(self, lines: int = 6) -> list[str]:
        """The last console messages of the page, for an error's context."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        found = re.findall(r'(?:CONSOLE[^"\n]*"|^console\.|^JavaScript |^JavaScript error: )(.*)', text, re.MULTILINE)
        return [line.strip()[:400] for line in found[-lines:]]

    def close(self) -> None:
        """End the browser's whole process group and remove its profile."""
        for kill, patience_s in ((signal.SIGTERM, 5), (signal.SIGKILL if os.name == "posix" else signal.SIGTERM, 5)):
            if os.name == "posix":
                try:
                    os.killpg(self._process.pid, kill)
                except ProcessLookupError:
                    break
            else:
                self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def chromium_command(exe: Path, choice: Choice, profile: Path) -> list[str]:
    """Chromium's command line without the page."""
    flags = [*CHROMIUM_FLAGS, f"--user-data-dir={profile}"]
    if "headless" not in exe.name:
        flags.insert(0, "--headless")
    if os.name == "posix" and os.geteuid() == 0:
        flags.append("--no-sandbox")
    if choice.gpu == "nvidia":
        toggles = ["allow_unsafe_apis"] + (["vulkan_enable_f16_on_nvidia"] if choice.has_f16 else [])
        flags += [*NVIDIA_FLAGS, "--enable-dawn-features=" + ",".join(toggles)]
    return [str(exe), *flags, *choice.flags]


def firefox_command(exe: Path, profile: Path) -> list[str]:
    """Firefox's command line without the page; the preferences go into the profile."""
    lines = [f'user_pref("{name}", {_pref(value)});\n' for name, value in FIREFOX_PREFS.items()]
    (profile / "user.js").write_text("".join(lines))
    return [str(exe), "--headless", "--no-remote", "--profile", str(profile)]


def _pref(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value).replace("'", '"')
