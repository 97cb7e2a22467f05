"""The case harness finds what it is there to find: wrong numbers, writes past the end, NaN, and references that break their word."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from jird.kernels.core import OUT_DTYPE, Case, Variant
from jird.runtime.selftest import all_kernels, compare, run_case, self_test
from native import NativeDevice

PLAIN = Variant("tree", {"REDUCE": "tree", "LANES": 64, "WG": 64})


@pytest.fixture(scope="module")
def device():
    made = NativeDevice()
    yield made
    made.close()


def rms_norm():
    return all_kernels()["norm/rms_norm"]


def run(device, kernel):
    return asyncio.run(run_case(device, kernel, PLAIN, kernel.cases[0]))


def test_a_right_kernel_passes(device):
    result = run(device, rms_norm())
    assert result.ok and result.max_err <= rms_norm().tol and result.detail == ""


def test_a_difference_names_the_output_and_the_place(device):
    def off_by_one_place(x, w, y, params):
        rms_norm().reference(x, w, y, params)
        y[7] += 0.01

    result = run(device, replace(rms_norm(), reference=off_by_one_place))
    assert not result.ok and "y: error" in result.detail and "[7] is" in result.detail


def test_an_output_that_the_kernel_leaves_is_found(device):
    def all_written(x, w, y, params):
        y[:] = 0.0

    kernel = replace(rms_norm(), data=lambda rng, p, c: {**rms_norm().data(rng, p, c), "y": np.full(p.T * p.C + 3, np.nan, np.float32)})
    result = run(device, replace(kernel, reference=lambda x, w, y, params: (rms_norm().reference(x, w, y, params), y.__setitem__(slice(130, 133), 0.0))))
    assert not result.ok and "[130] is nan, not 0.0" in result.detail


def test_a_write_past_the_end_is_found(device):
    kernel = replace(rms_norm(), data=lambda rng, p, c: {**rms_norm().data(rng, p, c), "y": np.full(p.T * p.C - 1, np.nan, np.float32)},
                     reference=lambda x, w, y, params: y.__setitem__(slice(0, 129), 1.0))
    assert "y: the kernel writes past the end" in run(device, kernel).detail


def test_a_reference_that_writes_past_the_end_or_to_an_input_is_found(device):
    assert "y: the reference writes past the end" in run(device, replace(rms_norm(), reference=lambda x, w, y, params: y.fill(0))).detail
    assert "w: the reference writes a binding that the shader only reads" in run(
        device, replace(rms_norm(), reference=lambda x, w, y, params: w.__setitem__(0, 0.0))).detail


def test_a_kernel_that_does_not_compile_is_a_failed_result(device):
    result = asyncio.run(run_case(device, rms_norm(), PLAIN, rms_norm().cases[0], {"WG": 100000, "LANES": 64}))
    assert not result.ok and "kernel norm/rms_norm" in result.detail


def test_data_that_does_not_match_the_bindings_is_refused(device):
    with pytest.raises(ValueError, match=r"data gives \['x'\], the shader binds \['w', 'x', 'y'\]"):
        run(device, replace(rms_norm(), data=lambda rng, p, c: {"x": np.zeros(1, np.float32)}))


def test_self_test_returns_the_variants_that_fail(device, monkeypatch):
    from jird.runtime import selftest

    wrong = replace(rms_norm(), path="norm/rms_norm", cases=(Case({"T": 1, "C": 4, "eps": 1e-5}),), reference=lambda x, w, y, params: y[:4].fill(3))
    good = [("norm/rms_norm", PLAIN, dict(PLAIN.consts))]
    assert asyncio.run(self_test(device, good)) == []
    monkeypatch.setitem(selftest.KERNELS, "norm/rms_norm", wrong)
    assert [(r.kernel, r.variant) for r in asyncio.run(self_test(device, good))] == [("norm/rms_norm", "tree")]


def test_compare_wants_nan_and_infinity_in_the_same_places():
    a = np.array([1, np.nan, np.inf], np.float32)
    assert compare(a, a.copy(), 1e-5) == (0.0, "")
    assert "[1] is 2.0, not nan" in compare(a, np.array([1, 2, np.inf], np.float32), 1e-5)[1]
    assert "[2] is -inf, not inf" in compare(a, np.array([1, np.nan, -np.inf], np.float32), 1e-5)[1]


def test_compare_scales_by_the_largest_value_and_takes_integers_exactly():
    want = np.array([1000, 0.001], np.float32)
    assert compare(want, want + np.float32(0.005), 1e-5)[1] == ""
    assert compare(want, want + np.float32(0.02), 1e-5)[1] != ""
    assert "1 of 2 differ: [1] is 3, not 2" in compare(np.array([1, 2]), np.array([1, 3]), 1.0)[1]


def test_compare_takes_structs_by_field():
    want = np.zeros(2, OUT_DTYPE)
    got = want.copy()
    got["flags"][1] = 1
    assert compare(want, got, 1e-5)[1].startswith(".flags 1 of 2")
