"""Tokenizer metadata of a GGUF file as a TokenizerSpec: the same structure that tokenizer.json gives.

Source: specs/gguf_tokenizers.md (metadata keys, `pre` names and their patterns, merges of a scored vocabulary).
"""

from __future__ import annotations

import math

from ..errors import BadCheckpoint, ModelNotSupported, shown
from .tokenizer import GPT2_PATTERN, TokenizerSpec, stop_ids_of, vocabulary_of

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # tokenizer.ggml.token_type; 1 normal, 5 unused

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _TAIL
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + _TAIL

# family -> (patterns in order, has NFC normaliser, whole words skip the merges)
_FAMILIES = {
    "gpt-2": ((GPT2_PATTERN,), False, False),
    "smollm": ((r"\p{N}", GPT2_PATTERN), False, False),
    "llama-bpe": ((_LLAMA3,), False, True),
    "qwen2": ((_QWEN2,), True, False),
    "qwen35": ((_QWEN35,), True, False),
}
_ALIASES = {
    "gpt-2": ("gpt-2", "gpt2", "mpt", "olmo", "default"),
    "smollm": ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva"),
    "llama-bpe": ("llama-bpe", "llama3", "dbrx", "smaug", "smaug-bpe"),
    "qwen2": ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"),
    "qwen35": ("qwen35",),
}
PRE_TOKENIZERS = {alias: _FAMILIES[family] for family, aliases in _ALIASES.items() for alias in aliases}

_PREFIX = "tokenizer.ggml."


def spec_from_gguf(meta: dict) -> TokenizerSpec:
    """Spec from the metadata of a GGUF file (its keys; arrays as lists or numpy arrays).

    Raises: ModelNotSupported naming an unknown tokenizer.ggml.model or .pre; BadCheckpoint when keys are missing or
    array lengths disagree.
    """
    tokens = _array(meta, "tokens", str)
    if not tokens:
        raise BadCheckpoint("GGUF metadata has no tokenizer.ggml.tokens")
    types = _array(meta, "token_type", int) or [1] * len(tokens)
    if len(types) != len(tokens):
        raise BadCheckpoint(f"GGUF metadata: {len(tokens)} tokens but {len(types)} token types")
    model = _text(meta, _PREFIX + "model")
    if model == "gpt2":
        tokenizer_json = _byte_level(meta, tokens)
    elif model == "llama":
        tokens, types, scores = _spaces_as_pieces(tokens, types, _array(meta, "scores", float))
        tokenizer_json = _sentencepiece(meta, tokens, types, scores)
    else:
        raise ModelNotSupported(f"GGUF tokenizer model {model!r} is not supported (known: gpt2, llama)")
    tokenizer_json["added_tokens"] = _added_tokens(tokens, types)
    vocabulary = vocabulary_of(tokenizer_json)
    config = _config(meta, tokens, model)
    ends = [_token_id(meta, name, len(tokens)) for name in ("eos", "eot", "eom")]
    bos, eos = (_token_id(meta, name, len(tokens)) for name in ("bos", "eos"))
    spec = TokenizerSpec(
        tokenizer_json,
        config,
        stop_ids_of(vocabulary, ends),
        len(tokens),
        (bos,) if config["add_bos_token"] and bos is not None else (),
        (eos,) if config["add_eos_token"] and eos is not None else (),
    )
    spec.__dict__["vocabulary"] = vocabulary
    return spec


def _byte_level(meta: dict, tokens: list[str]) -> dict:
    pre = _text(meta, _PREFIX + "pre")
    if pre not in PRE_TOKENIZERS:
        raise ModelNotSupported(
            f"GGUF pre-tokenizer {pre!r} is not supported (known: {', '.join(PRE_TOKENIZERS)})",
            "Without its splitting rules the text would be cut into wrong tokens.",
        )
    merges = _array(meta, "merges", str)
    if not merges:
        raise BadCheckpoint("GGUF metadata has no tokenizer.ggml.merges")
    patterns, has_nfc, ignore_merges = PRE_TOKENIZERS[pre]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} for pattern in patterns
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": {"type": "NFC"} if has_nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": _bpe(tokens, merges, ignore_merges=ignore_merges),
    }


def _sentencepiece(meta: dict, tokens: list[str], types: list[int], scores: list[float]) -> dict:
    has_prefix = bool(meta.get(_PREFIX + "add_space_prefix", True))
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    prepend = {"type": "Prepend", "prepend": "\u2581"}
    decoders = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = _token_id(meta, "unknown", len(tokens))
    if unknown is None:
        unknown = types.index(UNKNOWN) if UNKNOWN in types else None
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": {"type": "Sequence", "normalizers": [prepend, spaces]} if has_prefix else spaces,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(
            tokens,
            merges_of_scores(tokens, types, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _spaces_as_pieces(
    tokens: list[str], types: list[int], scores: list[float]
) -> tuple[list[str], list[int], list[float]]:
    """Runs of spaces that the file lists as user-defined text (Gemma) are pieces of U+2581 that merge before all
    others, the longest first."""
    if len(scores) != len(tokens):
        raise BadCheckpoint(f"GGUF metadata: {len(tokens)} tokens but {len(scores)} scores")
    runs = {i for i, kind in enumerate(types) if kind == USER_DEFINED and tokens[i] and not tokens[i].strip(" ")}
    if not runs:
        return tokens, types, scores
    best = max(scores)
    return (
        ["\u2581" * len(token) if i in runs else token for i, token in enumerate(tokens)],
        [1 if i in runs else kind for i, kind in enumerate(types)],
        [best + len(tokens[i]) if i in runs else score for i, score in enumerate(scores)],
    )


def merges_of_scores(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Merges that a scored vocabulary implies: every split of a piece into two pieces, best piece first.

    Pieces are ranked by score, then id; splits of one piece by the ranks of their parts. SentencePiece takes the
    leftmost pair among equal scores, BPE the lowest merge: the same but for overlapping splits of one piece.
    """
    merged = {tokens[i]: i for i in range(len(tokens) - 1, -1, -1) if types[i] not in (UNKNOWN, CONTROL, BYTE)}
    order = sorted(merged.values(), key=lambda i: (-scores[i], i))
    rank = {tokens[i]: position for position, i in enumerate(order)}
    merges: list[tuple[str, str]] = []
    for i in order:
        piece = tokens[i]
        pairs = [
            (rank[left], rank[right], left, right)
            for cut in range(1, len(piece))
            if (left := piece[:cut]) in rank and (right := piece[cut:]) in rank
        ]
        pairs.sort()
        merges.extend(pair[2:] for pair in pairs)
    return merges


def _bpe(tokens: list[str], merges: list, **options) -> dict:
    vocab = {tokens[i]: i for i in range(len(tokens) - 1, -1, -1)}  # of equal tokens the first counts
    plain = {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    fixed = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return {"type": "BPE", **fixed, **plain, **options, "vocab": vocab, "merges": merges}


def _added_tokens(tokens: list[str], types: list[int]) -> list[dict]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": tokens[i], **flags, "special": kind != USER_DEFINED}
        for i, kind in enumerate(types)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and tokens[i]
    ]


def _config(meta: dict, tokens: list[str], model: str) -> dict:
    def text(name: str) -> str | None:
        token = _token_id(meta, name, len(tokens))
        return None if token is None else tokens[token]

    name = "tokenizer.chat_template"
    templates = {key[len(name) + 1 :]: _text(meta, key) for key in meta if key.startswith(name + ".")}
    if _text(meta, name):
        templates["default"] = meta[name]
    adds_bos = model == "llama" or PRE_TOKENIZERS.get(_text(meta, _PREFIX + "pre")) is _FAMILIES["llama-bpe"]
    return {
        "bos_token": text("bos"),
        "eos_token": text("eos"),
        "unk_token": text("unknown"),
        "pad_token": text("padding"),
        "add_bos_token": bool(meta.get(_PREFIX + "add_bos_token", adds_bos)),
        "add_eos_token": bool(meta.get(_PREFIX + "add_eos_token", False)),
        "chat_template": templates.get("default"),
        "chat_templates": templates,
    }


def _token_id(meta: dict, name: str, size: int) -> int | None:
    value = meta.get(f"{_PREFIX}{name}_token_id")
    if value is None:
        return None
    value = value.item() if hasattr(value, "item") else value
    if type(value) is not int or not 0 <= value < size:
        raise BadCheckpoint(f"GGUF metadata: {name}_token_id {shown(value)} is outside the vocabulary of {size}")
    return value


def _array(meta: dict, name: str, kind: type) -> list:
    """A list of str, int or finite float; [] where the key is missing."""
    value = meta.get(_PREFIX + name)
    value = [] if value is None else value.tolist() if hasattr(value, "tolist") else value
    kinds = {float: (float, int)}.get(kind, (kind,))
    if not isinstance(value, list) or not all(type(item) in kinds for item in value):
        raise BadCheckpoint(f"GGUF metadata: {_PREFIX}{name} must be a list of {kind.__name__}")
    if kind is float and not all(map(math.isfinite, value)):
        raise BadCheckpoint(f"GGUF metadata: {_PREFIX}{name} holds a number that is not finite")
    return value


def _text(meta: dict, key: str) -> str | None:
    value = meta.get(key)
    if value is not None and not isinstance(value, str):
        raise BadCheckpoint(f"GGUF metadata: {key} is {shown(value)}; text is expected")
    return value
