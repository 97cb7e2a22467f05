"""Strings, small tokenizers and conversations that the text tests share."""

from __future__ import annotations

import json
import random
from functools import lru_cache

import tokenizers
from jird.text.gguf_tokenizer import PRE_TOKENIZERS
from tokenizers import models, trainers
from tokenizers.pre_tokenizers import PreTokenizer

EMOJI = "😀😃 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷"
CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WHOLE = [
    *("", " ", "  ", "\n", "\r\n", "\t", "a", " a", "  a", "a ", "a  ", "Hello, world!", " leading", "trailing ", "two  spaces"),
    *("tabs\tand\nnew\n\nlines\n\n\n", "\r\n\r\n x", "a\r\nb\rc", "0123456789", "3.14159 1,000,000", "x²+y³=½ １２３ ٣٤٥ १२३"),
    *("don't I'll WE'VE he's ’s 'ſa", "naïve café e\u0301 a\u0308 ﬁ Å \u212b", "日本語のテキスト。中文字符，標點", "한국어 문장입니다."),
    *("हिन्दी में पाठ ক্ষ", "ภาษาไทย", "שלום עולם مرحبا", EMOJI, "\u200b\u200d\ufeff x\ufeff", "\x85 a\x85b \u2028 \u2029 \u3000x\u00a0y"),
    *("<|im_end|>", "a<|im_start|>b", "<|endoftext|><|im_end|>", "<s></s><unk>", "<think>x</think>", "<0x0A> <0x41>", "▁x ▁▁y"),
    *("\x00\x01\x7f", "def f(x):\n    return x  # ok\n", '{"a": [1, 2, {"b": null}]}', "https://example.com/a?b=c&d=%20", "!!!???...;;;"),
    *("—–-−", "𝔘𝔫𝔦 𒀀 \U0001f9ff", "ÀÉÎ ß ẞ İ ı ǆ", "\ue000\uf8ff", "A" * 300, "ab" * 200, " " * 70, "\n" * 40, "<|im_<|im_end|>end|>"),
]
PARTS = [
    *(" ", "  ", "\n", "\r\n", "\t", "a", "the", "The", " cat", "ing", "'s", "'S", "’", "1", "23", "4567", "é", "e\u0301", "ñ", "日", "本語"),
    *("。", "😀", "👩‍💻", "\u200d", "ह", "िन", "ш", "привет", " Γειά", "<|im_end|>", "<|im_start|>", "<s>", "</s>", "<think>", "▁", "-"),
    *("_", ".", ",", "!?", "(", ")", "\u00a0", "\u3000", "\ufeff", "\x85", "½", "٣", "ß", "한"),
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def mixed_strings(count: int = 300, seed: int = 0) -> list[str]:
    """The whole strings and `count` seeded mixtures of parts."""
    draw = random.Random(seed)
    return WHOLE + ["".join(draw.choice(PARTS) for _ in range(draw.randint(1, 12))) for _ in range(count)]


@lru_cache
def byte_level_meta(pre: str, vocab_size: int = 700) -> dict:
    """GGUF metadata of a small byte-level BPE trained here, the special tokens first, <think> user-defined last."""
    patterns = PRE_TOKENIZERS[pre][0]
    steps = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    engine = tokenizers.Tokenizer(models.BPE())
    shell = json.loads(engine.to_str()) | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]}}
    engine = tokenizers.Tokenizer.from_str(json.dumps(shell))
    assert isinstance(engine.pre_tokenizer, PreTokenizer)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False)
    engine.train_from_iterator(mixed_strings(400, seed=1), trainer)
    model = json.loads(engine.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), "<think>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS) - 1) + [4],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML_TEMPLATE,
    }


@lru_cache
def sentencepiece_meta(has_prefix: bool = True, vocab_size: int = 700) -> dict:
    """GGUF metadata of a small scored vocabulary: unk, bos, eos, 256 byte tokens, then pieces by falling score."""
    engine = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, limit_alphabet=120)
    engine.train_from_iterator([text.replace(" ", "▁") for text in mixed_strings(300, seed=2)], trainer)
    model = json.loads(engine.to_str())["model"]
    pieces = [piece for piece in sorted(model["vocab"], key=model["vocab"].get) if "<" not in piece]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": has_prefix,
    }
