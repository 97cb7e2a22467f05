"""Embedding kernels: rows of a token table, one kernel a storage format; each also writes the token into its slot's history."""

from __future__ import annotations

import numpy as np

from .core import Case, Lowered, Variant, is_idle, kernel, poison, steps
from .dequantise import PAIRS, codes, pack_pairs, pairs


def _lower_as(*kinds: str):
    def lower(node, ctx, variant):
        table = node.inputs["w"]
        form = ctx.format(table)
        if form.kind not in kinds:
            return None
        consts = {"ROWS": ctx.rows}
        if form.is_quantised:
            consts |= {"GROUP": form.group, "PAIR": PAIRS.index(form.pair)}
        if form.kind in ("f16", "bf16"):
            consts["BF16"] = int(form.kind == "bf16")
        return Lowered({"T": ctx.rows, "V": int(table.shape[0]), "C": int(table.shape[-1]), "context": ctx.context,
                        "scale": node.attrs.get("scale", 1.0)}, consts)
    return lower


def _step(rng, p, c):
    """Rows on slots 0, 1, ..; the second is done, the third names a token past the table."""
    rows = [{"token": int(rng.integers(p.V)), "position": int(rng.integers(p.context)), "slot": t} for t in range(p.T)]
    if p.T > 1:
        rows[1]["flags"] = 1
    if p.T > 2:
        rows[2]["token"] = p.V + 5
    rows += [{"flags": 2}] * (c.ROWS - p.T)
    return {"step": steps(rows), "y": poison(p.T * p.C), "history": poison(p.T * p.context, "u4")}


def _data_f32(rng, p, c):
    return {"w": rng.standard_normal(p.V * p.C, dtype=np.float32), **_step(rng, p, c)}


def _data_half(rng, p, c):
    w = rng.standard_normal((p.V, p.C + p.C % 2), dtype=np.float32)
    words = (w.view("<u4") >> np.uint32(16)).astype("<u2") if c.BF16 else w.astype("<f2").view("<u2")
    return {"w": words.ravel().view("<u4"), **_step(rng, p, c)}


def _data_quantised(per_word: int):
    def data(rng, p, c):
        count = p.V * p.C // c.GROUP
        scale = (rng.random(count, dtype=np.float32) + 0.5) / 16
        return {"w_q": rng.integers(0, 1 << 32, p.V * p.C // per_word, dtype=np.uint32),
                "w_sb": pack_pairs(PAIRS[c.PAIR], scale, rng.standard_normal(count, dtype=np.float32)), **_step(rng, p, c)}
    return data


def _grid(per_thread: int):
    return lambda p, c: (-(-p.C // (per_thread * c.WG)), p.T, 1)


def _write_rows(y, history, step, params, read_row):
    """y rows from read_row(token), history at the position of rows that are not idle."""
    for t, row in enumerate(step[: params.T]):
        token, position = int(row["token"]), int(row["position"])
        if not is_idle(row) and position < params.context:
            history[int(row["slot"]) * params.context + position] = token
        y[t * params.C: (t + 1) * params.C] = read_row(token) * np.float32(params.scale) if token < params.V else np.nan


@kernel("embed/f32", op="embed", lower=_lower_as("f32"), data=_data_f32, grid=_grid(1), variants=(Variant("plain", {"WG": 64}),),
        cases=[Case({"T": 3, "V": 11, "C": 65, "context": 7, "scale": 1.0}, {"ROWS": 3}, "one past the workgroup, done row, token past the table"),
               Case({"T": 1, "V": 2, "C": 1, "context": 1, "scale": 2.5}, {"ROWS": 1})])
def embed_f32(w, y, history, step, params):
    """y[t, c] = w[token[t], c] * scale; history[slot, position] = token

    Shapes:  w [V, C] f32 -> y [T, C] f32, history [slots, context] u32; a token >= V gives a row of NaN
    """
    table = w[: params.V * params.C].reshape(params.V, params.C)
    _write_rows(y, history, step, params, lambda token: table[token])


@kernel("embed/half", op="embed", lower=_lower_as("f16", "bf16"), data=_data_half, grid=_grid(2), variants=(Variant("plain", {"WG": 64}),),
        cases=[Case({"T": 3, "V": 9, "C": 131, "context": 5, "scale": 1.0}, {"ROWS": 3, "BF16": 0}, "odd columns, f16"),
               Case({"T": 2, "V": 9, "C": 64, "context": 5, "scale": 0.5}, {"ROWS": 4, "BF16": 1}, "bf16, fewer rows than the plan's")])
def embed_half(w, y, history, step, params, consts):
    """y[t, c] = w[token[t], c] * scale; history[slot, position] = token

    Shapes:  w [V, C] f16 or bf16, rows padded to 4 bytes -> y [T, C] f32, history [slots, context] u32
    """
    width = params.C + params.C % 2
    table = np.ascontiguousarray(w).view("<u2")[: params.V * width].reshape(params.V, width)[:, : params.C]

    def read_row(token):
        bits = np.ascontiguousarray(table[token])
        return (bits.astype("<u4") << np.uint32(16)).view("<f4") if consts.BF16 else bits.view("<f2").astype("<f4")
    _write_rows(y, history, step, params, read_row)


def _quantised_row(w_q, w_sb, params, consts, kind: str):
    """read_row(token) of a quantised table: only the rows asked for are dequantised."""
    words, groups = params.C // (8 if kind == "int4" else 4), params.C // consts.GROUP
    pair = PAIRS[consts.PAIR]
    span = groups * (2 if pair == "f32" else 1)

    def read_row(token):
        scale, bias = pairs(pair, w_sb[token * span: (token + 1) * span], groups)
        q = codes(kind, w_q[token * words: (token + 1) * words], 1, params.C).reshape(groups, consts.GROUP).astype(np.float32)
        return (q * scale[:, None] + bias[:, None]).ravel()
    return read_row


_QUANTISED_CASES = [Case({"T": 3, "V": 7, "C": 576, "context": 6, "scale": 1.0}, {"ROWS": 3, "GROUP": 32, "PAIR": 0},
                         "f16 pairs, done row, token past the table"),
                    Case({"T": 1, "V": 3, "C": 128, "context": 2, "scale": 1.5}, {"ROWS": 1, "GROUP": 64, "PAIR": 1}, "bf16 pairs"),
                    Case({"T": 2, "V": 5, "C": 48, "context": 3, "scale": 1.0}, {"ROWS": 4, "GROUP": 16, "PAIR": 2}, "f32 pairs, fewer rows than the plan's")]


@kernel("embed/int8", op="embed", lower=_lower_as("int8"), data=_data_quantised(4), grid=_grid(4), variants=(Variant("plain", {"WG": 64}),),
        cases=_QUANTISED_CASES)
def embed_int8(w_q, w_sb, y, history, step, params, consts):
    """y[t, c] = (q[token[t], c] * s + b) * scale, (s, b) of c's group; history[slot, position] = token

    Shapes:  w_q u32 [V, C/4], w_sb [V, C/GROUP] pairs -> y [T, C] f32, history [slots, context] u32
    """
    _write_rows(y, history, step, params, _quantised_row(w_q, w_sb, params, consts, "int8"))


@kernel("embed/int4", op="embed", lower=_lower_as("int4"), data=_data_quantised(8), grid=_grid(8), variants=(Variant("plain", {"WG": 64}),),
        cases=_QUANTISED_CASES)
def embed_int4(w_q, w_sb, y, history, step, params, consts):
    """y[t, c] = (q[token[t], c] * s + b) * scale, (s, b) of c's group; history[slot, position] = token

    Shapes:  w_q u32 [V, C/8], w_sb [V, C/GROUP] pairs -> y [T, C] f32, history [slots, context] u32
    """
    _write_rows(y, history, step, params, _quantised_row(w_q, w_sb, params, consts, "int4"))
