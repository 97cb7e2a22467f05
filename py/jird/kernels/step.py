"""The greedy end of a decode step: the step row advances on the GPU.

The sampled end is sample.advance_sampled; both end a row by `advance_row`.
"""

from __future__ import annotations

import numpy as np

from .core import BAD, DONE, MASKED, NO_TOKEN, OUT_DTYPE, PARTIAL_DTYPE, SAMPLING_DTYPE, Case, Lowered, Variant, is_idle, kernel, steps


def part_variants(lanes: int) -> tuple[Variant, ...]:
    """Variants of a kernel in which `lanes` threads share one merge of partials; the last has no barrier."""
    return (Variant("subgroup", {"REDUCE": "subgroup", "LANES": lanes, "WG": lanes}, features=("subgroups",), prefer="gpu"),
            Variant("tree", {"REDUCE": "tree", "LANES": lanes, "WG": lanes}),
            Variant("column", {"REDUCE": "none", "LANES": 1, "WG": 1}, prefer="software"))


def merge_parts(parts: np.ndarray) -> tuple[float, int, float, int]:
    """(maximum, its lowest id, sum exp(logit - maximum), count not finite) of one row's partials."""
    top = parts["maximum"].max()
    total = float(np.sum(parts["total"] * np.exp(parts["maximum"].astype(np.float64) - float(top))))
    return float(top), int(parts["id"][parts["maximum"] == top].min()), total, int(parts["bad"].sum(dtype=np.int64))


def advance_row(step, out, sampling, index: int, chosen: int, logprob: float, is_bad: bool) -> None:
    """Ends a step for row `index`; mirrors include/advance.wgsl.

    An idle row only reports itself. A bad row keeps token, position, kv_len and draw, and gets BAD | DONE. Any other takes
    the chosen id (a stop id too) and moves on; DONE when it is a stop id or the new kv_len reached limit. `out` shows the
    row after.
    """
    row = step[index]
    shown = 0.0
    if not is_idle(row):
        if is_bad:
            row["flags"] |= BAD | DONE
        else:
            shown = logprob
            row["token"] = chosen
            for name in ("position", "kv_len", "draw"):
                row[name] += 1
            if row["kv_len"] >= row["limit"] or chosen in sampling["stop"][row["slot"]]:
                row["flags"] |= DONE
    out[index] = (row["token"], row["kv_len"], row["flags"], shown)


def decode_rows(count: int) -> np.ndarray:
    """Rows for cases, cycling through: running, done, one before its limit, masked; slots in reverse order."""
    kinds = ({"limit": 100}, {"flags": DONE, "limit": 100}, {"limit": 14}, {"flags": MASKED, "limit": 100})
    return steps([{"token": 7 + i, "position": 12, "kv_len": 13, "slot": count - 1 - i, "draw": 3, **kinds[i % 4]} for i in range(count)])


def plain_sampling(count: int, vocab: int) -> np.ndarray:
    """Sampling records that take the maximum and stop at nothing."""
    records = np.zeros(count, SAMPLING_DTYPE)
    records["top_p"], records["penalty"], records["inverse_penalty"], records["stop"], records["vocab"] = 1, 1, 1, NO_TOKEN, vocab
    return records


def _lower(node, ctx, variant):
    return Lowered({"T": ctx.rows, "blocks": int(node.inputs["partials"].shape[-1]) // 4})


def _data(rng, p, c):
    parts = np.zeros(p.T * p.blocks, PARTIAL_DTYPE)
    parts["maximum"] = np.round(rng.standard_normal(p.T * p.blocks) * 2)  # whole numbers: ties between blocks
    parts["id"] = np.tile(np.arange(p.blocks) * 1024 + rng.integers(0, 1024, p.blocks), p.T)
    parts["total"] = rng.uniform(1, 50, p.T * p.blocks)
    if p.T > 4:
        parts["bad"][4 * p.blocks + p.blocks // 2] = 2
    sampling = plain_sampling(p.T, p.blocks * 1024)
    sampling["stop"][p.T - 1, 3] = merge_parts(parts[:p.blocks])[1]  # row 0 chooses a stop id of its slot
    out = np.full(p.T, 0xDEADBEEF, np.uint32).astype(OUT_DTYPE)
    return {"partials": parts, "sampling": sampling, "out": out, "step": decode_rows(p.T)}


@kernel("step/advance_greedy", op="advance_greedy", lower=_lower, data=_data, variants=part_variants(64),
        grid=lambda p, c: (p.T, 1, 1),
        cases=[Case({"T": 1, "blocks": 48}, why="SmolLM2's vocabulary"), Case({"T": 6, "blocks": 1}, why="idle, limit, bad"),
               Case({"T": 3, "blocks": 65}, why="one past the workgroup")])
def advance_greedy(partials, sampling, out, step, params):
    """chosen[t] = lowest id of the greatest logit; logprob = -log(sum exp(logit - max)); the row advances

    Shapes:  partials [T, blocks], sampling [B], step [T] -> out [T], step [T]
    """
    for t in range(params.T):
        if is_idle(step[t]):  # block_max left its partials as they were
            advance_row(step, out, sampling, t, NO_TOKEN, 0.0, False)
            continue
        _, chosen, total, bad = merge_parts(partials[t * params.blocks: (t + 1) * params.blocks])
        is_bad = bad > 0 or chosen == NO_TOKEN
        advance_row(step, out, sampling, t, chosen, 0.0 if is_bad else -np.log(total), is_bad)
