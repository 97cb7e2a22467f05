"""Linears of one input become one weight; consumers see views."""

from jird.graph.ir import Format
from jird.models import llama
from jird.plan.compile import prepare
from jird.plan.columns import concat_columns

CONFIG = llama.Config(vocab=64, layers=1, width=32, ffn=64, heads=4, kv_heads=2, head_dim=8, eps=1e-5, rope_theta=1e4, context=64, is_tied=True, has_qkv_bias=True)
INT4 = Format("int4", 32, "f16")


def formats(**changes):
    out = {w.name: INT4 if len(w.shape) > 1 else Format("f32") for w in llama.weights(CONFIG)}
    return {**out, **{k.replace("__", "."): v for k, v in changes.items()}}


def test_q_k_v_and_gate_up_are_concatenated_with_their_biases():
    made = concat_columns(llama.graph(CONFIG, head=False), formats())
    assert made.sources["layers.0.q_proj+k_proj+v_proj.weight"] == tuple(f"layers.0.{n}_proj.weight" for n in "qkv")
    assert made.sources["layers.0.q_proj+k_proj+v_proj.bias"] == tuple(f"layers.0.{n}_proj.bias" for n in "qkv")
    assert made.sources["layers.0.gate_proj+up_proj.weight"] == ("layers.0.gate_proj.weight", "layers.0.up_proj.weight")
    rope_k = next(n for n in made.graph.nodes if n.id == "layers.0.rope_k")
    assert (rope_k.inputs["x"].column_offset, rope_k.inputs["x"].row_stride) == (32, 64)


def test_other_formats_and_kept_nodes_stay_apart():
    v = {"layers.0.v_proj.weight": Format("int8", 32, "f16")}
    made = concat_columns(llama.graph(CONFIG, head=False), {**formats(), **v})
    assert made.sources["layers.0.q_proj+k_proj.weight"] == ("layers.0.q_proj.weight", "layers.0.k_proj.weight")
    kept = concat_columns(llama.graph(CONFIG, head=False), formats(), keep=frozenset({"layers.0.up_proj"}))
    assert "layers.0.gate_proj+up_proj.weight" not in kept.sources


def test_prefill_and_decode_graphs_get_the_same_weights():
    both = [prepare(llama.graph(CONFIG, head=h), formats()) for h in (True, False)]
    assert both[0].sources == both[1].sources
