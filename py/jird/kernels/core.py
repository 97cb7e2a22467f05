"""What a kernel is: the @kernel block over a numpy reference, its variants, cases, and the registry.

The shader file states bindings, Params and tunables; the block states what is not in the shader: which op it
serves (`lower`), the grid, seeded data for its cases, and its variants. The reference's parameter names are the
binding names (plus `params`, and `consts` where it needs a constant); it writes its outputs in place, on flat
1-D arrays that may be longer than needed (buffers are pooled).
"""

from __future__ import annotations

import inspect
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Callable, Mapping

import numpy as np

from . import wgsl

# One row of the step buffer (AMENDMENTS 2). Positions are data; `limit` is the kv_len at which the GPU sets done.
STEP_DTYPE = np.dtype([(n, "<u4") for n in ("token", "position", "kv_len", "slot", "adapter", "flags", "draw", "limit")])
DONE, MASKED, WANTS_LOGITS, SPLICED, BAD = 1, 2, 4, 8, 16
# Per slot, written at admission (engine/sample.py makes it): see include/sampling.wgsl.
SAMPLING_DTYPE = np.dtype([("scale", "<f4"), ("top_p", "<f4"), ("min_p", "<f4"), ("top_k", "<u4"), ("penalty", "<f4"),
                           ("inverse_penalty", "<f4"), ("window", "<u4"), ("seed_lo", "<u4"), ("seed_hi", "<u4"),
                           ("stop", "<u4", (8,)), ("flags", "<u4"), ("n_bias", "<u4"), ("vocab", "<u4")])
DECODE_ROWS = 4  # most rows of a decode plan; kernels for more give a row other bits than its solo run
HAS_MASK = 1  # of a sampling record's flags
NO_TOKEN = 0xFFFFFFFF  # fills unused stop ids
ABSENT = np.float32(-3.4e38)  # a logit at or below this is no choice
OUT_DTYPE = np.dtype([("token", "<u4"), ("kv_len", "<u4"), ("flags", "<u4"), ("logprob", "<f4")])
# What block_max makes of a block of logits: see include/partial.wgsl.
PARTIAL_DTYPE = np.dtype([("maximum", "<f4"), ("id", "<u4"), ("total", "<f4"), ("bad", "<u4")])
STRUCTS = {"StepRow": STEP_DTYPE, "Sampling": SAMPLING_DTYPE, "OutRow": OUT_DTYPE, "Partial": PARTIAL_DTYPE}


@dataclass(frozen=True)
class Variant:
    """Same shader, other constants. features: WebGPU features it needs ("f16", "subgroups").

    prefer   "any" | "gpu" | "software": a software adapter (SwiftShader) pays about 6x for a barrier; select tries
             the fitting ones first and the others after.
    """

    name: str
    consts: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    prefer: str = "any"


@dataclass(frozen=True)
class Case:
    """One test case: params (all sizes are there), constants on top of the variant's, and why it is there."""

    params: Mapping[str, Any]
    consts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Lowered:
    """How one node runs on a kernel variant: Params values and constants (on top of the variant's)."""

    params: Mapping[str, Any]
    consts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """A registered kernel; see `kernel` for the fields."""

    path: str
    reference: Callable
    op: str | None
    lower: Callable | None
    grid: Callable
    data: Callable
    cases: tuple[Case, ...]
    variants: tuple[Variant, ...]
    tol: float
    strided: tuple[str, ...]

    def shader(self, consts: Mapping[str, Any]) -> wgsl.Shader:
        return wgsl.join(self.path, consts)


KERNELS: dict[str, Kernel] = {}


def kernel(path: str, *, grid: Callable, data: Callable, cases: list[Case], op: str | None = None, lower: Callable | None = None,
           variants: tuple[Variant, ...] = (Variant("plain"),), tol: float = 1e-5, strided: tuple[str, ...] = ()):
    """Registers the decorated numpy reference as kernel `path`.

    op, lower   the graph op it can serve, and lower(node, ctx, variant) -> Lowered | None (None: not this node, ctx or variant)
    grid        grid(params, consts) -> (x, y, z) workgroups; params and consts are namespaces with every value set
    data        data(rng, params, consts) -> {storage binding name: array}; use `poison` for what is only written
    cases       first one also serves as the self-test on the user's device, with the plan's constants
    tol         max |device - reference| over max |reference|, per float output; integer outputs must be equal
    strided     slots that may be views (columns of a wider row); the others must be whole tensors
    """

    def register(fn: Callable) -> Callable:
        if path in KERNELS:
            raise ValueError(f"kernel {path} is registered twice")
        KERNELS[path] = Kernel(path, fn, op, lower, grid, data, tuple(cases), tuple(variants), tol, tuple(strided))
        return fn

    return register


def kernels_for(op: str) -> list[Kernel]:
    """Kernels that serve `op`, in order of registration (first fitting one is taken)."""
    return [k for k in KERNELS.values() if k.op == op]


def device_consts(path: str, consts: Mapping[str, Any], subgroup_sizes: tuple[int, int]) -> dict[str, Any]:
    """`consts` plus SUBGROUP, the smallest subgroup size of the adapter, where the text has it and it is not given."""
    if subgroup_sizes[0] and "SUBGROUP" not in consts and "SUBGROUP" in wgsl.join(path, consts).constants:
        return {**consts, "SUBGROUP": subgroup_sizes[0]}
    return dict(consts)


def namespace(values: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**values)


def const_values(shader: wgsl.Shader, consts: Mapping[str, Any]) -> SimpleNamespace:
    """Every constant of the shader as a Python value: the given ones and the text's defaults."""
    values: dict[str, Any] = {}
    for name, text in shader.constants.items():
        bare = text.rstrip("uf")
        try:
            values[name] = int(bare, 0)
        except ValueError:
            try:
                values[name] = float(text)
            except ValueError:
                values[name] = {"true": True, "false": False}.get(text, text)
    values.update(consts)
    return SimpleNamespace(**values)


def pack_params(shader: wgsl.Shader, params: Mapping[str, Any]) -> bytes:
    """Bytes of `struct Params` (little endian, padded to 16).

    Raises: ValueError naming fields that are missing or not in the struct.
    """
    names = [n for n, _ in shader.params]
    if set(names) != set(params):
        raise ValueError(f"kernel {shader.path}: Params has {names}, given {sorted(params)}")
    codes = {"u32": "I", "i32": "i", "f32": "f"}
    raw = b"".join(struct.pack("<" + codes[kind], float(params[n]) if kind == "f32" else int(params[n])) for n, kind in shader.params)
    return raw + bytes(-len(raw) % 16)


def element_dtype(binding: wgsl.Binding) -> np.dtype:
    """numpy dtype of a binding's element; vectors count as their scalars, structs by STRUCTS."""
    text = binding.type.replace(" ", "")
    if text.startswith("array<"):
        text = text[len("array<"):-1].split(",")[0]
    if text.startswith("atomic<"):
        text = text[len("atomic<"):-1]
    if text in STRUCTS:
        return STRUCTS[text]
    if text[:3] == "vec":
        text = {"f": "f32", "u": "u32", "i": "i32", "h": "f16"}.get(text[4:], text[5:-1])
    known = {"f32": "<f4", "u32": "<u4", "i32": "<i4", "f16": "<f2", "E": "<f4"}
    if text not in known:
        raise ValueError(f"binding {binding.name}: {binding.type} has no numpy dtype")
    return np.dtype(known[text])


def run_reference(kernel_: Kernel, arrays: Mapping[str, np.ndarray], params: Mapping[str, Any], consts: SimpleNamespace) -> None:
    """Calls the reference on `arrays` (by binding name, written in place)."""
    wanted = _parameters(kernel_.reference)
    args = {n: a for n, a in arrays.items() if n in wanted}
    if "params" in wanted:
        args["params"] = namespace(params)
    if "consts" in wanted:
        args["consts"] = consts
    kernel_.reference(**args)


@lru_cache(maxsize=None)
def _parameters(fn: Callable) -> frozenset[str]:
    """Names of a reference's parameters; asking `inspect` at each dispatch was a tenth of a step on the numpy device."""
    return frozenset(inspect.signature(fn).parameters)


def poison(count: int, dtype: str = "f4") -> np.ndarray:
    """An array no correct kernel leaves in place: NaN for floats, 0xDEADBEEF for integers."""
    return np.full(count, np.nan, dtype) if np.dtype(dtype).kind == "f" else np.full(count, 0xDEADBEEF, dtype)


def steps(rows: list[dict]) -> np.ndarray:
    """A step buffer from dicts of fields; the rest is 0."""
    out = np.zeros(len(rows), STEP_DTYPE)
    for i, row in enumerate(rows):
        for name, value in row.items():
            out[name][i] = value
    return out


def is_idle(row) -> bool:
    """A step row that must write no state (include/step.wgsl has the same)."""
    return bool(int(row["flags"]) & (DONE | MASKED))


def grid2d(count: int, limit: int = 65535) -> tuple[int, int, int]:
    """A grid of at least `count` workgroups with no side past `limit`: index = wg.y * num_workgroups.x + wg.x."""
    if count <= limit:
        return (max(count, 1), 1, 1)
    y = -(-count // limit)
    return (-(-count // y), y, 1)
