"""Where things lie, the virtual environment, and the one error that build.py prints as a sentence."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CACHE = ROOT / ".cache"
DIST = ROOT / "dist"

NO_CONNECTION = re.compile(
    r"E(CONNREFUSED|CONNRESET|NOTFOUND|AI_AGAIN|TIMEDOUT|NETUNREACH|HOSTUNREACH)\b|Connection refused|timed out"
    r"|Name or service not known|Temporary failure in name resolution|Network is unreachable|No route to host"
    r"|nodename nor servname provided|getaddrinfo failed|Failed to establish a new connection|Temporary failure resolving"
)


class BuildError(Exception):
    """What could not be had or done, as a sentence for the person at the terminal."""


def say(text: str) -> None:
    """Print progress to stderr, so that stdout holds only what was asked for."""
    print(f"[jird] {text}", file=sys.stderr, flush=True)


def version() -> str:
    """The version of jird, read from py/jird/__init__.py."""
    text = (ROOT / "py/jird/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if not found:
        raise BuildError('py/jird/__init__.py has no line __version__ = "..."')
    return found.group(1)


def python() -> Path:
    """The environment's interpreter; the environment is made at the first call."""
    exe = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if exe.exists() and (VENV / "pyvenv.cfg").exists() and _has_pip(exe):
        return exe
    say(f"making the virtual environment {VENV.name}")
    if importlib.util.find_spec("ensurepip") is None:
        _install_venv_module()
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(
            f"The virtual environment {VENV} could not be made ({last_line(done.stdout + done.stderr)}); "
            "on Debian and Ubuntu install python3-venv and run this again."
        )
    return exe


def _has_pip(exe: Path) -> bool:
    return bool(list(VENV.glob("lib/python*/site-packages/pip"))) or (VENV / "Lib/site-packages/pip").is_dir()


def _install_venv_module() -> None:
    """Debian ships python3 without ensurepip: fetch it where we may."""
    if os.name == "posix" and os.geteuid() == 0 and Path("/usr/bin/apt-get").exists():
        apt_install(["python3-venv"])


def apt_install(packages: list[str]) -> None:
    """Install Debian packages as root.

    Raises: BuildError naming the packages when apt-get cannot have them.
    """
    say("apt-get install " + " ".join(packages))
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    update = subprocess.run(["apt-get", "update", "-q"], env=env, capture_output=True, text=True)
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    done = subprocess.run(install, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        reason = error_line(done.stderr + update.stderr)
        raise BuildError(f"Debian's {', '.join(packages)} could not be had from apt ({reason}).")


def pip_install(requirements: tuple[str, ...], marker: str) -> None:
    """Install pinned requirements into the environment; a marker file in it remembers what was done.

    Raises: BuildError naming the requirements when pip cannot have them.
    """
    exe = python()
    stamp = VENV / f".{marker}"
    wanted = "\n".join(requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say("pip install " + " ".join(requirements))
    command = [str(exe), "-m", "pip", "install", "-q", "--retries", "2", "--disable-pip-version-check", *requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{', '.join(requirements)} could not be had from PyPI ({error_line(done.stderr)}).")
    stamp.write_text(wanted)


def last_line(text: str) -> str:
    """The last non-empty line of a program's output, cut to 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def error_line(text: str) -> str:
    """What pip's or npm's output says went wrong: that nothing could be reached, else its last line with 'error'."""
    lines = [line.strip() for line in text.splitlines()]
    unreachable = [found for line in lines if (found := NO_CONNECTION.search(line))]
    if unreachable:
        return f"no connection: {unreachable[-1].group()}"
    return last_line("\n".join(line for line in lines if "error" in line.lower()) or text)


def named_path(name: str) -> Path | None:
    """The file or folder of that name, or None where there is none or no file system could have it."""
    try:
        path = Path(name).expanduser()
        return path if name and (path.is_file() or path.is_dir()) else None
    except (OSError, ValueError, RuntimeError):
        return None
