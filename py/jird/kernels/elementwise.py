"""Element by element: SwiGLU and addition."""

from __future__ import annotations

import numpy as np

from .core import Case, Lowered, Variant, kernel, poison
from .views import view_data, view_params, view_rows


def _lower(*slots: str):
    def lower(node, ctx, variant):
        y = node.outputs["y"]
        return Lowered({"T": ctx.dim(y.shape[0]), "C": int(y.shape[-1]), **{n: v for s in slots for n, v in view_params(s, node.inputs[s]).items()}})
    return lower


def _data(*slots: str):
    return lambda rng, p, c: {**{s: view_data(rng, p, s) * np.float32(8) for s in slots}, "y": poison(p.T * p.C)}


def _cases(a: str, b: str) -> list[Case]:
    def sizes(t, c, stride, second):
        return {"T": t, "C": c, f"{a}_stride": stride, f"{a}_offset": 0, f"{b}_stride": stride, f"{b}_offset": second}
    return [Case(sizes(2, 65, 130, 65), why="views, one past the workgroup"), Case(sizes(1, 1, 1, 0)), Case(sizes(3, 576, 576, 0), why="whole tensors")]


def _grid(p, c):
    return (-(-p.C // c.WG), p.T, 1)


@kernel("elementwise/swiglu", op="swiglu", lower=_lower("gate", "up"), data=_data("gate", "up"), strided=("gate", "up"), grid=_grid,
        variants=(Variant("plain", {"WG": 64}),), cases=_cases("gate", "up"))
def swiglu(gate, up, y, params):
    """y[t, c] = gate[t, c] / (1 + exp(-gate[t, c])) * up[t, c]

    Shapes:  gate, up [T, C] f32 (views) -> y [T, C] f32
    """
    g = view_rows(gate, params, "gate", params.C)
    y[: params.T * params.C] = (g / (1 + np.exp(np.minimum(-g, np.float32(80)))) * view_rows(up, params, "up", params.C)).ravel()


@kernel("elementwise/add", op="add", lower=_lower("a", "b"), data=_data("a", "b"), strided=("a", "b"), grid=_grid,
        variants=(Variant("plain", {"WG": 64}),), cases=_cases("a", "b"))
def add(a, b, y, params):
    """y[t, c] = a[t, c] + b[t, c]

    Shapes:  a, b [T, C] f32 (views) -> y [T, C] f32
    """
    y[: params.T * params.C] = (view_rows(a, params, "a", params.C) + view_rows(b, params, "b", params.C)).ravel()
