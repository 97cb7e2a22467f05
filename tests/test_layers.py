"""Imports go down the house, and JavaScript is reached from few files; read from the source with ast."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "py/jird"
ROOMS = ["app", "serve", "engine", "models", "text", "audio", "vision", "weights", "state", "runtime", "plan", "kernels", "graph", "errors"]
EVERYONE_MAY = {"jird", "jird.errors", "jird.runtime.device"}  # errors and a protocol of plain data
JAVASCRIPT = {"app/worker.py", "app/kernels_page.py", "text/hf_js.py", "weights/source.py", "runtime/device_web.py"}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path, package: Path = PACKAGE) -> set[str]:
    """Absolute names of the modules that a file imports; `from .x import y` counts as x and as x.y where that is a module."""
    place = ["jird", *path.relative_to(package).with_suffix("").parts]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*(place[: len(place) - node.level] if node.level else []), *([node.module] if node.module else [])])
            submodules = {f"{base}.{alias.name}" for alias in node.names if _is_module(f"{base}.{alias.name}", package)}
            found |= submodules or {base}
    return found


def _is_module(name: str, package: Path) -> bool:
    parts = name.split(".")
    target = package.joinpath(*parts[1:])
    return parts[0] == "jird" and (target.with_suffix(".py").is_file() or target.is_dir())


def upward(path: Path, package: Path = PACKAGE) -> list[str]:
    """Imports of rooms above the file's own."""
    parts = path.relative_to(package).with_suffix("").parts
    if parts[0] not in ROOMS:
        return []
    allowed = ROOMS[ROOMS.index(parts[0]):]
    names = sorted(n for n in imports(path, package) if n.split(".")[0] == "jird" and n not in EVERYONE_MAY)
    return [n for n in names if n.split(".")[1] not in allowed]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_go_down_only(path):
    assert upward(path) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_javascript_is_reached_from_the_named_files_only(path):
    roots = {name.split(".")[0] for name in imports(path)}
    assert path.relative_to(PACKAGE).as_posix() in JAVASCRIPT or not roots & {"js", "pyodide", "pyodide_js"}


def test_every_room_is_in_the_list():
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name not in ("__pycache__", "shaders")}
    assert rooms <= set(ROOMS)


def test_an_upward_import_is_found(tmp_path):
    (tmp_path / "plan").mkdir()
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/generate.py").write_text("")
    bad = tmp_path / "plan/bad.py"
    bad.write_text("def f():\n    from ..engine import generate\n    from ..runtime.device import Limits\n    from ..graph.ir import Node\n")
    assert upward(bad, tmp_path) == ["jird.engine.generate"]
