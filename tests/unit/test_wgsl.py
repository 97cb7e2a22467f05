"""WGSL text: constants, includes, bindings, Params, and params baked in."""

import re

import pytest
from jird.kernels import load_all, wgsl
from jird.kernels.core import KERNELS, const_values, pack_params

PARAMS = (("C", 65), ("T", 2), ("eps", 1e-5))


def test_constants_replace_tunables_and_unknown_ones_are_refused():
    shader = wgsl.join("norm/rms_norm", {"WG": 32, "LANES": 32})
    assert "const WG: u32 = 32u;" in shader.code and "override" not in shader.code
    assert wgsl.workgroup_size(shader) == (32, 1, 1)
    with pytest.raises(ValueError, match=r"\['NOPE'\] name no override"):
        wgsl.join("norm/rms_norm", {"NOPE": 1})


def test_an_include_is_chosen_by_a_constant_and_joined_once():
    tree, sub = (wgsl.join("norm/rms_norm", {"REDUCE": r}) for r in ("tree", "subgroup"))
    assert "subgroupShuffleXor" in sub.code and "subgroupShuffleXor" not in tree.code
    assert tree.code.count("fn reduce(") == 1 and "//!include" not in tree.code


def test_bindings_params_and_their_bytes():
    shader = wgsl.join("norm/rms_norm")
    assert [(b.name, b.access) for b in shader.bindings] == [("x", "read"), ("w", "read"), ("y", "read_write"), ("params", "uniform")]
    assert shader.params == (("T", "u32"), ("C", "u32"), ("eps", "f32"))
    assert pack_params(shader, dict(PARAMS)) == b"\x02\0\0\0\x41\0\0\0\xac\xc5\x27\x37" + bytes(4)
    with pytest.raises(ValueError, match="Params has"):
        pack_params(shader, {"T": 1})


def test_baked_params_are_a_constant_and_the_binding_goes():
    shader = wgsl.join("norm/rms_norm", {"PARAMS": PARAMS})
    assert "const params = Params(2u, 65u, 1e-05);" in shader.code
    assert [b.name for b in shader.bindings] == ["x", "w", "y"]
    with pytest.raises(ValueError, match="Params has"):
        wgsl.join("norm/rms_norm", {"PARAMS": PARAMS[:2]})


def test_bindings_after_baked_params_move_up():
    load_all()
    kernel = KERNELS["int4/matvec"]
    case = next(c for c in kernel.cases if "BIAS" in c.consts and c.consts["BIAS"] != "none")
    consts = {**kernel.variants[0].consts, **case.consts}
    plain, baked = (wgsl.join(kernel.path, {**consts, **extra}) for extra in ({}, {"PARAMS": tuple(case.params.items())}))
    assert [b.name for b in baked.bindings] == [b.name for b in plain.bindings if b.name != "params"]
    assert [b.index for b in baked.bindings] == list(range(len(baked.bindings)))


def test_enable_lines_follow_the_compiler():
    assert wgsl.enables(("f16", "subgroups"), "tint") == "enable f16;\nenable subgroups;\n"
    assert wgsl.enables(("f16", "subgroups"), "naga") == "enable f16;\n"


def test_every_shader_parses_with_every_variant():
    load_all()
    for kernel in KERNELS.values():
        for variant in kernel.variants:
            shader = kernel.shader({**variant.consts, **kernel.cases[0].consts})
            assert shader.bindings and wgsl.workgroup_size(shader)[0] >= 1
            assert const_values(shader, variant.consts)


def every_shader():
    """(kernel, variant, shader with its first case's constants)."""
    load_all()
    return [(k, v, k.shader({**v.consts, **k.cases[0].consts})) for k in KERNELS.values() for v in k.variants]


def test_no_shader_calls_a_function_that_some_gpu_computes_wrongly():
    """sin, cos and tanh are silently wrong on real adapters; Tint refuses constants at -inf."""
    for _, _, shader in every_shader():
        code = re.sub(r"//[^\n]*", "", shader.code)
        assert not re.search(r"\b(a?sinh?|a?cosh?|a?tanh?|atan2|pow)\s*\(", code), shader.path
        numbers = (float(x) for x in re.findall(r"(?<![\w.])\d+\.?\d*e[+-]?\d+", code))
        assert all(n <= 3.4e38 for n in numbers), shader.path


def test_every_kernel_has_a_variant_for_the_default_limits_and_no_features():
    fits = {k.path for k, v, s in every_shader() if not v.features and s.storage_buffers <= 8 and wgsl.workgroup_size(s)[0] <= 256}
    assert fits == set(KERNELS)
