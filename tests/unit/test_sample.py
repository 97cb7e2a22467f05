"""Sampling options, and both tails of a decode step on the numpy references: what is chosen, and what becomes of the step row."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from jird.engine.sample import SamplingOptions, check_vocab, record
from jird.errors import BadRequest
from jird.graph.builder import GraphBuilder
from jird.kernels.core import ABSENT, BAD, DONE, MASKED, NO_TOKEN, OUT_DTYPE, PARTIAL_DTYPE, SAMPLING_DTYPE, steps
from jird.kernels.draw import depths, draw_id, kept_weights, philox, weights
from jird.kernels.sample import MAX_BIAS, advance_sampled, block_max, penalize
from jird.kernels.step import advance_greedy
from jird.plan.compile import compile, prepare
from jird.plan.context import Context

RUNNING = {"token": 5, "position": 3, "kv_len": 4, "draw": 0, "limit": 100}


def tail(logits, options=None, rows=None, history=None, stop_ids=(), vocab=0, is_greedy=False):
    """Runs a tail on logits [T, V], row i in slot i. Returns (out, step, adjusted logits)."""
    logits = np.array(logits, np.float32, ndmin=2)
    count, width = logits.shape
    options = options or [SamplingOptions()] * count
    step = steps([{**RUNNING, "slot": i, **(rows[i] if rows else {})} for i in range(count)])
    sampling, mask = np.zeros(count, SAMPLING_DTYPE), np.zeros((count, -(-width // 32)), np.uint32)
    bias = np.zeros((count, 2 * MAX_BIAS), np.uint32)
    for slot, o in enumerate(options):
        made = record(o, stop_ids, vocab or width, width)
        sampling[slot] = made.record
        bias[slot, :made.bias.size] = made.bias
        if made.mask is not None:
            mask[slot] = made.mask
    history = np.zeros((count, 8), np.uint32) if history is None else np.array(history, np.uint32)
    blocks = -(-width // 1024)
    p = SimpleNamespace(T=count, V=width, blocks=blocks, context=history.shape[1])
    partials, out, flat = np.zeros(count * blocks, PARTIAL_DTYPE), np.zeros(count, OUT_DTYPE), logits.ravel().copy()
    if not is_greedy:
        penalize(history.ravel(), sampling, mask.ravel(), bias.ravel(), flat, step, p)
    block_max(flat, sampling, partials, step, p)
    if is_greedy:
        advance_greedy(partials, sampling, out, step, p)
    else:
        advance_sampled(partials, flat, sampling, out, step, p)
    return out, step, flat.reshape(count, width)


def seeded_logits(rows=1, width=1500, seed=0):
    return (np.random.default_rng(seed).standard_normal((rows, width)) * 3).astype(np.float32)


def hf_probabilities(logits, o: SamplingOptions):
    """The distribution of the transformers warpers (temperature, top_k, top_p, min_p), in float64 on sorted values."""
    x = logits.astype(np.float64) / o.temperature
    if o.top_k:
        x[x < np.sort(x)[-min(o.top_k, x.size)]] = -np.inf
    if o.top_p < 1:
        order = np.argsort(x)
        p = np.exp(x[order] - x.max())
        cumulative = np.cumsum(p / p.sum())
        gone = cumulative <= 1 - o.top_p
        gone[-1] = False
        x[order[gone]] = -np.inf
    p = np.exp(x - x.max())
    p /= p.sum()
    p[p < o.min_p * p.max()] = 0
    return p / p.sum()


SETTINGS = [SamplingOptions(temperature=1), SamplingOptions(temperature=0.7, top_k=40), SamplingOptions(temperature=1.3, top_p=0.9),
            SamplingOptions(temperature=0.8, min_p=0.05), SamplingOptions(temperature=1.5, top_k=100, top_p=0.8, min_p=0.02),
            SamplingOptions(temperature=1, top_k=5, top_p=0.5), SamplingOptions(temperature=3, top_p=0.99)]


@pytest.mark.parametrize("setting, value", [
    ("temperature", float("nan")), ("temperature", -0.1), ("temperature", float("inf")), ("temperature", "1"), ("temperature", None), ("temperature", True),
    ("top_k", -1), ("top_k", 1.5), ("top_k", 2**31), ("top_p", 0), ("top_p", 1.01), ("top_p", float("nan")), ("min_p", -0.1), ("min_p", 1.1),
    ("repetition_penalty", 0), ("repetition_penalty", float("nan")), ("penalty_window", -1), ("seed", -1), ("seed", 2**64), ("seed", 0.5),
    ("logit_bias", [1]), ("logit_bias", {0: float("inf")}), ("logit_bias", {-1: 1.0}), ("logit_bias", {i: 1.0 for i in range(MAX_BIAS + 1)}),
    ("allowed", ()), ("allowed", "abc"), ("allowed", (-1,))])
def test_settings_out_of_range_are_named_with_their_value(setting, value):
    with pytest.raises(BadRequest) as error:
        SamplingOptions(**{setting: value})
    assert setting in str(error.value)


def test_the_ends_of_each_range_are_taken():
    SamplingOptions(temperature=100, top_k=2**31 - 1, top_p=1, min_p=1, repetition_penalty=100, penalty_window=2**31 - 1, seed=2**64 - 1)
    SamplingOptions(temperature=0, top_k=0, top_p=1e-9, min_p=0, repetition_penalty=0.01, penalty_window=0, seed=np.int64(0))


@pytest.mark.parametrize("options", [SamplingOptions(logit_bias={50: 1.0}), SamplingOptions(allowed=(3, 50))])
def test_an_id_outside_the_vocabulary_is_refused(options):
    check_vocab(options, 51)
    with pytest.raises(BadRequest, match="50"):
        check_vocab(options, 50)


def test_a_record_holds_up_to_eight_stop_ids():
    assert record(SamplingOptions(), [9, 2, 2], 10).record["stop"].tolist() == [2, 9] + [NO_TOKEN] * 6
    with pytest.raises(BadRequest, match="9 stop ids"):
        record(SamplingOptions(), range(9), 10)
    with pytest.raises(BadRequest, match="stop ids"):
        record(SamplingOptions(), [10], 10)


@pytest.mark.parametrize("options, needs", [
    (SamplingOptions(), False), (SamplingOptions(top_k=7, top_p=0.5, seed=3), False), (SamplingOptions(temperature=1, top_k=1), False),
    (SamplingOptions(temperature=1), True), (SamplingOptions(repetition_penalty=1.1), True), (SamplingOptions(logit_bias={1: 1.0}), True),
    (SamplingOptions(allowed=(1,)), True)])
def test_the_greedy_tail_serves_only_what_is_the_plain_maximum(options, needs):
    assert options.is_plain_greedy != needs


@pytest.mark.parametrize("key, counter, words", [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1))])
def test_philox_gives_the_published_answers(key, counter, words):
    assert philox(key, counter) == words


def test_weights_are_powers_of_two_of_the_depth_and_never_rise():
    depth = np.arange(0, 20 << 16, 7, dtype=np.uint32)
    made = weights(depth).astype(np.int64)
    exact = 2.0**31 * 2.0 ** (depth / -65536)
    assert np.abs(made - exact).max() < 2**31 * 5e-7
    assert (np.abs(made - exact) <= exact * 5e-7 + 1).all()
    assert (np.diff(made) <= 0).all()
    assert weights(np.array([0, 1 << 16, 31 << 16, 0x1FFFFF], np.uint32)).tolist() == [2**31, 2**30, 1, 0]


@pytest.mark.parametrize("options", SETTINGS)
def test_kept_ids_and_their_shares_are_those_of_the_transformers_order(options):
    for seed in range(3):
        logits = seeded_logits(seed=seed)[0]
        made = kept_weights(logits, record(options, (), logits.size).record)
        want = hf_probabilities(logits, options)
        kept = want > 1e-8  # a weight below 2^-31 of the greatest is 0
        assert ((made > 0) | ~kept).all() and (made[want == 0] == 0).all()
        np.testing.assert_allclose(made / made.sum(), want, rtol=2e-5, atol=2e-9)


@pytest.mark.parametrize("options", SETTINGS)
def test_draws_follow_the_distribution(options):
    logits = seeded_logits(width=60, seed=4)[0]
    prepared, count = record(options, (), 60).record, 1500
    seen = np.bincount([draw_id(logits, prepared, i) for i in range(count)], minlength=60)
    want = hf_probabilities(logits, options) * count
    assert (seen[want == 0] == 0).all()
    common = want >= 5
    chi2 = ((seen - want)[common] ** 2 / want[common]).sum()
    freedom = common.sum() - 1
    assert chi2 <= freedom + 4 * np.sqrt(2 * freedom) + 1


@pytest.mark.parametrize("options", [SamplingOptions(temperature=2, top_k=1), SamplingOptions(temperature=2, top_p=1e-9),
                                     SamplingOptions(temperature=2, min_p=1), SamplingOptions(temperature=0, top_k=50, top_p=0.3, min_p=0.2),
                                     SamplingOptions(temperature=1e-9)])
def test_settings_that_leave_one_id_equal_greedy(options):
    logits = seeded_logits(4, 3000)
    out, step, _ = tail(logits, [options] * 4)
    greedy, greedy_step, _ = tail(logits, is_greedy=True)
    assert out["token"].tolist() == logits.argmax(-1).tolist()
    assert out.tolist() == greedy.tolist() and step.tolist() == greedy_step.tolist()


def test_the_first_of_equal_maxima_is_taken_across_blocks():
    logits = np.zeros((2, 3000), np.float32)
    logits[0, [999, 1500, 2999]] = 7
    logits[1, [1024, 2047]] = 7
    for is_greedy in (True, False):
        assert tail(logits, is_greedy=is_greedy)[0]["token"].tolist() == [999, 1024]


def test_what_ties_with_the_last_kept_id_stays():
    logits = np.array([1, 3, 2, 2, 2, 0], np.float32)
    prepared = record(SamplingOptions(temperature=1, top_k=2), (), 6).record
    assert np.flatnonzero(kept_weights(logits, prepared)).tolist() == [1, 2, 3, 4]


def test_top_k_past_the_allowed_ids_keeps_them_all():
    logits = seeded_logits(width=40)[0]
    logits[10:] = ABSENT
    assert np.count_nonzero(kept_weights(logits, record(SamplingOptions(temperature=1, top_k=30), (), 40).record)) == 10


def test_equal_logits_over_a_large_vocabulary_are_drawn_from_everywhere():
    logits = np.zeros(262144, np.float32)
    prepared = record(SamplingOptions(temperature=1, top_p=0.999), (), logits.size).record
    ids = [draw_id(logits, prepared, i) for i in range(20)]
    assert min(ids) < 262144 // 4 and max(ids) > 262144 * 3 // 4
    assert int(kept_weights(logits, prepared).sum()) == 262144 << 31


def test_rows_of_different_settings_equal_their_solo_runs():
    logits = seeded_logits(4, 2500, seed=8)
    options = [SamplingOptions(temperature=1, seed=1), SamplingOptions(), SamplingOptions(temperature=0.7, top_k=20, seed=3),
               SamplingOptions(temperature=1, repetition_penalty=1.3, logit_bias={7: 3.0}, seed=4)]
    history = np.arange(32).reshape(4, 8)
    together = tail(logits, options, history=history)[0]
    for i in range(4):
        assert tail(logits[i: i + 1], options[i: i + 1], history=history[i: i + 1])[0][0] == together[i]


def test_a_seed_repeats_and_another_differs():
    logits = seeded_logits()[0]
    def ids(seed):
        return [draw_id(logits, record(SamplingOptions(temperature=1.5, seed=seed), (), logits.size).record, i) for i in range(30)]
    assert ids(1) == ids(1)
    assert len({tuple(ids(seed)) for seed in (0, 1, 2**32, 2**64 - 1)}) == 4


def test_a_masked_or_padding_id_is_never_chosen():
    logits = seeded_logits(width=100, seed=2)[0]
    best = int(logits.argmax())
    allowed = [i for i in range(0, 100, 3) if i != best]
    for temperature in (0, 1, 50):
        o = SamplingOptions(temperature=temperature, allowed=allowed, top_k=60)
        for draw in range(20):
            token = int(tail(logits, [o], [{"draw": draw}])[0]["token"][0])
            assert token in allowed
            assert int(tail(logits, [SamplingOptions(temperature=temperature)], [{"draw": draw}], vocab=best)[0]["token"][0]) < best


def test_the_repetition_penalty_divides_positive_and_multiplies_negative_logits_once_an_id():
    logits = np.array([2, -2, 3, -1, 0], np.float32)
    o = SamplingOptions(repetition_penalty=2)
    out, _, adjusted = tail(logits, [o], history=[[0, 1, 0, 2, 3, 3, 3, 3]])  # position 3: ids 0, 1, 0, 2 count
    assert adjusted[0].tolist() == [1, -4, 1.5, -1, 0]
    assert out["token"].tolist() == [2]


@pytest.mark.parametrize("window, want", [(1, [2, -2, 1.5, -1]), (2, [1, -2, 1.5, -1]), (3, [1, -4, 1.5, -1]), (100, [1, -4, 1.5, -1])])
def test_the_penalty_window_counts_the_last_tokens(window, want):
    o = SamplingOptions(repetition_penalty=2, penalty_window=window)
    assert tail([2, -2, 3, -1], [o], history=[[0, 1, 0, 2, 3, 3, 3, 3]])[2][0].tolist() == want


def test_bias_comes_before_the_penalty():
    o = SamplingOptions(repetition_penalty=2, logit_bias={1: 5.0, 3: 0.5})
    assert tail([2, -1, 3, -1], [o], history=[[1, 1, 1, 1, 3, 3, 3, 3]])[2][0].tolist() == [2, 2, 3, -0.5]


def test_logprob_is_of_the_adjusted_logits_before_temperature():
    logits = seeded_logits(width=50, seed=6)[0]
    o = SamplingOptions(temperature=2, top_k=10, seed=5, logit_bias={3: 2.0})
    out = tail(logits, [o])[0][0]
    x = logits.astype(np.float64)
    x[3] += 2
    want = x[out["token"]] - np.log(np.exp(x).sum())
    assert abs(out["logprob"] - want) < 1e-5


@pytest.mark.parametrize("is_greedy", [True, False])
def test_a_running_row_moves_on(is_greedy):
    out, step, _ = tail([0, 1, 5], rows=[{"draw": 2, "adapter": 9}], is_greedy=is_greedy)
    assert step[0].tolist() == (2, 4, 5, 0, 9, 0, 3, 100)
    assert out[0].tolist()[:3] == (2, 5, 0)


@pytest.mark.parametrize("is_greedy", [True, False])
def test_a_stop_id_is_reported_and_ends_the_row(is_greedy):
    out, step, _ = tail([0, 1, 5], stop_ids=[1, 2], is_greedy=is_greedy)
    assert out[0].tolist()[:3] == (2, 5, DONE) and step["flags"][0] == DONE and step["position"][0] == 4


@pytest.mark.parametrize("limit, flags", [(4, DONE), (5, DONE), (6, 0)])
def test_the_limit_is_the_number_of_tokens_known_at_which_a_row_is_done(limit, flags):
    out, step, _ = tail([0, 1, 5], rows=[{"limit": limit}])
    assert out["kv_len"][0] == 5 and out["flags"][0] == step["flags"][0] == flags


@pytest.mark.parametrize("is_greedy", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_ends_its_own_row_where_it_stands(is_greedy, value):
    logits = seeded_logits(2, 1100)
    logits[0, 1050] = value
    out, step, _ = tail(logits, is_greedy=is_greedy)
    assert out[0].tolist() == (5, 4, BAD | DONE, 0) and step[0].tolist() == (5, 3, 4, 0, 0, BAD | DONE, 0, 100)
    assert out["flags"][1] == 0 and out["token"][1] == logits[1].argmax()


def test_nothing_left_to_choose_is_bad():
    out, _, _ = tail([3, 1, 2], [SamplingOptions(allowed=(2,))], vocab=3)
    assert out[0]["token"] == 2
    logits = np.full(3, ABSENT)
    assert tail(logits)[0]["flags"].tolist() == [BAD | DONE]


@pytest.mark.parametrize("is_greedy", [True, False])
@pytest.mark.parametrize("flags", [DONE, MASKED, DONE | BAD])
def test_an_idle_row_only_reports_itself(is_greedy, flags):
    logits = seeded_logits(2, 1100)
    logits[0, 3] = np.nan
    out, step, adjusted = tail(logits, [SamplingOptions(temperature=1, repetition_penalty=2)] * 2, [{"flags": flags}, {}], is_greedy=is_greedy)
    assert out[0].tolist() == (5, 4, flags, 0) and step[0].tolist() == (5, 3, 4, 0, 0, flags, 0, 100)
    np.testing.assert_array_equal(adjusted[0], logits[0])
    assert step["position"][1] == 4


def test_depth_ends_where_a_weight_would_be_nothing():
    logits = np.array([0, -1, -30, ABSENT], np.float32)
    assert depths(logits, np.float32(65536)).tolist() == [0, 65536, 30 * 65536, 0x1FFFFF]


def test_the_head_takes_its_norm_and_penalize_stays_before_block_max():
    g = GraphBuilder("tail")
    x = g.rms_norm(g.add(g.input("a", "T", 64), g.input("b", "T", 64), "add"), "norm", 1e-5)
    g.tail_sampled(g.linear(x, "lm_head", 2000), g.state("history", "B", "S", dtype="u32"))
    plan = compile(prepare(g.build(), {}), Context(rows=1, slots=2, context=16))
    assert [s.op for s in plan.steps] == ["add", "linear", "penalize", "block_max", "advance_sampled"]
    assert {"mask", "bias", "sampling", "history", "out"} <= set(plan.states)


@pytest.mark.parametrize("is_greedy", [True, False])
def test_padding_ids_take_no_part_in_either_tail(is_greedy):
    logits = seeded_logits(width=1030, seed=3)
    logits[0, 1025:] = [50, np.nan, 60, np.inf, 70]
    out, _, _ = tail(logits, vocab=1025, is_greedy=is_greedy)
    assert out.tolist() == tail(logits[:, :1025], is_greedy=is_greedy)[0].tolist() and out["token"][0] == logits[0, :1025].argmax()
