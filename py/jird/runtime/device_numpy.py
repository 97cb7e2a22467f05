"""The numpy device: runs the kernels' references on byte buffers. The whole engine in CPython, and the oracle of the others."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Mapping, Sequence

import numpy as np

from ..errors import KernelFailed, OutOfMemory
from ..kernels import core
from .device import Bound, CopyOut, DeviceInfo, Limits, Slice


@dataclass(repr=False, eq=False)
class NumpyBuffer:
    """label and bytes."""

    label: str
    data: np.ndarray


@dataclass(frozen=True, repr=False)
class NumpyPipeline:
    kernel: core.Kernel
    shader: Any
    consts: SimpleNamespace
    params_dtype: np.dtype


@dataclass(frozen=True, repr=False)
class NumpyTicket:
    data: bytes

    async def result(self) -> bytes:
        return self.data


class NumpyDevice:
    """Device on numpy. `limits` and `features` may be set to see the plans of another device run."""

    def __init__(self, limits: Limits | None = None, features: frozenset[str] = frozenset(), subgroup_sizes: tuple[int, int] = (0, 0)):
        roomy = Limits(storage_buffers=64, storage_binding_bytes=1 << 40, buffer_bytes=1 << 40)
        self.info = DeviceInfo("numpy", limits or roomy, features, subgroup_sizes, trust="trusted", dialect="numpy")
        self.live_bytes = 0

    async def create_buffer(self, label: str, nbytes: int, *, uniform: bool = False) -> NumpyBuffer:
        if nbytes > self.info.limits.buffer_bytes:
            raise OutOfMemory(f"buffer {label}: {nbytes} bytes asked, {self.info.limits.buffer_bytes} is the most one buffer can hold")
        self.live_bytes += -(-nbytes // 16) * 16
        return NumpyBuffer(label, np.zeros(-(-nbytes // 16) * 16, np.uint8))

    def write(self, buffer: NumpyBuffer, offset: int, data: Any) -> None:
        raw = np.frombuffer(memoryview(np.ascontiguousarray(data)).cast("B") if isinstance(data, np.ndarray) else data, np.uint8)
        buffer.data[offset: offset + raw.size] = raw

    async def read(self, buffer: NumpyBuffer, offset: int, nbytes: int) -> bytes:
        return buffer.data[offset: offset + nbytes].tobytes()

    def destroy(self, buffer: NumpyBuffer) -> None:
        self.live_bytes -= buffer.data.size
        buffer.data = np.zeros(0, np.uint8)

    async def compile(self, path: str, consts: Mapping[str, Any], features: tuple[str, ...] = ()) -> NumpyPipeline:
        kernel = core.KERNELS.get(path)
        if kernel is None:
            raise KernelFailed(f"kernel {path} is not registered; known: {sorted(core.KERNELS)}")
        shader = kernel.shader(consts)
        codes = {"u32": "<u4", "i32": "<i4", "f32": "<f4"}
        fields = np.dtype([(n, codes[k]) for n, k in shader.params])
        return NumpyPipeline(kernel, shader, core.const_values(shader, consts), fields)

    def record(self, dispatches: Sequence[Bound], label: str) -> list:
        """Binds arrays once: (pipeline, params, {binding: array}) per dispatch."""
        return [self._bind(d) for d in dispatches]

    def program(self, work: Sequence[Any]) -> list:
        return list(work)

    def run(self, program: list) -> NumpyTicket:
        out = []
        for item in program:
            if isinstance(item, CopyOut):
                out.append(self._bytes(item.source).tobytes())
                continue
            for pipeline, params, arrays in item:
                core.run_reference(pipeline.kernel, arrays, params, pipeline.consts)
        return NumpyTicket(b"".join(out))

    async def idle(self) -> None:
        return None

    def close(self) -> None:
        return None

    def _bytes(self, s: Slice) -> np.ndarray:
        end = s.offset + s.nbytes if s.nbytes else s.buffer.data.size
        return s.buffer.data[s.offset:end]

    def _bind(self, d: Bound) -> tuple:
        arrays: dict[str, np.ndarray] = {}
        params: dict[str, Any] = dict(getattr(d.pipeline.consts, "PARAMS", ()))
        for binding, where in zip(d.pipeline.shader.bindings, d.bindings, strict=True):
            raw = self._bytes(where)
            if binding.name == "params":
                values = raw[: d.pipeline.params_dtype.itemsize].view(d.pipeline.params_dtype)[0]
                params = {n: values[n].item() for n in d.pipeline.params_dtype.names}
                continue
            dtype = core.element_dtype(binding)
            arrays[binding.name] = raw[: raw.size // dtype.itemsize * dtype.itemsize].view(dtype)
        return d.pipeline, params, arrays
