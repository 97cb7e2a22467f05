"""The append to the KV cache."""

from __future__ import annotations

from .core import Case, Lowered, Variant, is_idle, kernel, poison, steps
from .views import view_data, view_params, view_rows


def _lower(node, ctx, variant):
    return Lowered({"T": ctx.rows, "C": node.attrs["kv_heads"] * node.attrs["head_dim"], "context": ctx.context,
                    **view_params("k", node.inputs["k"]), **view_params("v", node.inputs["v"])}, {"ROWS": ctx.rows})


def _data(rng, p, c):
    """Rows of two slots in position order; the last row of the step is done."""
    half = (p.T + 1) // 2
    rows = [{"slot": t // half, "position": (p.context - half + t % half)} for t in range(p.T)]
    if p.T > 1:
        rows[-1]["flags"] = 1
    cache = 2 * p.context * p.C
    return {"k": view_data(rng, p, "k"), "v": view_data(rng, p, "v"), "k_cache": poison(cache), "v_cache": poison(cache),
            "step": steps(rows + [{"flags": 2}] * (c.ROWS - p.T))}


@kernel("kv/append", op="kv_append", lower=_lower, data=_data, strided=("k", "v"),
        grid=lambda p, c: (-(-p.C // c.WG), p.T, 1), variants=(Variant("plain", {"WG": 64}),),
        cases=[Case({"T": 5, "C": 65, "context": 6, "k_stride": 200, "k_offset": 3, "v_stride": 200, "v_offset": 70}, {"ROWS": 5},
                    "views, two slots, a done row"),
               Case({"T": 1, "C": 192, "context": 1, "k_stride": 192, "k_offset": 0, "v_stride": 192, "v_offset": 0}, {"ROWS": 4},
                    "fewer rows than the plan's")])
def kv_append(k, v, k_cache, v_cache, step, params):
    """k_cache[slot, position] = k[t], v_cache[slot, position] = v[t]; idle rows write nothing

    Shapes:  k, v [T, C] f32 (views) -> k_cache, v_cache [slots, context, C] f32
    """
    k_rows, v_rows = view_rows(k, params, "k", params.C), view_rows(v, params, "v", params.C)
    for t, row in enumerate(step[: params.T]):
        if is_idle(row) or row["position"] >= params.context:
            continue
        to = (int(row["slot"]) * params.context + int(row["position"])) * params.C
        k_cache[to: to + params.C] = k_rows[t]
        v_cache[to: to + params.C] = v_rows[t]
