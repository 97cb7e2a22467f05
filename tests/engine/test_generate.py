"""The whole engine on numpy: right against a float64 forward pass, and equal to itself however the work is cut."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from jird.engine.engine import Request
from jird.engine.generate import GenerateOptions, force_ids, generate_batch, generate_text
from jird.engine.options import Cancel
from jird.engine.sample import SamplingOptions
from jird.errors import Aborted, BadRequest, ContextExceeded, NumericError
from jird.runtime.device_numpy import NumpyDevice

from tests.engine.conftest import greedy_oracle, run
from tests.tiny import Tiny

PROMPT = [72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100]


def request(prompt, max_new=12, stop_ids=(), **sampling):
    return Request(tuple(prompt), SamplingOptions(**sampling), tuple(stop_ids), max_new)


def ids_of(events):
    return [e.id for e in events]


@pytest.mark.parametrize("tiny", [Tiny(), Tiny(arch="qwen2"), Tiny(type="F16", head_type="F16"), Tiny(type="Q8_0", is_tied=False), Tiny(type="Q5_0"), Tiny(window=8)],
                         ids=["llama-q4_1", "qwen2-bias", "f16", "q8_0-untied", "q5_0", "window"])
def test_greedy_ids_equal_the_float64_forward_pass(load, tiny):
    engine = load(tiny)
    events = run(engine, [request(PROMPT, 20)])[0]
    ids, margins = greedy_oracle(tiny, PROMPT, 20)
    sure = next((i for i, m in enumerate(margins) if m < 0.02), 20)
    assert sure >= 5
    assert ids_of(events)[:sure] == ids[:sure]
    assert events[-1].finish == "length"


def test_logprob_is_that_of_the_chosen_id(load):
    engine = load()
    first = run(engine, [request(PROMPT, 1)])[0][0]
    logits = engine.tiny.logits(PROMPT)[-1][: engine.spec.vocab_size]  # the last row of the table is padding
    want = logits[first.id] - np.log(np.sum(np.exp(logits)))
    assert first.logprob == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize("rows", [(1,), (2, 3), (4,), (16,), (64,)])
def test_prefill_in_chunks_equals_one_prefill(load, rows):
    prompt = PROMPT * 3
    whole = ids_of(run(load(chunk_rows=(64,)), [request(prompt)])[0])
    assert ids_of(run(load(chunk_rows=rows), [request(prompt)])[0]) == whole


def test_prefill_equals_steps(load):
    engine = load()
    prompt = PROMPT * 2
    ids = ids_of(run(engine, [request(prompt)])[0])
    stepped = load()
    choices = asyncio.run(force_ids(stepped, prompt[:1], prompt[1:] + ids))
    assert choices[len(prompt) - 1:] == ids


@pytest.mark.parametrize("window", [2, 4, 8])
def test_a_window_of_k_steps_equals_k_steps(load, window):
    assert run_ids(load(window=window)) == run_ids(load())


def run_ids(engine, **kw):
    return ids_of(run(engine, [request(PROMPT, 13, **kw)])[0])


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_steps_in_flight_change_nothing(load, depth):
    assert run_ids(load(in_flight=depth)) == run_ids(load(in_flight=4))


def test_fused_equals_unfused(load):
    assert run_ids(load(passes=frozenset())) == run_ids(load())


def test_long_rows_take_the_split_list_and_stay_right(load):
    tiny = Tiny(seed=3)
    engine = load(tiny, context=400)
    prompt = (PROMPT * 30)[:250]
    ids, margins = greedy_oracle(tiny, prompt, 16)
    sure = next((i for i, m in enumerate(margins) if m < 0.02), 16)
    assert ids_of(run(engine, [request(prompt, 16)])[0])[:sure] == ids[:sure]
    assert any("long" in n for n in engine._recordings)


def test_lanes_equal_their_solo_runs(load):
    prompts = [PROMPT, PROMPT[:3], PROMPT * 4, PROMPT[5:6]]
    options = [GenerateOptions(max_new=n, ignore_stop_ids=True, sampling=s) for n, s in
               ((9, SamplingOptions()), (4, SamplingOptions(temperature=0.8, seed=5)), (12, SamplingOptions(temperature=1.3, top_k=20, seed=9)), (7, SamplingOptions(repetition_penalty=1.3)))]
    together = asyncio.run(generate_batch(load(slots=4), prompts, options))
    for prompt, option, (ids, finish) in zip(prompts, options, together, strict=True):
        solo = asyncio.run(generate_batch(load(), [prompt], [option]))[0]
        assert (ids, finish) == solo
        assert len(ids) == option.max_new


def test_rows_on_both_sides_of_256_keys_equal_their_solo_runs_bit_for_bit(load):
    """Beside a long lane, and in a window that crosses the border, a row of at most 256 keys runs in the list of long rows."""
    requests = [request((PROMPT * 30)[:n], 8) for n in (252, 200)]
    solo = [[(e.id, e.logprob) for e in run(load(context=400), [r])[0]] for r in requests]
    together = run(load(context=400, slots=2), requests)
    assert [[(e.id, e.logprob) for e in lane] for lane in together] == solo
    windowed = run(load(context=400, window=8), requests[:1])[0]
    assert [(e.id, e.logprob) for e in windowed] == solo[0]


def test_a_lane_of_nan_leaves_the_others_alone(load):
    engine = load(slots=2)
    prompts = [PROMPT, PROMPT[2:]]
    options = [GenerateOptions(max_new=6, ignore_stop_ids=True)] * 2
    good = asyncio.run(generate_batch(engine, prompts, options))
    poisoned = load(slots=2)
    asyncio.run(generate_batch(poisoned, prompts, [GenerateOptions(max_new=1, ignore_stop_ids=True)] * 2))
    cache = poisoned.buffers.states["layers.0.k_cache"]
    half = cache.data.size // 2
    cache.data[half: half + 64].view(np.float32)[:] = np.nan
    (ids, _), (_, finish) = asyncio.run(generate_batch(poisoned, prompts, options))
    assert ids == good[0][0]
    assert finish == "error"


def test_a_lane_that_ended_in_error_starts_afresh_in_the_next_run(load):
    engine = load(slots=2)
    prompts, options = [PROMPT, PROMPT[2:]], [GenerateOptions(max_new=6, ignore_stop_ids=True)] * 2
    good = asyncio.run(generate_batch(engine, prompts, options))
    cache = engine.buffers.states["layers.0.k_cache"]
    cache.data[cache.data.size // 2:].view(np.float32)[:64] = np.nan
    assert asyncio.run(generate_batch(engine, prompts, options))[1][1] == "error"
    assert asyncio.run(generate_batch(engine, prompts, options)) == good


class CountingDevice(NumpyDevice):
    """Knows how many submitted programs nobody has read."""

    unread = 0

    def run(self, program):
        self.unread += 1
        device, ticket = self, super().run(program)

        class Ticket:
            async def result(self):
                device.unread -= 1
                return await ticket.result()

        return Ticket()


@pytest.mark.parametrize("way", ["run", "force"])
def test_whatever_ends_a_run_every_step_in_flight_is_read_and_the_engine_goes_on(load, way):
    device = CountingDevice()
    engine = load(device=device, in_flight=4)
    device.unread = 0  # of loading, which reads nothing
    cancel = Cancel()

    async def go(abandon: bool):
        events = engine.run([request(PROMPT, 20)], cancel) if way == "run" else engine.force(PROMPT, PROMPT, cancel)
        async for _ in events:
            if abandon:
                break
            cancel.cancel()
        await events.aclose()

    with pytest.raises(Aborted):
        asyncio.run(go(False))
    assert device.unread == 0
    cancel.is_cancelled = False
    asyncio.run(go(True))
    assert device.unread == 0
    assert run_request(engine, PROMPT) == run_request(load(), PROMPT)


def test_two_runs_at_once_are_refused_forced_or_not(load):
    engine = load()

    async def second(make):
        events = engine.run([request(PROMPT, 20)])
        await anext(events)
        try:
            with pytest.raises(BadRequest, match="in progress"):
                await anext(make())
        finally:
            await events.aclose()
        return await anext(make())

    for make in (lambda: engine.run([request(PROMPT)]), lambda: engine.force(PROMPT, PROMPT)):
        asyncio.run(second(make))


def test_nan_in_forced_steps_is_a_numeric_error_and_is_not_remembered(load):
    engine = load()
    run_request(engine, PROMPT)
    norm = engine.buffers.weights["norm.weight#"].data[:4].view(np.float32)
    before, norm[:] = norm.copy(), np.nan
    with pytest.raises(NumericError):
        asyncio.run(force_ids(engine, PROMPT, PROMPT))
    norm[:] = before
    assert engine.kv.length(0) == 0


def test_nan_in_a_single_run_is_a_numeric_error(load):
    engine = load()
    engine.buffers.weights["norm.weight#"].data[:4].view(np.float32)[:] = np.nan
    with pytest.raises(NumericError):
        run(engine, [request(PROMPT)])


def test_a_second_turn_computes_only_its_new_tokens(load):
    engine = load()
    first = ids_of(run(engine, [request(PROMPT, 6)])[0])
    longer = PROMPT + first + PROMPT[:4]
    again = run_request(engine, longer)
    assert engine.timings.prefill_tokens == len(longer) - 1 - (len(PROMPT) + len(first) - 1)
    assert again == run_request(load(), longer)


def run_request(engine, prompt, **kw):
    return ids_of(run(engine, [request(prompt, **kw)])[0])


@pytest.mark.parametrize("late", range(0, 9))
@pytest.mark.parametrize("window", [1, 4, 8])
def test_a_stop_found_late_leaves_the_next_turn_as_if_it_never_overran(load, late, window):
    engine, clean = load(window=window, in_flight=2), load()
    kept = first_ids(engine, PROMPT, 3 + late)[:3]
    engine.kv.rewind(0, min(engine.kv.length(0), len(PROMPT) + 2))
    turn = PROMPT + kept + [10, 11]
    assert run_request(engine, turn) == run_request(clean, turn)


def first_ids(engine, prompt, count):
    """The first `count` ids of a run that is then abandoned with steps in flight."""

    async def take():
        ids = []
        events = engine.run([request(prompt, 40)])
        async for event in events:
            ids.append(event.id)
            if len(ids) == count:
                break
        await events.aclose()
        return ids

    return asyncio.run(take())


def test_stop_ids_end_a_lane_and_its_row_writes_nothing_more(load):
    engine = load(window=8)
    ids = run_request(engine, PROMPT)
    cut = next(i for i in range(2, len(ids)) if ids[i] not in ids[:i])
    stopped = load(window=8)
    events = run(stopped, [request(PROMPT, 12, stop_ids=(ids[cut],))])[0]
    assert (ids_of(events), events[-1].finish) == (ids[: cut + 1], "stop")
    used = len(PROMPT) + cut
    cache = stopped.buffers.states["layers.1.k_cache"].data.view(np.float32).reshape(-1, 32)
    assert np.all(cache[used:] == 0) and np.any(cache[used - 1] != 0)


def test_same_seed_same_ids_other_seed_other_ids(load):
    engine = load()
    first = run_ids(engine, temperature=1.5, seed=1)
    assert run_ids(engine, temperature=1.5, seed=1) == first
    assert run_ids(engine, temperature=1.5, seed=2) != first


def test_the_context_ends_an_answer_with_length(load):
    engine = load(context=16)
    events = run(engine, [request(PROMPT, 100)])[0]
    assert (len(events), events[-1].finish) == (16 - len(PROMPT) + 1, "length")


def test_windows_that_reach_past_a_small_context_end_with_it(load):
    assert ids_of(run(load(context=16, window=4), [request(PROMPT, 100)])[0]) == ids_of(run(load(context=16), [request(PROMPT, 100)])[0])


def test_timings_are_those_of_the_last_run_forced_ones_too(load):
    engine = load()
    run(engine, [request(PROMPT * 2)])
    asyncio.run(force_ids(engine, PROMPT[::-1], PROMPT))
    assert engine.timings.prefill_tokens == len(PROMPT) - 1
    assert engine.timings.prefill_ms > 0 and engine.timings.decoded == 0


def test_bad_requests_are_named(load):
    engine = load(context=32)
    for bad, error, words in ((request([]), BadRequest, "empty"), (request([1] * 33), ContextExceeded, "33 tokens, the context holds 32"),
                              (request([999]), BadRequest, "999 is outside"), (request([1], 0), BadRequest, "max_new"), (request([1], stop_ids=range(9)), BadRequest, "9 stop ids"),
                              (request([1], logit_bias={263: 1.0}), BadRequest, "names id 263; the vocabulary has ids 0 to 262")):
        with pytest.raises(error, match=words):
            run(engine, [bad])
    with pytest.raises(BadRequest, match="2 requests at once"):
        run(engine, [request([1]), request([1])])
    assert len(run_request(engine, PROMPT)) == 12


def test_abort_during_prefill_and_decode_leaves_the_engine_usable(load):
    engine = load(chunk_rows=(4,))
    cancel = Cancel()
    cancel.cancel()
    with pytest.raises(Aborted):
        asyncio.run(_drain(engine.run([request(PROMPT)], cancel)))
    assert run_request(engine, PROMPT) == run_request(load(), PROMPT)


async def _drain(events):
    return [e async for e in events]


def test_text_streams_and_an_abort_keeps_what_was_made(load):
    engine = load()

    async def go(cancel_after):
        cancel, pieces = Cancel(), []
        async for piece in generate_text(engine, PROMPT, GenerateOptions(max_new=10, ignore_stop_ids=True), cancel):
            pieces.append(piece)
            if len(pieces) == cancel_after:
                cancel.cancel()
        return pieces

    whole = asyncio.run(go(0))[-1]
    assert (len(whole.ids), whole.finish_reason) == (10, "length")
    cut = asyncio.run(go(3))[-1]
    assert cut.finish_reason == "abort"
    assert 3 <= len(cut.ids) < 10 and whole.ids[: len(cut.ids)] == cut.ids and whole.text.startswith(cut.text.rstrip("\ufffd"))


@pytest.mark.parametrize("bad", [264, 10**12, -1])
@pytest.mark.parametrize("place", [0, 1])
def test_a_forced_id_outside_the_vocabulary_is_refused_before_anything_runs(load, bad, place):
    engine = load()
    ids = [5, 6]
    ids[place] = bad
    with pytest.raises(BadRequest, match=f"forced id {bad} is outside the vocabulary of 264"):
        asyncio.run(force_ids(engine, PROMPT, ids))
    assert len(asyncio.run(force_ids(engine, PROMPT, [5, 263]))) == 2
