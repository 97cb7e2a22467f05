"""The sampled draw in whole numbers: weights, cuts and random bits. Twin of include/weight.wgsl, include/rng.wgsl and advance_sampled.

A weight is 2^31 * 2^(-depth / 65536), depth = how far a logit lies below the maximum in 1/65536 octaves of probability. Only
the depth touches floats (one f32 subtraction, one f32 product), so the same logits give the same id on every device.
"""

from __future__ import annotations

import numpy as np

BOTTOM = 0x1FFFFF
_TERMS = (0x0263C2EE, 0x0E2EEE3D, 0x3D7EA866, 0xB17213B2)


def depths(logits: np.ndarray, scale: np.float32) -> np.ndarray:
    """u32: distance of each logit below the greatest, in 1/65536 octaves, at most BOTTOM. scale = 65536 log2(e) / temperature."""
    with np.errstate(over="ignore"):
        gap = np.minimum(logits.max() - logits, np.float32(1e20)) * np.float32(scale)
    return np.minimum(gap, np.float32(BOTTOM)).astype(np.uint32)


def weights(depth: np.ndarray) -> np.ndarray:
    """u64: 2^31 * 2^(-depth / 65536) within 5e-7 of it, rounded down."""
    x = depth.astype(np.uint64) & np.uint64(0xFFFF)
    r = np.full(depth.shape, 0x00416965, np.uint64)
    for term in _TERMS:
        r = np.uint64(term) - ((r * x) >> np.uint64(16))
    return (np.uint64(1 << 31) - ((r * x) >> np.uint64(17))) >> (depth >> 16).astype(np.uint64)


def kept_weights(logits: np.ndarray, record) -> np.ndarray:
    """i64 [V]: weight of every id, 0 for those cut by top_k, then top_p of the rest, then min_p. What ties with the last kept one stays.

    Source: order of the transformers logits warpers
    """
    depth = depths(logits, record["scale"])
    weight = weights(depth).astype(np.int64)
    order = np.argsort(depth, kind="stable")
    order = order[depth[order] < BOTTOM]
    limit = BOTTOM
    if 0 < record["top_k"] <= order.size:
        limit = int(depth[order[int(record["top_k"]) - 1]]) + 1
    if record["top_p"] < 1:
        order = order[depth[order] < limit]
        mass = np.cumsum(weight[order])
        want = max(int(mass[-1]) * int(float(record["top_p"]) * 2**32) >> 32, 1)
        limit = int(depth[order[np.searchsorted(mass, want)]]) + 1
    least = int(float(record["min_p"]) * 2**31)
    return np.where((depth < limit) & (weight >= least), weight, 0)


def draw_id(logits: np.ndarray, record, draw: int) -> int:
    """The id that draw number `draw` gives: ids in rising order, the first whose running weight passes random / 2^32 of the total."""
    running = np.cumsum(kept_weights(logits, record))
    random = philox((int(record["seed_lo"]), int(record["seed_hi"])), (draw, 0, 0, 0))[0]
    return int(np.searchsorted(running, int(running[-1]) * random >> 32, side="right"))


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four random u32 of a counter.

    Source: Philox 4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"
    """
    (k0, k1), (a, b, c, d) = key, counter
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & 0xFFFFFFFF, (p >> 32) ^ d ^ k1, p & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d
