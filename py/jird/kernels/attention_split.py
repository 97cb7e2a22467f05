"""Attention of decode rows split over keys: partial results of each split, and their merge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .attention import LOWEST, attend, cache_rows, decode_case, decode_steps, decode_variants, head_params, is_vec4, kv_range, random_caches
from .core import DECODE_ROWS, Case, Lowered, Variant, is_idle, kernel, poison
from .views import view_data, view_params, view_rows


def _lower_partial(node, ctx, variant):
    a = node.attrs
    if ctx.is_software or ctx.rows > DECODE_ROWS or a["head_dim"] > 256 or not is_vec4(node, "q"):
        return None
    return Lowered({"T": ctx.rows, **head_params(a), "context": ctx.context, "window": a.get("window", 0), "splits": a["splits"], "split_keys": a["split_keys"],
                    **view_params("q", node.inputs["q"])}, {"ROWS": ctx.rows, "HEAD_DIM": a["head_dim"], "TILE": min(a["split_keys"], 256)})


def _data_partial(rng, p, c):
    step, lengths = decode_steps(rng, p, c)
    return {"q": view_data(rng, p, "q"), **random_caches(rng, p, c, lengths), "partials": poison(p.T * p.heads * p.splits * (c.HEAD_DIM + 2)), "step": step}


def _split(case: Case, split_keys: int) -> Case:
    sizes = {"splits": -(-case.params["context"] // split_keys), "split_keys": split_keys}
    return replace(case, params={**case.params, **sizes}, consts={**case.consts, "TILE": min(split_keys, 256)})


@kernel("attention/partial", op="attention_partial", lower=_lower_partial, data=_data_partial, strided=("q",), tol=2e-5,
        grid=lambda p, c: (p.splits, p.heads, p.T), variants=decode_variants(),  # as attention/append: the first split's bits are its
        cases=[_split(decode_case(2, 3, 1, 64, 300, pad=8, why="a row with one split of three, a view"), 128),
               _split(decode_case(4, 2, 1, 32, 257), 32),
               _split(decode_case(1, 2, 2, 80, 384, plan_rows=2, why="splits that fit exactly"), 128), _split(decode_case(1, 2, 1, 128, 130), 64),
               _split(decode_case(2, 1, 1, 64, 300, window=60, why="splits before the window"), 64), _split(decode_case(1, 1, 1, 256, 600), 512),
               _split(decode_case(2, 2, 1, 64, 260), 256)])
def attention_partial(q, k_cache, v_cache, partials, step, params, consts):
    """partials[t, h, i] = (most, sum, value[D]) of attention over keys [i, i + 1) * split_keys of what row t sees

    Shapes:  q [T, heads * D] f32 (view), caches [slots, context, kv_heads * D] f32 -> partials [T, heads, splits, D + 2] f32;
             splits past kv_len are left alone, those before the window are (LOWEST, 0, 0)
    """
    dim = consts.HEAD_DIM
    q_rows = view_rows(q, params, "q", params.heads * dim)
    out = partials[: params.T * params.heads * params.splits * (dim + 2)].reshape(params.T, params.heads, params.splits, dim + 2)
    for t, row in enumerate(step[: params.T]):
        first, end = kv_range(row, params)
        keys, values = (cache_rows(c, int(row["slot"]), params, dim) for c in (k_cache, v_cache))
        for i in range(-(-end // params.split_keys)):
            part = slice(max(i * params.split_keys, first), max(min((i + 1) * params.split_keys, end), first))
            out[t, :, i, 2:], out[t, :, i, 0], out[t, :, i, 1] = attend(q_rows[t].reshape(params.heads, dim), keys[part], values[part], params.scale)


def _lower_merge(node, ctx, variant):
    a = node.attrs
    if ctx.rows > DECODE_ROWS or a["head_dim"] > variant.consts["WG"] or a["splits"] > variant.consts["WG"]:
        return None
    return Lowered({"T": ctx.rows, "heads": a["heads"], "context": ctx.context, "splits": a["splits"], "split_keys": a["split_keys"]},
                   {"ROWS": ctx.rows, "HEAD_DIM": a["head_dim"]})


def _data_merge(rng, p, c):
    step, _ = decode_steps(rng, p, c)
    partials = rng.standard_normal((p.T, p.heads, p.splits, c.HEAD_DIM + 2), dtype=np.float32)
    partials[..., 0] *= 20
    partials[..., 1] = np.abs(partials[..., 1]) + 1
    partials[:, :, 0] = 0
    partials[:, :, 0, 0] = LOWEST     # a split before the window ...
    partials[step["kv_len"][: p.T] <= p.split_keys, :, 0, 1:] = 1    # ... but where it is the only one
    for t, n in enumerate(step["kv_len"][: p.T]):
        partials[t, :, -(-int(n) // p.split_keys):] = np.nan
    return {"partials": partials.ravel(), "y": poison(p.T * p.heads * c.HEAD_DIM), "step": step}


def _merge(rows, heads, dim, context, split_keys, plan_rows=None, why="") -> Case:
    return Case({"T": rows, "heads": heads, "context": context, "splits": -(-context // split_keys), "split_keys": split_keys},
                {"ROWS": plan_rows or rows, "HEAD_DIM": dim}, why)


@kernel("attention/merge", op="attention_merge", lower=_lower_merge, data=_data_merge, tol=2e-5,
        grid=lambda p, c: (p.heads, p.T, 1), variants=(Variant("plain", {"WG": 256}),),
        cases=[_merge(2, 3, 64, 1100, 128, why="nine splits, a row with one"), _merge(4, 2, 80, 513, 64, why="a done row"), _merge(1, 2, 128, 2048, 64, 3),
               _merge(1, 1, 16, 8192, 32, why="as many splits as threads"), _merge(1, 1, 256, 300, 128)])
def attention_merge(partials, y, step, params, consts):
    """y[t, h] = sum_i exp(most[i] - m) value[i] / sum_i exp(most[i] - m) sum[i], m = max_i most[i], i over the splits row t has keys in

    Shapes:  partials [T, heads, splits, D + 2] f32 (most, sum, value) -> y [T, heads * D] f32; no keys or an idle row: 0
    """
    dim = consts.HEAD_DIM
    parts = partials[: params.T * params.heads * params.splits * (dim + 2)].reshape(params.T, params.heads, params.splits, dim + 2)
    out = y[: params.T * params.heads * dim].reshape(params.T, params.heads, dim)
    for t, row in enumerate(step[: params.T]):
        seen = 0 if is_idle(row) else min(int(row["kv_len"]), params.context)
        mine = parts[t, :, : -(-seen // params.split_keys)]
        weight = np.exp(mine[..., 0] - mine[..., 0].max(axis=-1, keepdims=True, initial=LOWEST))
        total = (weight * mine[..., 1]).sum(axis=-1)
        out[t] = (weight[..., None] * mine[..., 2:]).sum(axis=1) / np.maximum(total, np.float32(1e-30))[:, None]
