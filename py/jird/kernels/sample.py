"""What comes after the logits: maxima by block of the vocabulary, and (sampled tail) adjusting, cutting and drawing."""

from __future__ import annotations

import numpy as np

from .core import ABSENT, NO_TOKEN, PARTIAL_DTYPE, Case, Lowered, Variant, kernel

BLOCK = 1024  # const BLOCK of block_max.wgsl; graph.builder.VOCAB_BLOCK sizes the partials by it


def _lower_block_max(node, ctx, variant):
    return Lowered({"T": ctx.rows, "V": int(node.inputs["logits"].shape[-1]), "blocks": int(node.outputs["partials"].shape[-1]) // 4})


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
    return {"logits": logits.ravel(), "partials": np.full(p.T * p.blocks * 4, 0xDEADBEEF, np.uint32).view(PARTIAL_DTYPE)}


@kernel("sample/block_max", op="block_max", lower=_lower_block_max, data=_data_block_max,
        grid=lambda p, c: (-(-p.blocks // (c.WG // c.LANES)), p.T, 1),
        variants=(Variant("subgroup", {"REDUCE": "subgroup", "LANES": 256, "WG": 256}, features=("subgroups",), prefer="gpu"),
                  Variant("tree", {"REDUCE": "tree", "LANES": 256, "WG": 256}),
                  Variant("column", {"REDUCE": "none", "LANES": 1, "WG": 8}, prefer="software")),
        cases=[Case({"T": 1, "V": 1500, "blocks": 2}, why="a ragged block"),
               Case({"T": 3, "V": 9 * 1024 + 1, "blocks": 10}, why="an absent block, not finite ones, ten blocks in groups of eight"),
               Case({"T": 1, "V": 1, "blocks": 1})])
def block_max(logits, partials, params):
    """partials[t, b] = (max, lowest id of it, sum exp(logit - max), count not finite) over logits[t, 1024 b .. 1024 b + 1023]

    Shapes:  logits [T, V] f32 -> partials [T, blocks]. A logit that is not finite or at most ABSENT is left out; a block
    without any gives (ABSENT, NO_TOKEN, 0, count).
    """
    for t in range(params.T):
        row = logits[t * params.V: (t + 1) * params.V]
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
