"""Attention over the KV cache of decode rows, one workgroup a head; also fused with rope and append."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from .core import DECODE_ROWS, Case, Lowered, Variant, is_idle, kernel, poison, steps
from .rope import PAIRINGS, fits_tables, rope_append, tables
from .views import view_data, view_params, view_rows

LOWEST = np.float32(-3.4e38)


def kv_range(row, params) -> tuple[int, int]:
    """[start, end) of the keys a step row sees; empty for an idle row."""
    end = 0 if is_idle(row) else min(int(row["kv_len"]), params.context)
    return (max(0, end - params.window) if params.window else 0), end


def attend(q, k, v, scale):
    """softmax_s(q[h] . k[s, h // (H/G)] * scale) . v[s, h // (H/G)], unnormalised

    Shapes:  q [H, D], k and v [S, G, D] f32 -> value [H, D], most [H], sum [H] f32 (value and sum relative to exp(most))
    """
    heads, dim = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(kv_heads, heads // kv_heads, dim)
    if not len(k):
        return np.zeros_like(q), np.full(heads, LOWEST), np.zeros(heads, np.float32)
    scores = np.matmul(grouped, k.transpose(1, 2, 0)) * np.float32(scale)
    most = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - most)
    return np.matmul(p, v.transpose(1, 0, 2)).reshape(heads, dim), most.reshape(heads), p.sum(axis=-1).reshape(heads)


def cache_rows(cache, slot: int, params, head_dim: int):
    """A slot's part of a cache as [context, kv_heads, head_dim] (a view)."""
    size = params.context * params.kv_heads * head_dim
    return cache[slot * size: (slot + 1) * size].reshape(params.context, params.kv_heads, head_dim)


def _attend_row(q_row, k_cache, v_cache, row, params, head_dim: int):
    start, end = kv_range(row, params)
    k, v = (cache_rows(c, int(row["slot"]), params, head_dim)[start:end] for c in (k_cache, v_cache))
    return attend(q_row.reshape(params.heads, head_dim), k, v, params.scale)


def random_caches(rng, p, c, lengths: list[int]) -> dict[str, np.ndarray]:
    """Caches whose slot i has lengths[i] keys, NaN behind them: what lies there must not count."""
    caches = {}
    for name in ("k_cache", "v_cache"):
        cache = rng.standard_normal((len(lengths), p.context, p.kv_heads * c.HEAD_DIM), dtype=np.float32)
        for slot, length in enumerate(lengths):
            cache[slot, length:] = np.nan
        caches[name] = cache.ravel()
    return caches


def decode_steps(rng, p, c) -> tuple[np.ndarray, list[int]]:
    """One row a slot: the first sees `context` keys, the second 1, the third is done, the fourth a random number; and the slots' key counts.

    Row t is on slot T - 1 - t.
    """
    lengths = [p.context, 1, p.context, int(rng.integers(1, p.context + 1))][: p.T]
    rows = [{"position": n - 1, "kv_len": n, "slot": p.T - 1 - t, "flags": int(t == 2)} for t, n in enumerate(lengths)]
    return steps(rows + [{"flags": 2}] * (c.ROWS - p.T)), lengths[::-1]


def head_params(attrs) -> dict[str, int]:
    return {"heads": attrs["heads"], "kv_heads": attrs["kv_heads"], "scale": attrs["scale"]}


def is_vec4(node, *slots: str) -> bool:
    return node.attrs["head_dim"] % 4 == 0 and all(node.inputs[s].row_stride % 4 == 0 and node.inputs[s].column_offset % 4 == 0 for s in slots)


def decode_variants(wg: int = 256) -> tuple[Variant, ...]:
    """Of kernels in which a workgroup shares a head. Their lower refuses software adapters: with barriers and 256 threads SwiftShader
    takes 25 ms where attention/serial takes 1."""
    return (Variant("subgroup", {"REDUCE": "subgroup", "WG": wg}, features=("subgroups",), prefer="gpu"), Variant("tree", {"REDUCE": "tree", "WG": wg}))


def _lower_decode(node, ctx, variant):
    a = node.attrs
    if ctx.is_software or ctx.rows > DECODE_ROWS or a["head_dim"] > 256 or not is_vec4(node, "q"):
        return None
    return Lowered({"T": ctx.rows, **head_params(a), "context": ctx.context, "window": a.get("window", 0), **view_params("q", node.inputs["q"])},
                   {"ROWS": ctx.rows, "HEAD_DIM": a["head_dim"]})


def _data_decode(rng, p, c):
    step, lengths = decode_steps(rng, p, c)
    return {"q": view_data(rng, p, "q"), **random_caches(rng, p, c, lengths), "y": poison(p.T * p.heads * c.HEAD_DIM), "step": step}


def decode_case(rows, heads, kv_heads, dim, context, window=0, pad=0, plan_rows=None, why="") -> Case:
    return Case({"T": rows, "heads": heads, "kv_heads": kv_heads, "context": context, "window": window, "q_stride": heads * dim + pad, "q_offset": pad // 2,
                 "scale": dim ** -0.5}, {"ROWS": plan_rows or rows, "HEAD_DIM": dim}, why)


@kernel("attention/decode", op="attention", lower=_lower_decode, data=_data_decode, strided=("q",), tol=2e-5,
        grid=lambda p, c: (p.heads, p.T, 1), variants=decode_variants(),
        cases=[decode_case(2, 9, 3, 64, 37, pad=8, why="one key and 37, a view"),
               decode_case(4, 4, 2, 32, 257, why="one past the tile, a done row, four slots"),
               decode_case(1, 2, 1, 64, 256),
               decode_case(1, 2, 2, 80, 255, plan_rows=4, why="80 columns, fewer rows than the plan's"),
               decode_case(1, 2, 1, 128, 700),
               decode_case(2, 2, 1, 16, 65), decode_case(2, 2, 1, 64, 100, window=33, why="window"),
               decode_case(1, 1, 1, 256, 600, window=257, why="window one past the tile")])
def attention_decode(q, k_cache, v_cache, y, step, params, consts):
    """y[t, h] = softmax_s(q[t, h] . k[slot, s, g] * scale) . v[slot, s, g], s in [kv_len - window, kv_len), g = h // (heads / kv_heads)

    Shapes:  q [T, heads * D] f32 (view), caches [slots, context, kv_heads * D] f32 -> y [T, heads * D] f32; no keys or an idle row: 0
    """
    width = params.heads * consts.HEAD_DIM
    q_rows = view_rows(q, params, "q", width)
    for t, row in enumerate(step[: params.T]):
        value, _, total = _attend_row(q_rows[t], k_cache, v_cache, row, params, consts.HEAD_DIM)
        y[t * width: (t + 1) * width] = (value / np.maximum(total, np.float32(1e-30))[:, None]).ravel()


def _lower_append(node, ctx, variant):
    a = node.attrs
    if ctx.is_software or not ctx.one_row_a_slot or ctx.rows > DECODE_ROWS or a["head_dim"] > 256 or a["head_dim"] % 8 or not fits_tables(node, ctx):
        return None
    if not is_vec4(node, "q", "k", "v"):
        return None
    views = {n: x for slot in "qkv" for n, x in view_params(slot, node.inputs[slot]).items()}
    return Lowered({"T": ctx.rows, **head_params(a), "context": ctx.context, "window": a.get("window", 0), **views},
                   {"ROWS": ctx.rows, "HEAD_DIM": a["head_dim"], "PAIRS": PAIRINGS.index(a["pairing"])})


def _data_append(rng, p, c):
    step, lengths = decode_steps(rng, p, c)
    seen = [n - 1 for n in lengths]   # the row's own key is not in the cache yet
    return {**{slot: view_data(rng, p, slot) for slot in "qkv"}, **tables(p.context, c.HEAD_DIM), **random_caches(rng, p, c, seen),
            "y": poison(p.T * p.heads * c.HEAD_DIM), "step": step}


def _append(rows, heads, kv_heads, dim, context, window=0, plan_rows=None, pairs=0, why="") -> Case:
    """q, k and v stand side by side in one row."""
    width, kv_width = heads * dim, kv_heads * dim
    stride = width + 2 * kv_width
    return Case({"T": rows, "heads": heads, "kv_heads": kv_heads, "context": context, "window": window, "q_stride": stride, "q_offset": 0, "k_stride": stride,
                 "k_offset": width, "v_stride": stride, "v_offset": width + kv_width, "scale": dim ** -0.5},
                {"ROWS": plan_rows or rows, "HEAD_DIM": dim, "PAIRS": pairs}, why)


@kernel("attention/append", op="attention_append", lower=_lower_append, data=_data_append, strided=("q", "k", "v"), tol=2e-5,
        grid=lambda p, c: (p.heads, p.T, 1), variants=decode_variants(),
        cases=[_append(2, 9, 3, 64, 37, why="a first token and 37 keys"), _append(4, 4, 2, 32, 257, why="the own key alone in a tile, a done row, four slots"),
               _append(1, 2, 1, 64, 256, pairs=1, why="pairs"), _append(1, 2, 2, 80, 255, plan_rows=4), _append(1, 2, 1, 128, 300), _append(2, 2, 1, 16, 65),
               _append(2, 2, 1, 64, 100, window=33, why="window"), _append(1, 1, 1, 64, 50, window=1, why="the own key only"), _append(1, 1, 1, 256, 258)])
def attention_append(q, k, v, cos, sin, y, k_cache, v_cache, step, params, consts):
    """q and k are turned, k and v appended, then y[t, h] = softmax_s(q[t, h] . k[slot, s, g] * scale) . v[slot, s, g] as in attention/decode

    Shapes:  q [T, heads * D], k, v [T, kv_heads * D] f32 (views), cos, sin [context, D/2], caches [slots, context, kv_heads * D] f32
             -> y [T, heads * D] f32; at most one row a slot; an idle row gives 0 and leaves the caches alone
    """
    width = params.heads * consts.HEAD_DIM
    turned = np.empty(params.T * width, np.float32)
    whole = SimpleNamespace(**{**vars(params), "head_dim": consts.HEAD_DIM})
    rope_append(q, k, v, cos, sin, turned, k_cache, v_cache, step, whole, consts)
    attention_decode(turned, k_cache, v_cache, y, step, SimpleNamespace(**{**vars(params), "q_stride": width, "q_offset": 0}), consts)
