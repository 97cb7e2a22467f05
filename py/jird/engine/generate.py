"""Text out of an engine: ids become text as they come, stop strings are held back, timings are counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AsyncIterator, Sequence

from ..errors import Aborted
from ..text.detokenize import Detokenizer
from ..text.stop import StopStrings
from .engine import Engine, Request
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
    """New text (may be empty while a code point or stop string is incomplete) and the id it came with."""

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


async def generate_text(engine: Engine, prompt_ids: Sequence[int], options: GenerateOptions = GenerateOptions(),
                        cancel: Cancel | None = None) -> AsyncIterator[Piece | Result]:
    """Pieces as they come, then one Result. After `cancel` the Result says "abort" and holds what was made.

    Raises: as Engine.run, but Aborted ends the answer instead
    """
    request = Request(tuple(prompt_ids), options.sampling, () if options.ignore_stop_ids else engine.spec.stop_ids, options.max_new)
    detokenizer, stops = Detokenizer(engine.tokenizer, engine.spec), StopStrings(tuple(options.stop))
    ids: list[int] = []
    text: list[str] = []
    reason, stopped = "length", False
    events = engine.run([request], cancel)
    try:
        async for event in events:
            ids.append(event.id)
            is_end = event.finish == "stop"
            emitted, stopped = stops.push("" if is_end else detokenizer.push(event.id))
            text.append(emitted)
            yield Piece(emitted, event.id)
            if stopped or event.finish:
                reason = "stop" if stopped or is_end else event.finish
                break
    except Aborted:
        reason = "abort"
    finally:
        await events.aclose()
    if not stopped:
        tail, stopped = stops.push(detokenizer.flush())
        tail += stops.flush()
        reason = "stop" if stopped else reason
        text.append(tail)
        if tail:
            yield Piece(tail, ids[-1] if ids else -1)
    yield _result(engine, request, ids, "".join(text), reason)


def _result(engine: Engine, request: Request, ids: list[int], text: str, reason: str) -> Result:
    t = engine.timings
    decode_s = max(t.decode_ms, 1e-3) / 1e3
    return Result(request.prompt_ids, tuple(ids), text, reason, t.first_ms, t.prefill_tokens,
                  t.prefill_tokens / (t.prefill_ms / 1e3) if t.prefill_ms else 0.0, t.decoded / decode_s, engine.info()["dispatches_per_token"])


async def generate_batch(engine: Engine, prompts: Sequence[Sequence[int]], options: Sequence[GenerateOptions],
                         cancel: Cancel | None = None) -> list[tuple[list[int], str]]:
    """Prompts of different lengths, one a lane, decoded together; (ids, finish) of each. Each lane equals its solo run.

    finish: "stop" | "length" | "error" (that lane's logits were not finite; the others go on)
    """
    requests = [Request(tuple(p), o.sampling, () if o.ignore_stop_ids else engine.spec.stop_ids, o.max_new) for p, o in zip(prompts, options, strict=True)]
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
