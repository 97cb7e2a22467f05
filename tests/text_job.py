"""One description of text work, run by CPython and by Pyodide with the same code; the tests compare the answers.

Runs inside Pyodide too: only jird.text and the standard library.
"""

from __future__ import annotations

import datetime
import sys
import time

from jird.errors import JirdError
from jird.text import chat
from jird.text.detokenize import Detokenizer
from jird.text.gguf_tokenizer import spec_from_gguf
from jird.text.tokenizer import TokenizerSpec, make_tokenizer, spec_from_files

NOW = datetime.datetime(2026, 12, 1, 9, 5)


def run(job: dict) -> dict:
    """job: {specs: {name: {gguf} or {files}}, strings, ids, chats: [{spec, messages, variables}]} -> ids, texts, prompts."""
    result: dict = {"platform": sys.platform, "encoded": {}, "streamed": {}, "chats": [], "seconds": {}}
    tokenizers = {}
    for name, source in job["specs"].items():
        start = time.perf_counter()
        spec = spec_from_gguf(source["gguf"]) if "gguf" in source else spec_from_files(*source["files"])
        middle = time.perf_counter()
        tokenizers[name] = spec, make_tokenizer(spec)
        result["seconds"][name] = [middle - start, time.perf_counter() - middle]
        encoded = _encode_all(tokenizers[name][1], job["strings"])
        result["encoded"][name] = encoded
        result["streamed"][name] = [_streamed(*tokenizers[name], ids) for ids in [ids[0] for ids in encoded] + job["ids"]]
    for entry in job["chats"]:
        result["chats"].append(_chat(*tokenizers[entry["spec"]], entry))
    return result


def _encode_all(tokenizer, strings: list[str]) -> list:
    return [[tokenizer.encode(text, special=special, continues=more) for special in (True, False) for more in (False, True)] for text in strings]


def _streamed(spec: TokenizerSpec, tokenizer, ids: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer, spec)
    return [*map(stream.push, ids), stream.flush()]


def _chat(spec: TokenizerSpec, tokenizer, entry: dict) -> dict:
    arguments = {"clock": lambda: NOW, **entry.get("variables", {})}
    if "template" in entry:
        config = {**spec.config, "chat_template": entry["template"], "chat_templates": {}}
        spec = TokenizerSpec(spec.tokenizer_json, config, spec.stop_ids, spec.vocab_size, spec.prefix_ids)
    try:
        return {
            "text": chat.render(spec, entry["messages"], **arguments),
            "ids": chat.encode_chat(tokenizer, spec, entry["messages"], **arguments),
        }
    except JirdError as error:
        return {"error": error.code, "message": str(error)}
