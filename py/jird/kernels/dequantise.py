"""w = q * scale + bias on the host: what the numpy references of quantised kernels read their weights with.

Exact: the products are exact in f32 for every source format of weights/quant.py, so one rounding (the addition) is left,
with or without a fused multiply-add.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict

import numpy as np

from ..graph.ir import Format

PAIRS = ("f16", "bf16", "f32")  # index = `const PAIR` in shaders/include/pair.wgsl
MEMO_BYTES = 1 << 30


def codes(kind: str, q: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """q u32 words -> u8 [rows, columns]; int4: low nibble first, int8: low byte first."""
    raw = np.ascontiguousarray(q[: rows * columns // (8 if kind == "int4" else 4)]).view(np.uint8)
    if kind == "int4":
        wide = np.empty(raw.size * 2, np.uint8)
        wide[0::2] = raw & 15
        wide[1::2] = raw >> 4
        raw = wide
    return raw.reshape(rows, columns)


def pairs(pair: str, sb: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` (scale, bias) pairs of a u32 array, as f32 [count] each."""
    if pair == "f32":
        both = np.ascontiguousarray(sb[: 2 * count]).view(np.float32)
        return both[0::2], both[1::2]
    words = np.ascontiguousarray(sb[:count])
    if pair == "bf16":
        return (words & np.uint32(0xFFFF0000)).view(np.float32), (words << np.uint32(16)).view(np.float32)
    both = words.view(np.float16).astype(np.float32)
    return both[0::2], both[1::2]


def pack_pairs(pair: str, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """u32 words of f32 pairs, as `pairs` reads them; f16 rounds, bf16 cuts."""
    if pair == "bf16":
        return (scale.view("<u4") & np.uint32(0xFFFF0000)) | (bias.view("<u4") >> np.uint32(16))
    both = np.stack([scale, bias], axis=-1)
    return both.astype("<f2" if pair == "f16" else "<f4").view("<u4").ravel()


def dequantise(format: Format, q: np.ndarray, sb: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """w[r, k] = f32(q[r, k] * scale[r, k / g]) + bias[r, k / g]

    Shapes:  q u32 flat (or longer), sb u32 flat (or longer) -> w f32 [rows, columns], read-only, remembered

    The result is kept as long as the array that owns q lives (up to MEMO_BYTES in all, least recently used go first), so a
    numpy device does not dequantise at each step. A rewrite of q or sb in place is noticed by a sample of 1,024 words of each.
    """
    owner = _owner(q)
    key = (id(owner), q.__array_interface__["data"][0], rows, columns, format)
    mark = _sample(q, format.parts(rows, columns)["q"] // 4) + _sample(sb, format.parts(rows, columns)["sb"] // 4)
    found = _memo.get(key)
    if found is not None and found[0]() is owner and found[1] == mark:
        _memo.move_to_end(key)
        return found[2]
    scale, bias = pairs(format.pair, sb, rows * columns // format.group)
    grouped = codes(format.kind, q, rows, columns).reshape(-1, format.group).astype(np.float32)
    grouped *= scale[:, None]
    grouped += bias[:, None]
    w = grouped.reshape(rows, columns)
    w.flags.writeable = False
    _memo[key] = (weakref.ref(owner, lambda _: _memo.pop(key, None)), mark, w)
    _memo.move_to_end(key)
    while len(_memo) > 1 and sum(entry[2].nbytes for entry in _memo.values()) > MEMO_BYTES:
        _memo.popitem(last=False)
    return w


_memo: OrderedDict = OrderedDict()


def _owner(a: np.ndarray) -> np.ndarray:
    """The array whose memory `a` is a view of."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


def _sample(words: np.ndarray, count: int) -> bytes:
    return words[: count: max(1, count // 1024)].tobytes()
