"""Messages to prompt ids: what templates may use, literals that stay text, bos, and messages that are refused."""

import datetime
import random

import pytest
from jird.errors import BadRequest, ModelNotSupported
from jird.text.chat import checked, encode_chat, encode_prompt, render
from jird.text.gguf_tokenizer import spec_from_gguf
from jird.text.tokenizer import make_tokenizer

from tests.text_samples import PARTS, SPECIALS, byte_level_meta, sentencepiece_meta

HELLO = [{"role": "user", "content": "Hello"}]


def made(meta=None, template=None, **changes):
    meta = dict(meta or byte_level_meta("smollm")) | changes
    if template is not None:
        meta["tokenizer.chat_template"] = template
    spec = spec_from_gguf(meta)
    return make_tokenizer(spec), spec


def rendered(template, messages=HELLO, **options):
    return render(made(template=template)[1], messages, **options)


def test_whitespace_control_is_that_of_transformers():
    template = "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n"
    assert rendered(template) == "Hello\n"


def test_loop_controls_generation_blocks_and_namespaces_work():
    loop = "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{% set n.i = n.i + 1 %}{% endfor %}"
    template = "{% set n = namespace(i=0) %}" + loop + "{{ n.i }}{% generation %}G{% endgeneration %}"
    assert rendered(template, HELLO * 3) == "1G"


def test_tojson_is_pythons_without_escapes():
    assert rendered("{{ messages[0] | tojson }}", [{"role": "user", "content": "é <b> \"q\""}]) == '{"role": "user", "content": "é <b> \\"q\\""}'
    assert rendered("{{ {'b': 1, 'a': [1, true, none]} | tojson(indent=2, sort_keys=true) }}") == '{\n  "a": [\n    1,\n    true,\n    null\n  ],\n  "b": 1\n}'


def test_dates_come_from_the_given_clock():
    day = datetime.datetime(2024, 7, 26)
    assert rendered("{{ strftime_now('%d %b %Y') }}", clock=lambda: day) == "26 Jul 2024"


def test_special_tokens_and_variables_reach_the_template():
    template = "{{ bos_token }}{{ eos_token }}{{ enable_thinking }}{{ unk_token is defined }}{{ add_generation_prompt }}"
    assert rendered(template, enable_thinking=False, add_generation_prompt=False) == "<|im_start|><|im_end|>FalseFalseFalse"


def test_tool_template_is_taken_when_tools_are_given():
    _, spec = made(template="plain", **{"tokenizer.chat_template.tool_use": "{{ tools | length }} tools"})
    assert render(spec, HELLO) == "plain"
    assert render(spec, HELLO, tools=[{"name": "f"}]) == "1 tools"


def test_template_refusals_are_bad_requests_with_its_words():
    with pytest.raises(BadRequest, match="roles must alternate"):
        rendered("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadRequest, match="refuses"):
        rendered("{{ messages[0].missing.deeper }}")


def test_broken_templates_are_not_supported():
    with pytest.raises(ModelNotSupported, match="template"):
        rendered("{% if %}")


@pytest.mark.parametrize("template", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{% for i in range(10**9) %}{% endfor %}"])
def test_templates_run_in_a_sandbox(template):
    with pytest.raises(BadRequest):
        rendered(template)


def test_chatml_is_the_fallback_where_its_tokens_exist():
    meta = {key: value for key, value in byte_level_meta("smollm").items() if key != "tokenizer.chat_template"}
    _, spec = made(meta)
    messages = [{"role": "system", "content": "S"}, *HELLO]
    assert render(spec, messages) == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert render(spec, HELLO, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


def test_without_template_and_chatml_tokens_chat_is_refused():
    with pytest.raises(BadRequest, match="no chat template"):
        render(spec_from_gguf(sentencepiece_meta()), HELLO)


def test_without_literals_the_prompt_is_encoded_whole():
    tokenizer, spec = made()
    text = render(spec, HELLO)
    assert encode_chat(tokenizer, spec, HELLO) == tokenizer.encode(text, special=True)


def test_a_literal_in_a_message_stays_plain_text():
    tokenizer, spec = made()
    messages = [{"role": "user", "content": "say <|im_end|> now"}]
    ids = encode_chat(tokenizer, spec, messages)
    assert ids.count(tokenizer.token_to_id("<|im_end|>")) == 1
    assert tokenizer.decode(ids, skip_special=False) == render(spec, messages)


def test_random_messages_never_make_special_tokens_and_never_lose_a_character():
    draw = random.Random(11)
    tokenizer, spec = made()
    parts = [*PARTS, *SPECIALS, "<|im_", "end|>", "\ue000", "\ue001"]
    for _ in range(150):
        contents = ["".join(draw.choice(parts) for _ in range(draw.randint(0, 8))) for _ in range(4)]
        messages = [{"role": role, "content": text} for role, text in zip(("system", "user", "assistant", "user"), contents, strict=True)]
        ids = encode_chat(tokenizer, spec, messages)
        assert [ids.count(tokenizer.token_to_id(name)) for name in SPECIALS] == [0, 5, 4]
        assert tokenizer.decode(ids, skip_special=False) == render(spec, messages)


def test_pieces_and_whole_give_the_same_ids_around_a_literal():
    """The texts between the template's specials are encoded as in one go: only the message with the literal differs."""
    tokenizer, spec = made(byte_level_meta("qwen2"))
    start = tokenizer.token_to_id("<|im_start|>")
    with_literal = encode_chat(tokenizer, spec, [{"role": "system", "content": "<|im_end|>"}, *HELLO])
    without = encode_chat(tokenizer, spec, [{"role": "system", "content": "x"}, *HELLO])
    assert with_literal[with_literal.index(start, 1) :] == without[without.index(start, 1) :]


def test_literals_in_tools_stay_plain_text_too():
    tokenizer, spec = made(template="{{ tools | tojson }}<|im_end|>")
    ids = encode_chat(tokenizer, spec, HELLO, tools=[{"name": "<|im_end|>"}])
    assert ids.count(tokenizer.token_to_id("<|im_end|>")) == 1
    assert tokenizer.decode(ids, skip_special=False) == '[{"name": "<|im_end|>"}]<|im_end|>'


def test_bos_comes_once_whether_the_template_writes_it_or_not():
    for template in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"):
        tokenizer, spec = made(sentencepiece_meta(), template)
        for text in ("hi", "hi <s> there"):
            ids = encode_chat(tokenizer, spec, [{"role": "user", "content": text}])
            assert ids[0] == 1 and ids.count(1) == 1
    assert encode_prompt(tokenizer, spec, "hi")[:1] == [1]
    assert encode_prompt(tokenizer, spec, "<s>hi").count(1) == 1
    assert encode_prompt(tokenizer, spec, "<s>hi", special=False).count(1) == 1


def test_raw_prompt_parses_literals_unless_told_not_to():
    tokenizer, spec = made()
    end = tokenizer.token_to_id("<|im_end|>")
    assert encode_prompt(tokenizer, spec, "a<|im_end|>")[-1] == end
    assert end not in encode_prompt(tokenizer, spec, "a<|im_end|>", special=False)


def test_text_parts_are_joined_and_other_parts_kept():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert checked([{"role": "user", "content": parts}]) == [{"role": "user", "content": "ab"}]
    image = [{"type": "image"}, parts[0]]
    assert checked([{"role": "user", "content": image}])[0]["content"] == image


def test_tool_calls_may_come_without_content():
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert checked([message])[0]["content"] == ""


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "at least one"),
        (None, "at least one"),
        ("hi", "at least one"),
        (["hi"], "message 0 must be an object"),
        ([{"content": "x"}], "role None"),
        ([{"role": "wizard", "content": "x"}], "'wizard'"),
        ([*HELLO, {"role": "user"}], "message 1 must have text"),
        ([{"role": "user", "content": 3}], "must have text"),
        ([{"role": "user", "content": ["x"]}], "content part"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text part"),
        ([{"role": "assistant", "content": None}], "must have text"),
    ],
)
def test_malformed_messages_are_refused_by_name(messages, says):
    tokenizer, spec = made()
    with pytest.raises(BadRequest, match=says):
        encode_chat(tokenizer, spec, messages)


def test_a_text_with_every_private_use_character_still_has_its_literals_broken():
    spec = spec_from_gguf(byte_level_meta("smollm"))
    text = "".join(map(chr, range(0xE000, 0xF900))) + "<|im_end|>"
    ids = encode_chat(make_tokenizer(spec), spec, [{"role": "user", "content": text}])
    end = spec.vocabulary.ids["<|im_end|>"]
    assert ids.count(end) == encode_chat(make_tokenizer(spec), spec, [{"role": "user", "content": "x"}]).count(end)


@pytest.mark.parametrize("key", [b"x", (1,), None, 5])
def test_a_message_with_a_key_that_is_no_name_is_refused(key):
    with pytest.raises(BadRequest, match="names as keys"):
        checked([{"role": "user", "content": "x", key: 1}])
