"""Writes tests/golden/llama/: tiny random checkpoints of the Llama family and what transformers computes with them.

    python tests/oracle/make_llama.py     (transformers 5.24.0, torch 2.13.0 on the CPU; in an environment of its own)

One folder a case: config.json and model.safetensors as save_pretrained writes them, golden.json (prompt ids, greedy ids, the
top-1 margin of each) and logits.npy [T, vocab] f32 of prompt + greedy ids, in fp32 with eager attention.
"""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import torch
import transformers

GOLDEN = Path(__file__).parent.parent / "golden/llama"
SHARED = dict(vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
# name: (transformers' config and model class, config on top of SHARED, dtype of the file, prompt length)
CASES = {
    "gqa": ("Llama", {}, torch.bfloat16, 12),
    "llama3_rope": ("Llama", {"rope_parameters": LLAMA3}, torch.bfloat16, 40),
    "linear_rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}, "num_hidden_layers": 1}, torch.float16, 12),
    "qwen2_bias": ("Qwen2", {}, torch.bfloat16, 12),
    "mistral_window": ("Mistral", {"sliding_window": 8}, torch.bfloat16, 20),
    "untied": ("Llama", {"tie_word_embeddings": False, "num_key_value_heads": 4, "vocab_size": 150, "num_hidden_layers": 1}, torch.float32, 12),
    "head_dim": ("Llama", {"head_dim": 24, "attention_bias": True, "num_attention_heads": 2, "num_key_value_heads": 1}, torch.bfloat16, 12),
}
MADE = 20
SPREAD = 0.2  # standard deviation of the weights: logits far enough apart for margins, attention that looks at more than one key


def model_of(kind: str, changes: dict, dtype: torch.dtype, seed: int):
    """A seeded model in fp32 whose weights are exact in `dtype`."""
    config = getattr(transformers, f"{kind}Config")(**{**SHARED, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=generator)
            is_norm = name.endswith("norm.weight")
            weight.copy_((1 + 0.1 * values if is_norm else SPREAD * values).to(dtype).float())
    return model


def answered(model, prompt: list[int]) -> tuple[list[int], np.ndarray, list[float]]:
    """prompt + greedy ids, the logits after each, and the top-1 margin of each greedy id."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(MADE):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        logits = model(torch.tensor([ids])).logits[0].float().numpy()
    top = np.sort(logits, axis=-1)[:, -2:]
    return ids, logits, [round(float(m), 4) for m in (top[:, 1] - top[:, 0])[len(prompt) - 1: -1]]


def write(name: str, kind: str, changes: dict, dtype: torch.dtype, prompt_length: int) -> None:
    """The first seed whose first 12 margins are sure, so that the ids say something."""
    for seed in count(1):
        model = model_of(kind, changes, dtype, seed)
        prompt = np.random.default_rng(seed).integers(0, model.config.vocab_size, prompt_length).tolist()
        ids, logits, margins = answered(model, prompt)
        if min(margins[:12]) >= 0.03:
            break
    folder = GOLDEN / name
    folder.mkdir(parents=True)
    np.save(folder / "logits.npy", logits)
    (folder / "golden.json").write_text(json.dumps({"prompt_ids": prompt, "ids": ids[prompt_length:], "margins": margins}) + "\n")
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    print(name, "seed", seed, sum(f.stat().st_size for f in folder.iterdir()), "bytes, least margin", min(margins))


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    torch.set_num_threads(1)
    for case, rest in CASES.items():
        write(case, *rest)
