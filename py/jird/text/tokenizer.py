"""What a tokenizer is here: a spec as data (the structure of tokenizer.json), and one Protocol over two engines.

CPython runs PyPI `tokenizers`; the browser runs npm @huggingface/tokenizers behind hf_js.py. Both get the same spec.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from ..errors import BadCheckpoint, ModelNotSupported, shown
from . import detokenize

TURN_ENDS = ("<|im_end|>", "<turn|>", "<end_of_turn>", "<|eot_id|>")
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # how GPT-2 splits a text into words
MAX_IDS = 1 << 22  # the largest vocabularies have under 2^18; a table of as many entries as the highest id says is made
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Vocabulary:
    """Ids and strings of a tokenizer: the model's vocabulary with the added tokens over it."""

    tokens: tuple[str | None, ...]
    ids: dict[str, int]
    added: dict[int, dict]
    special_ids: frozenset[int]

    def token(self, token_id: int) -> str | None:
        return self.tokens[token_id] if 0 <= token_id < len(self.tokens) else None

    @cached_property
    def special_literals(self) -> tuple[str, ...]:
        """Contents of the special tokens, longest first."""
        return tuple(sorted((self.added[i]["content"] for i in self.special_ids), key=len, reverse=True))


@dataclass(frozen=True, eq=False)
class TokenizerSpec:
    """Everything that text needs from a checkpoint.

    tokenizer_json: the structure of HF's tokenizer.json. config: bos_token, eos_token, unk_token, pad_token,
    chat_template (strings or None), chat_templates (name -> template), add_bos_token. stop_ids: ids that end an
    answer. vocab_size: highest id + 1. prefix_ids, suffix_ids: what is put around a whole text (bos, eos).
    """

    tokenizer_json: dict
    config: dict
    stop_ids: tuple[int, ...]
    vocab_size: int
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return vocabulary_of(self.tokenizer_json)

    def light(self) -> TokenizerSpec:
        """The spec without the model's tables (tens of MB), once a tokenizer is made: enough for chat, decoding and stop ids."""
        model = {key: value for key, value in self.tokenizer_json["model"].items() if key not in ("vocab", "merges")}
        light = replace(self, tokenizer_json={**self.tokenizer_json, "model": model})
        light.__dict__["vocabulary"] = self.vocabulary
        return light


class Tokenizer(Protocol):
    """Text <-> ids. No bos or eos is ever added here (see chat.encode_prompt, chat.encode_chat)."""

    vocabulary: Vocabulary

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, special: bool, continues: bool = False) -> list[int]:
        """Ids of a text. special: a special token's literal becomes its id; otherwise it stays plain text (added
        tokens that are not special match in both cases). continues: the text does not begin the sequence, so a
        tokenizer that puts a space before the first word only puts none."""

    def decode(self, ids, *, skip_special: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes | None: ...

    def token_to_id(self, token: str) -> int | None: ...

    def id_to_token(self, token_id: int) -> str | None: ...


class SpecTokenizer:
    """The part of the Protocol that the spec alone answers; engines add encode_text."""

    def __init__(self, spec: TokenizerSpec):
        self.spec = spec
        self.vocabulary = spec.vocabulary

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    def decode(self, ids, *, skip_special: bool = True) -> str:
        return detokenize.decode(self, self.spec, ids, skip_special=skip_special)

    def token_bytes(self, token_id: int) -> bytes | None:
        return detokenize.token_bytes(self, self.spec, token_id)

    def token_to_id(self, token: str) -> int | None:
        return self.vocabulary.ids.get(token)

    def id_to_token(self, token_id: int) -> str | None:
        return self.vocabulary.token(token_id)


class HostTokenizer(SpecTokenizer):
    """PyPI `tokenizers` (CPython)."""

    def __init__(self, spec: TokenizerSpec):
        super().__init__(spec)
        self._whole = _load(spec.tokenizer_json)

    @cached_property
    def _continued(self):
        inner = without_first_prefix(self.spec.tokenizer_json)
        return self._whole if inner is None else _load(inner)

    def encode(self, text: str, *, special: bool, continues: bool = False) -> list[int]:
        engine = self._continued if continues else self._whole
        engine.encode_special_tokens = not special
        return engine.encode(without_surrogates(text), add_special_tokens=False).ids


def make_tokenizer(spec: TokenizerSpec) -> Tokenizer:
    """The tokenizer of a spec on the engine of this platform.

    Raises: ModelNotSupported when the engine refuses the spec, BadCheckpoint when it is not a tokenizer.
    """
    if sys.platform == "emscripten":
        from . import hf_js

        return hf_js.JsTokenizer(spec)
    return HostTokenizer(spec)


def spec_from_files(
    tokenizer_json: dict,
    tokenizer_config: dict | None = None,
    generation_config: dict | None = None,
    chat_template: str | None = None,
    model_config: dict | None = None,
) -> TokenizerSpec:
    """Spec from a checkpoint folder's parsed files; chat_template (chat_template.jinja) wins over the config's field.

    Raises: BadCheckpoint when tokenizer_json has no model or vocabulary, or a file does not hold what its place asks for;
    ModelNotSupported for a decoder that is not known.
    """
    if not isinstance(tokenizer_json, dict):
        raise BadCheckpoint(f"tokenizer.json is {shown(tokenizer_json)}; an object with model.vocab is expected")
    if not _object("model of tokenizer.json", tokenizer_json.get("model")).get("vocab"):
        raise BadCheckpoint("tokenizer.json has no model.vocab")
    tokenizer_config = _object("tokenizer_config.json", tokenizer_config)
    generation_config, model_config = _object("generation_config.json", generation_config), _object("config.json", model_config)
    tokenizer_json = _with_added(tokenizer_json, _object("added_tokens_decoder", tokenizer_config.get("added_tokens_decoder")))
    templates = _templates(tokenizer_config.get("chat_template"))
    if chat_template is not None:
        templates["default"] = chat_template
    config = {name: _content(name, tokenizer_config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    config |= {"chat_template": templates.get("default"), "chat_templates": templates}
    config |= {name: tokenizer_config[name] for name in ("add_bos_token", "add_eos_token") if name in tokenizer_config}
    vocabulary = vocabulary_of(tokenizer_json)
    text_config = _object("text_config of config.json", model_config.get("text_config"))
    ends = [source.get("eos_token_id") for source in (generation_config, model_config, text_config)]
    ends.append(vocabulary.ids.get(config["eos_token"]))
    prefix, suffix = _of_file("post_processor", _around, tokenizer_json.get("post_processor"))
    _of_file("decoder", detokenize.decoding_of, tokenizer_json.get("decoder"))
    bos, eos = (vocabulary.ids.get(config[name]) for name in ("bos_token", "eos_token"))
    prefix = _switched(prefix, bos, tokenizer_config.get("add_bos_token"))
    suffix = _switched(suffix, eos, tokenizer_config.get("add_eos_token"))
    wrong = [i for i in (*prefix, *suffix) if type(i) is not int or vocabulary.token(i) is None]
    if wrong:
        raise BadCheckpoint(f"post_processor of tokenizer.json puts id {wrong[0]!r} around a text; the vocabulary has no such id")
    spec = TokenizerSpec(
        tokenizer_json, config, stop_ids_of(vocabulary, ends), len(vocabulary.tokens), prefix, suffix
    )
    spec.__dict__["vocabulary"] = vocabulary
    return spec


def vocabulary_of(tokenizer_json: dict) -> Vocabulary:
    """Tables of a tokenizer.json; the added tokens' ids win over the model's.

    Raises: BadCheckpoint for an id or a token that cannot be one
    """
    vocab = tokenizer_json["model"]["vocab"]
    if isinstance(vocab, list):
        vocab = _of_file("vocab", lambda pieces: {piece: i for i, (piece, _) in enumerate(pieces)}, vocab)
    added = {entry["id"]: entry for entry in _added(tokenizer_json)}
    if not isinstance(vocab, dict) or not all(isinstance(token, str) for token in vocab):
        raise BadCheckpoint("vocab of tokenizer.json must map tokens to ids")
    wrong = [i for i in (*vocab.values(), *added) if type(i) is not int or not 0 <= i < MAX_IDS]
    if wrong:
        raise BadCheckpoint(f"tokenizer.json names id {wrong[0]!r}; ids are whole numbers from 0 to {MAX_IDS - 1}")
    ids = dict(vocab)
    ids.update((entry["content"], i) for i, entry in added.items())
    size = 1 + max((*vocab.values(), *added), default=-1)
    tokens: list[str | None] = [None] * size
    for token, i in vocab.items():
        tokens[i] = token
    for i, entry in added.items():
        tokens[i] = entry["content"]
    special = frozenset(i for i, entry in added.items() if entry.get("special"))
    return Vocabulary(tuple(tokens), ids, added, special)


def stop_ids_of(vocabulary: Vocabulary, ends: list[int | list[int] | None]) -> tuple[int, ...]:
    """Union of the files' end ids and the turn ends known by name, those that exist, in order.

    Raises: BadCheckpoint for an end that is not an id
    """
    ids: list[int] = []
    for end in ends:
        ids.extend(end if isinstance(end, (list, tuple)) else [] if end is None else [end])
    ids.extend(vocabulary.ids[name] for name in TURN_ENDS if name in vocabulary.ids)
    wrong = [i for i in ids if type(i) is not int]
    if wrong:
        raise BadCheckpoint(f"eos_token_id holds {wrong[0]!r}; token ids are expected")
    return tuple(dict.fromkeys(i for i in ids if vocabulary.token(i) is not None))


def without_surrogates(text: str) -> str:
    """Unpaired surrogates (a JS string may hold some) as U+FFFD; they have no UTF-8."""
    return _SURROGATES.sub("\ufffd", text)


def without_first_prefix(tokenizer_json: dict) -> dict | None:
    """The same tokenizer with no space before the first word, or None where it has no such rule."""
    text = json.dumps(tokenizer_json.get("pre_tokenizer"))
    if '"prepend_scheme": "first"' not in text:
        return None
    return {**tokenizer_json, "pre_tokenizer": json.loads(text.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"'))}


def _load(tokenizer_json: dict):
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json))
    except Exception as error:  # the library raises plain Exception
        raise ModelNotSupported(f"tokenizer.json is not understood: {error}") from error


def _object(name: str, value) -> dict:
    """A JSON object of a file; {} for null. Raises: BadCheckpoint."""
    if value is not None and not isinstance(value, dict):
        raise BadCheckpoint(f"{name} is {shown(value)}; an object is expected")
    return value or {}


def _of_file(name: str, read, value):
    """read(value), where a structure that the format does not have is said in one sentence.

    Raises: BadCheckpoint
    """
    try:
        return read(value)
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise BadCheckpoint(f"{name} of tokenizer.json is not as its format says ({type(error).__name__}: {error})") from None


def _content(name: str, token) -> str | None:
    token = token.get("content") if isinstance(token, dict) else token
    if token is not None and not isinstance(token, str):
        raise BadCheckpoint(f"{name} of tokenizer_config.json is {shown(token)}; text is expected")
    return token


def _templates(field) -> dict[str, str]:
    named = isinstance(field, list) and all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in field)
    templates = {entry["name"]: entry.get("template") for entry in field} if named else {} if field is None else {"default": field}
    for name, template in templates.items():
        if not isinstance(template, str):
            raise BadCheckpoint(f"chat template {name} of tokenizer_config.json is {shown(template)}; text is expected")
    return templates


def _added(tokenizer_json: dict) -> list[dict]:
    entries = tokenizer_json.get("added_tokens") or []
    if not isinstance(entries, list):
        raise BadCheckpoint(f"added_tokens of tokenizer.json is {shown(entries)}; a list is expected")
    for entry in entries:
        if not isinstance(entry, dict) or type(entry.get("id")) is not int or not isinstance(entry.get("content"), str):
            raise BadCheckpoint(f"added_tokens of tokenizer.json holds {shown(entry)}; an object with id and content is expected")
    return entries


def _with_added(tokenizer_json: dict, decoder: dict) -> dict:
    """added_tokens_decoder of the config may know added tokens that tokenizer.json lacks."""
    for i, entry in decoder.items():
        if not (i.isascii() and i.isdigit() and len(i) < 10) or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise BadCheckpoint(f"added_tokens_decoder maps {shown(i)} to {shown(entry)}; ids and objects with content are expected")
    known = {entry["id"] for entry in _added(tokenizer_json)}
    missing = [{"id": int(i), **entry} for i, entry in decoder.items() if int(i) not in known]
    if not missing:
        return tokenizer_json
    keys = ("single_word", "lstrip", "rstrip", "normalized", "special")
    entries = [{"id": e["id"], "content": e["content"], **{key: bool(e.get(key)) for key in keys}} for e in missing]
    return {**tokenizer_json, "added_tokens": [*_added(tokenizer_json), *sorted(entries, key=lambda e: e["id"])]}


def _around(processor: dict | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that a post-processor puts before and after a single text."""
    if processor is None:
        return (), ()
    if processor["type"] == "Sequence":
        pairs = [_around(part) for part in processor["processors"]]
        return tuple(i for before, _ in pairs for i in before), tuple(i for _, after in pairs for i in after)
    if processor["type"] in ("BertProcessing", "RobertaProcessing"):
        return (processor["cls"][1],), (processor["sep"][1],)
    if processor["type"] != "TemplateProcessing":
        return (), ()
    before: list[int] = []
    after: list[int] = []
    side = before
    for piece in processor["single"]:
        if "Sequence" in piece:
            side = after
        else:
            side.extend(processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    return tuple(before), tuple(after)


def _switched(around: tuple[int, ...], token: int | None, wanted: bool | None) -> tuple[int, ...]:
    """The config's add_bos_token / add_eos_token wins over the post-processor where it says something."""
    if wanted is None or token is None or (token in around) == bool(wanted):
        return around
    return (token,) if wanted else tuple(i for i in around if i != token)
