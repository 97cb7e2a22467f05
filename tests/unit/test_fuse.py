"""Fusion passes, each on a small graph: what it makes, and when it leaves the graph alone."""

from __future__ import annotations

import pytest
from jird.graph.builder import GraphBuilder
from jird.graph.ir import Graph, Node, Tensor
from jird.models import llama
from jird.plan.context import Context
from jird.plan.fuse import (
    PASSES,
    SINGLE_KEYS,
    SPLIT_KEYS,
    add_into_linear,
    append_into_attention,
    fuse,
    norm_into_linear,
    prune,
    rope_and_append,
    split_attention,
    swiglu_into_linear,
)

NONE = frozenset()
DECODE = Context(rows=1, one_row_a_slot=True, kv_limit=SINGLE_KEYS)
LONG = Context(rows=1, one_row_a_slot=True, context=1000)


def yes(node: Node) -> bool:
    return True


def no(node: Node) -> bool:
    return False


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def norm_graph(readers: int = 1, slot: str = "x") -> Graph:
    g = GraphBuilder("t")
    x = g.temp("x", "T", 8)
    h = g.rms_norm(x, "norm", 1e-5)
    return g.build(*(g.linear(h, f"linear{i}", 4) for i in range(readers)))


def add_graph(is_read_twice: bool = False) -> Graph:
    g = GraphBuilder("t")
    x, other = g.temp("x", "T", 8), g.temp("other", "T", 4)
    y = g.linear(x, "linear", 4)
    return g.build(g.add(other, y, "sum"), *([g.add(y, y, "twice")] if is_read_twice else []))


def swiglu_graph(first: int = 0, second: int = 6, is_read_twice: bool = False) -> Graph:
    """swiglu over two views of one linear [T, 12]."""
    g = GraphBuilder("t")
    y = g.linear(g.temp("x", "T", 8), "gate_up", 12)
    gate, up = (Tensor(n, ("T", 6), base=y, offset=o) for n, o in (("gate", first), ("up", second)))
    out = [g.swiglu(gate, up)] + ([g.add(gate, gate, "again")] if is_read_twice else [])
    return g.build(*out)


def attention_graph(pairing_k: str = "half", sin_k: str = "sin", is_key_read: bool = False) -> Graph:
    g = GraphBuilder("t")
    with g.scope("layers.0"):
        q, k, v = (g.temp(n, "T", w) for n, w in (("q", 32), ("k", 16), ("v", 16)))
        cos, sin = g.input("cos", "S", 4), g.input("sin", "S", 4)
        k_cache, v_cache = g.state("k_cache", "B", "S", 16), g.state("v_cache", "B", "S", 16)
        q = g.rope(q, "rope_q", cos, sin, heads=4, head_dim=8)
        k = g.rope(k, "rope_k", cos, g.input(sin_k, "S", 4), heads=2, head_dim=8, pairing=pairing_k)
        g.kv_append(k, v, k_cache, v_cache, kv_heads=2, head_dim=8)
        y = g.attention(q, k_cache, v_cache, heads=4, kv_heads=2, head_dim=8, scale=0.5, window=3)
        return g.build(y, *([g.add(k, k, "key_again")] if is_key_read else []))


def test_a_norm_moves_into_the_one_linear_that_reads_it():
    graph = norm_into_linear(norm_graph(), DECODE, NONE, yes)
    (node,) = graph.nodes
    assert {s: t.name for s, t in node.inputs.items()} == {"x": "x", "w": "linear0.weight", "norm": "norm.weight"}
    assert (node.attrs["eps"], node.covers) == (1e-5, ("norm", "linear0"))


def test_a_norm_read_twice_or_returned_stays():
    assert ops(norm_into_linear(norm_graph(2), DECODE, NONE, yes)) == ["rms_norm", "linear", "linear"]
    g = norm_graph()
    returned = Graph("t", g.nodes, (g.nodes[0].outputs["y"], *g.outputs))
    assert ops(norm_into_linear(returned, DECODE, NONE, yes)) == ["rms_norm", "linear"]


def test_a_norm_that_a_linear_reads_elsewhere_than_as_x_stays():
    g = GraphBuilder("t")
    h = g.rms_norm(g.temp("x", "T", 8), "norm", 1e-5)
    ins = {"x": g.temp("other", "T", 8), "w": g.weight("w", 8, 8), "residual": h}
    g.add_node("linear", "linear", ins, {"y": g.temp("y", "T", 8)})
    assert ops(norm_into_linear(g.build(g.nodes[-1].outputs["y"]), DECODE, NONE, yes)) == ["rms_norm", "linear"]
    g = GraphBuilder("t")
    h = g.rms_norm(g.temp("x", "T", 8), "norm", 1e-5)
    y = g.linear(Tensor("half", ("T", 4), base=h, offset=4), "linear", 4)
    assert ops(norm_into_linear(g.build(y), DECODE, NONE, yes)) == ["rms_norm", "linear"]


def test_an_add_becomes_the_residual_of_the_linear():
    (node,) = add_into_linear(add_graph(), DECODE, NONE, yes).nodes
    assert (node.op, node.inputs["residual"].name, node.outputs["y"].name, node.covers) == ("linear", "other", "sum", ("linear", "sum"))


def test_a_linear_read_twice_keeps_its_adds():
    assert ops(add_into_linear(add_graph(True), DECODE, NONE, yes)) == ["linear", "add", "add"]


def test_a_linear_added_to_itself_or_with_a_residual_already_keeps_its_add():
    g = GraphBuilder("t")
    y = g.linear(g.temp("x", "T", 8), "linear", 4)
    assert ops(add_into_linear(g.build(g.add(y, y, "sum")), DECODE, NONE, yes)) == ["linear", "add"]
    once = add_into_linear(add_graph(), DECODE, NONE, yes)
    g = GraphBuilder("t", nodes=list(once.nodes))
    twice = g.build(g.add(once.nodes[0].outputs["y"], g.temp("third", "T", 4), "again"))
    assert ops(add_into_linear(twice, DECODE, NONE, yes)) == ["linear", "add"]


def test_swiglu_moves_into_the_linear_that_makes_gate_and_up():
    (node,) = swiglu_into_linear(swiglu_graph(), DECODE, NONE, yes).nodes
    assert (node.op, node.attrs["swiglu"], node.outputs["y"].name, node.outputs["y"].shape) == ("linear", True, "swiglu", ("T", 6))


@pytest.mark.parametrize("graph", [swiglu_graph(6, 0), swiglu_graph(is_read_twice=True)], ids=["up first", "gate read twice"])
def test_swiglu_stays_where_the_halves_are_not_gate_up_or_are_read_again(graph):
    assert ops(swiglu_into_linear(graph, DECODE, NONE, yes)) == ops(graph)


def test_rope_and_append_become_one():
    graph = rope_and_append(attention_graph(), DECODE, NONE, yes)
    assert ops(graph) == ["rope_append", "attention"]
    node = graph.nodes[0]
    assert {s: t.name for s, t in node.inputs.items()} == {"q": "layers.0.q", "k": "layers.0.k", "v": "layers.0.v", "cos": "cos", "sin": "sin"}
    assert {s: t.name for s, t in node.outputs.items()} == {"y": "layers.0.rope_q", "k_cache": "layers.0.k_cache", "v_cache": "layers.0.v_cache"}
    assert node.attrs == {"heads": 4, "kv_heads": 2, "head_dim": 8, "pairing": "half"}
    assert node.covers == ("layers.0.rope_q", "layers.0.rope_k", "layers.0.kv_append")


@pytest.mark.parametrize("changes", [{"pairing_k": "pairs"}, {"sin_k": "other"}, {"is_key_read": True}])
def test_ropes_that_differ_or_a_key_read_again_stay(changes):
    graph = attention_graph(**changes)
    assert ops(rope_and_append(graph, DECODE, NONE, yes)) == ops(graph)


def test_append_moves_into_attention_where_no_two_rows_share_a_slot():
    both = rope_and_append(attention_graph(), DECODE, NONE, yes)
    (node,) = append_into_attention(both, DECODE, NONE, yes).nodes
    assert node.op == "attention_append" and node.outputs["y"].name == "layers.0.attention"
    assert (node.attrs["window"], node.attrs["scale"], node.attrs["pairing"]) == (3, 0.5, "half")
    assert ops(append_into_attention(both, Context(rows=8), NONE, yes)) == ["rope_append", "attention"]


def test_append_stays_before_an_attention_that_reads_other_caches():
    """A layer that shares another's keys must not read them from its own append."""
    both = rope_and_append(attention_graph(), DECODE, NONE, yes)
    append, attend = both.nodes
    other = attend.with_(inputs={**attend.inputs, "k_cache": Tensor("layers.7.k_cache", ("B", "S", 16), "f32", "state")})
    graph = Graph("t", (append, other), both.outputs)
    assert ops(append_into_attention(graph, DECODE, NONE, yes)) == ["rope_append", "attention"]


def test_attention_is_split_only_where_a_row_can_see_many_keys():
    both = rope_and_append(attention_graph(), LONG, NONE, yes)
    graph = split_attention(both, LONG, NONE, yes)
    assert ops(graph) == ["rope_append", "attention_partial", "attention_merge"]
    partial, merge = graph.nodes[1:]
    splits = -(-1000 // SPLIT_KEYS)
    assert (partial.attrs["splits"], partial.outputs["partials"].shape) == (splits, ("T", 4 * splits * (8 + 2)))
    assert (merge.inputs["partials"].name, merge.outputs["y"].name) == (partial.outputs["partials"].name, "layers.0.attention")
    for ctx in (DECODE, Context(rows=16, context=1000)):
        assert ops(split_attention(both, ctx, NONE, yes)) == ["rope_append", "attention"]


GRAPHS = {"norm_into_linear": norm_graph(), "add_into_linear": add_graph(), "swiglu_into_linear": swiglu_graph(), "rope_and_append": attention_graph(),
          "append_into_attention": rope_and_append(attention_graph(), DECODE, NONE, yes), "split_attention": attention_graph()}


@pytest.mark.parametrize("name", PASSES)
def test_nothing_is_fused_that_no_kernel_serves_or_that_is_kept(name):
    run, graph = PASSES[name], GRAPHS[name]
    ctx = LONG if name == "split_attention" else DECODE
    assert ops(run(graph, ctx, NONE, yes)) != ops(graph)
    assert run(graph, ctx, NONE, no) == graph
    # any node of the pattern that is kept stops it (attention alone is what split_attention looks at)
    for node in graph.nodes:
        if node.op == "attention" or name != "split_attention":
            if not (name == "rope_and_append" and node.op == "attention"):
                assert ops(run(graph, ctx, frozenset({node.id}), yes)) == ops(graph), node.id


def test_prune_drops_what_nobody_reads_but_not_what_writes_state():
    graph = attention_graph()
    assert ops(prune(Graph("t", graph.nodes))) == ["rope", "kv_append"]
    assert prune(graph) == graph


CONFIG = llama.Config(vocab=64, layers=2, width=32, ffn=64, heads=4, kv_heads=2, head_dim=8, eps=1e-5, rope_theta=1e4, context=64, is_tied=True)


def test_passes_are_chosen_by_name_and_an_unknown_name_is_refused():
    graph = llama.graph(CONFIG, head=True)
    assert fuse(graph, Context(rows=1, passes=NONE), yes) == graph
    only = fuse(graph, Context(rows=1, passes=frozenset({"add_into_linear"})), yes)
    assert len(only.nodes) == len(graph.nodes) - 4
    with pytest.raises(ValueError, match="passes.*add_into_liner.*not known"):
        fuse(graph, Context(rows=1, passes=frozenset({"add_into_liner"})), yes)


def test_every_node_of_the_graph_is_covered_once():
    graph = llama.graph(CONFIG, head=True, sampled=True)
    fused = fuse(graph, DECODE, yes)
    assert sorted(c for n in fused.nodes for c in (n.covers or (n.id,))) == sorted(n.id for n in graph.nodes)
    assert len({n.id for n in fused.nodes}) == len(fused.nodes)
