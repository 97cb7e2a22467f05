"""WGSL text: reads shader files, joins includes, sets constants, and parses bindings and Params.

A shader file is the only statement of its bindings, `struct Params` and tunables. Joined text =
enable lines, includes, file, in this order; it is what every compiler gets.

In a file:
    //!include NAME                   first lines; text of shaders/include/NAME.wgsl
    //!include reduce_{REDUCE=tree}   the include is chosen by the constant REDUCE (default tree)
    override WG: u32 = 64u;           tunable: becomes `const WG: u32 = <value>;` in the joined text
    const ROWS: u32 = 1u;             likewise (where WGSL wants a const: array sizes in uniform space)
    alias E = f32;                    likewise, for an element type
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Mapping

_INCLUDE = re.compile(r"^//!include\s+(\S+)\s*$", re.M)
_CHOSEN = re.compile(r"\{([A-Z_]+)=(\w+)\}")
_TUNABLE = re.compile(r"^(override|const)\s+([A-Z][A-Z0-9_]*)\s*:\s*(\w+)\s*=\s*([^;]+);", re.M)
_ALIAS = re.compile(r"^alias\s+(\w+)\s*=\s*([^;]+);", re.M)
_BINDING = re.compile(r"@group\(0\)\s*@binding\((\d+)\)\s*var<\s*(storage\s*,\s*read_write|storage\s*,\s*read|storage|uniform)\s*>\s*(\w+)\s*:\s*([^;]+);")
_INDEX = re.compile(r"@binding\((\d+)\)")
_STRUCT = re.compile(r"struct\s+Params\s*\{([^}]*)\}", re.S)
_WORKGROUP = re.compile(r"@workgroup_size\(([^)]*)\)")


@dataclass(frozen=True)
class Binding:
    """One buffer of a shader. access: "read" | "read_write" | "uniform"; type: WGSL type text, e.g. "array<f32>"."""

    index: int
    name: str
    access: str
    type: str


@dataclass(frozen=True)
class Shader:
    """Joined text with constants set, and what is parsed from it. params: (name, "u32" | "i32" | "f32") in order."""

    path: str
    code: str
    bindings: tuple[Binding, ...]
    params: tuple[tuple[str, str], ...]
    constants: Mapping[str, str]

    @property
    def storage_buffers(self) -> int:
        return sum(b.access != "uniform" for b in self.bindings)


@lru_cache(maxsize=None)
def shader_text(path: str) -> str:
    """Text of shaders/<path>.wgsl, from the wheel's package data or from web/shaders in a checkout."""
    packaged = resources.files("jird") / "shaders" / f"{path}.wgsl"
    if packaged.is_file():
        return packaged.read_text("utf-8")
    checkout = Path(__file__).parents[3] / "web" / "shaders" / f"{path}.wgsl"
    if checkout.is_file():
        return checkout.read_text("utf-8")
    raise FileNotFoundError(f"shader {path}: no jird/shaders/{path}.wgsl in the package and no {checkout}")


def join(path: str, constants: Mapping[str, int | float | str] | None = None) -> Shader:
    """Joins includes, sets `constants` (tunables, aliases, include choices) and parses the result.

    constants["PARAMS"], ((name, value), ...), bakes the dispatch's Params into the text: the binding `params` becomes a constant,
    so that a kernel need not wait for a uniform buffer before it knows its addresses, and its loops have known lengths.
    Raises: ValueError when a constant names nothing in the text, or a binding list has gaps.
    """
    constants = dict(constants or {})
    baked = constants.pop("PARAMS", None)
    used: set[str] = set()
    seen: list[str] = []
    body = _expand(shader_text(path), constants, used, seen)
    values: dict[str, str] = {}

    def tunable(m: re.Match) -> str:
        name, kind = m[2], m[3]
        value = _literal(constants[name], kind) if name in constants else m[4].strip()
        used.add(name)
        values[name] = value
        return f"const {name}: {kind} = {value};"

    def alias(m: re.Match) -> str:
        used.add(m[1])
        return f"alias {m[1]} = {constants.get(m[1], m[2].strip())};"

    code = _ALIAS.sub(alias, _TUNABLE.sub(tunable, body))
    unknown = set(constants) - used
    if unknown:
        raise ValueError(f"shader {path}: constants {sorted(unknown)} name no override, const, alias or include choice in its text")
    params = _params(path, code)
    if baked is not None:
        code = _bake(path, code, params, dict(baked))
    return Shader(path, code, _bindings(path, code), params, values)


def enables(features: tuple[str, ...] | frozenset, dialect: str) -> str:
    """The enable lines for `features` ("f16", "subgroups") in `dialect` "tint" | "naga"; naga refuses `enable subgroups;`."""
    names = [f for f in ("f16", "subgroups") if f in features]
    if dialect == "naga":
        names = [n for n in names if n != "subgroups"]
    return "".join(f"enable {n};\n" for n in names)


def workgroup_size(shader: Shader) -> tuple[int, int, int]:
    """The @workgroup_size of the entry point, constants resolved."""
    m = _WORKGROUP.search(shader.code)
    if m is None:
        raise ValueError(f"shader {shader.path}: no @workgroup_size")
    sizes = [_resolve(s.strip(), shader.constants) for s in m[1].split(",") if s.strip()]
    return tuple(sizes + [1] * (3 - len(sizes)))  # type: ignore[return-value]


def _resolve(token: str, constants: Mapping[str, str]) -> int:
    """An integer literal, a constant, or a product of them."""
    total = 1
    for part in token.split("*"):
        part = part.strip()
        total *= int(part.rstrip("u")) if part.rstrip("u").isdigit() else _resolve(constants[part], constants)
    return total


def _expand(text: str, constants: Mapping, used: set[str], seen: list[str]) -> str:
    """Text with its includes in front, each include once."""
    parts = []
    for name in _INCLUDE.findall(text):
        choice = _CHOSEN.search(name)
        if choice:
            used.add(choice[1])
            name = _CHOSEN.sub(str(constants.get(choice[1], choice[2])), name)
        if name not in seen:
            seen.append(name)
            parts.append(_expand(shader_text(f"include/{name}"), constants, used, seen))
    return "\n".join([*parts, _INCLUDE.sub("", text).lstrip("\n")])


def _literal(value: int | float | str | bool, kind: str) -> str:
    if kind == "bool":
        return "true" if value else "false"
    if kind == "f32":
        return repr(float(value))
    return f"{int(value)}{'u' if kind == 'u32' else ''}"


def _bindings(path: str, code: str) -> tuple[Binding, ...]:
    found = []
    for index, space, name, type_ in _BINDING.findall(code):
        access = "uniform" if space == "uniform" else "read_write" if "read_write" in space else "read"
        found.append(Binding(int(index), name, access, " ".join(type_.split())))
    found.sort(key=lambda b: b.index)
    if [b.index for b in found] != list(range(len(found))):
        raise ValueError(f"shader {path}: bindings {[b.index for b in found]} must count from 0 without gaps")
    return tuple(found)


def _bake(path: str, code: str, params: tuple[tuple[str, str], ...], values: Mapping[str, int | float]) -> str:
    """`code` with its params binding as a constant. Raises: ValueError when values are not those of the struct, or there is not one binding params.

    The bindings after it move up by one.
    """
    if {n for n, _ in params} != set(values):
        raise ValueError(f"shader {path}: Params has {[n for n, _ in params]}, given {sorted(values)}")
    given = ", ".join(_literal(values[n], kind) for n, kind in params)
    found = [m for m in _BINDING.finditer(code) if m[3] == "params"]
    if len(found) != 1:
        raise ValueError(f"shader {path}: {len(found)} bindings named params; one can be baked")
    gone = int(found[0][1])
    code = f"{code[:found[0].start()]}const params = Params({given});{code[found[0].end():]}"
    return _INDEX.sub(lambda m: f"@binding({int(m[1]) - (int(m[1]) > gone)})", code)


def _params(path: str, code: str) -> tuple[tuple[str, str], ...]:
    m = _STRUCT.search(code)
    if m is None:
        return ()
    body = re.sub(r"//[^\n]*", "", m[1])
    fields = []
    for item in filter(None, (s.strip() for s in body.split(","))):
        name, _, kind = (p.strip() for p in item.partition(":"))
        if kind not in ("u32", "i32", "f32"):
            raise ValueError(f"shader {path}: Params field {name} is {kind}; only u32, i32 and f32 are packed")
        fields.append((name, kind))
    return tuple(fields)
