"""tiny-chat's two forms hold the same numbers, read by the reference libraries, and the same tokenizer."""

import asyncio
import json

import gguf
import numpy as np
import safetensors.numpy as safetensors_numpy
import tokenizers
from jird.weights.gguf import read_gguf
from jird.weights.source import FileSource

from tools import checkpoint as maker


def test_gguf_and_safetensors_hold_equal_weights(tiny_chat):
    path = tiny_chat / "tiny-chat.gguf"
    tensors, data = asyncio.run(read_gguf(FileSource(path))).tensors, path.read_bytes()
    hf = safetensors_numpy.load_file(tiny_chat / "hf/model.safetensors")
    assert {maker.gguf_name(name) for name in hf} == set(tensors)
    for name, want in hf.items():
        tensor = tensors[maker.gguf_name(name)]
        raw = np.frombuffer(data, np.uint8, tensor.nbytes, tensor.offset)
        got = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[tensor.type]).reshape(want.shape)
        if "q_proj" in name or "k_proj" in name:
            want = maker.permuted(want, maker.HEADS if "q_proj" in name else maker.KV_HEADS)
        np.testing.assert_array_equal(got, want.astype(np.float32), err_msg=name)


def test_tokenizer_json_gives_the_ids_of_the_source(tiny_chat):
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_chat / "hf/tokenizer.json"))
    config = json.loads((tiny_chat / "hf/config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    text = "<|im_start|>user\nThe capital of France, 2026?<|im_end|>\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids[0] == tokenizer.token_to_id("<|im_start|>") and tokenizer.decode(ids, skip_special_tokens=False) == text


def test_both_files_stay_small(tiny_chat):
    for path in (tiny_chat / "tiny-chat.gguf", tiny_chat / "hf/model.safetensors"):
        assert path.stat().st_size < 8_000_000
