"""Text out of an engine: ids become text as they come, stop strings are held back, timings are counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AsyncIterator, Sequence

from ..errors import Aborted
from ..text.detokenize import Detokenizer
from ..text.stop import StopStrings
from .engine import Engine, Request, Timings
from .options import Cancel
from .sample import SamplingOptions


@dataclass(frozen=True)
class GenerateOptions:
    """max_new ids; sampling; stop: strings that end the answer (not part of it); ignore_stop_ids: run to max_new."""

    max_new: int = 256
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop: tuple[str, ...] = ()
    ignore_stop_ids: bool = False


@dataclass(frozen=True)
class Piece:
    """New text (may be empty while a code point or stop string is incomplete) and the id it came with; -1: held-back text at the end, no new id."""

    text: str
    id: int


@dataclass(frozen=True)
class Result:
    """The whole answer. ids hold the end token where it was chosen; text does not.

    Units: ms, tokens a second. finish_reason: "stop" | "length" | "abort"
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: str
    ttft_ms: float
    prefill_tokens: int
    prefill_tok_s: float
    decode_tok_s: float
    dispatches_per_token: int


class AnswerText:
    """Ids of one answer to the text that may be shown: whole code points, nothing that may become a stop string."""

    def __init__(self, engine: Engine, stop: Sequence[str], ids: Sequence[int] = (), end_ids: Sequence[int] = ()):
        """ids: what the answer has so far; end_ids: those that end it and have no text."""
        self._detokenizer, self._stops = Detokenizer(engine.tokenizer, engine.spec), StopStrings(tuple(stop))
        self.is_stopped = False
        self.text = ""
        for i in ids:
            self.push(i, i in end_ids)

    def push(self, token: int, is_end: bool = False) -> str:
        """The text that the id completes. is_end: it ends the answer and has none."""
        return self._take("" if is_end else self._detokenizer.push(token))

    def flush(self) -> str:
        """What was held back, at the end; nothing after a stop string."""
        return "" if self.is_stopped else self._take(self._detokenizer.flush()) + self._last()

    def _take(self, text: str) -> str:
        shown, self.is_stopped = self._stops.push(text)
        self.text += shown
        return shown

    def _last(self) -> str:
        held = self._stops.flush()
        self.text += held
        return held


def request_of(engine: Engine, prompt_ids: Sequence[int], options: GenerateOptions, so_far: Sequence[int] = (), draw: int = 0) -> Request:
    """What Engine.run is asked for an answer, or for the rest of one that has the ids `so_far`."""
    return Request((*prompt_ids, *so_far), options.sampling, end_ids(engine, options), options.max_new - len(so_far), draw)


def end_ids(engine: Engine, options: GenerateOptions) -> tuple[int, ...]:
    return () if options.ignore_stop_ids else engine.spec.stop_ids


async def generate_text(engine: Engine, prompt_ids: Sequence[int], options: GenerateOptions = GenerateOptions(), cancel: Cancel | None = None,
                        so_far: Sequence[int] = (), draw: int = 0) -> AsyncIterator[Piece | Result]:
    """Pieces as they come, then one Result. After `cancel` the Result says "abort" and holds what was made.

    so_far, draw: ids that the answer already has and the number of its next draw: it goes on from there. Pieces hold what is new,
    the Result all of it; nothing runs when the ids so far already end it.
    Raises: as Engine.run, but Aborted ends the answer instead
    """
    ends = end_ids(engine, options)
    ids, text = list(so_far), AnswerText(engine, options.stop, so_far, ends)
    reason, timings = _ended(engine, prompt_ids, options, ids, text), Timings()
    if not reason:
        reason = "length"
        events = engine.run([request_of(engine, prompt_ids, options, so_far, draw)], cancel)
        try:
            async for event in events:
                ids.append(event.id)
                is_end = event.finish == "stop"
                yield Piece(text.push(event.id, is_end), event.id)
                if text.is_stopped or event.finish:
                    reason = "stop" if is_end else event.finish
                    break
        except Aborted:
            reason = "abort"
        finally:
            await events.aclose()
        timings = engine.timings
    tail = text.flush()
    if tail:
        yield Piece(tail, -1)
    yield _result(engine, timings, prompt_ids, ids, text.text, "stop" if text.is_stopped else reason)


def _ended(engine: Engine, prompt_ids: Sequence[int], options: GenerateOptions, ids: list[int], text: AnswerText) -> str:
    """How the ids so far end the answer; "" where it goes on."""
    if ids and (text.is_stopped or ids[-1] in end_ids(engine, options)):
        return "stop"
    return "length" if ids and len(ids) >= min(options.max_new, engine.options.context - len(prompt_ids) + 1) else ""


def _result(engine: Engine, t: Timings, prompt_ids: Sequence[int], ids: list[int], text: str, reason: str) -> Result:
    decode_s = max(t.decode_ms, 1e-3) / 1e3
    return Result(tuple(prompt_ids), tuple(ids), text, reason, t.first_ms, t.prefill_tokens,
                  t.prefill_tokens / (t.prefill_ms / 1e3) if t.prefill_ms else 0.0, t.decoded / decode_s, engine.info()["dispatches_per_token"])


async def generate_batch(engine: Engine, prompts: Sequence[Sequence[int]], options: Sequence[GenerateOptions],
                         cancel: Cancel | None = None) -> list[tuple[list[int], str]]:
    """Prompts of different lengths, one a lane, decoded together; (ids, finish) of each. Each lane equals its solo run.

    finish: "stop" | "length" | "error" (that lane's logits were not finite; the others go on)
    """
    requests = [request_of(engine, p, o) for p, o in zip(prompts, options, strict=True)]
    ids: list[list[int]] = [[] for _ in prompts]
    finish = [""] * len(prompts)
    async for event in engine.run(requests, cancel):
        if event.finish != "error":
            ids[event.lane].append(event.id)
        finish[event.lane] = event.finish
    return list(zip(ids, finish, strict=True))


async def force_ids(engine: Engine, prompt_ids: Sequence[int], ids: Sequence[int], cancel: Cancel | None = None) -> list[int]:
    """The model's own choice at each position when `ids` are fed one by one after the prompt."""
    return [choice async for choice in engine.force(prompt_ids, ids, cancel)]
