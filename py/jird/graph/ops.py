"""The op table: slots, required attrs and the shape rule of every op. Graph building checks against it at once.

A slot ending in "?" is optional. `step` is never a slot: every kernel that needs positions binds it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping

from .ir import Node, Tensor


@dataclass(frozen=True)
class Op:
    """inputs/outputs: slot names in order; attrs: names that must be given; check(node) returns a complaint or ''."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[str, ...]
    check: Callable[[Node], str]


def _last(t: Tensor) -> int:
    return int(t.shape[-1])


def _same_shape(node: Node) -> str:
    shapes = [tuple(t.shape) for t in (*node.inputs.values(), *node.outputs.values())]
    return "" if len(set(shapes)) == 1 else f"shapes {[list(s) for s in shapes]}; all must be equal"


def _check_embed(node: Node) -> str:
    w, y = node.inputs["w"], node.outputs["y"]
    return "" if _last(w) == _last(y) else f"table {list(w.shape)}, out {list(y.shape)}; last dims must match"


def _check_norm(node: Node) -> str:
    x, w, y = node.inputs["x"], node.inputs["w"], node.outputs["y"]
    if _last(x) != _last(w) or tuple(x.shape) != tuple(y.shape):
        return f"x is {list(x.shape)}, weight {list(w.shape)}, out {list(y.shape)}; last dims must match"
    return ""


def _check_linear(node: Node) -> str:
    x, w, y = node.inputs["x"], node.inputs["w"], node.outputs["y"]
    if _last(x) != _last(w):
        return f"x is {list(x.shape)}, weight {list(w.shape)}; last dims must match"
    rows = int(w.shape[0]) // (2 if node.attrs.get("swiglu") else 1)
    if _last(y) != rows:
        return f"out is {list(y.shape)}, weight {list(w.shape)} makes {rows} columns"
    for slot, want in (("residual", _last(y)), ("bias", int(w.shape[0])), ("norm", _last(x))):
        t = node.inputs.get(slot)
        if t is not None and _last(t) != want:
            return f"{slot} is {list(t.shape)}; its last dim must be {want}"
    if "norm" in node.inputs and "eps" not in node.attrs:
        return "a norm input needs attr eps"
    return ""


def _check_rope(node: Node) -> str:
    heads, head_dim = node.attrs["heads"], node.attrs["head_dim"]
    x, y = node.inputs["x"], node.outputs["y"]
    if heads * head_dim != _last(x) or _last(x) != _last(y):
        return f"x is {list(x.shape)}, out {list(y.shape)}; heads {heads} x head_dim {head_dim} must be the last dim"
    return ""


def _check_attention(node: Node) -> str:
    a = node.attrs
    q, y = node.inputs["q"], node.outputs["y"]
    if a["heads"] * a["head_dim"] != _last(q) or _last(y) != _last(q):
        return f"q is {list(q.shape)}, out {list(y.shape)}; heads {a['heads']} x head_dim {a['head_dim']} must be the last dim"
    if a["heads"] % a["kv_heads"]:
        return f"heads {a['heads']} must be a multiple of kv_heads {a['kv_heads']}"
    for slot in ("k", "v"):
        t = node.inputs.get(slot)
        if t is not None and _last(t) != a["kv_heads"] * a["head_dim"]:
            return f"{slot} is {list(t.shape)}; its last dim must be kv_heads x head_dim = {a['kv_heads'] * a['head_dim']}"
    return ""


def _check_append(node: Node) -> str:
    k, v, cache = node.inputs["k"], node.inputs["v"], node.outputs["k_cache"]
    if _last(k) != _last(v) or _last(cache) != _last(k):
        return f"k is {list(k.shape)}, v {list(v.shape)}, cache {list(cache.shape)}; last dims must match"
    return ""


def _fine(node: Node) -> str:
    return ""


_ROPE_ATTRS = ("heads", "head_dim", "pairing")
OPS: Mapping[str, Op] = {
    # y[t] = w[token[t]] * scale; also history[slot, position] = token
    "embed": Op(("w",), ("y", "history"), (), _check_embed),
    # y = x * rsqrt(mean(x^2) + eps) * w
    "rms_norm": Op(("x", "w"), ("y",), ("eps",), _check_norm),
    # y = f(norm(x) @ w.T + bias) + residual; attr swiglu: w = [gate; up], y = silu(gate) * up
    "linear": Op(("x", "w", "bias?", "norm?", "residual?"), ("y",), (), _check_linear),
    # rotates x by the cos/sin tables at the row's position; pairing "half" (i, i + D/2) or "pairs" (2i, 2i+1)
    "rope": Op(("x", "cos", "sin"), ("y",), _ROPE_ATTRS, _check_rope),
    "kv_append": Op(("k", "v"), ("k_cache", "v_cache"), ("kv_heads", "head_dim"), _check_append),
    # q/k roped, then k and v appended (fused)
    "rope_append": Op(("q", "k", "v", "cos", "sin"), ("y", "k_cache", "v_cache"), ("heads", "kv_heads", "head_dim", "pairing"), _fine),
    # kinds: causal | window (attr window); row r sees its own kv_len keys of its slot
    "attention": Op(("q", "k_cache", "v_cache"), ("y",), ("heads", "kv_heads", "head_dim", "scale"), _check_attention),
    # rope_append + attention in one (decode: at most one row a slot)
    "attention_append": Op(("q", "k", "v", "cos", "sin"), ("y", "k_cache", "v_cache"), ("heads", "kv_heads", "head_dim", "scale", "pairing"), _check_attention),
    # split keys: per (row, head, split) the running max, sum and weighted values; merge adds them up
    "attention_partial": Op(("q", "k_cache", "v_cache"), ("partials",), ("heads", "kv_heads", "head_dim", "scale", "splits", "split_keys"), _fine),
    "attention_merge": Op(("partials",), ("y",), ("heads", "head_dim", "splits", "split_keys"), _fine),
    # y = silu(gate) * up
    "swiglu": Op(("gate", "up"), ("y",), (), _same_shape),
    "add": Op(("a", "b"), ("y",), (), _same_shape),
    # in place: bias added, ids in the slot's history window penalised (once an id), masked ids made absent
    "penalize": Op(("history", "sampling", "mask", "bias"), ("logits",), (), _fine),
    # per block of the vocabulary: (max logit, its lowest id, sum exp(logit - max), count not finite); padding ids left out
    "block_max": Op(("logits", "sampling"), ("partials",), (), _fine),
    # merges the partials, greedy: first maximum; sets done/bad, writes the out row, advances the step row
    "advance_greedy": Op(("partials", "sampling"), ("out",), (), _fine),
    # sampled: temperature, top-k, top-p, min-p, seeded draw over logits; then as advance_greedy
    "advance_sampled": Op(("partials", "logits", "sampling"), ("out",), (), _fine),
}


def check(node: Node) -> None:
    """Raises ValueError naming node, op and shapes when `node` does not fit the table."""
    op = OPS.get(node.op)
    if op is None:
        raise ValueError(f"op {node.op!r} (node {node.id}) is not in the op table; known: {', '.join(sorted(OPS))}")
    for side, slots, given in (("input", op.inputs, node.inputs), ("output", op.outputs, node.outputs)):
        required = {s for s in slots if not s.endswith("?")}
        allowed = {s.rstrip("?") for s in slots}
        missing, extra = required - set(given), set(given) - allowed
        if missing or extra:
            raise ValueError(f"{node.describe()}: {side} slots missing {sorted(missing)}, unknown {sorted(extra)}; the op takes {list(slots)}")
    lacking = [a for a in op.attrs if a not in node.attrs]
    if lacking:
        raise ValueError(f"{node.describe()}: attrs missing {lacking}")
    complaint = op.check(node)
    if complaint:
        raise ValueError(f"{node.describe()}: {complaint}")
