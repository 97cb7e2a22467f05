"""What comes after the logits: maxima by block of the vocabulary, and (sampled tail) adjusting, cutting and drawing."""

from __future__ import annotations

import numpy as np

from ..graph.builder import MAX_BIAS, SAMPLING_WORDS
from ..graph.builder import VOCAB_BLOCK as BLOCK
from .core import ABSENT, HAS_MASK, NO_TOKEN, OUT_DTYPE, PARTIAL_DTYPE, SAMPLING_DTYPE, Case, Lowered, Variant, is_idle, kernel, poison
from .draw import draw_id
from .step import advance_row, decode_rows, merge_parts, plain_sampling

assert SAMPLING_DTYPE.itemsize == 4 * SAMPLING_WORDS, "a slot's sampling record and the state that holds it differ"


def _lower_block_max(node, ctx, variant):
    return Lowered({"T": ctx.rows, "V": int(node.inputs["logits"].shape[-1]), "blocks": int(node.outputs["partials"].shape[-1]) // 4}, {"ROWS": ctx.rows})


def choices(record, width: int) -> int:
    """How many of `width` logits are ids that may be chosen."""
    return min(int(record["vocab"]) or width, width)


def _logits(rng, rows: int, vocab: int) -> np.ndarray:
    """Logits in steps of 1/8, so that maxima tie; some absent."""
    x = (np.round(rng.standard_normal((rows, vocab)) * 24) / 8).astype(np.float32)
    x[:, ::5] = ABSENT
    return x


def _data_block_max(rng, p, c):
    logits = _logits(rng, p.T, p.V)
    if p.T > 1:
        logits[1, p.V // 2], logits[1, p.V - 1] = np.nan, -np.inf
        logits[0, :BLOCK] = ABSENT
    step, sampling = decode_rows(c.ROWS), plain_sampling(c.ROWS, p.V - p.V // 8 if p.T > 1 else 0)
    step["flags"][1:2] = 0
    return {"logits": logits.ravel(), "step": step, "sampling": sampling, "partials": poison(p.T * p.blocks * 4, "u4").view(PARTIAL_DTYPE)}


@kernel("sample/block_max", op="block_max", lower=_lower_block_max, data=_data_block_max,
        grid=lambda p, c: (-(-p.blocks // (c.WG // c.LANES)), p.T, 1),
        variants=(Variant("subgroup", {"REDUCE": "subgroup", "LANES": 256, "WG": 256}, features=("subgroups",), prefer="gpu"),
                  Variant("tree", {"REDUCE": "tree", "LANES": 256, "WG": 256}),
                  Variant("column", {"REDUCE": "none", "LANES": 1, "WG": 8}, prefer="software")),
        cases=[Case({"T": 1, "V": 1500, "blocks": 2}, {"ROWS": 1}, "a ragged block"),
               Case({"T": 4, "V": 9 * 1024 + 1, "blocks": 10}, {"ROWS": 4}, "an absent block, not finite ones, padding, an idle row, ten blocks in groups of eight"),
               Case({"T": 1, "V": 1, "blocks": 1}, {"ROWS": 1})])
def block_max(logits, sampling, partials, step, params):
    """partials[t, b] = (max, lowest id of it, sum exp(logit - max), count not finite) over logits[t, 1024 b .. 1024 b + 1023],
    ids below the slot's vocab only; nothing for idle rows

    Shapes:  logits [T, V] f32 -> partials [T, blocks]. A logit that is not finite or at most ABSENT is left out; a block
    without any gives (ABSENT, NO_TOKEN, 0, count).
    """
    for t in range(params.T):
        if is_idle(step[t]):
            continue
        row = logits[t * params.V:][: choices(sampling[step[t]["slot"]], params.V)]
        for b in range(params.blocks):
            x = row[b * BLOCK: (b + 1) * BLOCK]
            finite = np.isfinite(x)
            there = np.where(finite, x, ABSENT) > ABSENT
            if not there.any():
                partials[t * params.blocks + b] = (ABSENT, NO_TOKEN, 0, (~finite).sum())
                continue
            best = int(np.argmax(np.where(there, x, ABSENT)))
            total = np.exp(x[there].astype(np.float64) - float(x[best])).sum()
            partials[t * params.blocks + b] = (x[best], b * BLOCK + best, total, (~finite).sum())


def _lower_penalize(node, ctx, variant):
    return Lowered({"T": ctx.rows, "V": int(node.outputs["logits"].shape[-1]), "context": ctx.context}, {"ROWS": ctx.rows})


def _data_penalize(rng, p, c):
    step = decode_rows(c.ROWS)
    step["flags"][2:] = 0
    step["position"] = np.minimum(step["position"], p.context - 1)
    sampling = plain_sampling(c.ROWS, p.V)
    sampling["penalty"], sampling["inverse_penalty"] = 1.5, np.float32(1 / 1.5)
    sampling["window"] = np.arange(c.ROWS) * 4 % 12  # of slots 0, 1, 2: all, 4, 8
    sampling["n_bias"] = np.arange(c.ROWS) % 3
    history = rng.integers(0, p.V, c.ROWS * p.context).astype(np.uint32)
    history[::3] = p.V - 1
    bias = np.zeros((c.ROWS, MAX_BIAS, 2), np.uint32)
    bias[:, 0] = (p.V - 1, np.float32(-2.5).view(np.uint32))  # also in the history
    bias[:, 1] = (0, np.float32(4).view(np.uint32))
    if p.V % 32 and c.ROWS > 2:  # absent ids dwarf the tolerance of the others: a case with, cases without
        sampling["flags"] = HAS_MASK * (np.arange(c.ROWS) % 2)
    mask = rng.integers(0, 2**32, c.ROWS * (-(-p.V // 32)), np.uint32)
    return {"history": history, "sampling": sampling, "mask": mask, "bias": bias.ravel(), "step": step,
            "logits": (rng.standard_normal(p.T * p.V) * 3).astype(np.float32)}


@kernel("sample/penalize", op="penalize", lower=_lower_penalize, data=_data_penalize,
        grid=lambda p, c: (-(-p.V // c.RANGE), p.T, 1),
        cases=[Case({"T": 1, "V": 64, "context": 16}, {"ROWS": 1}, "one range"),
               Case({"T": 4, "V": 4096 + 64, "context": 16}, {"ROWS": 4}, "windows, bias, an idle row, two ranges"),
               Case({"T": 3, "V": 4096 + 77, "context": 300}, {"ROWS": 3}, "masks")])
def penalize(history, sampling, mask, bias, logits, step, params):
    """logits[t, id] = p(logits[t, id] + bias[id]), p(v) = v > 0 ? v / penalty : v * penalty for ids among the last `window` of
    history[slot, 0 .. position] (once an id; 0 = all), p(v) = v for the others; ABSENT where masked. In place.

    Shapes:  history [slots, context], sampling [slots], mask u32 [slots, ceil(V / 32)], bias u32 [slots, 64, 2], logits [T, V]
    Source:  the order of transformers: sequence bias, repetition penalty (on prompt and generated ids)
    """
    words = -(-params.V // 32)
    for t in range(params.T):
        row = step[t]
        if is_idle(row):
            continue
        slot, record = int(row["slot"]), sampling[row["slot"]]
        x = logits[t * params.V: (t + 1) * params.V]
        pairs = bias[slot * MAX_BIAS * 2:][: 2 * int(record["n_bias"])].reshape(-1, 2)
        pairs = pairs[pairs[:, 0] < params.V]
        x[pairs[:, 0]] += np.ascontiguousarray(pairs[:, 1]).view("<f4")
        if record["penalty"] != 1:
            known = min(int(row["position"]) + 1, params.context)
            oldest = max(known - int(record["window"]), 0) if record["window"] else 0
            seen = np.unique(history[slot * params.context + oldest: slot * params.context + known])
            seen = seen[seen < params.V]
            x[seen] *= np.where(x[seen] > 0, record["inverse_penalty"], record["penalty"])
        if record["flags"] & HAS_MASK:
            x[np.unpackbits(mask[slot * words: (slot + 1) * words].view(np.uint8), bitorder="little")[: params.V] == 0] = ABSENT


def _lower_sampled(node, ctx, variant):
    return Lowered({"T": ctx.rows, "V": int(node.inputs["logits"].shape[-1]), "blocks": int(node.inputs["partials"].shape[-1]) // 4})


def _data_sampled(rng, p, c):
    logits = (rng.standard_normal((p.T, p.V)) * 3).astype(np.float32)
    logits[:, 1::7] = ABSENT
    if p.T > 4:
        logits[4, 0] = np.inf
    settings = [(1.0, 0, 1, 0), (0.7, 40, 0.9, 0.02), (0, 3, 0.5, 0), (1.3, 0, 0.8, 0), (2.0, 500, 1, 0.05), (1.0, p.V - 1, 0.999, 0)]
    sampling = plain_sampling(p.T, p.V)
    for i in range(p.T):
        temperature, top_k, top_p, min_p = settings[(i + p.V) % len(settings)]
        slot = p.T - 1 - i  # row i's slot, see decode_rows
        sampling["scale"][slot] = 65536 * np.log2(np.e) / temperature if temperature else 0
        sampling["top_k"][slot], sampling["top_p"][slot], sampling["min_p"][slot] = top_k, top_p, min_p
        sampling["vocab"][slot] = p.V - i * 5 if p.V > 1024 else 0
    sampling["seed_lo"], sampling["seed_hi"] = rng.integers(0, 2**32, (2, p.T))
    step = decode_rows(p.T)
    if p.T < 5:
        step["flags"] = 0
    partials = np.zeros(p.T * p.blocks, PARTIAL_DTYPE)
    block_max(logits.ravel(), sampling, partials, step, p)
    out = np.full(p.T, 0xDEADBEEF, np.uint32).astype(OUT_DTYPE)
    return {"partials": partials, "logits": logits.ravel(), "sampling": sampling, "out": out, "step": step}


@kernel("sample/advance_sampled", op="advance_sampled", lower=_lower_sampled, data=_data_sampled,
        grid=lambda p, c: (p.T, 1, 1),
        variants=(Variant("tree", {"REDUCE": "tree", "WG": 256, "LANES": 256}),
                  Variant("column", {"REDUCE": "none", "WG": 32, "LANES": 1}, prefer="software")),
        cases=[Case({"T": 1, "V": v, "blocks": -(-v // 1024)}, seed=v) for v in (1003, 1024, 1025, 2000)]
        + [Case({"T": 2, "V": 1, "blocks": 1}, why="one id"), Case({"T": 4, "V": 5000, "blocks": 5}, why="different settings a row"),
           Case({"T": 6, "V": 49152, "blocks": 48}, why="idle and bad rows, the maximum beside draws")])
def advance_sampled(partials, logits, sampling, out, step, params):
    """chosen[t] = the maximum where scale = 0, else draw.draw_id of row t; logprob of softmax(logits[t]); the row advances

    Shapes:  partials [T, blocks], logits [T, V] f32, sampling [slots], step [T] -> out [T], step [T]
    """
    for t in range(params.T):
        if is_idle(step[t]):  # block_max left its partials as they were
            advance_row(step, out, sampling, t, NO_TOKEN, 0.0, False)
            continue
        top, chosen, total, bad = merge_parts(partials[t * params.blocks: (t + 1) * params.blocks])
        is_bad, logprob = bad > 0 or chosen == NO_TOKEN, 0.0
        if not is_bad:
            record = sampling[step[t]["slot"]]
            x = logits[t * params.V:][: choices(record, params.V)]
            if record["scale"] > 0:
                chosen = draw_id(x, record, int(step[t]["draw"]))
            logprob = float(x[chosen]) - top - np.log(total)
        advance_row(step, out, sampling, t, chosen, logprob, is_bad)
