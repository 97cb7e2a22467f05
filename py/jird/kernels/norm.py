"""Norm kernels."""

from __future__ import annotations

import numpy as np

from .core import Case, Lowered, Variant, kernel, poison


def reduce_variants(lanes: int, **consts) -> tuple[Variant, ...]:
    """The subgroup and the tree variant of a kernel in which `lanes` threads share a sum."""
    return (Variant("subgroup", {"REDUCE": "subgroup", "LANES": lanes, **consts}, features=("subgroups",), prefer="gpu"),
            Variant("tree", {"REDUCE": "tree", "LANES": lanes, **consts}))


def _lower(node, ctx, variant):
    x = node.inputs["x"]
    return Lowered({"C": int(x.shape[-1]), "eps": node.attrs["eps"], "T": ctx.rows})


def _data(rng, p, c):
    return {"x": rng.standard_normal(p.T * p.C, dtype=np.float32), "w": rng.standard_normal(p.C, dtype=np.float32), "y": poison(p.T * p.C)}


@kernel("norm/rms_norm", op="rms_norm", lower=_lower, data=_data,
        grid=lambda p, c: (p.T, 1, 1),
        variants=reduce_variants(64, WG=64),
        cases=[Case({"T": 2, "C": 65, "eps": 1e-5}, why="one past the workgroup"),
               Case({"T": 3, "C": 1, "eps": 1e-6}), Case({"T": 1, "C": 576, "eps": 1e-5})])
def rms_norm(x, w, y, params):
    """y[t, c] = x[t, c] * rsqrt(mean_c(x[t, c]^2) + eps) * w[c]

    Shapes:  x [T, C] f32, w [C] f32 -> y [T, C] f32
    """
    rows = x[: params.T * params.C].reshape(params.T, params.C)
    scale = 1.0 / np.sqrt(np.mean(np.square(rows), axis=-1, keepdims=True) + np.float32(params.eps))
    y[: rows.size] = (rows * scale * w[: params.C]).ravel()
