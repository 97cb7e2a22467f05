"""Tiny seeded models for tests: a Llama-family GGUF of a few kB with a byte-level tokenizer, and its float64 forward pass.

`Tiny.logits` is written from the formulas, apart from the engine's kernels: the oracle of tests/engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

TYPES = {n: getattr(gguf.GGMLQuantizationType, n) for n in ("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")}


def byte_alphabet() -> list[str]:
    """The 256 characters of the byte-level alphabet, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


TOKENS = [*byte_alphabet(), "<|endoftext|>", "<|im_start|>", "<|im_end|>", *("th", "he", "in", "an")]
MERGES = ["t h", "h e", "i n", "a n"]
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


@dataclass
class Tiny:
    """vocab 264 (one padding row), width 64, heads 4 over kv 2, head_dim 16, ffn 96. arch "llama" permutes q and k, "qwen2" has biases."""

    arch: str = "llama"
    layers: int = 2
    type: str = "Q4_1"
    head_type: str = "Q8_0"
    is_tied: bool = True
    context: int = 512
    window: int = 0
    seed: int = 0
    scale: float = 0.3
    vocab: int = 264
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    width, heads, kv_heads, head_dim, ffn = 64, 4, 2, 16, 96
    eps, theta = 1e-5, 10000.0

    def write(self, path: Path) -> Path:
        """Writes the GGUF file and keeps the weights as dequantised, in HF row order."""
        w = gguf.GGUFWriter(str(path), self.arch)
        w.add_context_length(self.context)
        w.add_embedding_length(self.width)
        w.add_block_count(self.layers)
        w.add_feed_forward_length(self.ffn)
        w.add_head_count(self.heads)
        w.add_head_count_kv(self.kv_heads)
        w.add_layer_norm_rms_eps(self.eps)
        w.add_rope_freq_base(self.theta)
        if self.window:
            w.add_sliding_window(self.window)
        self._tokenizer(w)
        rng = np.random.default_rng(self.seed)
        for name, shape, type_ in self._tensors():
            is_norm = name.endswith("norm.weight")
            values = (1 + 0.1 * rng.standard_normal(shape) if is_norm else self.scale * rng.standard_normal(shape)).astype(np.float32)
            raw = values if type_ == "F32" else quantize(values, TYPES[type_])
            self.weights[name] = self._unpermuted(name, values if type_ == "F32" else dequantize(raw, TYPES[type_]))
            w.add_tensor(name, raw, raw_dtype=TYPES[type_])
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return path

    def _tokenizer(self, w: gguf.GGUFWriter) -> None:
        tokens = TOKENS + [f"<unused{i}>" for i in range(self.vocab - 1 - len(TOKENS))]
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("smollm")
        w.add_token_list(tokens)
        w.add_token_types([3 if t.startswith("<|") else 1 for t in tokens])
        w.add_token_merges(MERGES)
        w.add_bos_token_id(257)
        w.add_eos_token_id(258)
        w.add_chat_template(TEMPLATE)

    def _tensors(self) -> list[tuple[str, tuple[int, ...], str]]:
        c, q, kv = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim
        out = [("token_embd.weight", (self.vocab, c), self.head_type), ("output_norm.weight", (c,), "F32")]
        if not self.is_tied:
            out.append(("output.weight", (self.vocab, c), self.type))
        for i in range(self.layers):
            for name, shape, type_ in (("attn_norm", (c,), "F32"), ("attn_q", (q, c), self.type), ("attn_k", (kv, c), self.type), ("attn_v", (kv, c), self.type),
                                       ("attn_output", (c, q), self.type), ("ffn_norm", (c,), "F32"), ("ffn_gate", (self.ffn, c), self.type),
                                       ("ffn_up", (self.ffn, c), self.type), ("ffn_down", (c, self.ffn), self.type)):
                out.append((f"blk.{i}.{name}.weight", shape, type_))
            if self.arch == "qwen2":
                out += [(f"blk.{i}.attn_{n}.bias", (size,), "F32") for n, size in (("q", q), ("k", kv), ("v", kv))]
        return out

    def _unpermuted(self, name: str, values: np.ndarray) -> np.ndarray:
        """arch llama stores q and k rows as [head, D/2, 2]; HF has [head, 2, D/2]."""
        if self.arch != "llama" or not name.endswith(("attn_q.weight", "attn_k.weight")):
            return values
        return values.reshape(-1, self.head_dim // 2, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)

    def logits(self, ids: list[int]) -> np.ndarray:
        """Float64 forward pass of a whole sequence.

        Shapes:  -> [T, vocab]
        Source:  mirrors transformers LlamaForCausalLM / Qwen2ForCausalLM (eager attention)
        """
        w = {n: v.astype(np.float64) for n, v in self.weights.items()}
        x = w["token_embd.weight"][ids]
        t, d = len(ids), self.head_dim
        angle = np.outer(np.arange(t), self.theta ** (-np.arange(0, d, 2) / d))
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        seen = np.tril(np.ones((t, t), bool))
        if self.window:
            seen &= np.arange(t)[None, :] > np.arange(t)[:, None] - self.window

        def norm(v, name):
            return v / np.sqrt(np.mean(v * v, -1, keepdims=True) + self.eps) * w[name]

        def rope(v):
            a, b = v[..., : d // 2], v[..., d // 2:]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        for i in range(self.layers):
            p = f"blk.{i}."
            h = norm(x, p + "attn_norm.weight")
            q, k, v = ((h @ w[f"{p}attn_{n}.weight"].T + w.get(f"{p}attn_{n}.bias", 0.0)).reshape(t, -1, d) for n in "qkv")
            q, k = rope(q), rope(k)
            k, v = (np.repeat(m, self.heads // self.kv_heads, axis=1) for m in (k, v))
            scores = np.where(seen, np.einsum("thd,shd->hts", q, k) / np.sqrt(d), -np.inf)
            p_ = np.exp(scores - scores.max(-1, keepdims=True))
            a = np.einsum("hts,shd->thd", p_ / p_.sum(-1, keepdims=True), v).reshape(t, -1)
            x = x + a @ w[p + "attn_output.weight"].T
            h = norm(x, p + "ffn_norm.weight")
            gate, up = h @ w[p + "ffn_gate.weight"].T, h @ w[p + "ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "ffn_down.weight"].T
        return norm(x, "output_norm.weight") @ w["token_embd.weight" if self.is_tied else "output.weight"].T
