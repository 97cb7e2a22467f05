"""Canonical formats: convert and dequantise give gguf-py's values bit for bit, whatever the block's numbers."""

from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from jird.errors import ModelNotSupported
from jird.graph.ir import Format
from jird.kernels import convert
from jird.kernels.core import KERNELS, const_values
from jird.kernels.dequantise import _memo, dequantise
from jird.weights.quant import LOADABLE, TYPES, canonical, common, row_bytes

QUANTISED = [t for t in LOADABLE if TYPES[t][0] > 1]
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
ROWS, COLUMNS = 33, 512


def blocks(type_, rng, limit):
    """Random blocks [ROWS, bytes] whose f16 numbers are finite: normal ones up to `limit`, subnormal ones, zeros and the largest."""
    weights, nbytes = TYPES[type_]
    raw = rng.integers(0, 256, (ROWS * COLUMNS // weights, nbytes), np.uint8)
    for at in HALVES[type_]:
        bits = rng.integers(0, 0x7C00, len(raw)).astype("<u2") | (rng.integers(0, 2, len(raw)) << 15).astype("<u2")
        values = bits.view("<f2").copy()
        values[np.abs(values) > limit] /= np.float16(65504)
        values[:6] = np.array([0, -0.0, 2.0 ** -24, -(2.0 ** -24) * 1023, limit, -limit], "<f2")
        raw[:, at: at + 2] = values.view(np.uint8).reshape(-1, 2)
    return raw.reshape(ROWS, -1)


def converted(type_, raw, format_):
    """Runs the reference of the kernel that brings `type_` into `format_`."""
    path, consts = convert.converter(type_, format_)
    kernel = KERNELS[path]
    parts = {n: np.full(b // 4, 0xDEADBEEF, "<u4") for n, b in format_.parts(ROWS, COLUMNS).items()}
    params = SimpleNamespace(src=0, rows=ROWS, columns=COLUMNS, dst_row=0, first=0, head_dim=0)
    flat = np.concatenate([raw.ravel(), np.zeros(-raw.size % 4, np.uint8)]).view("<u4")
    kernel.reference(flat, parts["q"], parts["sb"], params, const_values(kernel.shader(consts), consts))
    return parts


def equal(type_, raw, format_):
    parts = converted(type_, raw, format_)
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type_]).reshape(ROWS, COLUMNS)
    got = dequantise(format_, parts["q"], parts["sb"], ROWS, COLUMNS)
    np.testing.assert_array_equal(got, want)  # by value: d * 0 may be -0 there and is 0 here


# largest |d| whose bias is in f16's range
LIMITS = {"Q4_0": 8188, "Q5_0": 4094, "Q8_0": 511.75}


@pytest.mark.parametrize("type_", QUANTISED)
def test_the_canonical_format_dequantises_to_the_same_bits_as_gguf_py(type_):
    equal(type_, blocks(type_, np.random.default_rng(1), LIMITS.get(type_, 65504)), canonical(type_, COLUMNS))


@pytest.mark.parametrize("type_", QUANTISED)
def test_f32_pairs_and_wider_formats_hold_every_block(type_):
    raw = blocks(type_, np.random.default_rng(2), 65504)
    equal(type_, raw, canonical(type_, COLUMNS, pair="f32"))
    equal(type_, raw, Format("int8", 16, "f32"))


@pytest.mark.parametrize("type_", sorted(LIMITS))
def test_past_f16s_range_an_f16_bias_is_infinite_and_so_is_the_weight(type_):
    """The first logit then ends the request with NumericError: no text comes of it."""
    raw = blocks(type_, np.random.default_rng(3), 65504)
    parts = converted(type_, raw, canonical(type_, COLUMNS))
    got = dequantise(canonical(type_, COLUMNS), parts["q"], parts["sb"], ROWS, COLUMNS)
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type_]).reshape(ROWS, COLUMNS)
    finite = np.isfinite(got)
    assert not finite.all()
    np.testing.assert_array_equal(got[finite], want[finite])


def test_mlx_bf16_pairs_dequantise_with_the_scale_in_the_high_half():
    format_ = Format("int4", 32, "bf16")
    q = np.array([0x76543210, 0xFEDCBA98, 0, 0xFFFFFFFF], "<u4")
    scale, bias = np.array([1.5, -2.0], "<f4").view("<u4")
    w = dequantise(format_, q, np.array([(scale & 0xFFFF0000) | (bias >> 16)], "<u4"), 1, 32)
    np.testing.assert_array_equal(w[0], np.array([*range(16), *[0] * 8, *[15] * 8]) * 1.5 - 2.0)


def test_every_type_has_one_canonical_format():
    got = {t: canonical(t, 512) for t in LOADABLE}
    assert got == {
        "F32": Format("f32"), "F16": Format("f16"), "BF16": Format("bf16"),
        "Q4_0": Format("int4", 32, "f16"), "Q4_1": Format("int4", 32, "f16"), "Q5_0": Format("int8", 32, "f16"), "Q5_1": Format("int8", 32, "f16"),
        "Q8_0": Format("int8", 32, "f16"), "Q4_K": Format("int4", 32, "f32"), "Q5_K": Format("int8", 32, "f32"), "Q6_K": Format("int8", 16, "f32")}


def test_types_that_cannot_be_weights_and_rows_that_cannot_be_blocks():
    with pytest.raises(ModelNotSupported, match="I32 cannot be used as a weight"):
        canonical("I32", 4)
    with pytest.raises(ModelNotSupported, match="Q2_K"):
        row_bytes("Q2_K", 256)
    with pytest.raises(ValueError, match="288 is not a whole number of Q4_K blocks of 256"):
        canonical("Q4_K", 288)


def test_common_is_the_smallest_format_that_holds_all_and_a_converter_exists():
    of = {t: canonical(t, 512) for t in LOADABLE}
    assert common([of["Q4_0"], of["Q4_1"]]) == of["Q4_0"]
    assert common([of["Q4_0"], of["Q8_0"]]) == Format("int8", 32, "f16")
    assert common([of["Q4_0"], of["Q4_K"]]) == Format("int4", 32, "f32")
    assert common([of["Q4_K"], of["Q6_K"]]) == Format("int8", 16, "f32")
    assert common([of["F16"], of["BF16"]]) == Format("f32")
    assert common([of["F16"], of["Q8_0"]]) is None
    for a in LOADABLE:
        for b in LOADABLE:
            both = common([of[a], of[b]])
            if both is not None:
                assert convert.converter(a, both) and convert.converter(b, both), (a, b, both)


def test_no_converter_rounds():
    assert convert.converter("Q8_0", Format("int4", 32, "f16")) is None
    assert convert.converter("Q4_K", Format("int4", 32, "f16")) is None
    assert convert.converter("Q6_K", Format("int8", 32, "f32")) is None
    assert convert.converter("F32", Format("f16")) is None
    assert convert.converter("Q4_0", Format("f32")) is None


def test_dequantise_remembers_until_the_weight_changes_or_goes():
    format_ = Format("int8", 32, "f16")
    rng = np.random.default_rng(4)
    q = rng.integers(0, 1 << 32, 4 * 64 // 4, dtype=np.uint32)
    sb = rng.standard_normal(4 * 2 * 2).astype("<f2").view("<u4")
    first = dequantise(format_, q, sb, 4, 64)
    assert dequantise(format_, q[:], sb[:], 4, 64) is first
    sb[0] ^= 1
    second = dequantise(format_, q, sb, 4, 64)
    assert second is not first and not np.array_equal(second, first)
    before = len(_memo)
    del q
    assert len(_memo) == before - 1
