"""Plan data: dispatches with their buffers, the temp pool, the params arena; and `dump`, a line a dispatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from ..graph.ir import Format


@dataclass(frozen=True)
class BufferRef:
    """Where a binding's bytes are. kind: weight | state | pool | step; key: buffer name; nbytes 0: the whole buffer."""

    kind: str
    key: str
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class PlanStep:
    """One dispatch. `bindings` follow the shader's order; None stands for this step's own params at `params_offset`
    (none where they are baked into the text as the constant PARAMS)."""

    label: str
    op: str
    kernel: str
    variant: str
    consts: tuple[tuple[str, Any], ...]
    features: tuple[str, ...]
    bindings: tuple[tuple[str, BufferRef | None], ...]
    params_offset: int
    grid: tuple[int, int, int]
    covers: tuple[str, ...]


@dataclass(frozen=True)
class WeightSpec:
    """A weight of the plan: [rows, columns] in `format`, filled from `sources` (model weight name, rows), top to bottom."""

    name: str
    rows: int
    columns: int
    format: Format
    sources: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Plan:
    """What the executor binds.

    pool     bytes of each pooled temp buffer
    states   bytes of each state buffer by name
    params   the arena, one 256-byte-aligned block a dispatch
    """

    name: str
    rows: int
    steps: tuple[PlanStep, ...]
    weights: tuple[WeightSpec, ...]
    states: Mapping[str, int]
    pool: tuple[int, ...]
    params: bytes
    outputs: Mapping[str, BufferRef]

    def dump(self) -> str:
        """A line a dispatch: index, kernel[variant], grid, bindings, what it covers; the last line counts them."""
        lines = []
        for i, s in enumerate(self.steps):
            consts = " ".join(f"{k}={v}" for k, v in s.consts if k != "PARAMS")
            baked = dict(s.consts).get("PARAMS")
            if baked is not None:
                consts += " baked(" + " ".join(f"{k}={v}" for k, v in baked) + ")"
            binds = " ".join(f"{n}={_show(r)}" for n, r in s.bindings if r is not None)
            lines.append(f"{i:3} {s.kernel}[{s.variant}] {consts} grid={','.join(map(str, s.grid))} {binds} <- {' + '.join(s.covers)}")
        pool = sum(self.pool)
        lines.append(f"temp_bytes: {pool} in {len(self.pool)} buffers")
        lines.append(f"dispatches_per_token: {len(self.steps)}")
        return "\n".join(lines)


def _show(ref: BufferRef) -> str:
    return f"{ref.kind}:{ref.key}" + (f"@{ref.offset}" if ref.offset else "")
