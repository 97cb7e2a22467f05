"""The Device on navigator.gpu, in a worker: the only file of runtime/ that knows JavaScript. web/replay.js does what must be one call."""

from __future__ import annotations

from asyncio import get_running_loop
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import js
import numpy as np
from pyodide.ffi import JsException, JsProxy, create_proxy, to_js

from ..errors import DeviceLost, JirdError, KernelFailed, NoWebGPU, OutOfMemory
from ..kernels import wgsl
from .device import Bound, CopyOut, DeviceInfo, Limits

FEATURES = {"shader-f16": "f16", "subgroups": "subgroups", "timestamp-query": "timestamp"}
LIMITS = {
    "storage_buffers": "maxStorageBuffersPerShaderStage",
    "storage_binding_bytes": "maxStorageBufferBindingSize",
    "buffer_bytes": "maxBufferSize",
    "uniform_binding_bytes": "maxUniformBufferBindingSize",
    "workgroup_bytes": "maxComputeWorkgroupStorageSize",
    "invocations": "maxComputeInvocationsPerWorkgroup",
    "workgroups": "maxComputeWorkgroupsPerDimension",
}
RAISED = ("maxStorageBuffersPerShaderStage", "maxStorageBufferBindingSize", "maxBufferSize", "maxComputeWorkgroupStorageSize",
          "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY")
SOFTWARE = ("swiftshader", "llvmpipe", "lavapipe", "softpipe", "basic render")
LETTER = {"read": "r", "read_write": "w", "uniform": "u"}
COPY_SRC, COPY_DST, UNIFORM, STORAGE = 4, 8, 64, 128  # GPUBufferUsage


def is_null(value: Any) -> bool:
    """Whether a JS result is null or undefined (None or jsnull, by Pyodide's version)."""
    return value is None or type(value).__name__ == "JsNull"


def js_obj(value: Any) -> Any:
    """A Python dict or list as a plain JS object or array."""
    return to_js(value, dict_converter=js.Object.fromEntries, create_pyproxies=False)


@dataclass(frozen=True, eq=False)
class WebBuffer:
    handle: JsProxy
    label: str
    nbytes: int


@dataclass(frozen=True, eq=False)
class WebPipeline:
    """kernel: replay.js's {pipeline, layout}."""

    kernel: JsProxy
    path: str


@dataclass(frozen=True, eq=False)
class WebRecording:
    handle: JsProxy
    labels: tuple[str, ...]


async def open_device(limits: str = "adapter") -> "WebDevice":
    """The page's GPU. limits: "adapter" (all it has) | "default" (WebGPU's defaults, no features).

    Raises: NoWebGPU.
    """
    gpu = getattr(js.navigator, "gpu", None)
    if is_null(gpu):
        raise NoWebGPU("this browser has no WebGPU (navigator.gpu is missing)")
    try:
        adapter = await gpu.requestAdapter(powerPreference="high-performance")
    except JsException as error:
        raise NoWebGPU(f"the browser refuses a GPU adapter: {_words(error)}") from error
    if is_null(adapter):
        raise NoWebGPU("the browser has WebGPU but gives no GPU adapter",
                       "Switch on hardware acceleration, update the graphics driver, or wait two minutes if the GPU has just crashed, then reload.")
    wide = limits == "adapter"
    names = [name for name in FEATURES if wide and adapter.features.has(name)]
    raised = {name: getattr(adapter.limits, name) for name in RAISED if wide}
    info = adapter.info
    try:
        device = await adapter.requestDevice(js_obj({"label": "jird", "requiredFeatures": names, "requiredLimits": raised}))
    except JsException as error:
        raise NoWebGPU(f"the GPU adapter gives no device: {_words(error)}") from error
    opened = WebDevice(device)
    await opened.probe()
    dialect = "tint"
    if "subgroups" in names and not await opened.accepts("enable subgroups;\n"):
        dialect = "naga"  # Firefox: naga knows subgroup operations but refuses the enable line
    has = device.limits
    sizes = tuple(int(getattr(info, f"subgroup{end}Size", 0) or 0) for end in ("Min", "Max"))
    opened.info = DeviceInfo(
        name=_name(info), features=frozenset(FEATURES[n] for n in names), dialect=dialect, trust=_trust(info),
        limits=Limits(**{ours: int(getattr(has, theirs)) for ours, theirs in LIMITS.items()}),
        subgroup_sizes=sizes if "subgroups" in names else (0, 0))
    return opened


class WebTicket:
    """A submitted program; see device.Ticket. A result that has come costs no turn of the event loop. One task waits for it."""

    __slots__ = ("_device", "_data", "_is_done", "_future")

    def __init__(self, device: "WebDevice", is_done: bool):
        self._device, self._data, self._is_done, self._future = device, None, is_done, None

    def finish(self, data: bytes | None) -> None:
        self._data, self._is_done = data, True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def result(self) -> bytes:
        if not self._is_done:
            if self._future is None or self._future.cancelled():
                self._future = get_running_loop().create_future()
            await self._future
        if self._data is None:
            raise self._device.failure(None)
        return self._data


class WebDevice:
    """The Device protocol on one GPUDevice; made by open_device. dispatches_per_submit: 0 = all in one."""

    def __init__(self, device: JsProxy):
        self.info = DeviceInfo("unopened")
        self.dispatches_per_submit = 0
        self._tickets: dict[int, WebTicket] = {}
        self._deliver = create_proxy(self._on_result)
        self._replay = js.jirdShell.replay.Replay.new(device, self._deliver)
        self._device, self._queue, self._run = device, device.queue, self._replay.run
        self._pipelines: dict[tuple, WebPipeline] = {}
        self._staging: dict[int, JsProxy] = {}

    async def probe(self) -> None:
        """Finds out how this browser brings results; once, before anything else."""
        try:
            await self._replay.probe()
        except JsException as error:
            raise self.failure(error) from error

    async def accepts(self, code: str) -> bool:
        """Whether the browser's compiler takes this text."""
        return bool(await self._replay.accepts(code))

    async def create_buffer(self, label: str, nbytes: int, *, uniform: bool = False) -> WebBuffer:
        size = max(4, -(-nbytes // 4) * 4)
        try:
            handle = await self._replay.createBuffer(label, size, STORAGE | COPY_SRC | COPY_DST | (UNIFORM if uniform else 0))
        except JsException as error:
            if not is_null(self._replay.fault):
                raise self.failure(error) from error
            raise OutOfMemory(f"the GPU has no room for buffer {label} of {nbytes} bytes: {_words(error)}") from error
        return WebBuffer(handle, label, size)

    def write(self, buffer: WebBuffer, offset: int, data: Any) -> None:
        """Bytes-like data, numpy arrays, or a JS typed array or ArrayBuffer, which never enters the wasm heap."""
        self._queue.writeBuffer(buffer.handle, offset, data if isinstance(data, JsProxy) else self._to_js(data))

    def _to_js(self, data: Any) -> JsProxy:
        flat = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        flat = flat.reshape(-1).view(np.uint8)
        staging = self._staging.get(flat.size)
        if staging is None:
            staging = js.Uint8Array.new(flat.size)
            if flat.size <= 65536 and len(self._staging) < 64:
                self._staging[flat.size] = staging
        staging.assign(flat)
        return staging

    async def read(self, buffer: WebBuffer, offset: int, nbytes: int) -> bytes:
        try:
            return (await self._replay.read(buffer.handle, offset, nbytes)).to_bytes()
        except JsException as error:
            raise self.failure(error) from error

    def destroy(self, buffer: WebBuffer) -> None:
        buffer.handle.destroy()

    async def compile(self, path: str, consts: Mapping[str, Any], features: tuple[str, ...]) -> WebPipeline:
        key = (path, tuple(sorted(consts.items())), tuple(features))
        found = self._pipelines.get(key)
        if found is None:
            shader = wgsl.join(path, consts)
            code = wgsl.enables(tuple(features), self.info.dialect) + shader.code
            try:
                kernel = await self._replay.compile(path, code, "".join(LETTER[b.access] for b in shader.bindings))
            except JsException as error:
                if not is_null(self._replay.fault):
                    raise self.failure(error) from error
                raise KernelFailed(f"kernel {path} with {dict(consts)} does not compile: {_words(error)}") from error
            found = self._pipelines[key] = WebPipeline(kernel, path)
        return found

    def record(self, dispatches: Sequence[Bound], label: str) -> WebRecording:
        recording, add = self._replay.recording(label), self._replay.add
        for d in dispatches:
            slices = [part for s in d.bindings for part in (s.buffer.handle, s.offset, s.nbytes)]
            add(recording, d.label, d.pipeline.kernel, *d.grid, *slices)
        return WebRecording(recording, tuple(d.label for d in dispatches))

    def program(self, work: Sequence[Any]) -> JsProxy:
        replay, made = self._replay, self._replay.program(self.dispatches_per_submit)
        for item in work:
            if isinstance(item, CopyOut):
                s = item.source
                replay.addCopy(made, s.buffer.handle, s.offset, s.nbytes or s.buffer.nbytes - s.offset)
            else:
                replay.addRecording(made, item.handle)
        return made

    def run(self, program: JsProxy, kick: bool = False) -> WebTicket:
        """One FFI call, one submit. kick: keep poking the queue until the result is there (for one step in flight)."""
        number = self._run(program, kick)
        ticket = WebTicket(self, number == 0)
        if number:
            self._tickets[number] = ticket
        return ticket

    def _on_result(self, number: int, data: Any) -> None:
        """replay.js's deliver: the bytes of a ticket, null after a fault."""
        self._tickets.pop(number).finish(None if is_null(data) else data.to_bytes())

    async def profile(self, recording: WebRecording, repeats: int) -> list[tuple[str, float]]:
        """(label, us) of each dispatch, `repeats` times on end in a pass of its own; the adapter must have timestamp queries."""
        try:
            times = await self._replay.profile(recording.handle, repeats)
        except JsException as error:
            raise self.failure(error) from error
        return list(zip(recording.labels, times.to_py().tolist(), strict=True))

    async def profile_whole(self, recording: WebRecording, repeats: int) -> list[float]:
        """us of the recording in one pass, `repeats` times; the adapter must have timestamp queries."""
        try:
            return (await self._replay.profileWhole(recording.handle, repeats)).to_py().tolist()
        except JsException as error:
            raise self.failure(error) from error

    async def idle(self) -> None:
        try:
            await self._replay.idle()
        except JsException as error:
            raise self.failure(error) from error

    def close(self) -> None:
        """Destroys the device with all its buffers; what is pending raises DeviceLost. Calls after the first do nothing."""
        if self._deliver is None:
            return
        self._replay.close()
        self._deliver.destroy()
        self._deliver = None
        self._pipelines.clear()
        self._staging.clear()

    def failure(self, error: JsException | None) -> JirdError:
        """The typed error for a rejected ticket."""
        fault = self._replay.fault
        if is_null(fault):
            return DeviceLost(f"the GPU gave no result: {_words(error)}")
        if fault.kind == "memory":
            return OutOfMemory(f"the GPU ran out of memory: {fault.message}")
        if fault.kind == "lost":
            return DeviceLost(f"the GPU device was lost: {fault.message}")
        return DeviceLost(f"the GPU refused work and cannot be trusted any more: {fault.message}")


def _words(error: JsException | None) -> str:
    """A JS error's message without its class name and stack."""
    return str(getattr(error, "message", None) or error).strip()


def _name(info: JsProxy) -> str:
    parts = [str(getattr(info, key, "") or "") for key in ("vendor", "architecture", "device", "description")]
    unnamed = "software adapter" if getattr(info, "isFallbackAdapter", False) else "unnamed adapter"  # Firefox names none
    return " ".join(dict.fromkeys(filter(None, parts))) or unnamed


def _trust(info: JsProxy) -> str:
    name = _name(info).lower()
    if bool(getattr(info, "isFallbackAdapter", False)) or any(word in name for word in SOFTWARE):
        return "software"
    agent = str(js.navigator.userAgent)
    # WebKit loses writes between passes of long submits on some devices; nothing but its name tells it apart.
    if "AppleWebKit" in agent and "Chrome" not in agent:
        return "probe"
    return "trusted"
