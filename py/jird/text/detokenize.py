"""Ids to text, one id at a time: only complete code points leave, and the pieces joined are the whole decoding.

Source: the decoders of tokenizer.json (ByteLevel; Replace, ByteFallback, Fuse, Strip; Metaspace), read as data.
Where a run of byte tokens is not UTF-8, `tokenizers` turns the whole run into U+FFFD, which can only be known at
its end; here the code points that are complete have been shown by then, and the other bytes are one U+FFFD each.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import lru_cache

from ..errors import ModelNotSupported

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the other 68 bytes from U+0100 on."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in own}
    others = (byte for byte in range(256) if byte not in set(own))
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return alphabet


@dataclass(frozen=True)
class Decoding:
    """How a token's string becomes text. kind: bytes (byte-level alphabet), pieces (SentencePiece) or metaspace."""

    kind: str
    replace: tuple[tuple[str, str], ...] = ()
    has_byte_tokens: bool = False
    strip: str = ""
    strip_count: int = 0
    strips_each: bool = False


def decoding_of(decoder: dict | None) -> Decoding:
    """Reads tokenizer.json's `decoder`.

    Raises: ModelNotSupported for a decoder that is none of byte-level, SentencePiece-like or Metaspace.
    """
    steps = _flatten(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Decoding("bytes")
    if kinds == ["Metaspace"]:
        mark = steps[0].get("replacement", "\u2581")
        scheme = steps[0].get("prepend_scheme") or ("always" if steps[0].get("add_prefix_space", True) else "never")
        return Decoding("metaspace" if scheme != "never" else "pieces", replace=((mark, " "),))
    replace: list[tuple[str, str]] = []
    strip, count, strips_each, has_bytes = "", 0, False, False
    order = {"Replace": 0, "ByteFallback": 1, "Fuse": 2, "Strip": 3}
    known = steps and all(kind in order for kind in kinds) and kinds.count("Strip") <= 1
    if not known or [order[kind] for kind in kinds if kind != "Fuse"] != sorted(order[kind] for kind in kinds if kind != "Fuse"):
        raise ModelNotSupported(f"tokenizer decoder {' + '.join(kinds) or 'none'} is not supported")
    for step in steps:
        if step["type"] == "Replace":
            if "String" not in step["pattern"]:
                raise ModelNotSupported("tokenizer decoder Replace with a regular expression is not supported")
            replace.append((step["pattern"]["String"], step["content"]))
        elif step["type"] == "ByteFallback":
            has_bytes = True
        elif step["type"] == "Strip":
            if step.get("stop"):
                raise ModelNotSupported("tokenizer decoder Strip at the end of the text is not supported")
            strip, count = step["content"], step.get("start", 0)
            strips_each = "Fuse" not in kinds[: kinds.index("Strip")]
    return Decoding("pieces", tuple(replace), has_bytes, strip, count, strips_each)


def _flatten(decoder: dict | None) -> list[dict]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _flatten(part)]
    return [decoder]


class Detokenizer:
    """Turns the ids of one answer into text as they come.

    `push` returns the text that the id completes ("" inside a code point, and for special tokens unless
    skip_special is False); `flush` ends the text, an unfinished code point becoming U+FFFD.
    """

    def __init__(self, tokenizer, spec, *, skip_special: bool = True):
        self._vocabulary = tokenizer.vocabulary
        self._decoding = decoding_of(spec.tokenizer_json.get("decoder"))
        self._skip = self._vocabulary.special_ids if skip_special else frozenset()
        self._to_strip = 0 if self._decoding.strips_each else self._decoding.strip_count
        self._is_first = True
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._run = b""

    def push(self, token_id: int) -> str:
        token = self._vocabulary.token(token_id)
        if token is None or token_id in self._skip:
            return ""
        if self._decoding.kind == "bytes":
            return self._utf8.decode(_alphabet_bytes(token, token_id in self._vocabulary.added))
        text = self._piece(token)
        self._is_first = False
        return self._strip_start(text)

    def flush(self) -> str:
        if self._decoding.kind == "bytes":
            text = self._utf8.decode(b"", True)
            self._utf8.reset()
            return text
        return self._strip_start(self._drain(is_end=True))

    def _piece(self, token: str) -> str:
        """Text of one SentencePiece token, after what an interrupted run of byte tokens leaves."""
        decoding = self._decoding
        if decoding.kind == "metaspace":
            mark, space = decoding.replace[0]
            return token.replace(mark, "" if self._is_first else space)
        for old, new in decoding.replace:
            token = token.replace(old, new)
        if decoding.has_byte_tokens and (match := _BYTE_TOKEN.match(token)):
            self._run += bytes([int(match[1], 16)])
            return self._drain(is_end=False)
        if decoding.strips_each:
            token = _cut(token, decoding.strip, decoding.strip_count)[0]
        return self._drain(is_end=True) + token

    def _drain(self, *, is_end: bool) -> str:
        """Complete code points at the front of the run of bytes; a byte that cannot belong to one is U+FFFD."""
        text = ""
        while self._run:
            size = _utf8_length(self._run[0])
            head = self._run[:size]
            try:
                done = codecs.getincrementaldecoder("utf-8")().decode(head, is_end)
            except UnicodeDecodeError:
                done, size = "\ufffd", 1
            if not done:
                break
            text += done
            self._run = self._run[size:]
        return text

    def _strip_start(self, text: str) -> str:
        if self._to_strip and text:
            text, left = _cut(text, self._decoding.strip, self._to_strip)
            self._to_strip = left if not text else 0
        return text


def decode(tokenizer, spec, ids, *, skip_special: bool = True) -> str:
    """The whole text of the ids."""
    stream = Detokenizer(tokenizer, spec, skip_special=skip_special)
    return "".join([*map(stream.push, ids), stream.flush()])


def token_bytes(tokenizer, spec, token_id: int) -> bytes | None:
    """The bytes that a token adds in the middle of a text; None for special tokens and ids outside the vocabulary."""
    vocabulary, decoding = tokenizer.vocabulary, decoding_of(spec.tokenizer_json.get("decoder"))
    token = vocabulary.token(token_id)
    if token is None or token_id in vocabulary.special_ids:
        return None
    if decoding.kind == "bytes":
        return _alphabet_bytes(token, token_id in vocabulary.added)
    for old, new in decoding.replace:
        token = token.replace(old, new)
    if decoding.has_byte_tokens and (match := _BYTE_TOKEN.match(token)):
        return bytes([int(match[1], 16)])
    return token.encode("utf-8")


def _alphabet_bytes(token: str, is_added: bool) -> bytes:
    """Added tokens are literal text; so is a token with a character outside the alphabet."""
    if is_added:
        return token.encode("utf-8")
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[char] for char in token])
    except KeyError:
        return token.encode("utf-8")


def _utf8_length(lead: int) -> int:
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _cut(text: str, char: str, count: int) -> tuple[str, int]:
    """Text without up to `count` leading `char`, and how many may still be cut."""
    while count and text.startswith(char):
        text, count = text[len(char) :], count - 1
    return text, count
