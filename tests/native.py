"""A Device on wgpu-py: the shaders run natively (naga, lavapipe where there is no GPU) without a browser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import wgpu
from jird.errors import KernelFailed, NoWebGPU, OutOfMemory
from jird.kernels import wgsl
from jird.runtime.device import Bound, CopyOut, DeviceInfo, Limits, Slice

FEATURES = {"shader-f16": "f16", "subgroup": "subgroups"}
LIMITS = {
    "storage_buffers": "max-storage-buffers-per-shader-stage",
    "storage_binding_bytes": "max-storage-buffer-binding-size",
    "buffer_bytes": "max-buffer-size",
    "uniform_binding_bytes": "max-uniform-buffer-binding-size",
    "workgroup_bytes": "max-compute-workgroup-storage-size",
    "invocations": "max-compute-invocations-per-workgroup",
    "workgroups": "max-compute-workgroups-per-dimension",
}
STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
KINDS = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}


@dataclass(frozen=True, eq=False)
class NativeBuffer:
    handle: Any
    label: str
    nbytes: int


@dataclass(frozen=True, eq=False)
class NativePipeline:
    handle: Any
    layout: Any
    shader: wgsl.Shader


@dataclass(frozen=True, eq=False)
class Recording:
    """Dispatches as (pipeline, bind group, grid)."""

    calls: tuple[tuple[Any, Any, tuple[int, int, int]], ...]
    label: str


@dataclass(frozen=True, eq=False)
class Program:
    work: tuple[Any, ...]
    nbytes: int


class NativeTicket:
    """A submitted program and the buffer its copies went to."""

    def __init__(self, device: "NativeDevice", readback: Any, nbytes: int):
        self._device, self._readback, self._nbytes, self._bytes = device, readback, nbytes, b""

    async def result(self) -> bytes:
        if self._readback is not None:
            self._readback.map_sync(wgpu.MapMode.READ, 0, self._nbytes)
            self._bytes = bytes(self._readback.read_mapped(0, self._nbytes))
            self._readback.unmap()
            self._device.free.setdefault(self._readback.size, []).append(self._readback)
            self._readback = None
        return self._bytes


class NativeDevice:
    """The Device protocol on wgpu-py; one adapter, f16 and subgroups where it has them."""

    def __init__(self, limits: str = "adapter"):
        """limits: "adapter" | "default" (WebGPU's defaults, no features). Raises: NoWebGPU without an adapter."""
        try:
            adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        except RuntimeError as error:
            raise NoWebGPU(f"wgpu gives no adapter: {error}") from error
        wide = limits == "adapter"
        wanted = [f for f in FEATURES if wide and f in adapter.features]
        names = [n for n in adapter.limits if n.startswith(("max-storage-buffer", "max-buffer", "max-compute"))] if wide else []
        self._device = adapter.request_device_sync(label="native", required_features=wanted,
                                                   required_limits={n: adapter.limits[n] for n in names})
        sizes = [next((v for k, v in adapter.info.items() if k.endswith(f"group_{end}_size")), 0) for end in ("min", "max")]
        has = self._device.limits
        self.info = DeviceInfo(
            name=adapter.summary, features=frozenset(FEATURES[f] for f in wanted), dialect="naga",
            limits=Limits(**{ours: has[theirs] for ours, theirs in LIMITS.items()}) if wide else Limits(),
            subgroup_sizes=tuple(sizes) if "subgroup" in wanted else (0, 0),
            trust="software" if adapter.info["adapter_type"] == "CPU" else "trusted")
        self._fence = self._device.create_buffer(label="fence", size=4, usage=STORAGE)
        self._pipelines: dict[tuple, NativePipeline] = {}
        self.free: dict[int, list] = {}

    async def create_buffer(self, label: str, nbytes: int, *, uniform: bool = False) -> NativeBuffer:
        size = -(-nbytes // 4) * 4
        try:
            handle = self._device.create_buffer(label=label, size=size, usage=STORAGE | (wgpu.BufferUsage.UNIFORM if uniform else 0))
        except wgpu.GPUError as error:
            raise OutOfMemory(f"buffer {label} of {nbytes} bytes could not be made: {error}") from error
        return NativeBuffer(handle, label, size)

    def write(self, buffer: NativeBuffer, offset: int, data: Any) -> None:
        self._device.queue.write_buffer(buffer.handle, offset, memoryview(data).cast("B"))

    async def read(self, buffer: NativeBuffer, offset: int, nbytes: int) -> bytes:
        return bytes(self._device.queue.read_buffer(buffer.handle, offset, nbytes))

    def destroy(self, buffer: NativeBuffer) -> None:
        buffer.handle.destroy()

    async def compile(self, path: str, consts: Mapping[str, Any], features: tuple[str, ...]) -> NativePipeline:
        key = (path, tuple(sorted(consts.items())), tuple(features))
        if key not in self._pipelines:
            self._pipelines[key] = self._build(wgsl.join(path, consts), features)
        return self._pipelines[key]

    def _build(self, shader: wgsl.Shader, features: tuple[str, ...]) -> NativePipeline:
        entries = [{"binding": b.index, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": KINDS[b.access]}} for b in shader.bindings]
        try:
            module = self._device.create_shader_module(label=shader.path, code=wgsl.enables(features, "naga") + shader.code)
            layout = self._device.create_bind_group_layout(label=shader.path, entries=entries)
            handle = self._device.create_compute_pipeline(
                label=shader.path, layout=self._device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"})
        except wgpu.GPUError as error:
            raise KernelFailed(f"kernel {shader.path}: {error}") from error
        return NativePipeline(handle, layout, shader)

    def record(self, dispatches: Sequence[Bound], label: str) -> Recording:
        return Recording(tuple((d.pipeline.handle, self._bind_group(d), d.grid) for d in dispatches), label)

    def _bind_group(self, bound: Bound) -> Any:
        entries = [{"binding": i, "resource": {"buffer": s.buffer.handle, "offset": s.offset, "size": s.nbytes or s.buffer.nbytes - s.offset}}
                   for i, s in enumerate(bound.bindings)]
        return self._device.create_bind_group(label=bound.label, layout=bound.pipeline.layout, entries=entries)

    def program(self, work: Sequence[Any]) -> Program:
        return Program(tuple(work), sum(_nbytes(w.source) for w in work if isinstance(w, CopyOut)))

    def run(self, program: Program) -> NativeTicket:
        encoder = self._device.create_command_encoder()
        readback, at = self._readback(program.nbytes), 0
        for item in program.work:
            if isinstance(item, CopyOut):
                encoder.copy_buffer_to_buffer(item.source.buffer.handle, item.source.offset, readback, at, _nbytes(item.source))
                at += _nbytes(item.source)
                continue
            one = encoder.begin_compute_pass(label=item.label)
            for pipeline, group, grid in item.calls:
                one.set_pipeline(pipeline)
                one.set_bind_group(0, group)
                one.dispatch_workgroups(*grid)
            one.end()
        self._device.queue.submit([encoder.finish()])
        return NativeTicket(self, readback, program.nbytes)

    def _readback(self, nbytes: int) -> Any:
        if not nbytes:
            return None
        if self.free.get(nbytes):
            return self.free[nbytes].pop()
        return self._device.create_buffer(label="readback", size=nbytes, usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST)

    async def idle(self) -> None:
        self._device.queue.read_buffer(self._fence, 0, 4)  # wgpu-py 0.32's on_submitted_work_done raises TypeError

    def close(self) -> None:
        self._device.destroy()


def _nbytes(source: Slice) -> int:
    return source.nbytes or source.buffer.nbytes - source.offset
