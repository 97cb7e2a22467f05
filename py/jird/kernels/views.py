"""Slots that may be views: columns of a wider row, given to a kernel as `<slot>_stride` and `<slot>_offset` in its Params."""

from __future__ import annotations

import numpy as np


def view_params(slot: str, tensor) -> dict[str, int]:
    """Row stride and column offset of a tensor that may be a view, as Params fields."""
    return {f"{slot}_stride": tensor.row_stride, f"{slot}_offset": tensor.column_offset}


def view_rows(array, params, slot: str, width: int):
    """The [T, width] rows of a strided slot."""
    stride, offset = getattr(params, f"{slot}_stride"), getattr(params, f"{slot}_offset")
    return np.lib.stride_tricks.as_strided(array[offset:], (params.T, width), (stride * array.itemsize, array.itemsize), writeable=False)


def view_data(rng, params, slot: str):
    """Seeded rows for a strided slot, as wide as its stride."""
    return rng.standard_normal(params.T * getattr(params, f"{slot}_stride"), dtype=np.float32)
