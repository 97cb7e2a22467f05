"""A row of a decode matvec is bit-equal alone and among four, on the native device."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from jird.kernels import core
from jird.runtime.selftest import all_kernels, prepare, run_kernel
from native import NativeDevice

KERNELS = all_kernels()
CONSTS = {"GROUP": 32, "PAIR": 0}


@pytest.fixture(scope="module")
def device():
    made = NativeDevice()
    yield made
    made.close()


def _case(path, rows):
    params = {"T": rows, "K": 288, "N": 20, "x_stride": 288, "x_offset": 0} | ({"eps": 1e-5} if "norm" in path else {})
    return core.Case(params, {**CONSTS, "ROWS": rows, "WORDS": 1})


@pytest.mark.parametrize("variant", ["subgroup", "tree", "column"])
@pytest.mark.parametrize("path", ["int4/matvec_norm_swiglu", "int8/matvec_residual"])
def test_a_row_is_bit_equal_alone_and_among_four(device, path, variant):
    kernel = KERNELS[path]
    chosen = next(v for v in kernel.variants if v.name == variant)
    if not set(chosen.features) <= device.info.features:
        pytest.skip(f"{device.info.name}: no {chosen.features}")
    four = prepare(kernel, chosen, _case(path, 4), device.info)
    together = asyncio.run(run_kernel(device, kernel, chosen, _case(path, 4), four))["y"][:80].reshape(4, 20)
    for row in range(4):
        one = prepare(kernel, chosen, _case(path, 1), device.info)
        own = {"x": four.arrays["x"][row * 288: (row + 1) * 288], "y": one.arrays["y"]}
        if "residual" in four.arrays:
            own["residual"] = four.arrays["residual"][row * 20: (row + 1) * 20]
        alone = replace(one, arrays={n: own.get(n, four.arrays[n]) for n in one.arrays})
        got = asyncio.run(run_kernel(device, kernel, chosen, _case(path, 1), alone))["y"][:20]
        np.testing.assert_array_equal(got, together[row])
