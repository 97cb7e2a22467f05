"""Ids to text as they come: only complete code points, and the pieces joined equal the whole decoding."""

import random
from dataclasses import replace

import pytest
from jird.errors import ModelNotSupported
from jird.text.detokenize import Detokenizer, byte_alphabet, decoding_of
from jird.text.gguf_tokenizer import spec_from_gguf
from jird.text.tokenizer import make_tokenizer

from tests.text_samples import EMOJI, byte_level_meta, mixed_strings, sentencepiece_meta


def made(meta):
    spec = spec_from_gguf(meta)
    return make_tokenizer(spec), spec


def stream(tokenizer, spec, ids, **options):
    detokenizer = Detokenizer(tokenizer, spec, **options)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def test_byte_alphabet_is_a_bijection_with_known_points():
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["!"], alphabet["ÿ"]) == (32, 10, 33, 255)


def test_emoji_of_single_bytes_comes_whole_with_its_last_byte():
    tokenizer, spec = made(byte_level_meta("gpt-2"))
    letters = {byte: char for char, byte in byte_alphabet().items()}
    ids = [tokenizer.token_to_id(letters[byte]) for byte in "😀".encode()]
    assert stream(tokenizer, spec, ids) == ["", "", "", "😀", ""]


def test_unfinished_code_point_is_one_replacement_before_what_follows():
    tokenizer, spec = made(byte_level_meta("gpt-2"))
    letters = {byte: char for char, byte in byte_alphabet().items()}
    cut = [tokenizer.token_to_id(letters[byte]) for byte in "😀".encode()[:3]]
    think = tokenizer.token_to_id("<think>")
    assert stream(tokenizer, spec, cut) == ["", "", "", "\ufffd"]
    assert stream(tokenizer, spec, [*cut, think])[-2] == "\ufffd<think>"


def test_pieces_joined_equal_the_tokenizers_decoding_on_every_byte_level_tokenizer():
    draw = random.Random(5)
    for pre in ("smollm", "llama-bpe", "qwen2"):
        tokenizer, spec = made(byte_level_meta(pre))
        cases = [tokenizer.encode(text, special=True) for text in mixed_strings(60)]
        cases += [[draw.randrange(spec.vocab_size) for _ in range(12)] for _ in range(60)]
        for ids in cases:
            for skip in (True, False):
                pieces = stream(tokenizer, spec, ids, skip_special=skip)
                assert "".join(pieces) == tokenizer._whole.decode(ids, skip_special_tokens=skip)
                assert tokenizer.decode(ids, skip_special=skip) == "".join(pieces)


@pytest.mark.parametrize("has_prefix", [True, False])
def test_pieces_joined_equal_the_tokenizers_decoding_on_sentencepiece(has_prefix):
    tokenizer, spec = made(sentencepiece_meta(has_prefix))
    for text in mixed_strings(150):
        ids = tokenizer.encode(text, special=True)
        pieces = stream(tokenizer, spec, ids)
        assert "".join(pieces) == tokenizer._whole.decode(ids)


def test_sentencepiece_keeps_inner_spaces_and_drops_only_the_first():
    tokenizer, spec = made(sentencepiece_meta(True))
    space, letter = tokenizer.token_to_id("▁"), tokenizer.token_to_id("a")
    assert stream(tokenizer, spec, [space, letter, space, letter]) == ["", "a", " ", "a", ""]
    assert stream(tokenizer, spec, [letter, space]) == ["a", " ", ""]


def test_sentencepiece_without_prefix_keeps_the_first_space():
    tokenizer, spec = made(sentencepiece_meta(False))
    space, letter = tokenizer.token_to_id("▁"), tokenizer.token_to_id("a")
    assert stream(tokenizer, spec, [space, letter]) == [" ", "a", ""]


def test_byte_tokens_come_as_code_points_and_invalid_ones_as_replacements():
    tokenizer, spec = made(sentencepiece_meta(False))
    byte = [tokenizer.token_to_id(f"<0x{value:02X}>") for value in range(256)]
    letter = tokenizer.token_to_id("a")
    assert stream(tokenizer, spec, [byte[b] for b in "é😀".encode()]) == ["", "é", "", "", "", "😀", ""]
    assert stream(tokenizer, spec, [byte[0xE3], byte[0x81], letter]) == ["", "", "\ufffd\ufffda", ""]
    assert stream(tokenizer, spec, [byte[0xFF], byte[0x41]]) == ["\ufffd", "A", ""]
    assert stream(tokenizer, spec, [byte[0xF0], byte[0x9F]]) == ["", "", "\ufffd\ufffd"]


def test_zwj_sequences_and_flags_survive_any_tokenizer():
    for meta in (byte_level_meta("smollm"), sentencepiece_meta(True)):
        tokenizer, spec = made(meta)
        assert "".join(stream(tokenizer, spec, tokenizer.encode(EMOJI, special=False))) == EMOJI


def test_special_tokens_are_silent_and_ids_outside_the_vocabulary_too():
    tokenizer, spec = made(byte_level_meta("qwen2"))
    end = tokenizer.token_to_id("<|im_end|>")
    assert stream(tokenizer, spec, [end, 10**6, -1]) == ["", "", "", ""]
    assert stream(tokenizer, spec, [end], skip_special=False)[0] == "<|im_end|>"


def test_token_bytes_joined_are_the_bytes_of_the_text():
    tokenizer, _ = made(byte_level_meta("qwen2"))
    text = "naïve 😀 日本語"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text, special=False))) == text.encode()
    assert tokenizer.token_bytes(tokenizer.token_to_id("<|im_end|>")) is None


def test_metaspace_decoder_drops_the_marks_of_the_first_token():
    tokenizer, spec = made(sentencepiece_meta(False))
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    spec = replace(spec, tokenizer_json={**spec.tokenizer_json, "decoder": metaspace})
    other = make_tokenizer(spec)
    for text in (" a the", "a a", "the  a"):
        ids = [i for i in tokenizer.encode(text, special=False) if not tokenizer.id_to_token(i).startswith("<0x")]
        assert "".join(stream(other, spec, ids)) == other._whole.decode(ids)


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##"}, {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "CTC"}]}])
def test_unknown_decoders_are_refused_by_name(decoder):
    with pytest.raises(ModelNotSupported, match="none|WordPiece|CTC"):
        decoding_of(decoder)
