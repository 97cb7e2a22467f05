"""The Llama family: Llama 2 and 3, SmolLM2, Mistral, Qwen2 (bias on q, k, v). Pre-norm, rope, GQA, SwiGLU.

Source: mirrors transformers LlamaForCausalLM and Qwen2ForCausalLM; GGUF keys of the archs `llama` and `qwen2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

import numpy as np

from ..errors import BadCheckpoint, ModelNotSupported, shown
from ..graph.builder import GraphBuilder
from ..graph.ir import Graph
from .weightlist import ModelWeight

MAX_LAYERS = 1000  # more is a damaged header, found before a list of weights is made


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency scaling, or plain linear scaling (kind "linear")."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class Config:
    """vocab, layers, width C, ffn, heads H, kv_heads G, head_dim D, eps, rope theta, context, tied head, qkv bias, sliding window (0: none)."""

    vocab: int
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    context: int
    is_tied: bool
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    window: int = 0
    scaling: RopeScaling | None = None
    is_permuted: bool = False

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> "Config":
        """From config.json. Raises: ModelNotSupported naming missing keys or a variant that is not built, BadCheckpoint naming a value that cannot be."""
        needed = ("vocab_size", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps")
        missing = [k for k in needed if k not in raw]
        if missing:
            raise ModelNotSupported(f"config.json of a {raw.get('model_type', 'llama')} model lacks {', '.join(missing)}")
        if raw.get("hidden_act", "silu") != "silu":
            raise ModelNotSupported(f"hidden_act {raw['hidden_act']!r}; the Llama family is built with silu")
        if raw.get("mlp_bias"):
            raise ModelNotSupported("mlp_bias is true; the Llama family is built without it")
        is_qwen2 = raw.get("model_type") == "qwen2"
        rope = _object(raw, "rope_parameters")
        for where in (raw, rope):
            if where.get("partial_rotary_factor", 1) != 1:
                raise ModelNotSupported(f"partial_rotary_factor {where['partial_rotary_factor']}; the Llama family turns whole heads")
        heads, width = _whole(raw, "num_attention_heads"), _whole(raw, "hidden_size")
        return cls(
            vocab=_whole(raw, "vocab_size"), layers=_whole(raw, "num_hidden_layers"), width=width, ffn=_whole(raw, "intermediate_size"),
            heads=heads, kv_heads=_whole(raw, "num_key_value_heads", heads), head_dim=_whole(raw, "head_dim", width // heads),
            eps=_eps(raw, "rms_norm_eps"), rope_theta=_number(raw, "rope_theta", _number(rope, "rope_theta", 10000.0)),
            context=_whole(raw, "max_position_embeddings", 2048), is_tied=bool(raw.get("tie_word_embeddings", False)),
            has_qkv_bias=bool(raw.get("attention_bias", is_qwen2)), has_out_bias=bool(raw.get("attention_bias", False)) and not is_qwen2,
            window=_window_hf(raw, is_qwen2), scaling=_scaling_hf(_object(raw, "rope_scaling") or rope))

    @classmethod
    def from_gguf(cls, meta: Mapping[str, Any], tensors: Mapping[str, Any]) -> "Config":
        """From GGUF metadata and the file's tensors (their presence says tied and biased).

        Raises: ModelNotSupported naming missing keys or a variant that is not built, BadCheckpoint naming a value that cannot be
        """
        arch = meta["general.architecture"]

        def whole(key: str, default: int | None = None) -> int:
            return _whole(meta, f"{arch}.{key}", default, "GGUF metadata")

        if "token_embd.weight" not in tensors:
            raise BadCheckpoint("the file has no tensor token_embd.weight")
        heads, width = whole("attention.head_count"), whole("embedding_length")
        head_dim = whole("attention.key_length", width // heads)
        for key in ("rope.dimension_count", "attention.value_length"):
            if whole(key, head_dim) != head_dim:
                raise ModelNotSupported(f"{arch}.{key} is {meta[f'{arch}.{key}']}; the Llama family needs the whole head, {head_dim}")
        return cls(
            vocab=whole("vocab_size", int(tensors["token_embd.weight"].shape[0])), layers=whole("block_count"), width=width, ffn=whole("feed_forward_length"),
            heads=heads, kv_heads=whole("attention.head_count_kv", heads), head_dim=head_dim,
            eps=_eps(meta, f"{arch}.attention.layer_norm_rms_epsilon", "GGUF metadata"),
            rope_theta=_number(meta, f"{arch}.rope.freq_base", 10000.0, "GGUF metadata"),
            context=whole("context_length"), is_tied="output.weight" not in tensors, has_qkv_bias="blk.0.attn_q.bias" in tensors,
            has_out_bias="blk.0.attn_output.bias" in tensors, window=_whole_or_0(meta, f"{arch}.attention.sliding_window", "GGUF metadata"),
            scaling=_scaling_gguf(arch, meta), is_permuted=arch == "llama")

    def __post_init__(self):
        if self.layers > MAX_LAYERS:
            raise BadCheckpoint(f"{self.layers} layers (num_hidden_layers, block_count); at most {MAX_LAYERS} can be meant")
        if self.heads % self.kv_heads:
            raise BadCheckpoint(f"{self.heads} heads over {self.kv_heads} kv heads (num_key_value_heads, head_count_kv); they must divide")
        if self.head_dim % 2 or self.head_dim == 0:
            raise BadCheckpoint(f"head_dim is {self.head_dim}; rope turns pairs, so it must be even")


def _whole(raw: Mapping[str, Any], key: str, default: int | None = None, where: str = "config.json") -> int:
    """A whole number above 0; `default` where the key is missing or null."""
    value = raw.get(key)
    value = default if value is None else value
    if value is None and key not in raw:
        raise ModelNotSupported(f"{where} lacks {key}")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1 or value < 1:
        raise BadCheckpoint(f"{where}: {key} is {shown(value)}; a whole number above 0 is expected")
    return int(value)


def _number(raw: Mapping[str, Any], key: str, default: float | None = None, where: str = "config.json") -> float:
    """A finite number above 0; `default` where the key is missing or null."""
    value = raw.get(key)
    value = default if value is None else value
    if value is None and key not in raw:
        raise ModelNotSupported(f"{where} lacks {key}")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise BadCheckpoint(f"{where}: {key} is {shown(value)}; a number above 0 is expected")
    return float(value)


def _eps(raw: Mapping[str, Any], key: str, where: str = "config.json") -> float:
    eps = _number(raw, key, where=where)
    if eps > 1:
        raise BadCheckpoint(f"{where}: {key} is {eps!r}; a number above 0 and at most 1 is expected")
    return eps


def _whole_or_0(raw: Mapping[str, Any], key: str, where: str = "config.json") -> int:
    """A whole number; 0 where the key is missing, null or 0."""
    return _whole(raw, key, where=where) if raw.get(key) not in (None, 0, False) else 0


def _object(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object of config.json; {} where the key is missing or null."""
    value = raw.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise BadCheckpoint(f"config.json: {key} is {shown(value)}; an object is expected")
    return value or {}


def _window_hf(raw: Mapping[str, Any], is_qwen2: bool) -> int:
    """The sliding window of every layer, 0 for none.

    Raises: ModelNotSupported where only some layers have one
    """
    window = _whole_or_0(raw, "sliding_window") if raw.get("use_sliding_window", not is_qwen2) else 0
    layer_types = raw.get("layer_types") or []
    if not isinstance(layer_types, list) or not all(isinstance(t, str) for t in layer_types):
        raise BadCheckpoint(f"config.json: layer_types is {shown(layer_types)}; a list of names is expected")
    types = set(layer_types)
    if window and len(types) > 1:
        raise ModelNotSupported(f"layer_types {sorted(types)}; the Llama family is built with one kind of attention")
    first = _whole_or_0({"max_window_layers": 28, **raw}, "max_window_layers") if is_qwen2 and not types else 0  # the layers below see all keys
    if window and 0 < first < raw["num_hidden_layers"]:
        raise ModelNotSupported(f"max_window_layers {first} of {raw['num_hidden_layers']}; the Llama family is built with one kind of attention")
    return window if types in (set(), {"sliding_attention"}) and not first else 0


def _scaling_hf(raw: Mapping[str, Any]) -> RopeScaling | None:
    kind = raw.get("rope_type") or raw.get("type")
    if kind in (None, "default"):
        return None
    if kind not in ("llama3", "linear"):
        raise ModelNotSupported(f"rope scaling {kind!r}; the Llama family knows llama3 and linear")
    low, high = _number(raw, "low_freq_factor", 1.0, "rope scaling"), _number(raw, "high_freq_factor", 4.0, "rope scaling")
    if kind == "llama3" and not low < high:
        raise BadCheckpoint(f"rope scaling: low_freq_factor is {low}, high_freq_factor {high}; the second must be the greater")
    return RopeScaling(kind, _number(raw, "factor", where="rope scaling"), low, high, _whole(raw, "original_max_position_embeddings", 8192, "rope scaling"))


def _scaling_gguf(arch: str, meta: Mapping[str, Any]) -> RopeScaling | None:
    kind = meta.get(f"{arch}.rope.scaling.type")
    if kind in (None, "none"):
        return None
    if kind != "linear":
        raise ModelNotSupported(f"GGUF rope scaling {kind!r}; the Llama family knows linear and rope_freqs.weight")
    return RopeScaling("linear", _number(meta, f"{arch}.rope.scaling.factor", where="GGUF metadata"))


def inverse_frequencies(cfg: Config, factors: np.ndarray | None = None) -> np.ndarray:
    """1 / theta^(2i/D), scaled. factors: GGUF's rope_freqs.weight [D/2], which carries Llama 3's scaling.

    Shapes:  -> [D/2] f64
    Source:  mirrors transformers _compute_llama3_parameters
    """
    inv = cfg.rope_theta ** (-np.arange(0, cfg.head_dim, 2, dtype=np.float64) / cfg.head_dim)
    if factors is not None:
        if len(factors) != len(inv):
            raise BadCheckpoint(f"rope_freqs.weight has {len(factors)} values, head_dim {cfg.head_dim} needs {len(inv)}")
        if not (np.isfinite(factors).all() and (np.asarray(factors) > 0).all()):
            raise BadCheckpoint("rope_freqs.weight holds values that are not finite or not above 0")
        return inv / np.asarray(factors, np.float64)
    s = cfg.scaling
    if s is None:
        return inv
    if s.kind == "linear":
        return inv / s.factor
    wavelength = 2 * np.pi / inv
    smooth = (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    mixed = (1 - smooth) * inv / s.factor + smooth * inv
    long, short = wavelength > s.original_context / s.low_freq_factor, wavelength < s.original_context / s.high_freq_factor
    return np.where(long, inv / s.factor, np.where(short, inv, mixed))


def rope_tables(cfg: Config, context: int, factors: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Host-made cos and sin, in float64 and then rounded: {"rope.cos", "rope.sin"}, each [context, D/2] f32.

    Raises: BadCheckpoint when theta, scaling or factors give angles that are not finite
    """
    with np.errstate(over="ignore", invalid="ignore"):
        angle = np.outer(np.arange(context, dtype=np.float64), inverse_frequencies(cfg, factors))
    if not np.isfinite(angle).all():
        raise BadCheckpoint(f"rope theta {cfg.rope_theta} and scaling {cfg.scaling} give angles that are not finite")
    return {"rope.cos": np.cos(angle).astype(np.float32), "rope.sin": np.sin(angle).astype(np.float32)}


def weights(cfg: Config) -> list[ModelWeight]:
    """Every weight the graph names, with its HF and GGUF name."""
    c, d = cfg.width, cfg.head_dim
    out = [ModelWeight("embed_tokens.weight", "model.embed_tokens.weight", "token_embd.weight", (cfg.vocab, c)),
           ModelWeight("norm.weight", "model.norm.weight", "output_norm.weight", (c,))]
    if not cfg.is_tied:
        out.append(ModelWeight("lm_head.weight", "lm_head.weight", "output.weight", (cfg.vocab, c)))
    rows = [("input_layernorm", "input_layernorm", "attn_norm", (c,), 0), ("post_attention_layernorm", "post_attention_layernorm", "ffn_norm", (c,), 0),
            ("o_proj", "self_attn.o_proj", "attn_output", (c, cfg.heads * d), 0), ("gate_proj", "mlp.gate_proj", "ffn_gate", (cfg.ffn, c), 0),
            ("up_proj", "mlp.up_proj", "ffn_up", (cfg.ffn, c), 0), ("down_proj", "mlp.down_proj", "ffn_down", (c, cfg.ffn), 0)]
    for name, gguf, heads in (("q_proj", "attn_q", cfg.heads), ("k_proj", "attn_k", cfg.kv_heads), ("v_proj", "attn_v", cfg.kv_heads)):
        rows.append((name, f"self_attn.{name}", gguf, (heads * d, c), d if cfg.is_permuted and name != "v_proj" else 0))
    for i in range(cfg.layers):
        for name, hf, gguf, shape, unpermute in rows:
            out.append(ModelWeight(f"layers.{i}.{name}.weight", f"model.layers.{i}.{hf}.weight", f"blk.{i}.{gguf}.weight", shape, unpermute))
            has_bias = cfg.has_qkv_bias if name in ("q_proj", "k_proj", "v_proj") else cfg.has_out_bias and name == "o_proj"
            if has_bias:
                out.append(ModelWeight(f"layers.{i}.{name}.bias", f"model.layers.{i}.{hf}.bias", f"blk.{i}.{gguf}.bias", shape[:1], unpermute))
    return out


def graph(cfg: Config, *, head: bool, sampled: bool = False, name: str = "llama") -> Graph:
    """The text graph. head: final norm, logits and the token choice (decode); without it only the caches are filled (prefill).

    sampled: the sampled tail instead of the greedy one.
    """
    g = GraphBuilder(name)
    history = g.state("history", "B", "S", dtype="u32")
    cos, sin = g.input("rope.cos", "S", cfg.head_dim // 2), g.input("rope.sin", "S", cfg.head_dim // 2)
    table = g.weight("embed_tokens.weight", cfg.vocab, cfg.width)
    x = g.embed(table, history)
    for i in range(cfg.layers):
        with g.scope(f"layers.{i}"):
            x = _layer(g, x, cfg, cos, sin)
    if not head:
        return g.build()
    x = g.rms_norm(x, "norm", cfg.eps)
    logits = g.linear(x, "lm_head", cfg.vocab, weight=table if cfg.is_tied else None)
    if sampled:
        g.tail_sampled(logits, history)
    else:
        g.tail_greedy(logits)
    return g.build(logits)


def _layer(g: GraphBuilder, x, cfg: Config, cos, sin):
    d, kv_width = cfg.head_dim, cfg.kv_heads * cfg.head_dim
    k_cache, v_cache = (g.state(n, "B", "S", kv_width) for n in ("k_cache", "v_cache"))
    h = g.rms_norm(x, "input_layernorm", cfg.eps)
    q = g.linear(h, "q_proj", cfg.heads * d, bias=cfg.has_qkv_bias)
    k = g.linear(h, "k_proj", kv_width, bias=cfg.has_qkv_bias)
    v = g.linear(h, "v_proj", kv_width, bias=cfg.has_qkv_bias)
    q = g.rope(q, "rope_q", cos, sin, heads=cfg.heads, head_dim=d)
    k = g.rope(k, "rope_k", cos, sin, heads=cfg.kv_heads, head_dim=d)
    g.kv_append(k, v, k_cache, v_cache, kv_heads=cfg.kv_heads, head_dim=d)
    a = g.attention(q, k_cache, v_cache, heads=cfg.heads, kv_heads=cfg.kv_heads, head_dim=d, scale=d ** -0.5, window=cfg.window)
    x = g.add(x, g.linear(a, "o_proj", cfg.width, bias=cfg.has_out_bias), "attention_out")
    h = g.rms_norm(x, "post_attention_layernorm", cfg.eps)
    h = g.swiglu(g.linear(h, "gate_proj", cfg.ffn), g.linear(h, "up_proj", cfg.ffn))
    return g.add(x, g.linear(h, "down_proj", cfg.width), "mlp_out")
