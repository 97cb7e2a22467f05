"""Graph building checks shapes and slots at once."""

import pytest

from jird.graph.builder import GraphBuilder
from jird.graph.ir import Format, Tensor


def test_linear_with_a_wrong_width_names_node_op_and_shapes():
    g = GraphBuilder("t")
    x = g.temp("x", "T", 64)
    with pytest.raises(ValueError, match=r"linear q: .*x=x\['T', 64\].*last dims must match"):
        g.linear(x, "q", 32, weight=Tensor("w", (32, 96), "f32", "weight"))


def test_norm_of_another_width_is_refused():
    g = GraphBuilder("t")
    with pytest.raises(ValueError, match="last dims must match"):
        g.add_node("rms_norm", "n", {"x": g.temp("x", "T", 8), "w": g.weight("w", 9)}, {"y": g.temp("y", "T", 8)}, eps=1e-5)


def test_unknown_op_missing_slot_and_missing_attr_are_named():
    g = GraphBuilder("t")
    x = g.temp("x", "T", 8)
    with pytest.raises(ValueError, match="'convolve'.*not in the op table"):
        g.add_node("convolve", "c", {"x": x}, {"y": x})
    with pytest.raises(ValueError, match=r"missing \['w'\]"):
        g.add_node("rms_norm", "n", {"x": x}, {"y": x}, eps=1.0)
    with pytest.raises(ValueError, match=r"attrs missing \['eps'\]"):
        g.add_node("rms_norm", "n", {"x": x, "w": g.weight("w", 8)}, {"y": x})


def test_heads_that_kv_heads_do_not_divide_are_refused():
    g = GraphBuilder("t")
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        g.attention(g.temp("q", "T", 48), g.state("k", "B", "S", 32), g.state("v", "B", "S", 32), heads=3, kv_heads=2, head_dim=16, scale=1.0)


def test_scopes_prefix_names_and_views_know_their_columns():
    g = GraphBuilder("t")
    with g.scope("layers.0"):
        y = g.linear(g.temp("x", "T", 8), "q", 4)
    assert (y.name, g.nodes[0].inputs["w"].name) == ("layers.0.q", "layers.0.q.weight")
    wide = Tensor("qkv", ("T", 12))
    view = Tensor("k", ("T", 4), base=wide, offset=4)
    inner = Tensor("k2", ("T", 2), base=view, offset=2)
    assert (inner.root.name, inner.row_stride, inner.column_offset) == ("qkv", 12, 6)


def test_format_bytes_of_parts():
    assert Format("int4", 32, "f16").parts(3, 64) == {"q": 96, "sb": 24}
    assert Format("int8", 16, "f32").parts(2, 32) == {"q": 64, "sb": 32}
    assert Format("f16").parts(2, 3) == {"": 16}
    assert Format("f32").parts(5, 1) == {"": 20}
    with pytest.raises(ValueError, match="the group must divide"):
        Format("int4", 64, "f16").parts(1, 96)
    with pytest.raises(ValueError, match="known: int4"):
        Format("int5")
