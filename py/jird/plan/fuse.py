"""Fusion passes: Graph -> Graph, small and pure, over ops (before any kernel is chosen).

A pass takes `keep`, ids of nodes that must stay alone (that is how adapters work: nothing is un-fused). A fusion is
made only where the context has a kernel for it, so `fits` is asked with the fused node.
"""

from __future__ import annotations

from typing import Callable

from ..graph.ir import Graph, Node, Tensor
from .context import Context

Fits = Callable[[Node], bool]


def _sole_consumer(graph: Graph, tensor: Tensor, op: str) -> Node | None:
    """The one node that reads `tensor` (whole or a view), when it is an `op` and the tensor is not a graph output."""
    users = graph.consumers(tensor)
    if len(users) != 1 or users[0].op != op or any(t.root.name == tensor.root.name for t in graph.outputs):
        return None
    return users[0]


def _covers(*nodes: Node) -> tuple[str, ...]:
    return tuple(c for n in nodes for c in (n.covers or (n.id,)))


def _replace(graph: Graph, old: tuple[Node, ...], new: Node) -> Graph:
    """`new` takes the place of the last of `old`."""
    gone = {n.id for n in old}
    last = [n.id for n in graph.nodes if n.id in gone][-1]
    nodes = tuple(new if n.id == last else n for n in graph.nodes if n.id == last or n.id not in gone)
    return Graph(graph.name, nodes, graph.outputs)


def norm_into_linear(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """rms_norm + the one linear that reads it -> linear with a norm prologue."""
    for norm in [n for n in graph.nodes if n.op == "rms_norm" and n.id not in keep]:
        linear = _sole_consumer(graph, norm.outputs["y"], "linear")
        if linear is None or linear.id in keep or "norm" in linear.inputs:
            continue
        fused = linear.with_(inputs={**linear.inputs, "x": norm.inputs["x"], "norm": norm.inputs["w"]},
                             attrs={**linear.attrs, "eps": norm.attrs["eps"]}, covers=_covers(norm, linear))
        if fits(fused):
            graph = _replace(graph, (norm, linear), fused)
    return graph


def swiglu_into_linear(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """linear [gate; up] + swiglu -> linear that returns silu(gate) * up."""
    for act in [n for n in graph.nodes if n.op == "swiglu" and n.id not in keep]:
        gate, up = act.inputs["gate"], act.inputs["up"]
        if gate.base is None or up.base is None or gate.base.name != up.base.name:
            continue
        width = int(gate.shape[-1])
        if (gate.offset, up.offset, int(gate.base.shape[-1])) != (0, width, 2 * width):
            continue
        made = [n for n in graph.nodes if n.op == "linear" and n.outputs["y"].name == gate.base.name]
        if len(made) != 1 or made[0].id in keep or len(graph.consumers(gate.base)) != 1:
            continue
        fused = made[0].with_(outputs={"y": act.outputs["y"]}, attrs={**made[0].attrs, "swiglu": True}, covers=_covers(made[0], act))
        if fits(fused):
            graph = _replace(graph, (made[0], act), fused)
    return graph


def add_into_linear(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """linear + the add that alone reads it -> linear with a residual epilogue."""
    for linear in [n for n in graph.nodes if n.op == "linear" and n.id not in keep and not n.attrs.get("swiglu")]:
        add = _sole_consumer(graph, linear.outputs["y"], "add")
        if add is None or add.id in keep or "residual" in linear.inputs:
            continue
        mine = linear.outputs["y"].name
        others = [t for t in add.inputs.values() if t.name != mine]
        if len(others) != 1:
            continue
        fused = linear.with_(inputs={**linear.inputs, "residual": others[0]}, outputs={"y": add.outputs["y"]}, covers=_covers(linear, add))
        if fits(fused):
            graph = _replace(graph, (linear, add), fused)
    return graph


def rope_and_append(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """rope(q), rope(k), kv_append(k, v) -> rope_append."""
    for append in [n for n in graph.nodes if n.op == "kv_append" and n.id not in keep]:
        made = {n.outputs["y"].name: n for n in graph.nodes if n.op == "rope"}
        rope_k = made.get(append.inputs["k"].name)
        if rope_k is None or rope_k.id in keep or len(graph.consumers(rope_k.outputs["y"])) != 1:
            continue
        scope = rope_k.id.rpartition(".")[0]
        rope_q = next((n for n in made.values() if n is not rope_k and n.id.rpartition(".")[0] == scope and n.id not in keep), None)
        if rope_q is None or rope_q.attrs["pairing"] != rope_k.attrs["pairing"]:
            continue
        attrs = {"heads": rope_q.attrs["heads"], "kv_heads": rope_k.attrs["heads"], "head_dim": rope_k.attrs["head_dim"], "pairing": rope_k.attrs["pairing"]}
        fused = Node("rope_append", {"q": rope_q.inputs["x"], "k": rope_k.inputs["x"], "v": append.inputs["v"], "cos": rope_k.inputs["cos"], "sin": rope_k.inputs["sin"]},
                     {"y": rope_q.outputs["y"], **append.outputs}, attrs, append.id, _covers(rope_q, rope_k, append))
        if fits(fused):
            graph = _replace(graph, (rope_q, rope_k, append), fused)
    return graph


def append_into_attention(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """rope_append + attention -> attention_append, where no two rows of a step share a slot."""
    if not ctx.one_row_a_slot:
        return graph
    for attend in [n for n in graph.nodes if n.op == "attention" and n.id not in keep]:
        made = next((n for n in graph.nodes if n.op == "rope_append" and n.outputs["y"].name == attend.inputs["q"].name), None)
        if made is None or made.id in keep or len(graph.consumers(made.outputs["y"])) != 1:
            continue
        fused = Node("attention_append", made.inputs, {"y": attend.outputs["y"], "k_cache": made.outputs["k_cache"], "v_cache": made.outputs["v_cache"]},
                     {**made.attrs, **attend.attrs}, attend.id, _covers(made, attend))
        if fits(fused):
            graph = _replace(graph, (made, attend), fused)
    return graph


SPLIT_KEYS = 128  # keys a workgroup of split attention sees
SINGLE_KEYS = 256  # up to here one workgroup a head serves a row


def split_attention(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """attention -> attention_partial + attention_merge, for decode plans whose rows can see more than SINGLE_KEYS keys."""
    if ctx.rows > 4 or ctx.keys <= SINGLE_KEYS:
        return graph
    splits = -(-ctx.keys // SPLIT_KEYS)
    nodes: list[Node] = []
    for n in graph.nodes:
        if n.op != "attention" or n.id in keep:
            nodes.append(n)
            continue
        size = n.attrs["heads"] * splits * (n.attrs["head_dim"] + 2)
        partials = Tensor(f"{n.id}.partials", ("T", size))
        attrs = {**n.attrs, "splits": splits, "split_keys": SPLIT_KEYS}
        partial = Node("attention_partial", n.inputs, {"partials": partials}, attrs, f"{n.id}.partial", _covers(n))
        merge = Node("attention_merge", {"partials": partials}, n.outputs, attrs, f"{n.id}.merge", _covers(n))
        nodes += [partial, merge] if fits(partial) and fits(merge) else [n]
    return Graph(graph.name, tuple(nodes), graph.outputs)


def prune(graph: Graph) -> Graph:
    """Drops nodes that write no state and whose results nobody reads (a prefill plan has no head, so half its last layer goes)."""
    needed = {t.root.name for t in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        outputs = [t.root for t in node.outputs.values()]
        if any(t.kind == "state" or t.name in needed for t in outputs):
            kept.append(node)
            needed.update(t.root.name for t in node.inputs.values())
    return Graph(graph.name, tuple(reversed(kept)), graph.outputs)


PASSES: dict[str, Callable[[Graph, Context, frozenset[str], Fits], Graph]] = {
    "rope_and_append": rope_and_append,
    "split_attention": split_attention,
    "append_into_attention": append_into_attention,
    "norm_into_linear": norm_into_linear,
    "swiglu_into_linear": swiglu_into_linear,
    "add_into_linear": add_into_linear,
}


def fuse(graph: Graph, ctx: Context, fits: Fits, keep: frozenset[str] = frozenset()) -> Graph:
    """Runs the passes that ctx.passes names (all when None), in PASSES order."""
    unknown = (ctx.passes or frozenset()) - set(PASSES)
    if unknown:
        raise ValueError(f"passes {sorted(unknown)} are not known; there are {list(PASSES)}")
    for name, run in PASSES.items():
        if ctx.passes is None or name in ctx.passes:
            graph = run(graph, ctx, keep, fits)
    return graph
