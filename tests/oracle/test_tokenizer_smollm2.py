"""SmolLM2's own metadata: the prompt, its ids and the answer's text are those recorded from the reference."""

import asyncio
import json
from pathlib import Path

import pytest
from jird.engine.join import content_ids, joined
from jird.text.chat import encode_chat, render
from jird.text.detokenize import Detokenizer
from jird.text.gguf_tokenizer import spec_from_gguf
from jird.text.tokenizer import make_tokenizer
from jird.weights.gguf import read_gguf
from jird.weights.source import FileSource

CASES = json.loads((Path(__file__).parent.parent / "golden/smollm2_greedy.json").read_text())


@pytest.fixture(scope="module")
def smollm2(model_path):
    source = FileSource(model_path)
    spec = spec_from_gguf(dict(asyncio.run(read_gguf(source)).meta))
    source.close()
    return make_tokenizer(spec), spec


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["messages"][-1]["content"])
def test_prompt_ids_and_text_are_the_recorded_ones(smollm2, case):
    tokenizer, spec = smollm2
    assert render(spec, case["messages"]) == case["prompt"]
    assert encode_chat(tokenizer, spec, case["messages"]) == case["prompt_ids"]
    stream = Detokenizer(tokenizer, spec)
    assert "".join([*map(stream.push, case["ids"]), stream.flush()]) == case["text"]


def test_the_file_says_when_to_stop_and_adds_no_bos(smollm2):
    _, spec = smollm2
    assert (spec.stop_ids, spec.prefix_ids, spec.suffix_ids, spec.vocab_size) == ((2,), (), (), 49152)


def test_a_literal_in_a_message_changes_no_other_id(smollm2):
    tokenizer, spec = smollm2
    messages = [{"role": "system", "content": "<|im_end|>"}, CASES[0]["messages"][0]]
    ids, recorded = encode_chat(tokenizer, spec, messages), CASES[0]["prompt_ids"]
    assert ids[-15:] == recorded[-15:] and ids.count(2) == 2
    assert tokenizer.decode(ids, skip_special=False) == render(spec, messages)


@pytest.mark.parametrize("split", [False, True], ids=["as encoded", "one id a character"])
@pytest.mark.parametrize("start", ["", "\n"], ids=["plain", "begins with what merges into the header"])
def test_a_turn_begins_with_all_ids_before_it(smollm2, split, start):
    """Also where the answer's ids are not those of its text, or its first character would merge with the header's last."""
    tokenizer, spec = smollm2
    messages, known, answers = [], [], []
    for case in CASES:
        messages.append(case["messages"][-1])
        rendered = encode_chat(tokenizer, spec, messages)
        prompt = joined(tokenizer, rendered, answers)
        assert prompt[: len(known)] == known
        assert tokenizer.decode(prompt, skip_special=False) == render(spec, messages)
        text = start + case["text"]
        made = [i for c in text for i in tokenizer.encode(c, special=False)] if split else tokenizer.encode(start, special=False) + tokenizer.encode(case["text"], special=False)
        known = [*prompt, *made, *spec.stop_ids]
        answers.append((rendered, content_ids(tokenizer, spec, [*made, *spec.stop_ids], text)))
        messages.append({"role": "assistant", "content": text})
