"""What the kernels of op "linear" share: the reference, seeded data, grids, and how a node becomes Params and constants.

Decode (at most DECODE_ROWS rows) has the matvec family, prefill the matmul family; quantised.py and dense.py register them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from ..graph.ir import Format
from .core import DECODE_ROWS, Case, Lowered, Variant, grid2d, kernel, poison
from .dequantise import PAIRS, dequantise, pack_pairs
from .views import view_rows

PER_WORD = {"int4": 8, "int8": 4}
STORES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Form:
    """Which linear nodes a kernel serves: kind "int4" | "int8" | "dense", the optional slots it binds, and whether w is [gate; up]."""

    kind: str
    slots: tuple[str, ...] = ()
    is_swiglu: bool = False

    @property
    def bias_index(self) -> int:
        """The binding at which the bias stands when there is one: behind x, w (w_q, w_sb), slots, y, params."""
        return (5 if self.kind != "dense" else 4) + len(self.slots)

    def serves(self, node, ctx) -> bool:
        """Same slots and attrs, weights of this kind, f32 vectors, x readable as vec4f."""
        x, w = node.inputs["x"], node.inputs["w"]
        kind = ctx.format(w).kind
        vectors = [node.inputs[s] for s in ("bias", "norm") if s in node.inputs]
        return (set(node.inputs) - {"x", "w", "bias"} == set(self.slots) and bool(node.attrs.get("swiglu")) == self.is_swiglu
                and (kind == self.kind or self.kind == "dense" and kind in STORES)
                and all(ctx.format(v).kind == "f32" for v in vectors) and node.outputs["y"].base is None
                and int(x.shape[-1]) % 4 == x.row_stride % 4 == x.column_offset % 4 == 0)


def lower_params(form: Form, node, ctx) -> dict[str, Any]:
    x, y = node.inputs["x"], node.outputs["y"]
    params = {"T": ctx.rows, "K": int(x.shape[-1]), "N": int(y.shape[-1]), "x_stride": x.row_stride, "x_offset": x.column_offset}
    return params | ({"eps": node.attrs["eps"]} if "norm" in form.slots else {})


def lower_consts(form: Form, node, ctx) -> dict[str, Any]:
    """Constants that follow from the weight's format and the bias."""
    fmt = ctx.format(node.inputs["w"])
    consts = {"GROUP": fmt.group, "PAIR": PAIRS.index(fmt.pair)} if fmt.is_quantised else {"STORE": fmt.kind}
    return consts | ({"BIAS": form.bias_index} if "bias" in node.inputs else {})


def lower_matvec(form: Form) -> Callable:
    """lower() of a matvec: decode rows only; geometry by shape."""

    def lower(node, ctx, variant):
        if ctx.rows > DECODE_ROWS or not form.serves(node, ctx):
            return None
        columns = int(node.inputs["w"].shape[0])
        shape = column_geometry if variant.name == "column" else lanes_geometry
        geometry = shape(form, int(node.inputs["x"].shape[-1]), columns, ctx.format(node.inputs["w"]).group)
        if geometry["WG"] > ctx.limits.invocations:
            geometry["WG"] = ctx.limits.invocations
        return Lowered(lower_params(form, node, ctx), {**lower_consts(form, node, ctx), "ROWS": ctx.rows, **geometry})

    return lower


def words_that_fit(kind: str, columns: int, group: int, most: int) -> int:
    """Words a load may have: a unit must divide K and stay inside a group."""
    words = most
    while words > 1 and (words * PER_WORD[kind] > group or columns % (words * PER_WORD[kind])):
        words //= 2
    return words


def lanes_geometry(form: Form, k: int, rows: int, group: int) -> dict[str, int]:
    """LANES, WG, COLUMNS, ROUNDS, WORDS for a GPU (LIMITS.md sections 3 and 7; rows = rows of w).

    Small matrices are latency: one u32 a lane and load, all of a lane's loads at once, neighbouring lanes on neighbouring
    activations. Big ones are bandwidth: 16-byte loads, fewer lanes, more columns a thread.
    """
    pairs = 2 if form.is_swiglu else 1
    is_big = form.kind != "dense" and rows * k >= 16 << 20
    per_unit, words = 4, {}
    if form.kind != "dense":
        wanted = 1 if not is_big else 2 if form.kind == "int8" else 4
        words = {"WORDS": words_that_fit(form.kind, k, group, wanted)}
        per_unit = PER_WORD[form.kind] * words["WORDS"]
    units = k // per_unit
    lanes = min(128, max(32, 1 << max(units // 2, 1).bit_length() - 1))
    if is_big:   # H200, 49152 x 576 int8: 14.9 us so, 18.9 with 2 columns, 24 with 4 lanes of 16 bytes and one column
        lanes = min(32, max(16, 1 << max(units // 8, 1).bit_length() - 1))
    wg = 256 if is_big or (form.kind != "dense" and k < 1024 and not form.is_swiglu) else 128
    rounds = -(-units // lanes)
    return {"LANES": lanes, "WG": wg, "COLUMNS": pairs * (4 if is_big else 1), "ROUNDS": -(-rounds // -(-rounds // (5 if is_big else 4))), **words}


def column_geometry(form: Form, k: int, rows: int, group: int) -> dict[str, int]:
    """WG and WORDS for a software adapter: 16 columns a thread; workgroups of one SIMD group where there are few."""
    geometry = {"WG": 16 if rows >= 16 * 16 * 16 else 4}
    return geometry if form.kind == "dense" else geometry | {"WORDS": words_that_fit(form.kind, k, group, 4)}


def matvec_grid(form: Form) -> Callable:
    """Workgroups over columns on x and y, over rows on z."""

    def grid(p, c):
        outputs = c.COLUMNS // 2 if form.is_swiglu else c.COLUMNS
        is_column = getattr(c, "SHAPE", "lanes") == "column"
        threads = c.WG if is_column else c.WG // c.LANES
        x, y, _ = grid2d(-(-p.N // (threads * outputs)))
        return x, y, p.T if is_column else -(-p.T // c.ROWS)

    return grid


def lower_matmul(form: Form) -> Callable:
    """lower() of a matmul: prefill (more rows than the matvec family takes)."""

    def lower(node, ctx, variant):
        if ctx.rows <= DECODE_ROWS or not form.serves(node, ctx):
            return None
        k, n, group = int(node.inputs["x"].shape[-1]), int(node.inputs["w"].shape[0]), ctx.format(node.inputs["w"]).group
        if variant.name == "column":
            geometry = {**column_geometry(form, k, n, group), "WG": 8, "COLUMNS": 32}
        else:
            # Small products: narrower tiles, so that more of the chip has work.
            few = -(-ctx.rows // 64) * -(-n // 64) < 96
            geometry = {"EACH_T": min(4, -(-ctx.rows // 16)) if not few else min(2, -(-ctx.rows // 16)), "EACH_N": 4}
        return Lowered(lower_params(form, node, ctx), {**lower_consts(form, node, ctx), **geometry})

    return lower


def matmul_grid(p, c) -> tuple[int, int, int]:
    """Workgroups over columns on x, over rows on y."""
    if c.SHAPE == "column":
        return -(-p.N // (c.WG * c.COLUMNS)), -(-p.T // 4), 1
    return -(-p.N // (16 * c.EACH_N)), -(-p.T // (16 * c.EACH_T)), 1


def matmul_variants(form: Form) -> tuple[Variant, ...]:
    words = {"WORDS": 1} if form.kind != "dense" else {}
    return (Variant("tile", {"SHAPE": "tile", **words}, prefer="gpu"),
            Variant("column", {"SHAPE": "column", "WG": 4, "COLUMNS": 16, **{w: 2 for w in words}}, prefer="software"))


def matmul_cases(form: Form) -> list[Case]:
    """The first is what prefill plans look like; the others walk the edges."""
    def case(t, k, n, consts, why, **more):
        return Case({"T": t, "K": k, "N": n, "x_stride": k, "x_offset": 0} | more, consts, why)

    if form.kind == "dense":
        return [case(67, 68, 65, {"STORE": "f16"}, "one past the tile, K past the step, f16"),
                case(5, 32, 19, {"STORE": "bf16"}, "ragged rows and columns, bf16"),
                case(9, 36, 130, {"STORE": "f32", "BIAS": form.bias_index}, "f32, bias"),
                case(6, 64, 3, {"STORE": "f32"}, "x is a view", x_stride=80, x_offset=12)]
    return [case(67, 96, 65, {"GROUP": 32, "PAIR": 0}, "one past the tile"),
            case(5, 128, 19, {"GROUP": 64, "PAIR": 1}, "bf16 pairs, ragged rows and columns"),
            case(9, 48, 130, {"GROUP": 16, "PAIR": 2, "WORDS": 1, "BIAS": form.bias_index}, "f32 pairs, bias, K past the tile step"),
            case(6, 64, 3, {"GROUP": 32, "PAIR": 0}, "x is a view", x_stride=80, x_offset=12)]


def matvec_variants(form: Form) -> tuple[Variant, ...]:
    columns = 2 if form.is_swiglu else 1
    words = {"WORDS": 1} if form.kind != "dense" else {}
    lanes = {"SHAPE": "lanes", "LANES": 32, "WG": 128, "COLUMNS": columns, "ROUNDS": 2, **words}
    return (Variant("subgroup", {**lanes, "REDUCE": "subgroup"}, features=("subgroups",), prefer="gpu"),
            Variant("tree", {**lanes, "REDUCE": "tree"}),
            Variant("column", {"SHAPE": "column", "REDUCE": "none", "WG": 4, **words}, prefer="software"))


def matvec_cases(form: Form) -> list[Case]:
    """The first is what decode plans look like; the others walk the edges."""
    def case(t, k, n, consts, why, **more):
        params = {"T": t, "K": k, "N": n, "x_stride": k, "x_offset": 0} | ({"eps": 1e-5} if "norm" in form.slots else {})
        return Case(params | more, consts, why)

    if form.kind == "dense":
        return [case(1, 64, 5, {"STORE": "f16", "ROWS": 1}, "ragged columns, f16"),
                case(3, 132, 9, {"STORE": "bf16", "ROWS": 3}, "units past the lanes, bf16"),
                case(2, 36, 17, {"STORE": "f32", "ROWS": 4, "BIAS": form.bias_index}, "f32, bias, fewer rows than ROWS"),
                case(4, 64, 3, {"STORE": "f32", "ROWS": 4}, "x is a view", x_stride=80, x_offset=12)]
    return [case(1, 576, 6, {"GROUP": 32, "PAIR": 0, "ROWS": 1}, "units past the lanes, ragged columns"),
            case(3, 128, 9, {"GROUP": 64, "PAIR": 1, "ROWS": 3, "WORDS": 4}, "bf16 pairs, 16-byte loads"),
            case(2, 48, 17, {"GROUP": 16, "PAIR": 2, "ROWS": 4, "WORDS": 2, "BIAS": form.bias_index}, "f32 pairs, bias, fewer rows than ROWS"),
            case(4, 64, 3, {"GROUP": 32, "PAIR": 0, "ROWS": 4, "WORDS": 1}, "x is a view", x_stride=80, x_offset=12)]


def linear_data(form: Form) -> Callable:
    """Seeded x, weights, and what else the kernel binds; y is poisoned. Pairs as real ones: w has mean 0."""

    def data(rng, p, c):
        rows = p.N * (2 if form.is_swiglu else 1)
        out = {"x": rng.standard_normal(p.x_stride * p.T, dtype=np.float32), "y": poison(p.T * p.N)}
        if form.kind == "dense":
            out["w"] = dense_words(rng.standard_normal((rows, p.K), dtype=np.float32), c.STORE if hasattr(c, "STORE") else "f32")
        else:
            out["w_q"] = rng.integers(0, 1 << 32, rows * p.K // PER_WORD[form.kind], dtype=np.uint32)
            out["w_sb"] = pair_words(rng, rows * p.K // c.GROUP, c.PAIR, 8 if form.kind == "int4" else 128)
        if "norm" in form.slots:
            out["norm"] = rng.random(p.K, dtype=np.float32) + np.float32(0.5)
        if "residual" in form.slots:
            out["residual"] = rng.standard_normal(p.T * p.N, dtype=np.float32)
        if hasattr(c, "BIAS"):
            out["bias"] = rng.standard_normal(rows, dtype=np.float32)
        return out

    return data


def dense_words(w: np.ndarray, store: str) -> np.ndarray:
    """w f32 [rows, K] as the buffer holds it: f32, or u32 words of two f16 or bf16 (K even)."""
    if store == "f32":
        return w.ravel()
    half = w.astype("<f2").view("<u2") if store == "f16" else (w.view("<u4") >> np.uint32(16)).astype("<u2")
    return np.ascontiguousarray(half).ravel().view("<u4")


def pair_words(rng, count: int, pair: int, middle: int) -> np.ndarray:
    """`count` seeded (scale, bias) pairs, bias near -middle * scale as in real checkpoints, scales of both signs."""
    scale = (rng.random(count, dtype=np.float32) + np.float32(0.5)) / np.float32(middle) * rng.choice(np.float32([-1, 1]), count)
    bias = -scale * np.float32(middle) + rng.standard_normal(count, dtype=np.float32) / 16
    return pack_pairs(PAIRS[pair], scale.astype(np.float32), bias.astype(np.float32))


def quantised_matrix(kind: str, w_q: np.ndarray, w_sb: np.ndarray, rows: int, columns: int, consts) -> np.ndarray:
    """w f32 [rows, columns] of a quantised weight."""
    return dequantise(Format(kind, consts.GROUP, PAIRS[consts.PAIR]), w_q, w_sb, rows, columns)


def dense_matrix(w: np.ndarray, rows: int, columns: int, consts) -> np.ndarray:
    """w f32 [rows, columns] of a dense weight."""
    store = getattr(consts, "STORE", "f32")
    if store == "f32":
        return w[: rows * columns].view("<f4").reshape(rows, columns)
    half = np.ascontiguousarray(w).view("<u2")[: rows * columns].reshape(rows, columns)
    return half.view("<f2").astype(np.float32) if store == "f16" else (half.astype("<u4") << np.uint32(16)).view("<f4")


def write_linear(x, w, y, params, bias=None, norm=None, residual=None, is_swiglu=False) -> None:
    """y[t] = f(rms_norm(x[t]) @ w.T + bias) + residual[t], a row at a time, so that a row never depends on how many there are."""
    n = params.N
    for t, row in enumerate(view_rows(x, params, "x", params.K)):
        if norm is not None:
            sums = w @ (row * norm[: params.K]) * (1 / np.sqrt(np.mean(np.square(row)) + np.float32(params.eps)))
        else:
            sums = w @ row
        if bias is not None:
            sums = sums + bias[: sums.size]
        if is_swiglu:
            sums = sums[:n] / (1 + np.exp(-sums[:n])) * sums[n:]
        if residual is not None:
            sums = sums + residual[t * n: (t + 1) * n]
        y[t * n: (t + 1) * n] = sums


def multiply_linear(x, w, y, params, bias=None, residual=None) -> None:
    """y = x @ w.T + bias + residual, all rows at once (prefill: compared with steps within tolerance)."""
    out = y[: params.T * params.N].reshape(params.T, params.N)
    np.matmul(view_rows(x, params, "x", params.K), w.T, out=out)
    if bias is not None:
        out += bias[: params.N]
    if residual is not None:
        out += residual[: out.size].reshape(out.shape)


def matvec_kernel(name: str, form: Form) -> Callable:
    """@kernel for a reference of the matvec family: <kind>/name."""
    return kernel(f"{form.kind}/{name}", op="linear", lower=lower_matvec(form), data=linear_data(form), grid=matvec_grid(form),
                  variants=matvec_variants(form), cases=matvec_cases(form), strided=("x",))


def matmul_kernel(name: str, form: Form) -> Callable:
    """@kernel for a reference of the matmul family: <kind>/name."""
    return kernel(f"{form.kind}/{name}", op="linear", lower=lower_matmul(form), data=linear_data(form), grid=matmul_grid,
                  variants=matmul_variants(form), cases=matmul_cases(form), strided=("x",))
