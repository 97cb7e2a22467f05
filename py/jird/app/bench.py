"""Legs of the bench on a loaded engine: prefill, decode, and GPU time by kernel. Each leg ends in time and says what it did."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import Any, Callable

import numpy as np

from ..engine.engine import Request
from ..engine.generate import GenerateOptions, Result, generate_text
from ..engine.options import Cancel
from ..engine.policy import policy_for
from ..engine.sample import SamplingOptions
from ..errors import Aborted, BadRequest
from ..runtime import profile
from .messages import Bench

SEED = 7
WARM_TOKENS = 8
PREFILL_RUNS = 3
PROFILE_WARM_TOKENS = 64


class Deadline(Cancel):
    """Cancelled by time, or by the request's own Cancel."""

    def __init__(self, outer: Cancel, seconds: float):
        self._outer, self._end = outer, perf_counter() + seconds

    @property
    def is_cancelled(self) -> bool:
        return self._outer.is_cancelled or perf_counter() >= self._end

    def cancel(self) -> None:
        self._outer.cancel()


class Stopwatch:
    """A Device in whose place it stands, with the time spent in submits and in waits for results summed.

    Units: seconds
    """

    def __init__(self, device: Any):
        self._device = device
        self.submit_s = self.wait_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter()
        ticket = self._device.run(*args, **kwargs)
        self.submit_s += perf_counter() - began
        return _TimedTicket(self, ticket)


class _TimedTicket:
    def __init__(self, watch: Stopwatch, ticket: Any):
        self._watch, self._ticket = watch, ticket

    async def result(self) -> bytes:
        began = perf_counter()
        try:
            return await self._ticket.result()
        finally:
            self._watch.wait_s += perf_counter() - began


async def run(engine: Any, asked: Bench, cancel: Cancel, token: Callable[[str], None]) -> dict:
    """One leg; the figures by name. `token` is called with the text of every decoded token.

    Raises: BadRequest when the context does not hold the leg; Aborted when the request itself is stopped.
    """
    needed = asked.context + asked.tokens if asked.leg == "decode" else asked.tokens + 1
    if asked.leg != "profile" and needed > engine.options.context:
        raise BadRequest(f"{asked.leg} of {asked.tokens} tokens needs a context of {needed}; the model was loaded with {engine.options.context}")
    options, policy = engine.options, engine.policy
    chosen = replace(options, in_flight=asked.in_flight or options.in_flight, window=asked.window or options.window)
    try:
        if asked.leg == "prefill":
            return await _prefill(engine, asked, cancel)
        if chosen != options:
            engine.options, engine.policy = chosen, policy_for(engine.device.info, chosen)
        if asked.leg == "decode":
            return await _decode(engine, asked, cancel, token)
        return await _profile(engine, asked, cancel)
    finally:
        engine.options, engine.policy = options, policy


def random_ids(engine: Any, count: int, seed: int) -> tuple[int, ...]:
    """Seeded ids of ordinary tokens."""
    special = engine.tokenizer.vocabulary.special_ids
    top = min(engine.model.config.vocab, engine.spec.vocab_size)
    ids = (int(i) for i in np.random.default_rng(seed).integers(0, top, count * 2 + len(special)))
    return tuple(i for i in ids if i not in special)[:count]


async def _prefill(engine: Any, asked: Bench, cancel: Cancel) -> dict:
    """`tokens` prompt tokens, a warm-up and then up to PREFILL_RUNS times; the best run counts, all are told."""
    deadline, runs = Deadline(cancel, asked.seconds), []
    for attempt in range(1 + PREFILL_RUNS):
        request = Request(random_ids(engine, asked.tokens + 1, SEED + attempt), SamplingOptions(), (), 1)
        began = perf_counter()
        try:
            async for _ in engine.run([request], deadline):
                pass
            runs.append((engine.timings.prefill_tokens, engine.timings.prefill_ms, engine.timings.first_ms))
        except Aborted:
            if cancel.is_cancelled:
                raise
            if not runs and engine.timings.prefill_tokens:
                runs.append((engine.timings.prefill_tokens, (perf_counter() - began) * 1e3, None))
            break
        if deadline.is_cancelled:
            break
    counted = runs[1:] or runs
    if not counted:
        return {"tokens": 0, "ms": asked.seconds * 1e3, "tok_s": None, "runs_ms": []}
    tokens, ms, first_ms = min(counted, key=lambda r: r[1] / r[0])
    return {"tokens": tokens, "ms": ms, "tok_s": tokens / ms * 1e3, "first_token_ms": first_ms, "runs_ms": [r[1] for r in runs]}


async def _decode(engine: Any, asked: Bench, cancel: Cancel, token: Callable[[str], None]) -> dict:
    """`tokens` greedy tokens after `context` prompt tokens, stop ids ignored; the time is that of the steps, after a warm-up."""
    prompt = random_ids(engine, asked.context, SEED)
    warm = GenerateOptions(max_new=WARM_TOKENS, ignore_stop_ids=True)
    async for _ in generate_text(engine, prompt, warm, Deadline(cancel, asked.seconds / 4)):
        pass
    cancel.check()
    device = engine.device
    watch = engine.device = Stopwatch(device)
    arrivals: list[float] = []
    result = None
    try:
        options = GenerateOptions(max_new=asked.tokens, ignore_stop_ids=True)
        async with aclosing(generate_text(engine, prompt, options, Deadline(cancel, asked.seconds))) as events:
            async for event in events:
                if isinstance(event, Result):
                    result = event
                    continue
                if not arrivals:
                    watch.submit_s = watch.wait_s = 0.0
                token(event.text)
                arrivals.append(perf_counter())
    finally:
        engine.device = device
    cancel.check()
    return _decode_figures(engine, asked, result, watch, np.array(arrivals[: len(result.ids)]))


def _decode_figures(engine: Any, asked: Bench, result: Result, watch: Stopwatch, arrivals: np.ndarray) -> dict:
    steps, seconds = len(arrivals) - 1, float(arrivals[-1] - arrivals[0]) if len(arrivals) > 1 else 0.0
    figures = {
        "tokens": len(arrivals), "ms": seconds * 1e3, "tok_s": steps / seconds if seconds else None, "context": asked.context, "ttft_ms": result.ttft_ms,
        "in_flight": engine.policy.in_flight, "window": engine.policy.window, "dispatches_per_token": result.dispatches_per_token,
    }
    if steps > 0:
        python_s = max(0.0, seconds - watch.submit_s - watch.wait_s)
        shares = {"submit": watch.submit_s, "wait": watch.wait_s, "python": python_s}
        figures |= {f"{name}_ms_per_token": spent / steps * 1e3 for name, spent in shares.items()}
    return figures


async def _profile(engine: Any, asked: Bench, cancel: Cancel) -> dict:
    """GPU us of each kernel of one decode step; {"has_timestamps": False} where the adapter has no clock."""
    if "timestamp" not in engine.device.info.features:
        return {"has_timestamps": False}
    if asked.context + 2 * PROFILE_WARM_TOKENS > engine.options.context:
        raise BadRequest(f"a profile after {asked.context} tokens needs a context of {asked.context + 2 * PROFILE_WARM_TOKENS}")
    # The row must still be alive when it is profiled, so the answer is left before its limit.
    warm = GenerateOptions(max_new=2 * PROFILE_WARM_TOKENS, ignore_stop_ids=True)
    made = 0
    async with aclosing(generate_text(engine, random_ids(engine, asked.context, SEED), warm, Deadline(cancel, asked.seconds / 2))) as events:
        async for _ in events:
            made += 1
            if made == PROFILE_WARM_TOKENS:
                break
    cancel.check()
    recording = await engine.decode_recording(asked.context + made)
    pass_us = await profile.whole(engine.device, recording)
    times = await profile.profile(engine.device, recording)
    kernels = [{"kernel": name, "dispatches": count, "us": us} for name, count, us in profile.by_kernel(times)]
    return {"has_timestamps": True, "pass_us": pass_us, "gpu_us": sum(us for _, us in times), "dispatches": len(times), "kernels": kernels}
