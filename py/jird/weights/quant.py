"""Tensor types of checkpoint files and the canonical format each is held in on the GPU, without rounding.

w = q * scale + bias, q unsigned:
    Q4_0            d * (q - 8)                 int4, f16 pair (d, -8 d)
    Q4_1            d * q + m                   int4, f16 pair (d, m)
    Q5_0, Q8_0      d * (q - 16), d * (q - 128) int8, f16 pair (d, -16 d), (d, -128 d)
    Q5_1            d * q + m                   int8, f16 pair (d, m)
    Q4_K, Q5_K      d s * q - dmin m            int4, int8, f32 pair (d s, -dmin m): 92 % of real ones do not fit f16
    Q6_K            d s * (q - 32)              int8, groups of 16, f32 pair (d s, -32 d s)
All of these are exact: each product fits in f32's 24 bits. The one limit: an f16 bias overflows where |d| > 8,188 (Q4_0), 4,094
(Q5_0) or 511 (Q8_0); the bias is then infinite and the first logit ends the request with NumericError. `pair="f32"` takes such a file.
"""

from __future__ import annotations

from typing import Sequence

from ..errors import ModelNotSupported
from ..graph.ir import Format

# type -> (weights a block, bytes a block)
TYPES = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2),
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    # listed by the readers, not loadable: no canonical format
    "F64": (1, 8), "I8": (1, 1), "I16": (1, 2), "I32": (1, 4), "I64": (1, 8), "U8": (1, 1), "U16": (1, 2), "U32": (1, 4),
    "U64": (1, 8), "BOOL": (1, 1), "F8_E4M3": (1, 1), "F8_E5M2": (1, 1),
}
DENSE = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_QUANTISED = {
    "Q4_0": ("int4", 32, "f16"), "Q4_1": ("int4", 32, "f16"),
    "Q5_0": ("int8", 32, "f16"), "Q5_1": ("int8", 32, "f16"), "Q8_0": ("int8", 32, "f16"),
    "Q4_K": ("int4", 32, "f32"), "Q5_K": ("int8", 32, "f32"), "Q6_K": ("int8", 16, "f32"),
}
LOADABLE = (*DENSE, *_QUANTISED)


def row_bytes(type: str, columns: int) -> int:
    """Bytes of a row of `columns` weights in a file.

    Raises: ModelNotSupported for an unknown type, ValueError when blocks do not divide the row.
    """
    if type not in TYPES:
        raise ModelNotSupported(f"tensor type {type} is not known; known: {' '.join(LOADABLE)}")
    weights, nbytes = TYPES[type]
    if columns % weights:
        raise ValueError(f"a row of {columns} is not a whole number of {type} blocks of {weights}")
    return columns // weights * nbytes


def canonical(type: str, columns: int, pair: str = "") -> Format:
    """The format a tensor of `type` with rows of `columns` is held in: lossless, dense stays dense.

    pair    "f32" widens an f16 pair, for files whose scales pass f16's range once multiplied (see above)
    Raises: ModelNotSupported for a type that cannot be loaded, ValueError when blocks do not divide the row
    """
    if type not in LOADABLE:
        raise ModelNotSupported(f"tensor type {type} cannot be used as a weight; known: {' '.join(LOADABLE)}")
    row_bytes(type, columns)
    if type in DENSE:
        return Format(DENSE[type])
    kind, group, own = _QUANTISED[type]
    return Format(kind, group, pair or own)


def common(formats: Sequence[Format]) -> Format | None:
    """The smallest format that holds all of `formats` without rounding, so that their rows can stand in one weight.

    None where there is none (quantised beside dense). convert/* can write it from each of their sources.
    """
    first = formats[0]
    if all(f == first for f in formats):
        return first
    if any(f.is_quantised for f in formats):
        if not all(f.is_quantised for f in formats):
            return None
        kind = "int8" if any(f.kind == "int8" for f in formats) else "int4"
        pairs = {f.pair for f in formats}
        return Format(kind, min(f.group for f in formats), pairs.pop() if len(pairs) == 1 else "f32")
    return Format("f32")
