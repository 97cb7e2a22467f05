"""The Llama family's config from HF and GGUF: what is read, what is refused; frequencies, weight list, and a checkpoint's match with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from jird.engine.load import read_checkpoint
from jird.engine.model import model_of
from jird.errors import BadCheckpoint, JirdError, ModelNotSupported
from jird.models import ALIASES, llama, load_family
from jird.models.llama import Config, RopeScaling
from jird.weights.checkpoint import Checkpoint, TensorInfo
from jird.weights.source import FileSource

from tests.tiny import Tiny

HF = {"model_type": "llama", "vocab_size": 100, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
      "num_attention_heads": 4, "rms_norm_eps": 1e-6}
GGUF = {"general.architecture": "llama", "llama.attention.head_count": 4, "llama.embedding_length": 64, "llama.block_count": 2,
        "llama.feed_forward_length": 96, "llama.attention.layer_norm_rms_epsilon": 1e-6, "llama.context_length": 512}
TENSORS = {"token_embd.weight": TensorInfo("token_embd.weight", (100, 64), "F32", 0, 0)}


def test_defaults_of_a_short_config():
    cfg = Config.from_hf(HF)
    assert (cfg.kv_heads, cfg.head_dim, cfg.rope_theta, cfg.is_tied, cfg.has_qkv_bias, cfg.window, cfg.scaling) == (4, 16, 10000.0, False, False, 0, None)


def test_qwen2_has_biases_on_q_k_v_only_and_no_window_unless_asked():
    cfg = Config.from_hf({**HF, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False})
    assert (cfg.has_qkv_bias, cfg.has_out_bias, cfg.window) == (True, False, 0)
    assert Config.from_hf({**HF, "attention_bias": True}).has_out_bias
    assert Config.from_hf({**HF, "model_type": "mistral", "sliding_window": 4096}).window == 4096
    assert Config.from_hf({**HF, "model_type": "mistral", "sliding_window": None}).window == 0


def test_layers_that_attend_differently_are_refused():
    mixed = {**HF, "model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}
    with pytest.raises(ModelNotSupported, match="layer_types"):
        Config.from_hf(mixed)
    old = {**HF, "model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}
    with pytest.raises(ModelNotSupported, match="max_window_layers"):
        Config.from_hf(old)
    assert [Config.from_hf({**old, "max_window_layers": n}).window for n in (0, 2, 28)] == [8, 0, 0]
    assert Config.from_hf({**mixed, "layer_types": ["sliding_attention"] * 2}).window == 8
    assert Config.from_hf({**mixed, "layer_types": ["full_attention"] * 2}).window == 0


@pytest.mark.parametrize("key", [k for k in HF if k != "model_type"])
def test_a_missing_key_is_named(key):
    with pytest.raises(ModelNotSupported, match=f"config.json of a llama model lacks {key}"):
        Config.from_hf({k: v for k, v in HF.items() if k != key})


@pytest.mark.parametrize("changes, words", [
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"mlp_bias": True}, "mlp_bias"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic'"),
    ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5, "rope_type": "default"}}, "partial_rotary_factor"),
    ({"vocab_size": "many"}, "vocab_size"),
    ({"hidden_size": None}, "hidden_size"),
    ({"num_attention_heads": 0}, "num_attention_heads"),
    ({"num_hidden_layers": -1}, "num_hidden_layers"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"head_dim": 15}, "head_dim"),
    ({"num_hidden_layers": 10**9}, "1000000000 layers"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    ({"rope_theta": float("nan")}, "rope_theta"),
])
def test_a_config_that_is_not_built_is_refused_by_name(changes, words):
    with pytest.raises(JirdError, match=words):
        Config.from_hf({**HF, **changes})


@pytest.mark.parametrize("key", [k for k in GGUF if k != "general.architecture"])
def test_a_missing_gguf_key_is_named(key):
    with pytest.raises(ModelNotSupported, match=f"GGUF metadata lacks {key}"):
        Config.from_gguf({k: v for k, v in GGUF.items() if k != key}, TENSORS)


def test_a_gguf_file_says_tied_biased_and_scaled_by_what_it_holds():
    cfg = Config.from_gguf(GGUF, TENSORS)
    assert (cfg.vocab, cfg.is_tied, cfg.has_qkv_bias, cfg.is_permuted) == (100, True, False, True)
    more = {**TENSORS, "output.weight": None, "blk.0.attn_q.bias": None}
    cfg = Config.from_gguf({k.replace("llama", "qwen2"): "qwen2" if v == "llama" else v for k, v in GGUF.items()}, more)
    assert (cfg.is_tied, cfg.has_qkv_bias, cfg.is_permuted) == (False, True, False)
    linear = {**GGUF, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert Config.from_gguf(linear, TENSORS).scaling == RopeScaling("linear", 2.0)


@pytest.mark.parametrize("changes, words", [
    ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
    ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.factor"),
    ({"llama.attention.head_count": [4, 4]}, "head_count"),
    ({"llama.attention.head_count": 0}, "head_count"),
    ({"llama.attention.head_count_kv": 3}, "head_count_kv"),
    ({"llama.rope.dimension_count": 8}, "rope.dimension_count"),
])
def test_gguf_metadata_that_is_not_built_is_refused_by_name(changes, words):
    with pytest.raises(JirdError, match=words):
        Config.from_gguf({**GGUF, **changes}, TENSORS)


def test_a_gguf_without_a_token_table_is_refused():
    with pytest.raises(BadCheckpoint, match="token_embd.weight"):
        Config.from_gguf(GGUF, {})


def test_llama3_scaling_leaves_short_waves_and_stretches_long_ones():
    plain = Config.from_hf({**HF, "head_dim": 64, "rope_theta": 500000.0})
    scaled = replace(plain, scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8192))
    ratio = llama.inverse_frequencies(plain) / llama.inverse_frequencies(scaled)
    wavelength = 2 * np.pi / llama.inverse_frequencies(plain)
    assert (ratio[wavelength < 8192 / 4] == 1).all() and (ratio[wavelength > 8192] == 8).all()
    between = ratio[(wavelength > 8192 / 4) & (wavelength < 8192)]
    assert between.size and ((between > 1) & (between < 8)).all() and (np.diff(between) > 0).all()
    factors = ratio.astype(np.float32)
    np.testing.assert_allclose(llama.inverse_frequencies(plain, factors), llama.inverse_frequencies(scaled), rtol=1e-6)


def test_tables_hold_the_angles_of_every_position():
    cfg = replace(Config.from_hf(HF), scaling=RopeScaling("linear", 4.0))
    tables = llama.rope_tables(cfg, 9)
    assert tables["rope.cos"].shape == (9, 8) and tables["rope.cos"].dtype == np.float32
    np.testing.assert_allclose(tables["rope.sin"][8], np.sin(2 * 10000.0 ** (-np.arange(8) / 8)), atol=1e-7)


def test_rope_factors_of_another_length_are_refused():
    with pytest.raises(BadCheckpoint, match=r"rope_freqs.weight has 5 values, head_dim 16 needs 8"):
        llama.inverse_frequencies(Config.from_hf(HF), np.ones(5, np.float32))


@pytest.mark.parametrize("changes", [{}, {"is_tied": False}, {"has_qkv_bias": True}, {"has_qkv_bias": True, "has_out_bias": True}])
def test_the_weight_list_names_every_weight_of_the_graph_with_its_shape(changes):
    cfg = replace(Config.from_hf({**HF, "tie_word_embeddings": True}), **changes)
    listed = {w.name: w.shape for w in llama.weights(cfg)}
    assert listed == {w.name: tuple(w.shape) for w in llama.graph(cfg, head=True).weights()}
    assert len({w.hf for w in llama.weights(cfg)}) == len({w.gguf for w in llama.weights(cfg)}) == len(listed)


def test_an_unknown_model_type_is_named_with_what_is_known():
    with pytest.raises(ModelNotSupported, match=f"'mamba' is not supported; supported: {', '.join(sorted(ALIASES))}"):
        load_family("mamba")


def checkpoint_of(tmp_path):
    source = FileSource(Tiny(layers=1).write(tmp_path / "tiny.gguf"))
    made = asyncio.run(read_checkpoint(source))
    source.close()
    return made


def test_missing_misshapen_and_unknown_tensors_are_named(tmp_path):
    checkpoint = checkpoint_of(tmp_path)
    tensors = dict(checkpoint.tensors)
    assert model_of(checkpoint).config.vocab == 264
    with pytest.raises(BadCheckpoint, match="lacks 1 of 11 tensors, the first is blk.0.ffn_up.weight"):
        model_of(replace(checkpoint, tensors={n: t for n, t in tensors.items() if n != "blk.0.ffn_up.weight"}))
    up = replace(tensors["blk.0.ffn_up.weight"], shape=(95, 64))
    with pytest.raises(BadCheckpoint, match=r"blk.0.ffn_up.weight is \[95, 64\]; the config says \[96, 64\]"):
        model_of(replace(checkpoint, tensors={**tensors, up.name: up}))
    extra = replace(up, name="blk.0.ffn_gate_inp.weight")
    with pytest.raises(ModelNotSupported, match="1 tensors that the model does not use, the first is blk.0.ffn_gate_inp.weight"):
        model_of(replace(checkpoint, tensors={**tensors, extra.name: extra}))
    with pytest.raises(ModelNotSupported, match="'rwkv'"):
        model_of(replace(checkpoint, architecture="rwkv"))


def test_safetensors_need_a_config(tmp_path):
    with pytest.raises(BadCheckpoint, match="needs its config.json"):
        model_of(replace(checkpoint_of(tmp_path), kind="safetensors"))


@pytest.mark.parametrize("changes", [
    {"sliding_window": "x"}, {"sliding_window": -1}, {"sliding_window": float("nan")}, {"sliding_window": []}, {"rope_scaling": "linear"}, {"rope_parameters": [1]},
    {"layer_types": 5}, {"layer_types": [[]]}, {"model_type": "qwen2", "max_window_layers": "x"}, {"rms_norm_eps": 1e300},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
], ids=str)
def test_config_values_of_other_types_are_named(changes):
    with pytest.raises(BadCheckpoint, match="sliding_window|rope_|rope scaling|layer_types|max_window_layers|rms_norm_eps"):
        Config.from_hf({**HF, **changes})


@pytest.mark.parametrize("window", [float("nan"), float("inf"), "x", [1], -4])
def test_a_gguf_window_that_cannot_be_is_named(window):
    with pytest.raises(BadCheckpoint, match="llama.attention.sliding_window is"):
        Config.from_gguf({**GGUF, "llama.attention.sliding_window": window}, TENSORS)


def test_rope_angles_that_are_not_finite_are_refused():
    cfg = Config.from_hf(HF)
    for bad in (np.zeros(8), np.full(8, np.nan), np.full(8, -1.0)):
        with pytest.raises(BadCheckpoint, match="rope_freqs.weight holds"):
            llama.rope_tables(cfg, 4, bad)
    with pytest.raises(BadCheckpoint, match="not finite"):
        llama.rope_tables(replace(cfg, rope_theta=1e-300, scaling=RopeScaling("linear", 1e-300)), 64)


@pytest.mark.parametrize("config", [None, 0, "x", [1], True])
def test_a_config_that_is_no_object_is_refused(config):
    with pytest.raises(BadCheckpoint, match="config.json"):
        model_of(Checkpoint("safetensors", ""), config)
