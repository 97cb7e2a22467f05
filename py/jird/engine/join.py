"""Prompt ids of a conversation in which every answer keeps the ids it was generated with."""

from __future__ import annotations

from typing import Iterable, Sequence

from ..text.tokenizer import Tokenizer, TokenizerSpec


def joined(tokenizer: Tokenizer, rendered: Sequence[int], answers: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
    """`rendered` (the template's ids of the whole conversation) with generated ids in place of the answers' encoded text.

    answers: oldest first, (the template's ids of the conversation up to where the answer begins, the answer's ids without
    what ended it). An answer stands between two special tokens, which no merge crosses. Its ids are exchanged only where
    both read as the same text and all before is equal, so the result always reads as `rendered` does; an answer that the
    template trims, rewrites or leaves out keeps the template's ids.
    """
    special = tokenizer.vocabulary.special_ids
    ids: list[int] = []
    at = 0
    for before, own in answers:
        start = 1 + max((i for i, token in enumerate(before) if token in special), default=-1)
        end = next((i for i in range(start, len(rendered)) if rendered[i] in special), None)
        if end is None or start < at or list(before[:start]) != list(rendered[:start]):
            continue
        segment = [*before[start:], *own]
        if tokenizer.decode(segment, skip_special=False) == tokenizer.decode(rendered[start:end], skip_special=False):
            ids += [*rendered[at:start], *segment]
            at = end
    return [*ids, *rendered[at:]]


def content_ids(tokenizer: Tokenizer, spec: TokenizerSpec, ids: Sequence[int], text: str) -> list[int] | None:
    """Those of an answer's ids that are its text: without the end token, and without a stop string's where one begins at an id's border.

    None when no leading part of the ids reads as the text, or a special token stands among them.
    """
    ids = list(ids[:-1]) if ids and ids[-1] in spec.stop_ids else list(ids)
    if any(i in tokenizer.vocabulary.special_ids for i in ids):
        return None
    for n in range(len(ids), -1, -1):
        shown = tokenizer.decode(ids[:n])
        if shown == text:
            return ids[:n]
        if len(shown) < len(text):
            break
    return None
