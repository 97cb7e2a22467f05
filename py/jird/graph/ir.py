"""Graph data: Format, Tensor, Node, Graph. Frozen values; a change is a new value.

Shapes are row-major, slowest axis first. A dim is an int or the symbol "T" (rows of this step).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Mapping

Dim = int | str


@dataclass(frozen=True)
class Format:
    """How a weight lies in GPU memory.

    kind   "int4" | "int8" (q + (scale, bias) pairs, w = q * scale + bias) or "f32" | "f16" | "bf16" (dense)
    group  weights along K that share a pair: 16, 32, 64, 128 (0 when dense)
    pair   "f16" | "bf16" | "f32": what a (scale, bias) pair is stored as ("" when dense)
    """

    kind: str
    group: int = 0
    pair: str = ""

    def __post_init__(self):
        quantised = self.kind in ("int4", "int8")
        if not quantised and self.kind not in ("f32", "f16", "bf16"):
            raise ValueError(f"format kind {self.kind!r}; known: int4 int8 f32 f16 bf16")
        if quantised and (self.group not in (16, 32, 64, 128) or self.pair not in ("f16", "bf16", "f32")):
            raise ValueError(f"{self.kind} with group {self.group}, pair {self.pair!r}; groups are 16 32 64 128, pairs f16 bf16 f32")

    @property
    def is_quantised(self) -> bool:
        return self.kind in ("int4", "int8")

    def parts(self, rows: int, columns: int) -> dict[str, int]:
        """Bytes of each GPU buffer part of a [rows, columns] weight: {"q", "sb"} when quantised, {"": n} when dense.

        Every part is padded to 4 bytes a row.
        """
        if not self.is_quantised:
            size = 4 if self.kind == "f32" else 2
            return {"": rows * (-(-columns * size // 4) * 4)}
        per_word = 8 if self.kind == "int4" else 4
        if columns % per_word or columns % self.group:
            raise ValueError(f"a row of {columns} cannot be {self.kind} with group {self.group}: the group must divide it")
        pair_bytes = 8 if self.pair == "f32" else 4
        return {"q": rows * columns // per_word * 4, "sb": rows * columns // self.group * pair_bytes}


F32 = Format("f32")


@dataclass(frozen=True)
class Tensor:
    """A named value. Temps live in pooled buffers, weights and states in their own.

    kind    weight | input | state | temp | output
    dtype   element type of the values as computed: "f32" | "u32"; a weight's storage is its Format, known at compile time
    base    a view: columns [offset, offset + shape[-1]) of the rows of tensor `base`
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "f32"
    kind: str = "temp"
    base: "Tensor | None" = None
    offset: int = 0

    @property
    def root(self) -> "Tensor":
        return self if self.base is None else self.base.root

    @property
    def row_stride(self) -> int:
        """Elements from one row to the next in the buffer."""
        return int(self.root.shape[-1])

    @property
    def column_offset(self) -> int:
        return self.offset + (self.base.column_offset if self.base is not None else 0)


@dataclass(frozen=True)
class Node:
    """One op: slot name -> tensor for inputs and outputs (slots are listed in ops.OPS), attrs, and an id unique in the graph."""

    op: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    covers: tuple[str, ...] = ()

    def describe(self) -> str:
        ins = ", ".join(f"{slot}={t.name}{list(t.shape)}" for slot, t in self.inputs.items())
        outs = ", ".join(f"{t.name}{list(t.shape)}" for t in self.outputs.values())
        return f"{self.op} {self.id}: {ins} -> {outs}"

    def with_(self, **changes) -> "Node":
        return replace(self, **changes)


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order; `outputs` are what a caller reads (e.g. logits)."""

    name: str
    nodes: tuple[Node, ...]
    outputs: tuple[Tensor, ...] = ()

    def weights(self) -> tuple[Tensor, ...]:
        return self._of_kind("weight")

    def states(self) -> tuple[Tensor, ...]:
        return self._of_kind("state")

    def inputs(self) -> tuple[Tensor, ...]:
        return self._of_kind("input")

    def _of_kind(self, kind: str) -> tuple[Tensor, ...]:
        seen: dict[str, Tensor] = {}
        for node in self.nodes:
            for t in (*node.inputs.values(), *node.outputs.values()):
                if t.root.kind == kind:
                    seen.setdefault(t.root.name, t.root)
        return tuple(seen.values())
