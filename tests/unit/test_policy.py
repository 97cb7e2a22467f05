"""How much is submitted at once and kept in flight."""

import pytest
from jird.engine.model import chunk_rows
from jird.engine.options import EngineOptions
from jird.engine.policy import FLIGHT_MS, MAX_IN_FLIGHT, SubmitPolicy, policy_for
from jird.errors import BadRequest
from jird.runtime.device import DeviceInfo

GPU, SOFTWARE = DeviceInfo("gpu"), DeviceInfo("software", trust="software")


def after(policy: SubmitPolicy, *times: float) -> SubmitPolicy:
    for ms in times:
        policy = policy.measured(ms)
    return policy


def test_a_gpu_starts_with_steps_in_flight_and_a_software_adapter_with_one():
    gpu, software = policy_for(GPU, EngineOptions()), policy_for(SOFTWARE, EngineOptions())
    assert (gpu.in_flight, software.in_flight, gpu.window, software.window) == (4, 1, 1, 1)


@pytest.mark.parametrize("step_ms, depth", [(0.5, 5), (0.9, 4), (1.5, 3), (2.5, 2), (3.0, 3), (FLIGHT_MS, 1), (400.0, 1), (0.0, MAX_IN_FLIGHT)])
def test_depth_follows_the_measured_step(step_ms, depth):
    assert after(policy_for(GPU, EngineOptions()), *[step_ms] * 40).in_flight == depth


@pytest.mark.parametrize("step_ms, window", [(0.0, 4), (0.9, 4), (2.5, 4), (2.6, 1), (400.0, 1)])
def test_short_steps_share_a_submit(step_ms, window):
    assert after(policy_for(GPU, EngineOptions()), *[step_ms] * 40).window == window
    assert after(policy_for(GPU, EngineOptions(window=3)), *[step_ms] * 40).window == 3


def test_one_slow_step_does_not_empty_the_pipeline():
    steady = after(policy_for(GPU, EngineOptions()), *[1.0] * 40)
    shaken = after(steady, 5.0)
    assert shaken.in_flight * shaken.window >= 4
    assert after(steady, *[5.0] * 40).in_flight == 2


def test_a_depth_that_was_asked_for_stays():
    policy = policy_for(SOFTWARE, EngineOptions(in_flight=3))
    assert after(policy, 0.1, 500.0).in_flight == 3


@pytest.mark.parametrize("left, rows", [(1, 32), (32, 32), (33, 128), (128, 128), (129, 512), (5000, 512)])
def test_a_chunk_is_the_smallest_that_holds_what_is_left_or_the_largest(left, rows):
    assert policy_for(GPU, EngineOptions()).chunk([32, 128, 512], left) == rows


def test_a_software_adapter_takes_no_chunk_past_its_bound_unless_there_is_no_other():
    policy = policy_for(SOFTWARE, EngineOptions())
    assert policy.chunk([16, 64, 512], 400) == 64
    assert policy.chunk([512], 400) == 512


@pytest.mark.parametrize("info, options, context, rows", [
    (GPU, EngineOptions(), 2048, (32, 128, 512)), (SOFTWARE, EngineOptions(), 2048, (16, 32, 64)), (GPU, EngineOptions(), 100, (32, 100)),
    (GPU, EngineOptions(chunk_rows=(64, 8, 64)), 2048, (8, 64))])
def test_prefill_plans_have_the_rows_of_the_device_cut_to_the_context(info, options, context, rows):
    assert chunk_rows(info, options, context) == rows


@pytest.mark.parametrize("setting, value", [("slots", 0), ("slots", 5), ("context", 0), ("window", -1), ("in_flight", -1), ("chunk_rows", (0,)),
                                            ("chunk_rows", (64, 4096)), ("context", 1.5), ("slots", True)])
def test_engine_options_out_of_range_are_refused_by_name(setting, value):
    with pytest.raises(BadRequest, match=f"{setting}.* must be a whole number from"):
        EngineOptions(**{setting: value})


def test_prompt_chunks_halve_until_a_submit_is_short_but_not_on_software_adapters():
    policy, sizes = policy_for(GPU, EngineOptions()), [32, 128, 512]
    assert policy.measured_chunk(512, 60.0).chunk(sizes, 5000) == 512
    policy = policy.measured_chunk(512, 400.0)
    assert policy.chunk(sizes, 5000) == 128
    policy = policy.measured_chunk(128, 150.0)
    assert policy.chunk(sizes, 5000) == 32
    assert policy.measured_chunk(32, 5000.0).chunk(sizes, 5000) == 32
    slow = policy_for(SOFTWARE, EngineOptions())
    assert slow.measured_chunk(64, 9000.0) == slow


@pytest.mark.parametrize("left, rows", [(1, 16), (16, 16), (17, 16), (25, 32), (36, 32), (48, 64), (47, 32), (64, 64), (100, 64)])
def test_a_software_adapter_masks_few_rows(left, rows):
    assert policy_for(SOFTWARE, EngineOptions()).chunk([16, 32, 64], left) == rows
