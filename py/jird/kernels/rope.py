"""Rotary embedding: alone, and fused with the append to the KV cache. Angles come from tables; no kernel calls sin or cos."""

from __future__ import annotations

import numpy as np

from .core import Case, Lowered, Variant, is_idle, kernel, poison, steps
from .views import view_data, view_params, view_rows

PAIRINGS = ("half", "pairs")  # index = `const PAIRS` in include/rope_pairs.wgsl


def turn(x, cosines, sines, pairing: int):
    """Heads x [H, D] turned by the angles of one position.

    Shapes:  x [H, D] f32, cosines and sines [D/2] f32 -> [H, D] f32
    """
    out = np.empty_like(x)
    half = x.shape[-1] // 2
    first, second = (slice(0, half), slice(half, None)) if pairing == 0 else (slice(0, None, 2), slice(1, None, 2))
    a, b = x[..., first], x[..., second]
    out[..., first] = a * cosines - b * sines
    out[..., second] = b * cosines + a * sines
    return out


def table_row(table, position: int, head_dim: int, context: int):
    half = head_dim // 2
    return table[: context * half].reshape(context, half)[min(position, context - 1)]


def tables(context: int, head_dim: int, theta: float = 10000.0) -> dict[str, np.ndarray]:
    """cos and sin [context, head_dim/2] for cases, computed in f64."""
    angles = np.arange(context)[:, None] * theta ** (-2.0 * np.arange(head_dim // 2) / head_dim)
    return {"cos": np.cos(angles).astype(np.float32).ravel(), "sin": np.sin(angles).astype(np.float32).ravel()}


def _positions(rng, p, c):
    """Rows on slots 0, 1, ..; the first stands at the last position, the second is done."""
    rows = [{"position": int(rng.integers(p.context)), "slot": t} for t in range(p.T)]
    rows[0]["position"] = p.context - 1
    if p.T > 1:
        rows[1]["flags"] = 1
    return steps(rows + [{"flags": 2}] * (c.ROWS - p.T))


def _fits(node) -> bool:
    return node.attrs["pairing"] in PAIRINGS and 2 * int(node.inputs["cos"].shape[-1]) == node.attrs["head_dim"]


def _lower_rope(node, ctx, variant):
    if not _fits(node):
        return None
    return Lowered({"T": ctx.rows, "heads": node.attrs["heads"], "head_dim": node.attrs["head_dim"], "context": ctx.dim(node.inputs["cos"].shape[0]),
                    **view_params("x", node.inputs["x"])}, {"ROWS": ctx.rows, "PAIRS": PAIRINGS.index(node.attrs["pairing"])})


def _data_rope(rng, p, c):
    return {"x": view_data(rng, p, "x"), **tables(p.context, p.head_dim), "y": poison(p.T * p.heads * p.head_dim), "step": _positions(rng, p, c)}


@kernel("rope/rope", op="rope", lower=_lower_rope, data=_data_rope, strided=("x",),
        grid=lambda p, c: (-(-p.heads * p.head_dim // (2 * c.WG)), p.T, 1), variants=(Variant("plain", {"WG": 64}),),
        cases=[Case({"T": 2, "heads": 3, "head_dim": 64, "context": 40, "x_stride": 320, "x_offset": 64}, {"ROWS": 2, "PAIRS": 0}, "a view, halves"),
               Case({"T": 3, "heads": 2, "head_dim": 80, "context": 2000, "x_stride": 160, "x_offset": 0}, {"ROWS": 3, "PAIRS": 1}, "pairs, far positions"),
               Case({"T": 1, "heads": 1, "head_dim": 16, "context": 1, "x_stride": 17, "x_offset": 1}, {"ROWS": 1, "PAIRS": 0})])
def rope(x, cos, sin, y, step, params, consts):
    """y[t, h, (a, b)] = (a cos - b sin, b cos + a sin), angle of (position[t], pair); (a, b) = (i, i + D/2) or (2i, 2i + 1)

    Shapes:  x [T, heads * head_dim] f32 (view), cos and sin [context, head_dim/2] f32 -> y [T, heads * head_dim] f32
    """
    width = params.heads * params.head_dim
    rows = view_rows(x, params, "x", width)
    for t in range(params.T):
        where = int(step["position"][t]), params.head_dim, params.context
        heads = rows[t].reshape(params.heads, params.head_dim)
        y[t * width: (t + 1) * width] = turn(heads, table_row(cos, *where), table_row(sin, *where), consts.PAIRS).ravel()


def fits_tables(node, ctx) -> bool:
    """The pairing is known and the tables cover every position and the whole head."""
    return _fits(node) and ctx.dim(node.inputs["cos"].shape[0]) >= ctx.context


def _lower_append(node, ctx, variant):
    a = node.attrs
    if not fits_tables(node, ctx) or a["head_dim"] % 8 or any(x % 4 for s in "qkv" for x in view_params(s, node.inputs[s]).values()):
        return None
    return Lowered({"T": ctx.rows, "heads": a["heads"], "kv_heads": a["kv_heads"], "head_dim": a["head_dim"], "context": ctx.context,
                    **{n: v for slot in "qkv" for n, v in view_params(slot, node.inputs[slot]).items()}},
                   {"ROWS": ctx.rows, "PAIRS": PAIRINGS.index(a["pairing"])})


def _data_append(rng, p, c):
    cache = p.T * p.context * p.kv_heads * p.head_dim
    return {**{slot: view_data(rng, p, slot) for slot in "qkv"}, **tables(p.context, p.head_dim), "y": poison(p.T * p.heads * p.head_dim),
            "k_cache": poison(cache), "v_cache": poison(cache), "step": _positions(rng, p, c)}


@kernel("rope/append", op="rope_append", lower=_lower_append, data=_data_append, strided=("q", "k", "v"),
        grid=lambda p, c: (-(-(p.heads + 2 * p.kv_heads) * p.head_dim // (4 * c.WG)), p.T, 1), variants=(Variant("plain", {"WG": 64}),),
        cases=[Case({"T": 3, "heads": 3, "kv_heads": 1, "head_dim": 64, "context": 9, "q_stride": 320, "q_offset": 0, "k_stride": 320, "k_offset": 192,
                     "v_stride": 320, "v_offset": 256}, {"ROWS": 3, "PAIRS": 0}, "views of one row, a done row"),
               Case({"T": 1, "heads": 2, "kv_heads": 2, "head_dim": 16, "context": 5, "q_stride": 32, "q_offset": 0, "k_stride": 36, "k_offset": 4,
                     "v_stride": 32, "v_offset": 0}, {"ROWS": 4, "PAIRS": 1}, "pairs, fewer rows than the plan's")])
def rope_append(q, k, v, cos, sin, y, k_cache, v_cache, step, params, consts):
    """y[t] = rope(q[t]); k_cache[slot, position] = rope(k[t]), v_cache[slot, position] = v[t]; idle rows leave the caches alone

    Shapes:  q [T, heads * head_dim], k, v [T, kv_heads * head_dim] f32 (views), cos, sin [context, head_dim/2]
             -> y [T, heads * head_dim] f32, caches [slots, context, kv_heads * head_dim] f32
    """
    width, kv_width = params.heads * params.head_dim, params.kv_heads * params.head_dim
    q_rows, k_rows, v_rows = view_rows(q, params, "q", width), view_rows(k, params, "k", kv_width), view_rows(v, params, "v", kv_width)
    for t, row in enumerate(step[: params.T]):
        where = int(row["position"]), params.head_dim, params.context
        angles = table_row(cos, *where), table_row(sin, *where)
        y[t * width: (t + 1) * width] = turn(q_rows[t].reshape(-1, params.head_dim), *angles, consts.PAIRS).ravel()
        if is_idle(row) or where[0] >= params.context:
            continue
        to = (int(row["slot"]) * params.context + where[0]) * kv_width
        k_cache[to: to + kv_width] = turn(k_rows[t].reshape(-1, params.head_dim), *angles, consts.PAIRS).ravel()
        v_cache[to: to + kv_width] = v_rows[t]
