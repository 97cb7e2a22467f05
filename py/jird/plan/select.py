"""Which kernel variant runs a node: from rows, formats, limits, features, and what passed its self-test."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .. import kernels
from ..errors import KernelFailed
from ..graph.ir import Node
from ..kernels import core, wgsl
from .context import Context


@dataclass(frozen=True)
class Choice:
    """A node's kernel: everything the executor needs but the buffers."""

    kernel: core.Kernel
    variant: core.Variant
    consts: tuple[tuple[str, Any], ...]
    params: tuple[tuple[str, Any], ...]
    shader: wgsl.Shader

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.kernel.grid(core.namespace(dict(self.params)), core.const_values(self.shader, dict(self.consts)))


@lru_cache(maxsize=1024)
def joined(path: str, consts: tuple[tuple[str, Any], ...]) -> wgsl.Shader:
    return wgsl.join(path, dict(consts))


@dataclass
class Selector:
    """Chooses for one context; nodes that look alike (thirty layers) are decided once."""

    ctx: Context
    _decided: dict[tuple, Choice | None] = field(default_factory=dict)
    _offered: dict[str, list[tuple[core.Kernel, core.Variant]]] = field(default_factory=dict)

    def choose(self, node: Node) -> Choice | None:
        """The first kernel variant that can serve `node`: those made for this kind of adapter first."""
        look = self._look(node)
        if look not in self._decided:
            made = (_try(kernel, variant, node, self.ctx) for kernel, variant in self._offers(node.op))
            self._decided[look] = next((c for c in made if c is not None), None)
        return self._decided[look]

    def _offers(self, op: str) -> list[tuple[core.Kernel, core.Variant]]:
        if op not in self._offered:
            kernels.load_all()
            rank = {"software" if self.ctx.is_software else "gpu": 0, "any": 1}
            offers = [(k, v) for k in core.kernels_for(op) for v in k.variants]
            self._offered[op] = sorted(offers, key=lambda kv: rank.get(kv[1].prefer, 2))
        return self._offered[op]

    def _look(self, node: Node) -> tuple:
        """All of a node that a choice may depend on: op, attrs, and of every slot shape, view and weight format."""
        tensors = tuple((slot, t.shape, t.base is not None, t.column_offset, t.root.shape[-1], self.ctx.formats.get(t.name) if t.kind == "weight" else None)
                        for slot, t in (*node.inputs.items(), *node.outputs.items()))
        return (node.op, tensors, tuple(node.attrs.items()))


def select(node: Node, selector: Selector) -> Choice:
    """As Selector.choose. Raises: KernelFailed naming the node and what was tried when nothing serves it."""
    choice, ctx = selector.choose(node), selector.ctx
    if choice is None:
        tried = [k.path for k in core.kernels_for(node.op)]
        formats = {s: ctx.format(t) for s, t in node.inputs.items() if t.kind == "weight"}
        raise KernelFailed(f"{node.describe()}: no kernel of {tried} serves {ctx.rows} rows, {formats}, features {sorted(ctx.features)}, "
                           f"{ctx.limits.storage_buffers} storage buffers, {ctx.limits.workgroups} workgroups a side, failed self-tests {sorted(ctx.failed)}")
    return choice


def _try(kernel: core.Kernel, variant: core.Variant, node: Node, ctx: Context) -> Choice | None:
    if not set(variant.features) <= ctx.features or (kernel.path, variant.name) in ctx.failed:
        return None
    if any(t.base is not None and s not in kernel.strided for s, t in node.inputs.items()):
        return None
    lowered = kernel.lower(node, ctx, variant)
    if lowered is None:
        return None
    consts = core.device_consts(kernel.path, {**variant.consts, **lowered.consts}, ctx.subgroup_sizes)
    params = tuple(sorted(lowered.params.items()))
    if ctx.bakes_params:
        consts["PARAMS"] = params
    frozen = tuple(sorted(consts.items()))
    shader = joined(kernel.path, frozen)
    x, y, z = wgsl.workgroup_size(shader)
    if shader.storage_buffers > ctx.limits.storage_buffers or x * y * z > ctx.limits.invocations:
        return None
    choice = Choice(kernel, variant, frozen, params, shader)
    return choice if max(choice.grid) <= ctx.limits.workgroups else None
