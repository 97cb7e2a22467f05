"""The Device protocol: what the executor needs of a GPU. Implementations: device_numpy (the oracle), device_web, the tests' native one.

A device compiles kernels, records dispatches once, and runs programs: lists of recordings and copies that go to the
GPU as one submit. What a program copies out comes back through its Ticket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Protocol, Sequence

UNIFORM_ALIGN = 256  # WebGPU's default minUniformBufferOffsetAlignment: bytes from one dispatch's Params to the next


@dataclass(frozen=True)
class Limits:
    """WebGPU limits that plans depend on; the defaults are WebGPU's own."""

    storage_buffers: int = 8
    storage_binding_bytes: int = 128 << 20
    buffer_bytes: int = 256 << 20
    uniform_binding_bytes: int = 65536
    workgroup_bytes: int = 16384
    invocations: int = 256
    workgroups: int = 65535


@dataclass(frozen=True)
class DeviceInfo:
    """trust: "software" (SwiftShader, lavapipe) | "probe" (submission groups are probed first) | "trusted"."""

    name: str
    limits: Limits = field(default_factory=Limits)
    features: frozenset[str] = frozenset()
    subgroup_sizes: tuple[int, int] = (0, 0)
    trust: str = "trusted"
    dialect: str = "tint"

    @property
    def is_software(self) -> bool:
        return self.trust == "software"


@dataclass(frozen=True)
class Slice:
    """Bytes [offset, offset + nbytes) of a device buffer (nbytes 0: to its end)."""

    buffer: Any
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Bound:
    """One dispatch ready to record: compiled pipeline, buffers in binding order, workgroups."""

    pipeline: Any
    bindings: tuple[Slice, ...]
    grid: tuple[int, int, int]
    label: str


@dataclass(frozen=True)
class CopyOut:
    """Copy `source` into the program's readback after what stands before it in the program."""

    source: Slice


class Ticket(Protocol):
    """A submitted program."""

    async def result(self) -> bytes:
        """What the program's CopyOuts read, one after another.

        Raises: DeviceLost when the device is gone.
        """


class Device(Protocol):
    """A GPU, or what stands for one. Every object it makes carries a label."""

    info: DeviceInfo

    async def create_buffer(self, label: str, nbytes: int, *, uniform: bool = False) -> Any:
        """A zeroed buffer usable as storage, copy source and target (and as uniform where asked).

        Raises: OutOfMemory naming label and bytes.
        """

    def write(self, buffer: Any, offset: int, data: Any) -> None:
        """Queue a write of bytes-like `data` (length a multiple of 4) at `offset`, before any later submit."""

    async def read(self, buffer: Any, offset: int, nbytes: int) -> bytes:
        """Bytes of a buffer after everything submitted before."""

    def destroy(self, buffer: Any) -> None: ...

    async def compile(self, path: str, consts: Mapping[str, Any], features: tuple[str, ...]) -> Any:
        """The pipeline of kernel `path` with `consts` (cached by both).

        Raises: KernelFailed with the compiler's words.
        """

    def record(self, dispatches: Sequence[Bound], label: str) -> Any:
        """A recording to be replayed any number of times; nothing is created at replay."""

    def program(self, work: Sequence[Any]) -> Any:
        """Recordings and CopyOuts in order, as one submit."""

    def run(self, program: Any) -> Ticket: ...

    async def idle(self) -> None:
        """Returns when everything submitted has run."""

    def close(self) -> None: ...
