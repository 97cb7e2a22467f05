"""Fusion passes: Graph -> Graph, small and pure, over ops (before any kernel is chosen).

A pass takes `keep`, ids of nodes that must stay alone (that is how adapters work: nothing is un-fused). A fusion is
made only where the context has a kernel for it, so `fits` is asked with the fused node.
"""

from __future__ import annotations

from typing import Callable

from ..graph.ir import Graph, Node, Tensor
from ..kernels.core import DECODE_ROWS
from .context import Context

Fits = Callable[[Node], bool]


class Rewriter:
    """A graph being rewritten by one pass: who makes and who reads a tensor, kept up to date, so that a pass is linear."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._nodes: dict[int, Node] = dict(enumerate(graph.nodes))
        self._positions: dict[str, int] = {}
        self._makers: dict[str, int] = {}
        self._readers: dict[str, set[int]] = {}
        self._outputs = {t.root.name for t in graph.outputs}
        for position, node in self._nodes.items():
            self._note(position, node)

    def _note(self, position: int, node: Node) -> None:
        self._positions[node.id] = position
        for t in node.outputs.values():
            self._makers[t.name] = position
        for t in node.inputs.values():
            self._readers.setdefault(t.root.name, set()).add(position)

    def of(self, op: str, keep: frozenset[str]) -> list[Node]:
        return [n for n in self._nodes.values() if n.op == op and n.id not in keep]

    def maker(self, tensor: Tensor, op: str, keep: frozenset[str]) -> Node | None:
        """The node that makes `tensor`, when it is an `op` that may be fused."""
        node = self._nodes.get(self._makers.get(tensor.name, -1))
        return node if node is not None and node.op == op and node.id not in keep else None

    def is_read_once(self, tensor: Tensor) -> bool:
        """One node reads `tensor` or a view of it, and it is not an output of the graph."""
        return len(self._readers.get(tensor.root.name, ())) == 1 and tensor.root.name not in self._outputs

    def reader(self, tensor: Tensor, op: str, keep: frozenset[str]) -> Node | None:
        """The only reader of `tensor`, when it is an `op` that may be fused."""
        if not self.is_read_once(tensor):
            return None
        node = self._nodes[next(iter(self._readers[tensor.root.name]))]
        return node if node.op == op and node.id not in keep else None

    def replace(self, old: tuple[Node, ...], new: Node) -> None:
        """`new` takes the place of the last of `old`."""
        positions = sorted(self._positions[n.id] for n in old)  # not by output: penalize writes what another node made
        for position in positions:
            for t in self._nodes.pop(position).inputs.values():
                self._readers[t.root.name].discard(position)
        self._nodes[positions[-1]] = new
        self._note(positions[-1], new)

    def graph(self) -> Graph:
        return Graph(self._graph.name, tuple(self._nodes[p] for p in sorted(self._nodes)), self._graph.outputs)


def _covers(*nodes: Node) -> tuple[str, ...]:
    return tuple(c for n in nodes for c in (n.covers or (n.id,)))


def norm_into_linear(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """rms_norm + the one linear that reads it -> linear with a norm prologue."""
    r = Rewriter(graph)
    for norm in r.of("rms_norm", keep):
        linear = r.reader(norm.outputs["y"], "linear", keep)
        if linear is None or "norm" in linear.inputs or linear.inputs["x"] != norm.outputs["y"]:
            continue
        fused = linear.with_(inputs={**linear.inputs, "x": norm.inputs["x"], "norm": norm.inputs["w"]},
                             attrs={**linear.attrs, "eps": norm.attrs["eps"]}, covers=_covers(norm, linear))
        if fits(fused):
            r.replace((norm, linear), fused)
    return r.graph()


def swiglu_into_linear(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """linear [gate; up] + swiglu -> linear that returns silu(gate) * up."""
    r = Rewriter(graph)
    for act in r.of("swiglu", keep):
        gate, up = act.inputs["gate"], act.inputs["up"]
        if gate.base is None or up.base is None or gate.base.name != up.base.name:
            continue
        width = int(gate.shape[-1])
        linear = r.maker(gate.base, "linear", keep)
        if linear is None or not r.is_read_once(gate.base) or (gate.offset, up.offset, int(gate.base.shape[-1])) != (0, width, 2 * width):
            continue
        fused = linear.with_(outputs={"y": act.outputs["y"]}, attrs={**linear.attrs, "swiglu": True}, covers=_covers(linear, act))
        if fits(fused):
            r.replace((linear, act), fused)
    return r.graph()


def add_into_linear(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """linear + the add that alone reads it -> linear with a residual epilogue."""
    r = Rewriter(graph)
    for linear in r.of("linear", keep):
        add = r.reader(linear.outputs["y"], "add", keep)
        if add is None or "residual" in linear.inputs or linear.attrs.get("swiglu"):
            continue
        others = [t for t in add.inputs.values() if t.name != linear.outputs["y"].name]
        if len(others) != 1:
            continue
        fused = linear.with_(inputs={**linear.inputs, "residual": others[0]}, outputs={"y": add.outputs["y"]}, covers=_covers(linear, add))
        if fits(fused):
            r.replace((linear, add), fused)
    return r.graph()


def _turns_alike(a: Node, b: Node) -> bool:
    """Two ropes by the same angles in the same order."""
    return all(a.attrs[n] == b.attrs[n] for n in ("pairing", "head_dim")) and all(a.inputs[s] == b.inputs[s] for s in ("cos", "sin"))


def rope_and_append(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """rope(q), rope(k), kv_append(k, v) -> rope_append."""
    r = Rewriter(graph)
    ropes = {}
    for node in r.of("rope", keep):
        ropes.setdefault(node.id.rpartition(".")[0], []).append(node)
    for append in r.of("kv_append", keep):
        rope_k = r.maker(append.inputs["k"], "rope", keep)
        if rope_k is None or not r.is_read_once(rope_k.outputs["y"]):
            continue
        others = [n for n in ropes[rope_k.id.rpartition(".")[0]] if n.id != rope_k.id and _turns_alike(n, rope_k)]
        if len(others) != 1:
            continue
        rope_q = others[0]
        attrs = {"heads": rope_q.attrs["heads"], "kv_heads": rope_k.attrs["heads"], "head_dim": rope_k.attrs["head_dim"], "pairing": rope_k.attrs["pairing"]}
        inputs = {"q": rope_q.inputs["x"], "k": rope_k.inputs["x"], "v": append.inputs["v"], "cos": rope_k.inputs["cos"], "sin": rope_k.inputs["sin"]}
        fused = Node("rope_append", inputs, {"y": rope_q.outputs["y"], **append.outputs}, attrs, append.id, _covers(rope_q, rope_k, append))
        if fits(fused):
            r.replace((rope_q, rope_k, append), fused)
    return r.graph()


def append_into_attention(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """rope_append + attention -> attention_append, where no two rows of a step share a slot."""
    if not ctx.one_row_a_slot:
        return graph
    r = Rewriter(graph)
    for attend in r.of("attention", keep):
        append = r.maker(attend.inputs["q"], "rope_append", keep)
        if append is None or not r.is_read_once(append.outputs["y"]) or any(attend.inputs[s] != append.outputs[s] for s in ("k_cache", "v_cache")):
            continue
        fused = Node("attention_append", append.inputs, {"y": attend.outputs["y"], "k_cache": append.outputs["k_cache"], "v_cache": append.outputs["v_cache"]},
                     {**append.attrs, **attend.attrs}, attend.id, _covers(append, attend))
        if fits(fused):
            r.replace((append, attend), fused)
    return r.graph()


SINGLE_KEYS = 256  # up to here one workgroup a head serves a row
SPLIT_KEYS = SINGLE_KEYS  # keys a workgroup of split attention sees: a row of one split gives the same bits in either list


def split_attention(graph: Graph, ctx: Context, keep: frozenset[str], fits: Fits) -> Graph:
    """attention -> attention_partial + attention_merge, for decode plans whose rows can see more than SINGLE_KEYS keys."""
    if ctx.rows > DECODE_ROWS or ctx.keys <= SINGLE_KEYS:
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
