"""A conversation as plain JSON and back: what survives a lost device, a reload or a crash.

Seeds are text: JavaScript's numbers end at 2^53.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Mapping

from ..errors import BadRequest, shown
from .engine import Engine
from .generate import GenerateOptions
from .sample import SamplingOptions
from .turn import Turn

VERSION = 1


def model_mark(engine: Engine) -> str:
    """Names vocabulary, template and architecture: ids of a journal with another mark mean something else here."""
    vocabulary = engine.spec.vocabulary
    said = json.dumps([vocabulary.tokens, engine.spec.config, sorted(vocabulary.special_ids)], default=str)
    return f"{engine.info()['architecture']}-{zlib.crc32(said.encode('utf-8', 'replace')):08x}-{zlib.crc32(repr(engine.model.config).encode()):08x}"


def options_record(options: GenerateOptions) -> dict[str, Any]:
    """GenerateOptions as JSON."""
    s = options.sampling
    return {"max_new": options.max_new, "stop": list(options.stop), "ignore_stop_ids": options.ignore_stop_ids,
            "sampling": {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p, "repetition_penalty": s.repetition_penalty,
                         "penalty_window": s.penalty_window, "seed": str(s.seed), "logit_bias": [[i, v] for i, v in s.logit_bias.items()],
                         "allowed": None if s.allowed is None else sorted(s.allowed)}}


def options_of(record: Mapping[str, Any]) -> GenerateOptions:
    """Raises: BadRequest for a value out of range; KeyError, TypeError or ValueError for what is no such record."""
    s = dict(record["sampling"])
    allowed = None if s["allowed"] is None else frozenset(s["allowed"])
    sampling = SamplingOptions(**{**s, "seed": int(s["seed"]), "logit_bias": {int(i): v for i, v in s["logit_bias"]}, "allowed": allowed})
    return GenerateOptions(_whole(record["max_new"]), sampling, tuple(map(_text, record["stop"])), bool(record["ignore_stop_ids"]))


def turn_record(turn: Turn) -> dict[str, Any]:
    """One turn as JSON: enough to continue its answer. finish "" says that it has not ended."""
    return {"id": turn.id, "parent": turn.parent, "messages": [dict(m) for m in turn.messages], "prompt_ids": list(turn.prompt_ids), "ids": list(turn.ids),
            "text": turn.text, "finish": turn.finish, "draw": turn.draw, "dropped": list(turn.dropped), "options": options_record(turn.options)}


def turn_of(record: Mapping[str, Any]) -> Turn:
    """Raises: as options_of."""
    parent = None if record["parent"] is None else _whole(record["parent"])
    return Turn(_whole(record["id"]), parent, tuple(dict(m) for m in record["messages"]), tuple(map(_whole, record["prompt_ids"])), tuple(map(_whole, record["dropped"])),
                options_of(record["options"]), list(map(_whole, record["ids"])), _text(record["text"]), _text(record["finish"]), _whole(record["draw"]))


def read_turns(journal: Any) -> dict[int, Turn]:
    """The turns of a session's journal by id, parents before children.

    Raises: BadRequest saying what is wrong with it.
    """
    if not isinstance(journal, Mapping) or journal.get("version") != VERSION:
        raise BadRequest(f"a journal is an object with version {VERSION}, got {shown(journal)}")
    turns: dict[int, Turn] = {}
    try:
        for record in journal["turns"]:
            turn = turn_of(record)
            if turn.id in turns or (turn.parent is not None and turn.parent not in turns):
                raise ValueError(f"turn {turn.id} is there twice or comes before turn {turn.parent}, which it follows")
            turns[turn.id] = turn
        if journal["head"] is not None and journal["head"] not in turns:
            raise ValueError(f"head {journal['head']} is no turn")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRequest(f"the journal cannot be read: {type(error).__name__} {error}") from error
    return turns


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{shown(value)} is not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")
    return value
