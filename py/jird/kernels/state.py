"""Copies between rows of one state buffer: fork, snapshot, restore, block copies."""

from __future__ import annotations

import numpy as np

from .core import Case, Variant, kernel


def _data(rng, p, c):
    """Some rows are copied to places that no row is copied from; the states hold any bits, NaNs too."""
    order = rng.permutation(3 * p.count)
    table = np.stack([order[: p.count], order[p.count: 2 * p.count]], axis=-1).astype(np.uint32)
    return {"table": table.ravel(), "state": rng.integers(0, 1 << 32, 3 * p.count * p.width, dtype=np.uint32)}


@kernel("state/copy_rows", data=_data, grid=lambda p, c: (-(-p.width // c.WG), p.count, 1), variants=(Variant("plain", {"WG": 64}),),
        cases=[Case({"count": 2, "width": 65}, why="one past the workgroup"), Case({"count": 1, "width": 1}), Case({"count": 9, "width": 192})])
def copy_rows(table, state, params):
    """state[to] = state[from] for every (from, to) of the table, bit for bit

    Shapes:  table [count, 2] u32, state [rows, width] u32 (any 4-byte type); no row is both source and goal, none a goal twice;
             count <= 65535 (one workgroup row each)
    """
    pairs = table[: 2 * params.count].reshape(-1, 2)
    rows = state[: state.size // params.width * params.width].reshape(-1, params.width)
    rows[pairs[:, 1]] = rows[pairs[:, 0]]
