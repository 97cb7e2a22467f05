"""Runs kernel cases on a Device and compares them with the numpy references.

One harness for tests/test_kernels.py, the page kernels.html and the self-test at the start of a session. Every
storage binding carries a tail that no kernel may read into its results or write to: buffers are pooled, so what
lies behind a tensor is another one.
"""

from __future__ import annotations

import math
from asyncio import gather
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, AsyncIterator, Mapping, Sequence

import numpy as np

from .. import kernels
from ..errors import KernelFailed
from ..kernels import wgsl
from ..kernels.core import KERNELS, Case, Kernel, Variant, const_values, device_consts, namespace, pack_params, run_reference
from .device import Bound, CopyOut, Device, DeviceInfo, Slice
from .profile import profile

TOGETHER = 4  # cases of the self-test in flight: compiling and reading back overlap
TIMINGS, TIMED_REPEATS = 8, 1024  # about 30 ms of a short kernel: an idle GPU's clock is down to a fifth
TAIL_BYTES = 32
TAIL = bytes.fromhex("addec07f")  # a NaN as f32, -427.25 and NaN as f16, 0x7fc0dead as u32


@dataclass(frozen=True)
class Result:
    """What a case gave. max_err: largest |device - reference| / max |reference| over the float outputs; detail says what differs."""

    kernel: str
    variant: str
    case: int
    ok: bool
    max_err: float
    detail: str = ""


@dataclass(frozen=True)
class Prepared:
    """A case ready to run: arrays by storage binding, each followed by a tail; count = elements without it."""

    shader: wgsl.Shader
    consts: Mapping[str, Any]
    values: Any
    arrays: Mapping[str, np.ndarray]
    count: Mapping[str, int]
    grid: tuple[int, int, int]


def all_kernels() -> dict[str, Kernel]:
    """The registry after every module of jird.kernels is imported."""
    kernels.load_all()
    return KERNELS


def constants(kernel: Kernel, variant: Variant, case: Case, info: DeviceInfo, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The constants a case compiles with: variant's, case's, extra; SUBGROUP is the adapter's smallest size where the text has it."""
    return device_consts(kernel.path, {**variant.consts, **case.consts, **(extra or {})}, info.subgroup_sizes)


def baked(case: Case) -> dict[str, Any]:
    """The constant that bakes a case's params into the text, as plans for GPUs do."""
    return {"PARAMS": tuple(sorted(case.params.items()))}


def runs(only: str, is_first_only: bool = False) -> list[tuple[Kernel, Variant, int, bool]]:
    """(kernel, variant, case index, params baked) of every run of the kernels whose path begins with `only`.

    Every case with params in a buffer, and each variant's first case with baked params too.
    """
    return [(kernel, variant, index, is_baked) for kernel in all_kernels().values() if kernel.path.startswith(only)
            for variant in kernel.variants for index in range(1 if is_first_only else len(kernel.cases))
            for is_baked in ((False, True) if index == 0 else (False,))]


def lacks(kernel: Kernel, variant: Variant, case: Case, info: DeviceInfo) -> str:
    """Why a device cannot run a case ("" when it can): a feature, a limit."""
    missing = [f for f in variant.features if f not in info.features]
    if missing:
        return f"no {' and '.join(missing)}"
    shader = kernel.shader(constants(kernel, variant, case, info))
    if shader.storage_buffers > info.limits.storage_buffers:
        return f"{shader.storage_buffers} storage buffers, the device has {info.limits.storage_buffers}"
    threads = math.prod(wgsl.workgroup_size(shader))
    if threads > info.limits.invocations:
        return f"{threads} threads a workgroup, the device has {info.limits.invocations}"
    return ""


def prepare(kernel: Kernel, variant: Variant, case: Case, info: DeviceInfo, extra: Mapping[str, Any] | None = None) -> Prepared:
    """Data, constants and grid of a case. Raises: ValueError where the kernel's block contradicts its shader."""
    consts = constants(kernel, variant, case, info, extra)
    shader = kernel.shader(consts)
    values = const_values(shader, consts)
    data = kernel.data(np.random.default_rng(case.seed), namespace(case.params), values)
    names = [b.name for b in shader.bindings if b.name != "params"]
    if set(data) != set(names):
        raise ValueError(f"kernel {kernel.path}: data gives {sorted(data)}, the shader binds {sorted(names)}")
    arrays, count = {}, {}
    for binding in shader.bindings:
        if binding.name != "params":
            flat = np.ascontiguousarray(data[binding.name]).ravel()
            if flat.dtype.itemsize == 8 and not flat.dtype.names or flat.dtype == bool:
                raise ValueError(f"kernel {kernel.path}: data of {binding.name} is {flat.dtype}, which no WGSL binding holds")
            count[binding.name] = flat.size
            arrays[binding.name] = flat if binding.access == "uniform" else _with_tail(flat)
    return Prepared(shader, consts, values, arrays, count, tuple(kernel.grid(namespace(case.params), values)))


async def run_case(device: Device, kernel: Kernel, variant: Variant, case: Case, extra: Mapping[str, Any] | None = None, index: int = 0) -> Result:
    """One case on `device` against the reference; a compiler error or a difference is a Result that is not ok.

    Raises: DeviceLost, OutOfMemory; ValueError where the kernel's block contradicts its shader.
    """
    ready = prepare(kernel, variant, case, device.info, extra)
    wanted = {name: array.copy() for name, array in ready.arrays.items()}
    with np.errstate(all="ignore"):
        run_reference(kernel, wanted, case.params, ready.values)
    details, worst = [], 0.0
    limit = device.info.limits.workgroups
    if max(ready.grid) > limit:
        details.append(f"grid {ready.grid} is past {limit} workgroups a side")
    else:
        try:
            got = await run_kernel(device, kernel, variant, case, ready)
        except KernelFailed as error:
            got = {}
            details.append(str(error))
        for name, want in wanted.items():
            error, detail = _check(ready, name, want, got.get(name), kernel.tol)
            worst = max(worst, error)
            if detail:
                details.append(f"{name}: {detail}")
    return Result(kernel.path, variant.name, index, not details, worst, "; ".join(details))


async def time_case(device: Device, kernel: Kernel, variant: Variant, case: Case, extra: Mapping[str, Any] | None = None) -> float:
    """us of one dispatch of a case, repeated on end for long enough that the GPU's clock is up; data in the cache.

    Raises: ValueError when the device has no timestamp queries
    """
    ready = prepare(kernel, variant, case, device.info, extra)
    async with bound_case(device, kernel, variant, case, ready) as (bound, _):
        recording = device.record([bound], bound.label)
        return min([us for _ in range(TIMINGS) for _, us in await profile(device, recording, TIMED_REPEATS)][TIMINGS // 2:])


@asynccontextmanager
async def bound_case(device: Device, kernel: Kernel, variant: Variant, case: Case, ready: Prepared) -> AsyncIterator[tuple[Bound, list]]:
    """A prepared case's pipeline and filled buffers as one dispatch; the buffers are destroyed at the end."""
    shader, label = ready.shader, f"test/{kernel.path}/{variant.name}"
    pipeline = await device.compile(kernel.path, ready.consts, variant.features)
    buffers = []
    try:
        for binding in shader.bindings:
            raw = pack_params(shader, case.params) if binding.name == "params" else ready.arrays[binding.name].tobytes()
            buffer = await device.create_buffer(f"{label}/{binding.name}", max(len(raw), 4), uniform=binding.access == "uniform")
            buffers.append(buffer)
            if raw:
                device.write(buffer, 0, raw)
        yield Bound(pipeline, tuple(Slice(b) for b in buffers), ready.grid, label), buffers
    finally:
        for buffer in buffers:
            device.destroy(buffer)


async def run_kernel(device: Device, kernel: Kernel, variant: Variant, case: Case, ready: Prepared) -> dict[str, np.ndarray]:
    """Runs a prepared case on the device; returns its read_write bindings, tails included."""
    written = [b for b in ready.shader.bindings if b.access == "read_write"]
    async with bound_case(device, kernel, variant, case, ready) as (bound, buffers):
        copies = [CopyOut(Slice(buffers[b.index], 0, ready.arrays[b.name].nbytes)) for b in written]
        raw = await device.run(device.program([device.record([bound], bound.label), *copies])).result()
    at, out = 0, {}
    for b in written:
        array = ready.arrays[b.name]
        out[b.name] = np.frombuffer(raw, array.dtype, array.size, at)
        at += array.nbytes
    return out


async def self_test(device: Device, variants: Sequence[tuple[str, Variant, Mapping[str, Any]]]) -> list[Result]:
    """One small case of each (kernel path, variant, constants of the plan); returns those that failed.

    The case is the one that agrees most with the plan's constants (rows, pair format, group size), the smallest of those. What it leaves
    open (tunables) has the plan's values, so that mostly the plan's own pipelines are tested and none is compiled twice.
    Raises: DeviceLost, OutOfMemory.
    """
    todo: dict[tuple, tuple[Kernel, Variant, int, Mapping[str, Any]]] = {}
    for path, variant, consts in variants:
        kernel = KERNELS[path]
        index, case = min(enumerate(kernel.cases), key=lambda item: _distance(item[1], consts))
        extra = {name: value for name, value in consts.items() if name not in case.consts}
        if "PARAMS" in consts:
            extra |= baked(case)
        todo.setdefault((path, variant.name, index, tuple(sorted(extra.items()))), (kernel, variant, index, extra))
    failures: list[Result] = []
    feed = iter(todo.values())

    async def work() -> None:
        for kernel, variant, index, extra in feed:
            outcome = await run_case(device, kernel, variant, kernel.cases[index], extra, index)
            if not outcome.ok:
                failures.append(outcome)

    await gather(*(work() for _ in range(TOGETHER)))
    return failures


def compare(want: np.ndarray, got: np.ndarray, tol: float) -> tuple[float, str]:
    """Largest error over max |want|, and what is wrong ("" when nothing).

    Floats: max |want - got| <= tol * max |want|, NaN and infinities in the same places; the rest is equal. By field where structured.
    """
    if want.dtype.names:
        worst, details = 0.0, []
        for name in want.dtype.names:
            error, detail = compare(np.ascontiguousarray(want[name]).ravel(), np.ascontiguousarray(got[name]).ravel(), tol)
            worst = max(worst, error)
            if detail:
                details.append(f".{name} {detail}")
        return worst, "; ".join(details)
    if want.dtype.kind != "f":
        wrong = np.flatnonzero(want != got)
        return (math.inf, _where(wrong, want, got)) if wrong.size else (0.0, "")
    finite = np.isfinite(want) & np.isfinite(got)
    wrong = np.flatnonzero(~finite & (want != got) & ~(np.isnan(want) & np.isnan(got)))
    if wrong.size:
        return math.inf, _where(wrong, want, got)
    if not finite.any():
        return 0.0, ""
    wide = want.astype(np.float64)
    delta = np.abs(np.subtract(wide, got, where=finite, out=np.zeros_like(wide)))
    scale = float(np.abs(wide[finite]).max())
    worst = float(delta.max()) / scale if scale else float(delta.max())
    if worst <= tol:
        return worst, ""
    order = np.argsort(-delta, kind="stable")
    return worst, f"error {worst:.3g} is over {tol:g}; " + _where(order[: int((delta > tol * scale).sum())], want, got)


def _check(ready: Prepared, name: str, want: np.ndarray, got: np.ndarray | None, tol: float) -> tuple[float, str]:
    """Compares a binding: written ones with the device's, the others with what they held before."""
    before, count = ready.arrays[name], ready.count[name]
    if want[count:].tobytes() != before[count:].tobytes():
        return math.inf, "the reference writes past the end"
    if got is None:
        same = want.tobytes() == before.tobytes() or any(b.name == name and b.access == "read_write" for b in ready.shader.bindings)
        return (0.0, "") if same else (math.inf, "the reference writes a binding that the shader only reads")
    if got[count:].tobytes() != before[count:].tobytes():
        return math.inf, "the kernel writes past the end"
    return compare(want[:count], got[:count], tol)


def _with_tail(flat: np.ndarray) -> np.ndarray:
    size = flat.dtype.itemsize
    nbytes = flat.nbytes + -(-TAIL_BYTES // size) * size
    while nbytes % 4:
        nbytes += size
    raw = bytearray(TAIL * (nbytes // 4 + 1))[:nbytes]
    raw[: flat.nbytes] = flat.tobytes()
    return np.frombuffer(raw, flat.dtype)


def _distance(case: Case, consts: Mapping[str, Any]) -> tuple[int, float]:
    differ = sum(name in case.consts and case.consts[name] != value for name, value in consts.items())
    agree = sum(case.consts.get(name) == value for name, value in consts.items())
    return differ - agree, sum(abs(v) for v in case.params.values() if isinstance(v, (int, np.integer)))


def _where(wrong: np.ndarray, want: np.ndarray, got: np.ndarray) -> str:
    some = ", ".join(f"[{i}] is {got[i]}, not {want[i]}" for i in wrong[:3])
    return f"{wrong.size} of {want.size} differ: {some}"
