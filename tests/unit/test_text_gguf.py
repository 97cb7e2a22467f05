"""GGUF tokenizer metadata to a spec: hand-worked values, an independent SentencePiece, and refusals."""

import numpy as np
import pytest
from jird.errors import BadCheckpoint, ModelNotSupported
from jird.text.gguf_tokenizer import PRE_TOKENIZERS, merges_of_scores, spec_from_gguf
from jird.text.tokenizer import make_tokenizer

from tests.text_samples import byte_level_meta, mixed_strings, sentencepiece_meta


def words(pre, text):
    """The pieces that the pre-tokenizer makes, as text."""
    tokenizer = make_tokenizer(spec_from_gguf(byte_level_meta(pre)))
    return [text[a:b] for _, (a, b) in tokenizer._whole.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "want"),
    [
        ("gpt-2", ["I", "'ll", " pay", " 12345", " €", " now", "   ", " x", "\r\n\r", "\n", "'", "S"]),
        ("smollm", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", " €", " now", "   ", " x", "\r\n\r", "\n", "'", "S"]),
        ("llama-bpe", ["I", "'ll", " pay", " ", "123", "45", " €", " now", "   ", " x", "\r\n\r\n", "'S"]),
        ("qwen2", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", " €", " now", "   ", " x", "\r\n\r\n", "'S"]),
    ],
)
def test_pre_tokenizers_cut_as_their_models_do(pre, want):
    assert words(pre, "I'll pay 12345 € now    x\r\n\r\n'S") == want


def test_combining_marks_attach_to_letters_only_in_qwen35():
    assert words("qwen35", "हिन्दी") == ["हिन्दी"]
    assert words("qwen2", "हिन्दी") == ["ह", "िन", "्द", "ी"]


def test_aliases_share_their_familys_rules():
    assert PRE_TOKENIZERS["llama3"] is PRE_TOKENIZERS["llama-bpe"]
    assert PRE_TOKENIZERS["starcoder"] is PRE_TOKENIZERS["smollm"]


def test_whole_words_skip_the_merges_only_for_llama_bpe():
    meta = dict(byte_level_meta("llama-bpe"))
    meta["tokenizer.ggml.tokens"] = [*meta["tokenizer.ggml.tokens"], "qzjx"]
    meta["tokenizer.ggml.token_type"] = [*meta["tokenizer.ggml.token_type"], 1]
    new = len(meta["tokenizer.ggml.tokens"]) - 1
    assert make_tokenizer(spec_from_gguf(meta)).encode("qzjx", special=False) == [new]
    meta["tokenizer.ggml.pre"] = "qwen2"
    assert new not in make_tokenizer(spec_from_gguf(meta)).encode("qzjx", special=False)


def test_nfc_only_where_the_family_normalises():
    decomposed, composed = "e\u0301", "\u00e9"
    qwen = make_tokenizer(spec_from_gguf(byte_level_meta("qwen2")))
    assert qwen.encode(decomposed, special=False) == qwen.encode(composed, special=False)
    smol = make_tokenizer(spec_from_gguf(byte_level_meta("smollm")))
    assert smol.decode(smol.encode(decomposed, special=False)) == decomposed


def test_literals_are_plain_text_unless_asked_for():
    tokenizer = make_tokenizer(spec_from_gguf(byte_level_meta("smollm")))
    end, think = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<think>")
    assert tokenizer.encode("<|im_end|>", special=True) == [end]
    plain = tokenizer.encode("<|im_end|>", special=False)
    assert end not in plain and tokenizer.decode(plain) == "<|im_end|>"
    assert tokenizer.encode("<think>", special=False) == tokenizer.encode("<think>", special=True) == [think]


def test_numpy_arrays_give_the_same_spec_as_lists():
    meta = sentencepiece_meta()
    arrays = dict(meta)
    arrays["tokenizer.ggml.scores"] = np.array(meta["tokenizer.ggml.scores"], np.float32)
    arrays["tokenizer.ggml.token_type"] = np.array(meta["tokenizer.ggml.token_type"], np.int32)
    arrays["tokenizer.ggml.bos_token_id"] = np.uint32(1)
    left, right = spec_from_gguf(meta), spec_from_gguf(arrays)
    assert left.tokenizer_json == right.tokenizer_json
    assert (left.stop_ids, left.prefix_ids) == (right.stop_ids, right.prefix_ids) == ((2,), (1,))


def test_config_and_stop_ids_come_from_the_file():
    meta = byte_level_meta("smollm") | {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 2, "tokenizer.chat_template.tool_use": "T"}
    spec = spec_from_gguf(meta)
    assert spec.stop_ids == (0, 2)
    assert (spec.config["bos_token"], spec.config["eos_token"], spec.prefix_ids) == ("<|im_start|>", "<|endoftext|>", ())
    assert spec.config["chat_templates"] == {"tool_use": "T", "default": meta["tokenizer.chat_template"]}
    assert spec.vocab_size == len(meta["tokenizer.ggml.tokens"])


def sentencepiece(meta, text):
    """SentencePiece's own rule: of all neighbours whose join is a piece, the best scored, leftmost first; bytes for the rest."""
    tokens, types, scores = (meta[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "scores"))
    table = {token: i for i, token in enumerate(tokens) if types[i] == 1}
    parts = list((" " + text if meta["tokenizer.ggml.add_space_prefix"] and text else text).replace(" ", "▁"))
    while True:
        joins = [(-scores[table[a + b]], at) for at, (a, b) in enumerate(zip(parts, parts[1:], strict=False)) if a + b in table]
        if not joins:
            break
        at = min(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [i for part in parts for i in ([table[part]] if part in table else [tokens.index(f"<0x{byte:02X}>") for byte in part.encode()])]


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentencepiece_ids_equal_a_merge_by_scores(has_prefix):
    meta = sentencepiece_meta(has_prefix)
    tokenizer = make_tokenizer(spec_from_gguf(meta))
    for text in mixed_strings(120):
        if "<" not in text:
            assert tokenizer.encode(text, special=False) == sentencepiece(meta, text), text


def test_merges_are_every_split_best_piece_first():
    tokens = ["<unk>", "a", "b", "ab", "abb", "bb", "<0x41>"]
    types = [2, 1, 1, 1, 1, 1, 6]
    scores = [0.0, -5.0, -6.0, -1.0, -3.0, -2.0, 0.0]
    assert merges_of_scores(tokens, types, scores) == [("a", "b"), ("b", "b"), ("ab", "b"), ("a", "bb")]


def test_space_runs_of_gemma_are_pieces_that_merge_first():
    meta = dict(sentencepiece_meta(False))
    meta["tokenizer.ggml.tokens"] = [*meta["tokenizer.ggml.tokens"], "  ", "   "]
    meta["tokenizer.ggml.token_type"] = [*meta["tokenizer.ggml.token_type"], 4, 4]
    meta["tokenizer.ggml.scores"] = [*meta["tokenizer.ggml.scores"], -1000.0, -1000.0]
    tokenizer = make_tokenizer(spec_from_gguf(meta))
    two, three = (tokenizer.token_to_id("▁" * n) for n in (2, 3))
    assert tokenizer.encode("  ", special=False) == [two]
    assert tokenizer.encode("a   a", special=False)[1] == three
    assert tokenizer.decode([three]) == "   "


def without(meta, key):
    return {name: value for name, value in meta.items() if name != key}


@pytest.mark.parametrize(
    ("meta", "error", "says"),
    [
        (byte_level_meta("smollm") | {"tokenizer.ggml.pre": "tekken"}, ModelNotSupported, "tekken"),
        (without(byte_level_meta("smollm"), "tokenizer.ggml.pre"), ModelNotSupported, "None"),
        (byte_level_meta("smollm") | {"tokenizer.ggml.model": "bert"}, ModelNotSupported, "bert"),
        (without(byte_level_meta("smollm"), "tokenizer.ggml.tokens"), BadCheckpoint, "tokens"),
        (without(byte_level_meta("smollm"), "tokenizer.ggml.merges"), BadCheckpoint, "merges"),
        (byte_level_meta("smollm") | {"tokenizer.ggml.token_type": [1, 1]}, BadCheckpoint, "2 token types"),
        (sentencepiece_meta() | {"tokenizer.ggml.scores": [0.0]}, BadCheckpoint, "1 scores"),
        (byte_level_meta("smollm") | {"tokenizer.ggml.eos_token_id": 10**6}, BadCheckpoint, "1000000"),
    ],
)
def test_bad_metadata_is_refused_by_name(meta, error, says):
    with pytest.raises(error, match=says):
        spec_from_gguf(meta)


ODD = [-1, 1 << 63, 0.5, float("nan"), float("inf"), True, "x", "", [], [1], ["a"], [[]], [0.5] * 400, "\ud800"]


@pytest.mark.parametrize("meta", [byte_level_meta("smollm"), sentencepiece_meta()], ids=["gpt2", "llama"])
def test_metadata_of_any_type_is_refused_in_words_or_taken(meta):
    names = [f"tokenizer.ggml.{n}_token_id" for n in ("bos", "eos", "eot", "unknown", "padding")]
    names += [f"tokenizer.ggml.{n}" for n in ("model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token")]
    refusals = 0
    for name in (*names, "tokenizer.chat_template", "tokenizer.chat_template.tool_use"):
        for odd in ODD:
            try:
                spec = spec_from_gguf({**meta, name: odd})
                assert all(type(i) is int for i in (*spec.stop_ids, *spec.prefix_ids, *spec.suffix_ids))
                assert all(isinstance(t, str) for t in spec.config["chat_templates"].values())
            except (BadCheckpoint, ModelNotSupported):
                refusals += 1
    assert refusals > 100
