"""Attention of any rows over the KV cache: tiled for prompts on a GPU, and without barriers for software adapters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .attention import attention_decode, decode_case, head_params, is_vec4, random_caches
from .core import DECODE_ROWS, Case, Lowered, Variant, kernel, poison, steps
from .views import view_data, view_params


def _lower_rows(node, ctx, variant):
    """Any number of rows."""
    a = node.attrs
    if a["head_dim"] > 256 or not is_vec4(node, "q"):
        return None
    return Lowered({"T": ctx.rows, **head_params(a), "context": ctx.context, "window": a.get("window", 0), **view_params("q", node.inputs["q"])},
                   {"ROWS": ctx.rows, "HEAD_DIM": a["head_dim"]})


def prefill_steps(p, c) -> tuple[np.ndarray, list[int]]:
    """A chunk as the scheduler makes it: rows of slot 1 that end at `context`, then rows of slot 0 from position 0, then masked rows (an eighth of T).

    Even T: one slot only.
    """
    live = max(p.T - p.T // 8, 1)
    first = live * 2 // 3 if p.T % 2 and p.T > 2 else live
    first = min(first, p.context)
    rows = [{"slot": 1, "position": p.context - first + i} for i in range(first)] + [{"slot": 0, "position": i} for i in range(live - first)]
    rows = [{**r, "kv_len": r["position"] + 1} for r in rows]
    return steps(rows + [{"flags": 2}] * (max(c.ROWS, p.T) - len(rows))), [max(live - first, 1), p.context]


def _data_prefill(rng, p, c):
    step, lengths = prefill_steps(p, c)
    return {"q": view_data(rng, p, "q"), **random_caches(rng, p, c, lengths), "y": poison(p.T * p.heads * c.HEAD_DIM), "step": step}


_PREFILL_CASES = [decode_case(35, 3, 1, 64, 40, pad=8, plan_rows=36, why="one row past the block, two slots, masked rows, a view"),
                  decode_case(33, 2, 2, 32, 65),
                  decode_case(31, 2, 1, 16, 31, why="one row short of the block"), decode_case(64, 2, 1, 64, 97, why="the first row sees many keys"),
                  decode_case(40, 2, 1, 80, 70),
                  decode_case(19, 2, 1, 128, 33), decode_case(9, 1, 1, 256, 17), decode_case(1, 2, 1, 64, 1, why="one row, one key"),
                  decode_case(47, 2, 1, 64, 90, window=20, why="window"), decode_case(96, 1, 1, 64, 96, window=32, why="window of a tile")]


@kernel("attention/serial", op="attention", lower=_lower_rows, data=_data_prefill, strided=("q",), tol=2e-5,
        grid=lambda p, c: (-(-p.T * p.heads // c.WG), 1, 1), variants=(Variant("plain", {"WG": 4}, prefer="software"),), cases=_PREFILL_CASES)
def attention_serial(q, k_cache, v_cache, y, step, params, consts):
    """y[t, h] = softmax_s(q[t, h] . k[slot, s, g] * scale) . v[slot, s, g], s in [kv_len - window, kv_len), g = h // (heads / kv_heads)

    Shapes:  q [T, heads * D] f32 (view), caches [slots, context, kv_heads * D] f32 -> y [T, heads * D] f32; no keys or an idle row: 0
    """
    attention_decode(q, k_cache, v_cache, y, step, params, consts)


def _row_lanes(head_dim: int) -> int:
    """Threads a row: as many as divide the column groups and leave the kernel under 16 KiB of workgroup memory; 0: none do."""
    fitting = [n for n, widest in ((8, 64), (4, 128), (2, 256)) if head_dim <= widest and head_dim % (4 * n) == 0]
    return fitting[0] if fitting and head_dim % 8 == 0 else 0


def _lower_prefill(node, ctx, variant):
    lowered = _lower_rows(node, ctx, variant)
    lanes = _row_lanes(node.attrs["head_dim"])
    if lowered is None or ctx.is_software or ctx.rows <= DECODE_ROWS or not lanes:
        return None
    return Lowered(lowered.params, {**lowered.consts, "LANES": lanes})


def _with_lanes(case: Case) -> Case:
    return replace(case, consts={**case.consts, "LANES": _row_lanes(case.consts["HEAD_DIM"])})


@kernel("attention/prefill", op="attention", lower=_lower_prefill, data=_data_prefill, strided=("q",), tol=2e-5,
        grid=lambda p, c: (p.heads, -(-p.T // (c.WG // c.LANES)), 1), variants=(Variant("tile", {"WG": 128}),), cases=[_with_lanes(c) for c in _PREFILL_CASES])
def attention_prefill(q, k_cache, v_cache, y, step, params, consts):
    """y[t, h] = softmax_s(q[t, h] . k[slot, s, g] * scale) . v[slot, s, g], s in [kv_len - window, kv_len), g = h // (heads / kv_heads)

    Shapes:  q [T, heads * D] f32 (view), caches [slots, context, kv_heads * D] f32 -> y [T, heads * D] f32; no keys or an idle row: 0
    """
    attention_decode(q, k_cache, v_cache, y, step, params, consts)
