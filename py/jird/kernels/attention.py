"""Attention over the KV cache: decode rows, fused with rope and append, split over keys, and blocks of prompt rows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from .core import Case, Lowered, Variant, is_idle, kernel, poison, steps
from .rope import PAIRINGS, fits_tables, rope_append, tables, view_data, view_params, view_rows

LOWEST = np.float32(-3.4e38)
DECODE_ROWS = 4  # most rows of a decode plan


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


def _caches(rng, p, c, lengths: list[int]) -> dict[str, np.ndarray]:
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


def _heads(attrs) -> dict[str, int]:
    return {"heads": attrs["heads"], "kv_heads": attrs["kv_heads"], "scale": attrs["scale"]}


def _is_vec4(node, *slots: str) -> bool:
    return node.attrs["head_dim"] % 4 == 0 and all(node.inputs[s].row_stride % 4 == 0 and node.inputs[s].column_offset % 4 == 0 for s in slots)


def decode_variants(wg: int = 256) -> tuple[Variant, ...]:
    """Of kernels in which a workgroup shares a head. Their lower refuses software adapters: with barriers and 256 threads SwiftShader
    takes 25 ms where attention/serial takes 1."""
    return (Variant("subgroup", {"REDUCE": "subgroup", "WG": wg}, features=("subgroups",), prefer="gpu"), Variant("tree", {"REDUCE": "tree", "WG": wg}))


def _lower_decode(node, ctx, variant):
    a = node.attrs
    if ctx.is_software or ctx.rows > DECODE_ROWS or a["head_dim"] > 256 or not _is_vec4(node, "q"):
        return None
    return Lowered({"T": ctx.rows, **_heads(a), "context": ctx.context, "window": a.get("window", 0), **view_params("q", node.inputs["q"])},
                   {"ROWS": ctx.rows, "HEAD_DIM": a["head_dim"]})


def _data_decode(rng, p, c):
    step, lengths = decode_steps(rng, p, c)
    return {"q": view_data(rng, p, "q"), **_caches(rng, p, c, lengths), "y": poison(p.T * p.heads * c.HEAD_DIM), "step": step}


def _decode(rows, heads, kv_heads, dim, context, window=0, pad=0, plan_rows=None, why="") -> Case:
    return Case({"T": rows, "heads": heads, "kv_heads": kv_heads, "context": context, "window": window, "q_stride": heads * dim + pad, "q_offset": pad // 2,
                 "scale": dim ** -0.5}, {"ROWS": plan_rows or rows, "HEAD_DIM": dim}, why)


@kernel("attention/decode", op="attention", lower=_lower_decode, data=_data_decode, strided=("q",), tol=2e-5,
        grid=lambda p, c: (p.heads, p.T, 1), variants=decode_variants(),
        cases=[_decode(2, 9, 3, 64, 37, pad=8, why="one key and 37, a view"), _decode(4, 4, 2, 32, 257, why="one past the tile, a done row, four slots"),
               _decode(1, 2, 1, 64, 256), _decode(1, 2, 2, 80, 255, plan_rows=4, why="80 columns, fewer rows than the plan's"), _decode(1, 2, 1, 128, 700),
               _decode(2, 2, 1, 16, 65), _decode(2, 2, 1, 64, 100, window=33, why="window"), _decode(1, 1, 1, 256, 600, window=257, why="window one past the tile")])
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
    if not _is_vec4(node, "q", "k", "v"):
        return None
    views = {n: x for slot in "qkv" for n, x in view_params(slot, node.inputs[slot]).items()}
    return Lowered({"T": ctx.rows, **_heads(a), "context": ctx.context, "window": a.get("window", 0), **views},
                   {"ROWS": ctx.rows, "HEAD_DIM": a["head_dim"], "PAIRS": PAIRINGS.index(a["pairing"])})


def _data_append(rng, p, c):
    step, lengths = decode_steps(rng, p, c)
    seen = [n - 1 for n in lengths]   # the row's own key is not in the cache yet
    return {**{slot: view_data(rng, p, slot) for slot in "qkv"}, **tables(p.context, c.HEAD_DIM), **_caches(rng, p, c, seen),
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


def _lower_partial(node, ctx, variant):
    a = node.attrs
    if ctx.is_software or ctx.rows > DECODE_ROWS or a["head_dim"] > 256 or not _is_vec4(node, "q"):
        return None
    return Lowered({"T": ctx.rows, **_heads(a), "context": ctx.context, "window": a.get("window", 0), "splits": a["splits"], "split_keys": a["split_keys"],
                    **view_params("q", node.inputs["q"])}, {"ROWS": ctx.rows, "HEAD_DIM": a["head_dim"], "TILE": min(a["split_keys"], 256)})


def _data_partial(rng, p, c):
    step, lengths = decode_steps(rng, p, c)
    return {"q": view_data(rng, p, "q"), **_caches(rng, p, c, lengths), "partials": poison(p.T * p.heads * p.splits * (c.HEAD_DIM + 2)), "step": step}


def _split(case: Case, split_keys: int) -> Case:
    sizes = {"splits": -(-case.params["context"] // split_keys), "split_keys": split_keys}
    return replace(case, params={**case.params, **sizes}, consts={**case.consts, "TILE": min(split_keys, 256)})


@kernel("attention/partial", op="attention_partial", lower=_lower_partial, data=_data_partial, strided=("q",), tol=2e-5,
        grid=lambda p, c: (p.splits, p.heads, p.T), variants=decode_variants(),  # as attention/append: the first split's bits are its
        cases=[_split(_decode(2, 3, 1, 64, 300, pad=8, why="a row with one split of three, a view"), 128), _split(_decode(4, 2, 1, 32, 257), 32),
               _split(_decode(1, 2, 2, 80, 384, plan_rows=2, why="splits that fit exactly"), 128), _split(_decode(1, 2, 1, 128, 130), 64),
               _split(_decode(2, 1, 1, 64, 300, window=60, why="splits before the window"), 64), _split(_decode(1, 1, 1, 256, 600), 512), _split(_decode(2, 2, 1, 64, 260), 256)])
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


def _lower_rows(node, ctx, variant):
    """Any number of rows."""
    a = node.attrs
    if a["head_dim"] > 256 or not _is_vec4(node, "q"):
        return None
    return Lowered({"T": ctx.rows, **_heads(a), "context": ctx.context, "window": a.get("window", 0), **view_params("q", node.inputs["q"])},
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
    return {"q": view_data(rng, p, "q"), **_caches(rng, p, c, lengths), "y": poison(p.T * p.heads * c.HEAD_DIM), "step": step}


_PREFILL_CASES = [_decode(35, 3, 1, 64, 40, pad=8, plan_rows=36, why="one row past the block, two slots, masked rows, a view"), _decode(33, 2, 2, 32, 65),
                  _decode(31, 2, 1, 16, 31, why="one row short of the block"), _decode(64, 2, 1, 64, 97, why="the first row sees many keys"), _decode(40, 2, 1, 80, 70),
                  _decode(19, 2, 1, 128, 33), _decode(9, 1, 1, 256, 17), _decode(1, 2, 1, 64, 1, why="one row, one key"),
                  _decode(47, 2, 1, 64, 90, window=20, why="window"), _decode(96, 1, 1, 64, 96, window=32, why="window of a tile")]


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
