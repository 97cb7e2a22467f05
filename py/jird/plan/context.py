"""What a plan is compiled for: rows, slots, context, device limits and features, weight formats, and what failed its self-test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from ..graph.ir import F32, Dim, Format, Tensor
from ..runtime.device import DeviceInfo, Limits


@dataclass(frozen=True)
class Context:
    """rows: T of this plan (most rows a step can have); slots: B; context: S, keys a slot can hold.

    one_row_a_slot   decode: no two rows of a step share a slot, so a row's own new key need not pass through the cache
    kv_limit         most keys a row may see in this plan (a second list serves longer rows); 0 = context
    passes           names of the fusion passes that run; None = all that are on by default
    bakes_params     sizes are written into the shader text instead of a uniform buffer: a pipeline a shape, about 1 us a dispatch less on a GPU
    failed           (kernel path, variant name) that must not be chosen
    """

    rows: int
    slots: int = 1
    context: int = 2048
    one_row_a_slot: bool = False
    kv_limit: int = 0
    limits: Limits = field(default_factory=Limits)
    features: frozenset[str] = frozenset()
    subgroup_sizes: tuple[int, int] = (0, 0)
    is_software: bool = False
    bakes_params: bool = False
    formats: Mapping[str, Format] = field(default_factory=dict)
    passes: frozenset[str] | None = None
    failed: frozenset[tuple[str, str]] = frozenset()

    def format(self, weight: Tensor) -> Format:
        """The storage format of a weight tensor (by its root's name); f32 where none is given."""
        return self.formats.get(weight.root.name, F32)

    def dim(self, d: Dim) -> int:
        """A dim as a number: T rows, B slots, S context."""
        if isinstance(d, int):
            return d
        return {"T": self.rows, "B": self.slots, "S": self.context}[d]

    def size(self, tensor: Tensor) -> int:
        """Elements of a tensor."""
        total = 1
        for d in tensor.shape:
            total *= self.dim(d)
        return total

    @property
    def keys(self) -> int:
        """Most keys a row can see in this plan."""
        return self.kv_limit or self.context


def context_for(info: DeviceInfo, **kwargs) -> Context:
    """A Context with the limits and features of a device."""
    return Context(limits=info.limits, features=info.features, subgroup_sizes=info.subgroup_sizes, is_software=info.is_software,
                   bakes_params=not info.is_software, **kwargs)
