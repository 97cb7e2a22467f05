"""tiny-chat: a seeded two-layer llama with SmolLM2's tokenizer and template, as a GGUF file and as a folder in HF's form.

Runs inside the environment (numpy, gguf); build.py starts it there. Both forms hold the same numbers: every weight is an
integer times a power of two, so Q8_0, Q4_1 and f16 store it exactly. The answers mean nothing; they are the same everywhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import sys
from pathlib import Path

from tools.env import CACHE, say

VOCAB, LAYERS, WIDTH, FFN, HEADS, KV_HEADS, CONTEXT, EPS, THETA = 49152, 2, 64, 192, 4, 2, 1024, 1e-5, 10000.0
HEAD_DIM = WIDTH // HEADS
SEED = 7


def make(gguf_source: Path, folder: Path = CACHE / "checkpoints/tiny-chat") -> Path:
    """Write `folder`/tiny-chat.gguf and `folder`/hf/, unless this maker and this source have already; returns `folder`.

    `gguf_source` is the SmolLM2 file whose tokenizer.* keys are taken.
    """
    stamp, maker = folder / "stamp", hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == maker:
        return folder
    (folder / "hf").mkdir(parents=True, exist_ok=True)
    weights, tokenizer_keys = tiny_weights(), _tokenizer_keys(gguf_source)
    _write_gguf(folder / "tiny-chat.gguf", weights, tokenizer_keys)
    _write_safetensors(folder / "hf/model.safetensors", weights)
    _write_hf_files(folder / "hf", tokenizer_keys)
    stamp.write_text(maker)
    return folder


def tiny_weights() -> dict:
    """HF name -> (int array, exponent): the weight is ints * 2**exponent.

    Shapes: as in HF's LlamaForCausalLM, tied
    """
    import numpy as np

    rng = np.random.default_rng(SEED)

    def nibbles(rows: int, columns: int, exponent: int):
        return rng.integers(-8, 8, (rows, columns)), exponent

    weights = {"model.embed_tokens.weight": (rng.integers(-100, 101, (VOCAB, WIDTH)), -9)}
    ones = np.ones(WIDTH, np.int64)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        weights |= {at + "input_layernorm.weight": (ones, 0), at + "post_attention_layernorm.weight": (ones, 0)}
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            weights[f"{at}self_attn.{name}_proj.weight"] = nibbles(rows * HEAD_DIM, WIDTH, -5)
        weights[at + "self_attn.o_proj.weight"] = nibbles(WIDTH, WIDTH, -4)
        weights[at + "mlp.gate_proj.weight"] = nibbles(FFN, WIDTH, -5)
        weights[at + "mlp.up_proj.weight"] = nibbles(FFN, WIDTH, -5)
        weights[at + "mlp.down_proj.weight"] = nibbles(WIDTH, FFN, -5)
    weights["model.norm.weight"] = (ones, 0)
    return weights


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """HF's weight name in GGUF's words."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def permuted(rows, heads: int):
    """Rows of q or k in the order of GGUF's llama arch (pairwise rope) from HF's (halves)."""
    out, columns = rows.shape
    return rows.reshape(heads, 2, out // heads // 2, columns).swapaxes(1, 2).reshape(out, columns)


def q8_0(ints, exponent: int):
    """Blocks of 32: f16 scale, 32 int8. Shapes: ints [N, K] -> bytes [N, K/32*34] u8"""
    import numpy as np

    blocks = ints.astype(np.int8).reshape(-1, 32)
    scale = np.full((len(blocks), 1), 2.0**exponent, np.float16).view(np.uint8)
    return np.hstack([scale, blocks.view(np.uint8)]).reshape(len(ints), -1)


def q4_1(ints, exponent: int):
    """Blocks of 32: f16 scale, f16 minimum, 16 bytes with weight j low and j + 16 high. Shapes: [N, K] -> [N, K/32*20] u8"""
    import numpy as np

    blocks = (ints + 8).astype(np.uint8).reshape(-1, 32)
    pair = np.tile(np.array([2.0**exponent, -8 * 2.0**exponent], np.float16).view(np.uint8), (len(blocks), 1))
    return np.hstack([pair, blocks[:, :16] | blocks[:, 16:] << 4]).reshape(len(ints), -1)


def _tokenizer_keys(source: Path) -> dict:
    """tokenizer.* key -> value."""
    from jird.weights.gguf import read_gguf
    from jird.weights.source import FileSource

    file = FileSource(source)
    meta = asyncio.run(read_gguf(file)).meta
    file.close()
    return {name: value for name, value in meta.items() if name.startswith("tokenizer.")}


def _value_types(value):
    """(GGUF type, element type or None) of a value as the reader gives it; whole numbers are ids."""
    from gguf import GGUFValueType as Type

    plain = {str: Type.STRING, bool: Type.BOOL, int: Type.UINT32, float: Type.FLOAT32}
    if isinstance(value, list):
        return Type.ARRAY, Type.INT32 if type(value[0]) is int else plain[type(value[0])]
    return plain[type(value)], None


def _write_gguf(path: Path, weights: dict, tokenizer_keys: dict) -> None:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-chat")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(THETA)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(VOCAB)
    for name, value in tokenizer_keys.items():
        writer.add_key_value(name, value, *_value_types(value))
    for name, (ints, exponent) in weights.items():
        if ints.ndim == 1:
            writer.add_tensor(gguf_name(name), (ints * 2.0**exponent).astype(np.float32))
            continue
        if "q_proj" in name or "k_proj" in name:
            ints = permuted(ints, HEADS if "q_proj" in name else KV_HEADS)
        is_embedding = name == "model.embed_tokens.weight"
        data = q8_0(ints, exponent) if is_embedding else q4_1(ints, exponent)
        kind = gguf.GGMLQuantizationType.Q8_0 if is_embedding else gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_safetensors(path: Path, weights: dict) -> None:
    import numpy as np

    header: dict = {"__metadata__": {"format": "pt"}}
    blobs, offset = [], 0
    for name, (ints, exponent) in weights.items():
        blob = (ints * 2.0**exponent).astype(np.float16).tobytes()
        header[name] = {"dtype": "F16", "shape": list(ints.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def _write_hf_files(folder: Path, meta: dict) -> None:
    """config.json, tokenizer.json, tokenizer_config.json and generation_config.json."""
    from jird.text.gguf_tokenizer import spec_from_gguf

    spec = spec_from_gguf(meta)
    tokens = meta["tokenizer.ggml.tokens"]
    bos, eos = int(meta["tokenizer.ggml.bos_token_id"]), int(meta["tokenizer.ggml.eos_token_id"])
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "num_hidden_layers": LAYERS,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    tokenizer_config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": tokens[bos],
        "eos_token": tokens[eos],
        "chat_template": meta["tokenizer.chat_template"],
    }
    files = {
        "config.json": config,
        "tokenizer.json": spec.tokenizer_json,
        "tokenizer_config.json": tokenizer_config,
        "generation_config.json": {"bos_token_id": bos, "eos_token_id": eos},
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    made = make(Path(sys.argv[1]), *map(Path, sys.argv[2:]))
    say(f"{made / 'tiny-chat.gguf'} and {made / 'hf'}")
