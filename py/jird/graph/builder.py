"""The words models write graphs in: `g.linear(x, "q_proj")`, `g.rms_norm(...)`; every call checks shapes at once."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

from . import ops
from .ir import Dim, Graph, Node, Tensor

VOCAB_BLOCK = 1024  # ids of a partial: const BLOCK of block_max.wgsl
SAMPLING_WORDS = 20  # u32 words of one slot's sampling record (kernels/core.py SAMPLING_DTYPE)
MAX_BIAS = 64  # (id, f32 bits) pairs of logit bias a slot can hold: const MAX_BIAS of penalize.wgsl


@dataclass
class GraphBuilder:
    """Collects nodes. `scope("layers.0")` prefixes weight, state and node names."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    prefix: str = ""

    @contextmanager
    def scope(self, name: str):
        outer, self.prefix = self.prefix, f"{self.prefix}{name}."
        try:
            yield self
        finally:
            self.prefix = outer

    def build(self, *outputs: Tensor) -> Graph:
        return Graph(self.name, tuple(self.nodes), outputs)

    # leaves
    def weight(self, name: str, *shape: Dim) -> Tensor:
        return Tensor(self.prefix + name, shape, "f32", "weight")

    def state(self, name: str, *shape: Dim, dtype: str = "f32") -> Tensor:
        return Tensor(self.prefix + name, shape, dtype, "state")

    def input(self, name: str, *shape: Dim, dtype: str = "f32") -> Tensor:
        return Tensor(name, shape, dtype, "input")

    # ops
    def add_node(self, op: str, label: str, inputs: dict, outputs: dict, **attrs) -> Node:
        node = Node(op, inputs, outputs, attrs, f"{self.prefix}{label}")
        ops.check(node)
        self.nodes.append(node)
        return node

    def temp(self, label: str, *shape: Dim, dtype: str = "f32", kind: str = "temp") -> Tensor:
        return Tensor(f"{self.prefix}{label}", shape, dtype, kind)

    def embed(self, table: Tensor, history: Tensor) -> Tensor:
        y = self.temp("embed", "T", table.shape[-1])
        self.add_node("embed", "embed", {"w": table}, {"y": y, "history": history})
        return y

    def rms_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        y = self.temp(name, *x.shape)
        self.add_node("rms_norm", name, {"x": x, "w": self.weight(f"{name}.weight", x.shape[-1])}, {"y": y}, eps=eps)
        return y

    def linear(self, x: Tensor, name: str, width: int, bias: bool = False, weight: Tensor | None = None) -> Tensor:
        """y [T, width] = x [T, K] @ W[width, K].T + b. `weight` shares another module's table (tied head)."""
        y = self.temp(name, *x.shape[:-1], width)
        ins = {"x": x, "w": weight or self.weight(f"{name}.weight", width, x.shape[-1])}
        if bias:
            ins["bias"] = self.weight(f"{name}.bias", width)
        self.add_node("linear", name, ins, {"y": y})
        return y

    def rope(self, x: Tensor, label: str, cos: Tensor, sin: Tensor, *, heads: int, head_dim: int, pairing: str = "half") -> Tensor:
        y = self.temp(label, *x.shape)
        self.add_node("rope", label, {"x": x, "cos": cos, "sin": sin}, {"y": y}, heads=heads, head_dim=head_dim, pairing=pairing)
        return y

    def kv_append(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, *, kv_heads: int, head_dim: int) -> None:
        self.add_node("kv_append", "kv_append", {"k": k, "v": v}, {"k_cache": k_cache, "v_cache": v_cache}, kv_heads=kv_heads, head_dim=head_dim)

    def attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, *, heads: int, kv_heads: int, head_dim: int, scale: float, window: int = 0) -> Tensor:
        """Row r sees its own kv_len keys of its slot, the last `window` of them where window > 0."""
        y = self.temp("attention", *q.shape)
        self.add_node("attention", "attention", {"q": q, "k_cache": k_cache, "v_cache": v_cache}, {"y": y},
                      heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=scale, window=window)
        return y

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        y = self.temp("swiglu", *gate.shape)
        self.add_node("swiglu", "swiglu", {"gate": gate, "up": up}, {"y": y})
        return y

    def add(self, a: Tensor, b: Tensor, label: str) -> Tensor:
        y = self.temp(label, *a.shape)
        self.add_node("add", label, {"a": a, "b": b}, {"y": y})
        return y

    def tail_greedy(self, logits: Tensor) -> None:
        """First maximum of each row's logits, then the step row advances on the GPU."""
        partials = self.temp("partials", "T", -(-int(logits.shape[-1]) // VOCAB_BLOCK) * 4)
        sampling = self.state("sampling", "B", SAMPLING_WORDS, dtype="u32")
        self.add_node("block_max", "block_max", {"logits": logits, "sampling": sampling}, {"partials": partials})
        self.add_node("advance_greedy", "advance", {"partials": partials, "sampling": sampling},
                      {"out": self.state("out", "T", 4, dtype="u32")})

    def tail_sampled(self, logits: Tensor, history: Tensor) -> None:
        """Bias, penalty, mask, temperature, top-k, top-p, min-p and a seeded draw on the GPU, then the step row advances."""
        vocab = int(logits.shape[-1])
        sampling = self.state("sampling", "B", SAMPLING_WORDS, dtype="u32")
        mask = self.state("mask", "B", -(-vocab // 32), dtype="u32")
        bias = self.state("bias", "B", 2 * MAX_BIAS, dtype="u32")
        partials = self.temp("partials", "T", -(-vocab // VOCAB_BLOCK) * 4)
        self.add_node("penalize", "penalize", {"history": history, "sampling": sampling, "mask": mask, "bias": bias}, {"logits": logits})
        self.add_node("block_max", "block_max", {"logits": logits, "sampling": sampling}, {"partials": partials})
        self.add_node("advance_sampled", "advance", {"partials": partials, "logits": logits, "sampling": sampling},
                      {"out": self.state("out", "T", 4, dtype="u32")})
