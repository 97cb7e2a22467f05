"""Where things lie: liveness of temps, pooled buffers, the params arena, and the aliasing check."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ModelNotSupported
from ..graph.ir import Graph, Tensor
from ..kernels import core
from ..runtime.device import UNIFORM_ALIGN
from .context import Context
from .plan import BufferRef, Plan, PlanStep, WeightSpec
from .select import Choice


@dataclass
class _Slot:
    nbytes: int
    free_after: int


def pool_temps(graph: Graph, ctx: Context) -> tuple[dict[str, int], tuple[int, ...]]:
    """Temp name -> pool buffer, and the buffers' bytes: a buffer is used again when its last reader has run.

    Best fit among the free ones; a free one grows rather than a new one being made. Largest first, so that the pools of
    several plans share buffers.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for t in (*node.inputs.values(), *node.outputs.values()):
            root = t.root
            if root.kind != "temp":
                continue
            first.setdefault(root.name, i)
            last[root.name] = i
            sizes[root.name] = -(-ctx.size(root) * 4 // 16) * 16
    for t in graph.outputs:
        last[t.root.name] = len(graph.nodes)
    slots: list[_Slot] = []
    where: dict[str, int] = {}
    for name in sorted(first, key=lambda n: first[n]):
        free = [j for j, s in enumerate(slots) if s.free_after < first[name]]
        free.sort(key=lambda j: (slots[j].nbytes < sizes[name], abs(slots[j].nbytes - sizes[name])))
        if free:
            j = free[0]
            slots[j].nbytes = max(slots[j].nbytes, sizes[name])
        else:
            j = len(slots)
            slots.append(_Slot(sizes[name], 0))
        slots[j].free_after = last[name]
        where[name] = j
    order = sorted(range(len(slots)), key=lambda j: -slots[j].nbytes)
    return {name: order.index(j) for name, j in where.items()}, tuple(slots[j].nbytes for j in order)


def place(graph: Graph, choices: list[Choice], ctx: Context, sources: dict[str, tuple[str, ...]], source_rows: dict[str, int]) -> Plan:
    """The Plan of a fused graph and its chosen kernels (one for each node, in order)."""
    where, pool = pool_temps(graph, ctx)
    arena = bytearray()
    steps = []
    for node, choice in zip(graph.nodes, choices, strict=True):
        bindings = []
        for b in choice.shader.bindings:
            bindings.append((b.name, None if b.name == "params" else _ref(b.name, node, where, ctx)))
        _check_aliases(node, choice, bindings)
        offset = len(arena)
        if any(name == "params" for name, _ in bindings):
            raw = core.pack_params(choice.shader, dict(choice.params))
            arena += raw + bytes(-len(raw) % UNIFORM_ALIGN)
        steps.append(PlanStep(f"{graph.name}/{len(steps)}/{choice.kernel.path}", node.op, choice.kernel.path, choice.variant.name, choice.consts,
                              choice.variant.features, tuple(bindings), offset, choice.grid, node.covers or (node.id,)))
    outputs = {t.name: BufferRef("pool", str(where[t.root.name])) for t in graph.outputs}
    states = {t.name: ctx.size(t) * 4 for t in (*graph.states(), *graph.inputs())}
    for name, nbytes in (*states.items(), *((f"pool/{i}", n) for i, n in enumerate(pool))):
        _check_size(name, nbytes, ctx, "Choose a smaller context or fewer lanes.")
    weights = tuple(_weight(t, ctx, sources, source_rows) for t in graph.weights())
    return Plan(graph.name, ctx.rows, tuple(steps), weights, states, pool, bytes(arena), outputs)


def _ref(name: str, node, where: dict[str, int], ctx: Context) -> BufferRef:
    """The buffer of binding `name`: the step buffer, a slot of the node, or a part of a quantised weight's slot."""
    if name == "step":
        return BufferRef("step", "step")
    slots = {**node.inputs, **node.outputs}
    slot, part = name, ""
    if name not in slots:
        slot, _, part = name.rpartition("_")
    if slot not in slots:
        raise AssertionError(f"{node.describe()}: binding {name} is neither a slot nor a part of one")
    root: Tensor = slots[slot].root
    if root.kind == "temp":
        return BufferRef("pool", str(where[root.name]))
    if root.kind == "weight":
        parts = ctx.format(root).parts(*matrix_shape(root))
        assert part in parts, f"{node.describe()}: weight {root.name} is {ctx.format(root)}, it has no part {part!r}"
        return BufferRef("weight", f"{root.name}#{part}")
    return BufferRef("state", root.name)


def matrix_shape(weight: Tensor) -> tuple[int, int]:
    """(rows, columns) of a weight; a vector [N] is N rows of one, so that vectors are concatenated by rows too."""
    shape = [int(d) for d in weight.shape]
    return (shape[0], 1) if len(shape) == 1 else (shape[0], shape[1])


def _weight(t: Tensor, ctx: Context, sources: dict[str, tuple[str, ...]], source_rows: dict[str, int]) -> WeightSpec:
    rows, columns = matrix_shape(t)
    fmt = ctx.format(t)
    for part, nbytes in fmt.parts(rows, columns).items():
        _check_size(f"weight {t.name}{'.' + part if part else ''}", nbytes, ctx, "Choose a smaller model, or a device or browser with larger limits.")
    names = sources.get(t.name, (t.name,))
    return WeightSpec(t.name, rows, columns, fmt, tuple((n, source_rows.get(n, rows)) for n in names))


def _check_size(name: str, nbytes: int, ctx: Context, hint: str) -> None:
    limit = min(ctx.limits.storage_binding_bytes, ctx.limits.buffer_bytes)
    if nbytes > limit:
        raise ModelNotSupported(f"{name} is {nbytes} bytes; this device binds at most {limit} at once", hint)


def _check_aliases(node, choice: Choice, bindings) -> None:
    """No buffer stands under two bindings of which one writes (WebGPU refuses the dispatch)."""
    access: dict[BufferRef, str] = {}
    for b, (_, ref) in zip(choice.shader.bindings, bindings, strict=True):
        if ref is None:
            continue
        if ref in access and "read_write" in (access[ref], b.access):
            raise AssertionError(f"{node.describe()}: {choice.kernel.path} binds {ref} twice, once to write")
        access[ref] = b.access if ref not in access else access[ref]
