"""Convert kernels: file blocks in a staging buffer, at any byte offset, to rows of a canonical weight. Exact; no barrier.

Every kernel takes `rows` rows of `columns` weights from byte `src`; row r of the dispatch is row first + r of its tensor and goes to
row dst_row + first + r of the weight, with head_dim > 0 at the place within its head that undoes the pairwise-rope permutation of
GGUF's `llama` arch: [D/2, 2] -> [2, D/2].
"""

from __future__ import annotations

import numpy as np

from ..graph.ir import Format
from .core import Case, grid2d, kernel, poison
from .dequantise import PAIRS

# file type -> (kernel, constants of the source, weights a block, bytes a block); dense types are in `converter`
QUANTISED = {
    "Q4_0": ("convert/q4", {"MIN": 0}), "Q4_1": ("convert/q4", {"MIN": 1}), "Q5_0": ("convert/q5", {"MIN": 0}), "Q5_1": ("convert/q5", {"MIN": 1}),
    "Q8_0": ("convert/q8_0", {}), "Q4_K": ("convert/q4_k", {}), "Q5_K": ("convert/q5_k", {}), "Q6_K": ("convert/q6_k", {}),
}


def converter(type: str, format: Format) -> tuple[str, dict[str, int]] | None:
    """Kernel path and constants that bring file type `type` into `format` without rounding; None where there is none.

    A quantised type also goes into wider formats than its own (int4 -> int8, groups of 32 -> 16, f16 -> f32 pairs), so that
    tensors of mixed types can stand in one weight.
    """
    if type in QUANTISED:
        path, consts = QUANTISED[type]
        source_group = 16 if type == "Q6_K" else 32
        fits = format.kind == "int8" or format.kind == "int4" and type in ("Q4_0", "Q4_1", "Q4_K")
        if not fits or source_group % format.group or format.pair != "f32" and (type.endswith("_K") or format.pair != "f16"):
            return None
        return path, {**consts, "BITS": 4 if format.kind == "int4" else 8, "GROUP": format.group, "PAIR": PAIRS.index(format.pair)}
    if type == {"f32": "F32", "f16": "F16", "bf16": "BF16"}.get(format.kind):
        return "convert/copy", {"SIZE": 4 if type == "F32" else 2}
    if type in ("F16", "BF16") and format.kind == "f32":
        return "convert/widen", {"BF16": int(type == "BF16")}
    return None


def grid(params, consts) -> tuple[int, int, int]:
    """A thread per group (quantised), word (copy) or number (widen)."""
    units = params.columns // consts.GROUP if hasattr(consts, "GROUP") else -(-params.columns * consts.SIZE // 4) if hasattr(consts, "SIZE") else params.columns
    return grid2d(-(-params.rows * units // consts.WG))


def target_rows(params) -> np.ndarray:
    """Destination row of each source row."""
    row = params.first + np.arange(params.rows)
    if params.head_dim:
        i = row % params.head_dim
        row = row - i + i % 2 * (params.head_dim // 2) + i // 2
    return params.dst_row + row


def _blocks(src: np.ndarray, params, weights: int, nbytes: int) -> np.ndarray:
    """Bytes of the rows' blocks: u8 [rows * columns / weights, nbytes]."""
    count = params.rows * params.columns // weights
    return src.view(np.uint8)[params.src: params.src + count * nbytes].reshape(count, nbytes)


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """The f16 at byte `at` of each block: [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at: at + 2]).view("<f2")


def _nibbles(bytes_: np.ndarray) -> np.ndarray:
    """u8 [.., n] -> u8 [.., 2n]: all low nibbles, then all high ones."""
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=-1)


def _store(q: np.ndarray, sb: np.ndarray, params, consts, codes: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> None:
    """Codes u8 and their own groups' pairs (f16 or f32) to the rows' places; a source group may be several of the destination's."""
    rows = target_rows(params)
    codes = codes.reshape(params.rows, params.columns)
    if consts.BITS == 4:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    words = np.ascontiguousarray(codes).view("<u4")
    both = np.stack([scale.reshape(params.rows, -1), bias.reshape(params.rows, -1)], axis=-1)
    with np.errstate(over="ignore"):  # an f16 overflow is an infinite bias
        both = both.astype("<f2" if consts.PAIR == 0 else "<f4")
    both = np.repeat(both, params.columns // consts.GROUP // both.shape[1], axis=1)
    pairs = np.ascontiguousarray(both).reshape(params.rows, -1).view("<u4")
    for out, values in ((q, words), (sb, pairs)):
        end = (int(rows.max()) + 1) * values.shape[1]
        out[:end].reshape(-1, values.shape[1])[rows] = values


def _cases(*consts: dict, block: int = 32, own: int = 4) -> list[Case]:
    """Own format first (the self-test's), at odd offsets, then permuted heads, then wider formats."""
    cases = [Case({"src": 2 + i, "rows": 3, "columns": 2 * block, "dst_row": 1, "first": 0, "head_dim": 0}, {"BITS": own, **c}, why="odd offset")
             for i, c in enumerate(consts)]
    cases.append(Case({"src": 0, "rows": 11, "columns": block, "dst_row": 4, "first": 5, "head_dim": 8}, {"BITS": own, **consts[0]},
                      why="heads of 8, starting inside one", seed=1))
    cases.append(Case({"src": 5, "rows": 67, "columns": block, "dst_row": 0, "first": 0, "head_dim": 0}, {"BITS": 8, **consts[-1], "PAIR": 2, "GROUP": 16},
                      why="into int8, groups of 16, f32 pairs; rows past a workgroup", seed=2))
    return cases


def _destination_rows(p) -> int:
    """Rows the destination must have: whole heads after the last one."""
    rows = p.first + p.rows
    return p.dst_row + (-(-rows // p.head_dim) * p.head_dim if p.head_dim else rows)


def _data(weights: int, nbytes: int, halves: tuple[int, ...]):
    """Random blocks; the f16 at the bytes `halves` are finite, subnormal ones and both zeros among them."""

    def data(rng, p, c):
        least = 2 if getattr(c, "MIN", 0) else 0
        count = p.rows * p.columns // weights
        blocks = rng.integers(0, 256, (count, nbytes + least), np.uint8)
        for at in (*halves, *((2,) if least else ())):
            values = (rng.standard_normal(count) * 2.0 ** rng.integers(-26, 5, count)).astype("<f2")
            values[: 3] = np.array([0.0, -0.0, 2.0 ** -24], "<f2")[: min(3, count)]
            blocks[:, at: at + 2] = values.view(np.uint8).reshape(count, 2)
        raw = np.concatenate([rng.integers(0, 256, p.src, np.uint8), blocks.ravel()])
        raw = np.concatenate([raw, np.zeros(-raw.size % 4, np.uint8)])
        rows = _destination_rows(p)
        return {"src": raw.view("<u4"), "q": poison(rows * p.columns * c.BITS // 32, "u4"),
                "sb": poison(rows * p.columns // c.GROUP * (2 if c.PAIR == 2 else 1), "u4")}

    return data


@kernel("convert/q4", grid=grid, data=_data(32, 18, (0,)), tol=0.0, cases=_cases({"MIN": 0}, {"MIN": 1}))
def q4(src, q, sb, params, consts):
    """Q4_0: q - 8 times d -> (d, -8 d); Q4_1: q times d plus m -> (d, m)."""
    blocks = _blocks(src, params, 32, 18 + 2 * consts.MIN)
    d = _halves(blocks, 0)
    _store(q, sb, params, consts, _nibbles(blocks[:, -16:]), *_pair(d, blocks, consts, 8))


@kernel("convert/q5", grid=grid, data=_data(32, 22, (0,)), tol=0.0, cases=_cases({"MIN": 0}, {"MIN": 1}, own=8))
def q5(src, q, sb, params, consts):
    """Q5_0: q - 16 times d -> (d, -16 d); Q5_1: q times d plus m -> (d, m). The fifth bit of weight j is bit j of qh."""
    blocks = _blocks(src, params, 32, 22 + 2 * consts.MIN)
    fifth = np.unpackbits(blocks[:, -20:-16], axis=-1, bitorder="little")
    _store(q, sb, params, consts, _nibbles(blocks[:, -16:]) | fifth << 4, *_pair(_halves(blocks, 0), blocks, consts, 16))


def _pair(d: np.ndarray, blocks: np.ndarray, consts, centre: int) -> tuple[np.ndarray, np.ndarray]:
    """(d, m), or (d, -centre d) in f32, which holds it exactly."""
    if getattr(consts, "MIN", 0):
        return d, _halves(blocks, 2)
    return d, d.astype(np.float32) * np.float32(-centre)


@kernel("convert/q8_0", grid=grid, data=_data(32, 34, (0,)), tol=0.0, cases=_cases({}, own=8))
def q8_0(src, q, sb, params, consts):
    """Q8_0: x times d, x = q - 128 -> (d, -128 d)."""
    blocks = _blocks(src, params, 32, 34)
    _store(q, sb, params, consts, blocks[:, 2:] ^ 0x80, *_pair(_halves(blocks, 0), blocks, consts, 128))


def _sub_blocks(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(d s, -dmin m) of the eight sub-blocks of Q4_K and Q5_K: f32 [blocks, 8]. Six bits each: see specs/quant_formats.md."""
    raw = blocks[:, 4:16]
    s = np.concatenate([raw[:, 0:4] & 63, raw[:, 8:12] & 15 | raw[:, 0:4] >> 6 << 4], axis=-1)
    m = np.concatenate([raw[:, 4:8] & 63, raw[:, 8:12] >> 4 | raw[:, 4:8] >> 6 << 4], axis=-1)
    return _halves(blocks, 0).astype(np.float32) * s.astype(np.float32), _halves(blocks, 2).astype(np.float32) * -m.astype(np.float32)


@kernel("convert/q4_k", grid=grid, data=_data(256, 144, (0, 2)), tol=0.0, cases=_cases({"PAIR": 2}, block=256))
def q4_k(src, q, sb, params, consts):
    """Q4_K: w = d s q - dmin m -> (d s, -dmin m), groups of 32."""
    blocks = _blocks(src, params, 256, 144)
    _store(q, sb, params, consts, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)), *_sub_blocks(blocks))


@kernel("convert/q5_k", grid=grid, data=_data(256, 176, (0, 2)), tol=0.0, cases=_cases({"PAIR": 2}, block=256, own=8))
def q5_k(src, q, sb, params, consts):
    """Q5_K: as Q4_K, with bit j of qh[l] as the fifth bit of weight l of sub-block j."""
    blocks = _blocks(src, params, 256, 176)
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | fifth << 4
    _store(q, sb, params, consts, codes, *_sub_blocks(blocks))


@kernel("convert/q6_k", grid=grid, data=_data(256, 210, (208,)), tol=0.0, cases=_cases({"PAIR": 2, "GROUP": 16}, block=256, own=8))
def q6_k(src, q, sb, params, consts):
    """Q6_K: w = d s (q - 32) -> (d s, -32 d s), groups of 16."""
    blocks = _blocks(src, params, 256, 210)
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scale = _halves(blocks, 208).astype(np.float32) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    _store(q, sb, params, consts, low | high << 4, scale, scale * np.float32(-32))


def _dense_data(size: int):
    def data(rng, p, c):
        nbytes = p.src + p.rows * p.columns * (c.SIZE if size else 2)
        raw = rng.integers(0, 256, -(-nbytes // 4) * 4, np.uint8)
        words = -(-p.columns * c.SIZE // 4) if size else p.columns
        return {"src": raw.view("<u4"), "w": poison(_destination_rows(p) * words, "u4")}

    return data


_DENSE = [{"src": 2, "rows": 3, "columns": 7, "dst_row": 1, "first": 0, "head_dim": 0},
          {"src": 0, "rows": 9, "columns": 33, "dst_row": 2, "first": 2, "head_dim": 4},
          {"src": 1, "rows": 5, "columns": 1, "dst_row": 0, "first": 0, "head_dim": 0}]


@kernel("convert/copy", grid=grid, data=_dense_data(4), tol=0.0, cases=[Case(p, {"SIZE": s}, why="odd offset and odd rows") for p in _DENSE for s in (4, 2)])
def copy(src, w, params, consts):
    """Rows of numbers as they are, each padded to whole words with zeros."""
    nbytes = params.columns * consts.SIZE
    raw = np.zeros((params.rows, -(-nbytes // 4) * 4), np.uint8)
    raw[:, :nbytes] = src.view(np.uint8)[params.src: params.src + params.rows * nbytes].reshape(params.rows, nbytes)
    _place(w, params, raw.view("<u4"))


@kernel("convert/widen", grid=grid, data=_dense_data(0), tol=0.0, cases=[Case(p, {"BF16": b}, why="every kind of number") for p in _DENSE for b in (0, 1)])
def widen(src, w, params, consts):
    """f16 or bf16 -> bits of f32, exact."""
    raw = np.ascontiguousarray(src.view(np.uint8)[params.src: params.src + 2 * params.rows * params.columns])
    bits = raw.view("<u2").astype("<u4")
    if consts.BF16:
        values = bits << np.uint32(16)
    else:  # by integers: numpy, like a GPU, may quiet a NaN
        number = raw.view("<f2").astype("<f4").view("<u4")
        special = (bits >> np.uint32(15) << np.uint32(31)) | np.uint32(0x7F800000) | ((bits & np.uint32(0x3FF)) << np.uint32(13))
        values = np.where(bits & 0x7C00 == 0x7C00, special, number)
    _place(w, params, values.reshape(params.rows, params.columns))


def _place(w: np.ndarray, params, values: np.ndarray) -> None:
    rows = target_rows(params)
    end = (int(rows.max()) + 1) * values.shape[1]
    w[:end].reshape(-1, values.shape[1])[rows] = values
