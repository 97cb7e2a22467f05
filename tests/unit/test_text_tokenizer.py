"""Specs from a checkpoint's files: stop ids, bos and eos, templates; and what encoding does with odd input."""

import pytest
from jird.errors import BadCheckpoint, ModelNotSupported
from jird.text.gguf_tokenizer import spec_from_gguf
from jird.text.tokenizer import make_tokenizer, spec_from_files, vocabulary_of

from tests.text_samples import byte_level_meta


def tokenizer_json(**changes):
    """A tokenizer.json of one-character tokens with <s> 0, </s> 1, <|im_end|> 2 as added tokens."""
    letters = {letter: i + 3 for i, letter in enumerate("abc ")}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": content, **flags, "special": True} for i, content in enumerate(["<s>", "</s>", "<|im_end|>"])],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "unk_token": None, "vocab": {"<s>": 0, "</s>": 1, "<|im_end|>": 2} | letters, "merges": []},
        **changes,
    }


def template_processing(before, after):
    ids = {"<s>": 0, "</s>": 1}
    piece = [{"SpecialToken": {"id": name, "type_id": 0}} for name in before]
    tail = [{"SpecialToken": {"id": name, "type_id": 0}} for name in after]
    return {
        "type": "TemplateProcessing",
        "single": [*piece, {"Sequence": {"id": "A", "type_id": 0}}, *tail],
        "pair": [],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in ids},
    }


def test_stop_ids_are_the_union_of_all_files_and_of_known_turn_ends():
    model_config = {"eos_token_id": 5, "text_config": {"eos_token_id": 6}}
    spec = spec_from_files(tokenizer_json(), {"eos_token": {"content": "</s>"}}, {"eos_token_id": [4, 1, 999]}, None, model_config)
    assert spec.stop_ids == (4, 1, 5, 6, 2)


def test_stop_ids_without_generation_config_are_the_tokenizers_eos_and_turn_ends():
    assert spec_from_files(tokenizer_json(), {"eos_token": "</s>"}).stop_ids == (1, 2)


def test_post_processor_tells_what_goes_around_a_text():
    spec = spec_from_files(tokenizer_json(post_processor={"type": "Sequence", "processors": [template_processing(["<s>"], ["</s>"])]}))
    assert (spec.prefix_ids, spec.suffix_ids) == ((0,), (1,))
    roberta = {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    spec = spec_from_files(tokenizer_json(post_processor=roberta))
    assert (spec.prefix_ids, spec.suffix_ids) == ((0,), (1,))


def test_config_switches_bos_over_the_post_processor():
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    assert spec_from_files(tokenizer_json(), config | {"add_bos_token": True}).prefix_ids == (0,)
    with_bos = tokenizer_json(post_processor=template_processing(["<s>"], []))
    assert spec_from_files(with_bos, config | {"add_bos_token": False}).prefix_ids == ()
    assert spec_from_files(with_bos, config | {"add_eos_token": True}).suffix_ids == (1,)


def test_template_file_wins_over_the_config_and_named_templates_are_kept():
    config = {"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}
    assert spec_from_files(tokenizer_json(), config).config["chat_template"] == "D"
    spec = spec_from_files(tokenizer_json(), config, None, "F")
    assert (spec.config["chat_template"], spec.config["chat_templates"]["tool_use"]) == ("F", "T")


def test_added_tokens_known_only_to_the_config_are_added():
    entry = {"content": "<tool>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    spec = spec_from_files(tokenizer_json(), {"added_tokens_decoder": {"7": entry, "0": {"content": "<s>", "special": True}}})
    assert spec.vocab_size == 8
    tokenizer = make_tokenizer(spec)
    assert tokenizer.encode("a<tool>", special=True) == [3, 7]
    assert tokenizer.token_to_id("<tool>") == 7


def test_encoding_never_adds_bos_or_eos():
    spec = spec_from_files(tokenizer_json(post_processor=template_processing(["<s>"], ["</s>"])))
    assert make_tokenizer(spec).encode("abc", special=True) == [3, 4, 5]


def test_first_word_prefix_is_left_out_where_the_text_continues():
    model = {"type": "BPE", "unk_token": None, "vocab": {"<s>": 0, "</s>": 1, "<|im_end|>": 2, "▁": 3, "a": 4}, "merges": []}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    tokenizer = make_tokenizer(spec_from_files(tokenizer_json(model=model, pre_tokenizer=metaspace)))
    assert tokenizer.encode("a", special=False) == [3, 4]
    assert tokenizer.encode("a", special=False, continues=True) == [4]
    assert tokenizer.encode("<s>a", special=True) == [0, 4]


def test_unpaired_surrogates_become_replacement_characters():
    tokenizer = make_tokenizer(spec_from_gguf(byte_level_meta("smollm")))
    assert tokenizer.decode(tokenizer.encode("a\ud83db", special=False)) == "a\ufffdb"


def test_vocabulary_of_unigram_lists_and_of_holes():
    unigram = tokenizer_json(model={"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}, added_tokens=[])
    assert vocabulary_of(unigram).ids == {"<unk>": 0, "a": 1}
    hole = vocabulary_of(tokenizer_json(added_tokens=[{"id": 9, "content": "<x>", "special": True}]))
    assert (len(hole.tokens), hole.token(8), hole.token(9), hole.token(10), hole.special_ids) == (10, None, "<x>", None, {9})


def test_light_spec_keeps_what_answers_need():
    spec = spec_from_gguf(byte_level_meta("qwen2"))
    tokenizer, light = make_tokenizer(spec), spec.light()
    assert "merges" not in light.tokenizer_json["model"] and "vocab" not in light.tokenizer_json["model"]
    assert light.vocabulary is spec.vocabulary
    tokenizer.spec = light
    assert tokenizer.decode(tokenizer.encode("héllo", special=True)) == "héllo"


@pytest.mark.parametrize("broken", [{}, {"model": None}, {"model": {"type": "BPE", "vocab": {}}}, []])
def test_files_without_a_vocabulary_are_bad_checkpoints(broken):
    with pytest.raises(BadCheckpoint, match="vocab"):
        spec_from_files(broken)


def test_a_pipeline_that_the_engine_does_not_know_is_not_supported():
    with pytest.raises(ModelNotSupported, match="tokenizer.json"):
        make_tokenizer(spec_from_files(tokenizer_json(normalizer={"type": "Martian"})))


ODD = [0, -1, 1 << 40, 0.5, float("nan"), True, "x", [], [1], [[]], [None], {}, {"type": "x"}, {"type": 5}, {"content": 5}, [{"id": 0}]]
FILES = {
    "tokenizer_json": tokenizer_json(post_processor=template_processing(["<s>"], [])),
    "tokenizer_config": {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": [{"name": "default", "template": "x"}],
                         "added_tokens_decoder": {"9": {"content": "<x>"}}, "add_bos_token": True},
    "generation_config": {"eos_token_id": [1]},
    "model_config": {"eos_token_id": 1, "text_config": {"eos_token_id": 1}},
}


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


def put(value, at, new):
    if not at:
        return new
    copy = value.copy()
    copy[at[0]] = put(copy[at[0]], at[1:], new)
    return copy


@pytest.mark.parametrize("name", FILES)
def test_files_with_any_value_anywhere_are_refused_in_words_or_taken(name):
    refusals = 0
    for at in places(FILES[name]):
        for odd in ODD:
            try:
                spec = spec_from_files(**{**FILES, "chat_template": None, name: put(FILES[name], at, odd)})
                assert all(type(i) is int and i >= 0 for i in (*spec.stop_ids, *spec.prefix_ids, *spec.suffix_ids))
                assert len(spec.vocabulary.tokens) < 1 << 22
            except (BadCheckpoint, ModelNotSupported):
                refusals += 1
    assert refusals > 10
