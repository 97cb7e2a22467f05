"""The whole engine on a native WebGPU device (lavapipe where there is no GPU): equal to numpy, and equal to itself however the work is cut."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from jird.engine.generate import GenerateOptions, generate_batch
from jird.engine.sample import SamplingOptions

from tests.engine.conftest import greedy_oracle, run
from tests.engine.test_generate import PROMPT, request
from tests.native import NativeDevice
from tests.tiny import Tiny

pytestmark = pytest.mark.gpu


KINDS = {"gpu": ("adapter", "trusted"), "default": ("default", "trusted"), "software": ("adapter", "software")}


@pytest.fixture(scope="module", params=KINDS)
def device(request):
    """gpu: the kernels that a GPU with all features takes; default: WebGPU's default limits, neither subgroups nor f16; software: kernels without barriers."""
    limits, trust = KINDS[request.param]
    made = NativeDevice(limits)
    made.info = replace(made.info, trust=trust)
    yield made
    made.close()


def ids_of(events):
    return [e.id for e in events]


def sampled(**settings):
    return SamplingOptions(temperature=0.9, **settings)


@pytest.fixture
def native(load, device):
    """A function (Tiny, **EngineOptions) -> Engine on the native device, without the self-test: test_kernels has run these kernels."""
    return lambda tiny=None, **options: load(tiny, device=device, is_tested=True, **options)


QWEN2, F16 = Tiny(arch="qwen2", type="Q8_0", is_tied=False), Tiny(type="F16", head_type="F16", window=8)


@pytest.mark.parametrize("device, tiny", [*((k, Tiny()) for k in KINDS), ("gpu", QWEN2), ("default", F16)], indirect=["device"],
                         ids=[*KINDS, "qwen2-q8_0-bias", "f16-window"])
def test_ids_equal_the_float64_forward_pass(load, device, tiny):
    prompt, count = PROMPT * 2, 12
    engine = load(tiny, device=device, context=64)
    ids, margins = greedy_oracle(tiny, prompt, count)
    sure = next((i for i, m in enumerate(margins) if m < 0.02), count)
    assert sure >= 5
    assert ids_of(run(engine, [request(prompt, count)])[0])[:sure] == ids[:sure]


def test_rows_past_256_keys_take_the_split_list_and_stay_right(native):
    tiny = Tiny(seed=3)
    prompt = (PROMPT * 30)[:250]
    engine = native(tiny, context=400)
    ids, margins = greedy_oracle(tiny, prompt, 12)
    sure = next((i for i, m in enumerate(margins) if m < 0.02), 12)
    assert sure > 8  # the 7th step is the first with 257 keys
    assert ids_of(run(engine, [request(prompt, 12)])[0])[:sure] == ids[:sure]


def test_lanes_equal_their_solo_runs_bit_for_bit(native, device):
    """Greedy, sampled, one that ends early, one whose cache holds NaN."""
    prompts = [PROMPT, PROMPT[:3], PROMPT * 3, PROMPT[4:]]
    lanes, solo = native(slots=4, context=64), native(context=64)
    settings = ({}, {"temperature": 0.8, "seed": 5}, {"temperature": 1.3, "top_k": 20, "seed": 9}, {})
    requests = [request(p, n, **s) for p, n, s in zip(prompts, (8, 3, 6, 5), settings, strict=True)]
    run(lanes, [request(p, 1) for p in prompts])
    cache = lanes.buffers.states["layers.0.k_cache"]
    device.write(cache, 3 * cache.nbytes // 4, np.full(64, np.nan, np.float32))
    together = run(lanes, requests)
    assert together[3][-1].finish == "error"
    for got, one in zip(together[:3], requests[:3], strict=True):
        solo.kv.rewind(0, 0)  # a prefix found in the cache is chunked otherwise
        want = run(solo, [one])[0]
        assert [(e.id, e.logprob, e.finish) for e in got] == [(e.id, e.logprob, e.finish) for e in want]
        assert len(got) == one.max_new


def test_a_window_of_k_steps_equals_k_steps_bit_for_bit(native):
    once = [[(e.id, e.logprob) for e in run(native(context=64, window=w), [request(PROMPT, 9, temperature=0.9, seed=3)])[0]] for w in (1, 4)]
    assert once[0] == once[1]


def test_rows_on_both_sides_of_256_keys_equal_their_solo_runs_bit_for_bit(native):
    """Beside a long lane, and in a window that crosses the border, a row of at most 256 keys runs in the list of long rows."""
    requests = [request((PROMPT * 30)[:n], 8) for n in (252, 200)]
    solo = [[(e.id, e.logprob) for e in run(native(context=400), [r])[0]] for r in requests]
    together = run(native(context=400, slots=2), requests)
    assert [[(e.id, e.logprob) for e in lane] for lane in together] == solo
    windowed = run(native(context=400, window=8), requests[:1])[0]
    assert [(e.id, e.logprob) for e in windowed] == solo[0]


def test_a_done_row_writes_nothing(native, device):
    """Steps past a stop id leave caches, history and step row as they were."""
    engine = native(context=64, window=8, in_flight=2)
    first = ids_of(run(engine, [request(PROMPT, 8)])[0])
    stop = next(i for i in range(1, 8) if first[i] not in first[:i])
    engine.kv.rewind(0, 0)
    for name, buffer in engine.buffers.states.items():
        if name == "history" or name.endswith("_cache"):
            device.write(buffer, 0, np.full(buffer.nbytes // 4, 0xDEADBEEF, np.uint32))
    ended = run(engine, [request(PROMPT, 40, stop_ids=[first[stop]])])[0]
    assert (ids_of(ended), ended[-1].finish) == (first[: stop + 1], "stop")
    used = len(PROMPT) + stop  # the stop id itself is never embedded
    for name, width in (("history", 1), ("layers.1.k_cache", 32), ("layers.1.v_cache", 32)):
        buffer = engine.buffers.states[name]
        words = np.frombuffer(asyncio.run(device.read(buffer, 0, buffer.nbytes)), np.uint32)[: 64 * width].reshape(64, width)
        assert (words[used:] == 0xDEADBEEF).all(), name
        assert (words[:used] != 0xDEADBEEF).all(), name


def test_sampled_ids_are_those_of_numpy(native, load):
    options = [GenerateOptions(max_new=10, ignore_stop_ids=True, sampling=sampled(seed=s, top_k=30, top_p=0.95, repetition_penalty=1.1)) for s in (1, 2)]
    ours, host = native(context=64), load(context=64)
    for option in options:
        assert asyncio.run(generate_batch(ours, [PROMPT], [option])) == asyncio.run(generate_batch(host, [PROMPT], [option]))
