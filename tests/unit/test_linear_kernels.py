"""How nodes of op linear become kernels: geometry fits every shape, fusions only where there is a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jird.graph.builder import GraphBuilder
from jird.graph.ir import Format
from jird.kernels.linear import PER_WORD, Form, lanes_geometry, words_that_fit
from jird.plan.context import Context
from jird.plan.select import Selector


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_a_load_of_weights_divides_the_row_and_stays_in_its_group(kind):
    for group in (16, 32, 64, 128):
        for columns in range(group, 20 * group, group):
            span = words_that_fit(kind, columns, group, 4) * PER_WORD[kind]
            assert columns % span == 0 and group % span == 0, (columns, group, span)


@pytest.mark.parametrize("kind", ["int4", "int8", "dense"])
def test_lanes_and_rounds_are_sane_for_small_and_large_matrices(kind):
    for k, rows in ((64, 3), (576, 960), (576, 49152), (1536, 576), (4096, 14336), (14336, 4096)):
        g = lanes_geometry(Form(kind), k, rows, 32)
        assert g["WG"] % g["LANES"] == 0 and g["LANES"] & (g["LANES"] - 1) == 0 and 1 <= g["ROUNDS"] <= 5, (k, rows, g)


@pytest.mark.parametrize("rows, software, features, want", [
    (1, False, {"subgroups"}, "int4/matvec_norm_swiglu subgroup"), (1, False, set(), "int4/matvec_norm_swiglu tree"),
    (4, True, {"subgroups"}, "int4/matvec_norm_swiglu column"), (5, False, set(), None), (64, True, set(), None)])
def test_norm_and_swiglu_are_fused_in_decode_only(rows, software, features, want):
    g = GraphBuilder("g")
    x = g.input("x", "T", 64)
    w = g.weight("w", 96, 64)
    node = g.add_node("linear", "l", {"x": x, "w": w, "norm": g.weight("n", 64)}, {"y": g.temp("y", "T", 48)}, eps=1e-5, swiglu=True)
    ctx = Context(rows=rows, is_software=software, features=frozenset(features), subgroup_sizes=(4, 4), formats={"w": Format("int4", 32, "f16")})
    choice = Selector(ctx).choose(node)
    assert (choice and f"{choice.kernel.path} {choice.variant.name}") == want


def test_a_view_whose_offset_is_not_a_multiple_of_four_has_no_kernel():
    g = GraphBuilder("g")
    whole = g.input("x", "T", 128)
    ctx = Context(rows=1, formats={"w": Format("int8", 64, "bf16")})
    for offset, fits in ((64, True), (62, False)):
        view = replace(g.input("x.part", "T", 64), base=whole, offset=offset)
        node = g.add_node("linear", f"l{offset}", {"x": view, "w": g.weight("w", 96, 64)}, {"y": g.temp("y", "T", 96)})
        assert (Selector(ctx).choose(node) is not None) == fits


@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 64])
def test_every_case_is_sound_with_the_constants_of_any_plan(software, rows):
    """The self-test runs a case with what the plan's constants add to it."""
    for kind in PER_WORD:
        for group in (16, 32, 64, 128):
            g = GraphBuilder("g")
            node = g.add_node("linear", "l", {"x": g.input("x", "T", 512), "w": g.weight("w", 96, 512)}, {"y": g.temp("y", "T", 96)})
            choice = Selector(Context(rows=rows, is_software=software, formats={"w": Format(kind, group, "f32")})).choose(node)
            for case in choice.kernel.cases:
                consts = {**dict(choice.consts), **case.consts}
                span = consts["WORDS"] * PER_WORD[kind]
                assert consts["GROUP"] % span == 0 and case.params["K"] % span == 0, (choice.kernel.path, group, case)
