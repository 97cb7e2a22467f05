"""Engine: one loaded model on one device: slots, step buffers, and the loop that keeps decode steps in flight."""

from __future__ import annotations

from collections import deque
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, AsyncIterator, Callable, Iterator, Sequence

import numpy as np

from ..errors import BadRequest, ContextExceeded, NumericError
from ..kernels.core import BAD, DONE, MASKED, OUT_DTYPE, SAMPLING_DTYPE, STEP_DTYPE
from ..runtime.device import CopyOut, Device, Slice
from ..runtime.executor import ModelBuffers
from ..state.kv import KVSlots
from ..text.tokenizer import Tokenizer, TokenizerSpec
from .model import Model, PlanSet, decode_plan, first_plans
from .options import Cancel, EngineOptions
from .policy import SubmitPolicy, policy_for
from .sample import SamplingOptions, record
from .trust import Trust

NEVER = 0xFFFFFFFF


@dataclass(frozen=True)
class Request:
    """One lane's work: prompt ids, sampling, ids that end it, and how many new ids it may make.

    draw: number of the first draw; an answer that goes on after n ids begins at n, so that its seed gives what it would have given
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingOptions
    stop_ids: tuple[int, ...]
    max_new: int
    draw: int = 0


@dataclass(frozen=True)
class TokenEvent:
    """One new id of a lane. finish: "" while it goes on, "stop" (id is a stop id), "length", "error" (the id is none).

    Units:  ms since the request began
    """

    lane: int
    id: int
    logprob: float
    finish: str
    ms: float


@dataclass
class Timings:
    """Of one run. prefill_tokens: prompt tokens whose keys were computed (not found in the cache)."""

    prefill_tokens: int = 0
    prefill_ms: float = 0.0
    first_ms: float = 0.0
    decode_ms: float = 0.0
    decoded: int = 0


@dataclass(repr=False)
class Engine:
    """Generates from a loaded model. One run at a time; `run` is the only loop, everything else is a use of it."""

    device: Device
    model: Model
    trust: Trust
    planset: PlanSet
    buffers: ModelBuffers
    options: EngineOptions
    spec: TokenizerSpec
    tokenizer: Tokenizer
    weights_ms: float
    kv: KVSlots = field(init=False)
    policy: SubmitPolicy = field(init=False)
    timings: Timings = field(default_factory=Timings)
    _recordings: dict[str, Any] = field(default_factory=dict)
    _programs: dict[tuple, Any] = field(default_factory=dict)
    _busy: bool = False

    def __post_init__(self):
        self.kv = KVSlots(self.options.slots, self.options.context)
        self.policy = policy_for(self.device.info, self.options)

    # ---- plans and programs

    async def warm_up(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Compiles what the first answer needs: every prefill plan and the short greedy decode plan."""
        names = first_plans(self.planset)
        for i, name in enumerate(names):
            progress(i, len(names))
            await self._recording(name)
        progress(len(names), len(names))

    async def _recording(self, name: str) -> Any:
        if name not in self._recordings:
            self.planset = await self.trust.tested(self.planset, [name])
            self._recordings[name] = await self.buffers.bind(self.planset.plans[name], self.planset.step_of[name])
        return self._recordings[name]

    async def decode_recording(self, keys: int) -> Any:
        """The recording of a greedy step of one lane that sees `keys` keys, for profiles."""
        return await self._recording(decode_plan(1, keys))

    async def _program(self, name: str, window: int = 1) -> Any:
        """Recording `name` `window` times, each followed by the copy of what the host reads."""
        if (name, window) not in self._programs:
            recording = await self._recording(name)
            if name.startswith("prefill-"):
                out = CopyOut(Slice(self.buffers.steps[self.planset.step_of[name]], 0, 32))
            else:
                out = CopyOut(Slice(self.buffers.states["out"], 0, self.planset.plans[name].rows * OUT_DTYPE.itemsize))
            self._programs[name, window] = self.device.program([recording, out] * window)
        return self._programs[name, window]

    def info(self) -> dict[str, Any]:
        """What a person may want to know of the loaded model."""
        plan = self.planset.plans[decode_plan(1, 1)]
        return {"architecture": self.model.checkpoint.architecture or self.model.family.__name__.rpartition(".")[2], "vocab": self.model.config.vocab,
                "context": self.options.context, "slots": self.options.slots, "dispatches_per_token": len(plan.steps), "gpu_bytes": self.buffers.nbytes,
                "weight_bytes": sum(n for s in plan.weights for n in s.format.parts(s.rows, s.columns).values()),
                "plan_ms": self.trust.plan_ms, "selftest_ms": self.trust.selftest_ms, "weights_ms": self.weights_ms}

    def close(self) -> None:
        """Frees every GPU buffer of the model."""
        self._recordings.clear()
        self._programs.clear()
        self.buffers.destroy()

    # ---- checks

    def check(self, request: Request) -> None:
        """Raises: BadRequest, ContextExceeded naming what was asked and what fits."""
        n, vocab = len(request.prompt_ids), self.model.config.vocab
        if n == 0:
            raise BadRequest("the prompt is empty; at least one token is needed")
        if n > self.options.context:
            raise ContextExceeded(f"the prompt has {n} tokens, the context holds {self.options.context}")
        bad = [i for i in request.prompt_ids if not 0 <= i < vocab]
        if bad:
            raise BadRequest(f"token id {bad[0]} is outside the vocabulary of {vocab}")
        if request.max_new < 1:
            raise BadRequest(f"max_new is {request.max_new}; at least 1 new token must be allowed")
        if not 0 <= request.draw < 1 << 31:
            raise BadRequest(f"draw is {request.draw}; it must be from 0 to {(1 << 31) - 1}")
        record(request.sampling, request.stop_ids, self.spec.vocab_size, vocab)

    # ---- the loop

    async def run(self, requests: Sequence[Request], cancel: Cancel | None = None) -> AsyncIterator[TokenEvent]:
        """Runs one request a lane (lane i in slot i), together; yields ids as they arrive.

        A lane whose logits are not finite raises NumericError for a run of one lane; among several it ends with finish "error".
        Raises: BadRequest, ContextExceeded before anything runs; Aborted; DeviceLost
        """
        cancel = cancel or Cancel()
        if not 1 <= len(requests) <= self.options.slots:
            raise BadRequest(f"{len(requests)} requests at once; the engine was loaded with {self.options.slots} slots")
        for request in requests:
            self.check(request)
        with self._alone():
            started = perf_counter()
            await self._prefill(requests, cancel)
            async with aclosing(self._decode(requests, cancel, started)) as events:
                async for event in events:
                    yield event

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raises: BadRequest while another run holds the engine."""
        if self._busy:
            raise BadRequest("a run is in progress on this engine; wait for it or abort it")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def _prefill(self, requests: Sequence[Request], cancel: Cancel) -> None:
        """Keys of all prompt tokens but the last, lane by lane, what a slot already holds left out; two chunks in flight."""
        started, self.timings = perf_counter(), Timings()
        pending: deque = deque()
        idle = started

        async def arrive() -> None:
            nonlocal idle
            rows, submitted, ticket = pending.popleft()
            await ticket.result()
            now = perf_counter()
            self.policy = self.policy.measured_chunk(rows, (now - max(idle, submitted)) * 1e3)
            idle = now

        rows_of = sorted(int(n.rpartition("-")[2]) for n in self.planset.plans if n.startswith("prefill-"))
        try:
            for slot, request in enumerate(requests):
                ids = list(request.prompt_ids[:-1])
                done = self.kv.shared_prefix(slot, ids)
                self.kv.rewind(slot, done)
                while done < len(ids):
                    cancel.check()
                    rows = self.policy.chunk(rows_of, len(ids) - done)
                    chunk = ids[done: done + rows]
                    name = f"prefill-{rows}"
                    self.device.write(self.buffers.steps[self.planset.step_of[name]], 0, prefill_rows(chunk, done, slot, rows))
                    program = await self._program(name)
                    pending.append((rows, perf_counter(), self.device.run(program)))
                    done += len(chunk)
                    self.timings.prefill_tokens += len(chunk)
                    self.kv.append(slot, chunk)
                    if len(pending) > 1:
                        await arrive()
            while pending:
                await arrive()
            self.timings.prefill_ms = (perf_counter() - started) * 1e3
        except BaseException:
            for slot in range(len(requests)):
                self.kv.rewind(slot, 0)
            while pending:
                await pending.popleft()[-1].result()
            raise

    async def _decode(self, requests: Sequence[Request], cancel: Cancel, started: float) -> AsyncIterator[TokenEvent]:
        """Decode steps in flight until every lane has ended; ids past a lane's end are masked on the GPU and dropped here."""
        lanes = 1 if len(requests) == 1 else self.options.slots
        self._admit(requests, lanes)
        is_sampled = not all(r.sampling.is_plain_greedy for r in requests)
        longest = max(len(r.prompt_ids) for r in requests)
        budget = [min(r.max_new, self.options.context - len(r.prompt_ids) + 1) for r in requests]
        made = [0] * len(requests)
        alive = set(range(len(requests)))
        fed = [r.prompt_ids[-1] for r in requests]
        pending: deque = deque()
        submitted, begun = 0, perf_counter()
        last = begun
        try:
            while alive:
                cancel.check()
                while len(pending) < self.policy.in_flight and submitted < max(budget[i] for i in alive):
                    window = self.policy.window if submitted or self.policy.has_fixed_window else 1  # the first token waits for no other
                    keys = min(longest + submitted + window - 1, self.options.context)
                    program = await self._program(decode_plan(lanes, keys, is_sampled), window)
                    pending.append((window, self.device.run(program)))
                    submitted += window
                window, ticket = pending.popleft()
                raw = await ticket.result()
                now = perf_counter()
                self.policy = self.policy.measured((now - last) * 1e3 / window)
                last = now
                for out in np.frombuffer(raw, OUT_DTYPE).reshape(window, lanes):
                    for lane in sorted(alive):
                        self.kv.append(lane, [fed[lane]])
                        event = self._event(lane, out[lane], made[lane] + 1, budget[lane], (now - started) * 1e3)
                        if event.finish == "error":
                            self.kv.rewind(lane, 0)  # its cache may hold what made the logits so
                        if event.finish == "error" and len(requests) == 1:
                            raise NumericError(f"a logit of token {made[lane] + 1} is not finite; the answer ends rather than print text from it")
                        made[lane] += 1
                        fed[lane] = event.id
                        if event.finish:
                            alive.discard(lane)
                        self.timings.decoded += 1
                        self.timings.first_ms = self.timings.first_ms or event.ms
                        self.timings.decode_ms = (now - begun) * 1e3
                        yield event
        finally:
            while pending:
                await pending.popleft()[-1].result()

    def _event(self, lane: int, out: np.void, made: int, budget: int, ms: float) -> TokenEvent:
        flags, token = int(out["flags"]), int(out["token"])
        finish = ""
        if flags & BAD:
            finish = "error"
        elif flags & DONE:
            finish = "length" if made >= budget and not self._is_stop(lane, token) else "stop"
        return TokenEvent(lane, token, float(out["logprob"]), finish, ms)

    def _is_stop(self, lane: int, token: int) -> bool:
        return token in self._stops[lane]

    def _admit(self, requests: Sequence[Request], lanes: int) -> None:
        """Writes the lanes' step rows and sampling records."""
        self._stops = [frozenset(r.stop_ids) for r in requests]
        rows = np.zeros(lanes, STEP_DTYPE)
        records = np.zeros(self.options.slots, SAMPLING_DTYPE)
        for slot in range(lanes):
            rows[slot]["slot"] = slot
            rows[slot]["flags"] = MASKED
        for slot, r in enumerate(requests):
            n = len(r.prompt_ids)
            rows[slot] = (r.prompt_ids[-1], n - 1, n, slot, 0, 0, r.draw, min(n + r.max_new, self.options.context + 1))
            prepared = record(r.sampling, r.stop_ids, self.spec.vocab_size, self.model.config.vocab)
            records[slot] = prepared.record
            if "mask" in self.buffers.states and not r.sampling.is_plain_greedy:
                prepared.write(self.device, self.buffers.states["mask"], self.buffers.states["bias"], slot)
        self.device.write(self.buffers.steps[f"decode-{lanes}"], 0, rows)
        self.device.write(self.buffers.states["sampling"], 0, records)

    async def force(self, prompt_ids: Sequence[int], ids: Sequence[int], cancel: Cancel | None = None) -> AsyncIterator[int]:
        """Feeds `ids` one by one after the prompt, whatever the model would choose; yields its own choice at each position.

        The choice at position i is what the model would say after prompt + ids[:i].
        Raises: as run
        """
        cancel = cancel or Cancel()
        request = Request(tuple(prompt_ids), SamplingOptions(), (), len(ids))
        self.check(request)
        bad = [i for i in ids if not 0 <= i < self.model.config.vocab]
        if bad:
            raise BadRequest(f"forced id {bad[0]} is outside the vocabulary of {self.model.config.vocab}")
        if len(prompt_ids) + len(ids) - 1 > self.options.context:
            raise ContextExceeded(f"{len(prompt_ids)} prompt and {len(ids)} forced tokens; the context holds {self.options.context}")
        with self._alone():
            await self._prefill([request], cancel)
            self._admit([request], 1)
            async with aclosing(self._forced(list(prompt_ids), list(ids), cancel)) as choices:
                async for choice in choices:
                    yield choice

    async def _forced(self, prompt_ids: list[int], ids: list[int], cancel: Cancel) -> AsyncIterator[int]:
        """A step row written before every step, as many in flight as in decoding."""
        fed, n = [prompt_ids[-1], *ids[:-1]], len(prompt_ids)
        pending: deque = deque()
        chosen = 0
        try:
            for i in range(len(ids) + self.policy.in_flight):
                cancel.check()
                if i < len(ids):
                    row = np.array([(fed[i], n - 1 + i, n + i, 0, 0, 0, i, NEVER)], STEP_DTYPE)
                    self.device.write(self.buffers.steps["decode-1"], 0, row)
                    pending.append(self.device.run(await self._program(decode_plan(1, n + i))))
                    self.kv.append(0, [fed[i]])
                if pending and (len(pending) >= self.policy.in_flight or i >= len(ids)):
                    out = np.frombuffer(await pending.popleft().result(), OUT_DTYPE)[0]
                    if int(out["flags"]) & BAD:
                        self.kv.rewind(0, 0)
                        raise NumericError(f"a logit after {n + chosen} tokens is not finite")
                    chosen += 1
                    yield int(out["token"])
        finally:
            while pending:
                await pending.popleft().result()


def prefill_rows(ids: Sequence[int], position: int, slot: int, rows: int) -> np.ndarray:
    """Step rows of a prompt chunk: `ids` at position, position + 1, ...; the rest of the `rows` masked.

    Shapes:  -> [rows] STEP_DTYPE
    """
    out = np.zeros(rows, STEP_DTYPE)
    n = len(ids)
    out["token"][:n] = ids
    out["position"][:n] = np.arange(position, position + n)
    out["kv_len"][:n] = np.arange(position + 1, position + n + 1)
    out["slot"] = slot
    out["limit"] = NEVER
    out["flags"][n:] = MASKED
    return out
