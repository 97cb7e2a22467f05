"""Placement: no two living temps share a buffer, no buffer is bound twice to write, nothing is larger than the device binds; and kernel choice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from jird import kernels
from jird.errors import KernelFailed, ModelNotSupported
from jird.graph.builder import GraphBuilder
from jird.graph.ir import Format, Graph, Node, Tensor
from jird.kernels.core import KERNELS
from jird.models import llama
from jird.plan.compile import compile, prepare
from jird.plan.context import Context
from jird.plan.place import place, pool_temps
from jird.plan.select import Selector, select
from jird.runtime.device import UNIFORM_ALIGN, Limits

CONFIG = llama.Config(vocab=96, layers=2, width=64, ffn=96, heads=4, kv_heads=2, head_dim=16, eps=1e-5, rope_theta=1e4, context=64, is_tied=True)
INT4 = Format("int4", 32, "f16")
FORMATS = {w.name: INT4 if len(w.shape) > 1 else Format("f32") for w in llama.weights(CONFIG)}
DECODE = Context(rows=1, context=64, one_row_a_slot=True, kv_limit=64)


def compiled(ctx: Context = DECODE, head: bool = True, sampled: bool = False, formats=FORMATS):
    return compile(prepare(llama.graph(CONFIG, head=head, sampled=sampled), formats), ctx)


def random_graph(seed: int) -> Graph:
    """Nodes that read one to three earlier temps, some by views, and make one of a random width."""
    draw = random.Random(seed)
    temps = [Tensor("t0", ("T", 8))]
    nodes = [Node("any", {}, {"y": temps[0]}, {}, "n0")]
    for i in range(1, 30):
        read = draw.sample(temps, min(len(temps), draw.randint(1, 3)))
        read = [Tensor(f"view{i}", ("T", 2), base=t, offset=2) if draw.random() < 0.3 else t for t in read]
        made = Tensor(f"t{i}", ("T", draw.randint(1, 40)))
        temps.append(made)
        nodes.append(Node("any", {f"x{j}": t for j, t in enumerate(read)}, {"y": made}, {}, f"n{i}"))
    return Graph("random", tuple(nodes), tuple(draw.sample(temps, 2)))


@pytest.mark.parametrize("seed", range(40))
def test_no_buffer_holds_two_temps_that_live_at_once(seed):
    graph, ctx = random_graph(seed), Context(rows=3)
    where, pool = pool_temps(graph, ctx)
    held: dict[int, str] = {}
    made: dict[str, Tensor] = {}
    for node in graph.nodes:
        for t in node.inputs.values():
            assert held[where[t.root.name]] == t.root.name, f"{t.root.name} was overwritten before {node.id} read it"
        for t in node.outputs.values():
            assert where[t.name] not in {where[x.root.name] for x in node.inputs.values()}, "written over what the node reads"
            held[where[t.name]], made[t.name] = t.name, t
    for t in graph.outputs:
        assert held[where[t.name]] == t.name, "an output did not live to the end"
    for name, t in made.items():
        assert pool[where[name]] >= ctx.size(t) * 4
    assert list(pool) == sorted(pool, reverse=True)
    assert len(pool) < len(graph.nodes)


@pytest.mark.parametrize("head, rows", [(True, 1), (False, 16)])
def test_a_plan_reads_what_was_written_last_under_that_name(head, rows):
    """The same check on the bindings of a real plan: each dispatch's buffers, by the shaders' own access."""
    plan = compiled(replace(DECODE, rows=rows, one_row_a_slot=head), head)
    for step in plan.steps:
        access = {b.name: b.access for b in KERNELS[step.kernel].shader(dict(step.consts)).bindings}
        writes = [ref for name, ref in step.bindings if ref is not None and access[name] == "read_write"]
        for name, ref in step.bindings:
            assert ref is None or access[name] == "read_write" or ref not in writes, (step.label, name)
        assert step.params_offset % UNIFORM_ALIGN == 0
    assert len(plan.params) == len(plan.steps) * UNIFORM_ALIGN


def test_writing_a_buffer_that_the_same_dispatch_reads_is_refused():
    g = GraphBuilder("t")
    x, y = g.temp("x", "T", 64), g.temp("y", "T", 64)
    node = g.add_node("add", "sum", {"a": x, "b": y}, {"y": Tensor("x", ("T", 64))})
    ctx = Context(rows=1)
    choice = select(node, Selector(ctx))
    with pytest.raises(AssertionError, match="binds .* twice, once to write"):
        place(g.build(x), [choice], ctx, {}, {})


@pytest.mark.parametrize("limits", [Limits(storage_binding_bytes=5000), Limits(buffer_bytes=5000)])
def test_a_weight_larger_than_the_device_binds_is_not_supported_and_named(limits):
    with pytest.raises(ModelNotSupported, match=r"weight layers\.0\.gate_proj\+up_proj\.weight\.q is 6144 bytes; this device binds at most 5000"):
        compiled(replace(DECODE, limits=limits, context=16))


def test_a_cache_larger_than_the_device_binds_is_not_supported_and_says_what_to_do():
    limits = Limits(storage_binding_bytes=64 << 10)
    with pytest.raises(ModelNotSupported, match=r"layers\.0\.k_cache is 524288 bytes; this device binds at most 65536") as caught:
        compiled(replace(DECODE, limits=limits, context=4096, kv_limit=0))
    assert "context" in caught.value.hint


def test_weights_states_and_outputs_are_listed_once_with_their_sizes():
    plan = compiled()
    weights = {w.name: w for w in plan.weights}
    assert len(weights) == len(plan.weights)
    assert (weights["layers.0.q_proj+k_proj+v_proj.weight"].rows, weights["layers.0.q_proj+k_proj+v_proj.weight"].sources) == (
        128, (("layers.0.q_proj.weight", 64), ("layers.0.k_proj.weight", 32), ("layers.0.v_proj.weight", 32)))
    assert plan.states["layers.1.v_cache"] == 64 * 32 * 4
    assert plan.states["rope.cos"] == 64 * 8 * 4
    assert set(plan.outputs) == {"lm_head"}


def test_a_failed_variant_gives_way_to_its_twin_and_without_one_the_node_is_named():
    ctx = replace(DECODE, features=frozenset({"subgroups"}), subgroup_sizes=(32, 32))
    first = {s.kernel: s.variant for s in compiled(ctx).steps}
    assert first["int4/matvec_norm"] == "subgroup"
    second = compiled(replace(ctx, failed=frozenset({("int4/matvec_norm", "subgroup")})))
    variants = {s.kernel: s.variant for s in second.steps}
    assert variants["int4/matvec_norm"] != "subgroup" and variants["int4/matvec_residual"] == "subgroup"
    kernels.load_all()
    every = frozenset((k.path, v.name) for k in KERNELS.values() if k.path.startswith("int4/matvec") for v in k.variants)
    with pytest.raises(KernelFailed, match=r"linear layers\.0\.q_proj.*no kernel of .*int4/matvec"):
        compiled(replace(ctx, failed=every))


def test_a_fused_kernel_without_a_sound_variant_leaves_its_parts_alone():
    kernels.load_all()
    failed = frozenset(("int4/matvec_norm_swiglu", v.name) for v in KERNELS["int4/matvec_norm_swiglu"].variants)
    used = [s.kernel for s in compiled(replace(DECODE, failed=failed)).steps]
    assert "int4/matvec_norm_swiglu" not in used and {"int4/matvec_swiglu", "elementwise/swiglu"} & set(used)


@pytest.mark.parametrize("limit", [8, 6, 4])
def test_no_dispatch_binds_more_storage_buffers_than_the_device_has(limit):
    plan = compiled(replace(DECODE, limits=Limits(storage_buffers=limit)))
    assert max(KERNELS[s.kernel].shader(dict(s.consts)).storage_buffers for s in plan.steps) <= limit
    assert ("attention/append" in [s.kernel for s in plan.steps]) == (limit == 8)


def test_a_node_that_cannot_run_with_so_few_storage_buffers_is_named():
    with pytest.raises(KernelFailed, match="3 storage buffers"):
        compiled(replace(DECODE, limits=Limits(storage_buffers=3)))


def test_features_that_are_missing_are_never_used_and_software_takes_kernels_without_barriers():
    assert all(not s.features for s in compiled().steps)
    software = compiled(replace(DECODE, is_software=True))
    assert {s.variant for s in software.steps if s.op == "linear"} == {"column"}


def test_workgroups_fit_the_device():
    plan = compiled(replace(DECODE, limits=Limits(invocations=128)))
    for s in plan.steps:
        consts = dict(s.consts)
        assert consts.get("WG", 1) <= 128, s.label


def test_no_dispatch_has_more_workgroups_a_side_than_the_device_takes():
    assert max(max(s.grid) for s in compiled().steps) > 3
    assert max(max(s.grid) for s in compiled(replace(DECODE, limits=Limits(workgroups=3))).steps) <= 3
    with pytest.raises(KernelFailed, match="0 workgroups a side"):
        compiled(replace(DECODE, limits=Limits(workgroups=0)))
