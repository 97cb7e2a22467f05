"""A row gives the same bits in the short decode list (attention/append) and in the long one (rope/append, partial, merge)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from jird.kernels.core import Case
from jird.runtime.selftest import all_kernels, lacks, prepare, run_kernel
from native import NativeDevice

HEADS, KV_HEADS, DIM, SPLIT = 3, 1, 64, 256


@pytest.fixture(scope="module")
def device():
    made = NativeDevice()
    yield made
    made.close()


async def run(device, path: str, variant_name: str, params: dict, consts: dict, given: dict) -> dict:
    """Outputs of one dispatch on seeded data, with the arrays in `given` in place of its own."""
    kernel = all_kernels()[path]
    variant = next((v for v in kernel.variants if v.name == variant_name), kernel.variants[0])
    case = Case(params, {"ROWS": 1, **consts})
    if lacks(kernel, variant, case, device.info):
        pytest.skip(lacks(kernel, variant, case, device.info))
    ready = prepare(kernel, variant, case, device.info)
    ready = replace(ready, arrays={n: given.get(n, a) for n, a in ready.arrays.items()})
    return {**ready.arrays, **await run_kernel(device, kernel, variant, case, ready)}


async def both_lists(device, variant: str, keys: int) -> tuple[dict, dict]:
    width, kv_width = HEADS * DIM, KV_HEADS * DIM
    stride = width + 2 * kv_width
    sizes = {"T": 1, "heads": HEADS, "kv_heads": KV_HEADS, "context": keys}
    views = {"q_stride": stride, "q_offset": 0, "k_stride": stride, "k_offset": width, "v_stride": stride, "v_offset": width + kv_width}
    attend, head, split = {"window": 0, "scale": DIM ** -0.5}, {"HEAD_DIM": DIM}, {"splits": 1, "split_keys": SPLIT}
    short = await run(device, "attention/append", variant, {**sizes, **views, **attend}, {**head, "PAIRS": 0}, {})
    before = {n: short[n] for n in ("q", "k", "v", "step")}
    # the caches as they were before the append: the row's own key was still missing
    own = slice((keys - 1) * kv_width, keys * kv_width)
    for name in ("k_cache", "v_cache"):
        before[name] = short[name].copy()
        before[name][own] = np.nan
    roped = await run(device, "rope/append", variant, {**sizes, **views, "head_dim": DIM}, {"PAIRS": 0}, before)
    caches = {n: roped[n] for n in ("k_cache", "v_cache", "step")}
    partial = await run(device, "attention/partial", variant, {**sizes, **attend, **split, "q_stride": width, "q_offset": 0}, {**head, "TILE": SPLIT},
                        {**caches, "q": roped["y"]})
    long = await run(device, "attention/merge", variant, {"T": 1, "heads": HEADS, "context": keys, **split}, head,
                     {"partials": partial["partials"], "step": roped["step"]})
    return short, {**long, **caches}


@pytest.mark.parametrize("variant", ["subgroup", "tree"])
@pytest.mark.parametrize("keys", [1, 37, 256])
def test_short_and_long_list_agree_bit_for_bit(device, variant, keys):
    short, long = asyncio.run(both_lists(device, variant, keys))
    assert np.isfinite(short["y"][: HEADS * DIM]).all()
    for name, count in (("y", HEADS * DIM), ("k_cache", keys * KV_HEADS * DIM), ("v_cache", keys * KV_HEADS * DIM)):
        np.testing.assert_array_equal(short[name][:count].view("<u4"), long[name][:count].view("<u4"), err_msg=name)
