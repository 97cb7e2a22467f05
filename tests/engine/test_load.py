"""Loading: what is wrong with a checkpoint is named, and a load that fails or is stopped leaves nothing on the device."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import gguf
import numpy as np
import pytest
from jird.engine.load import load_engine, sidecar_of
from jird.engine.options import Cancel, EngineOptions
from jird.errors import Aborted, BadCheckpoint, ModelNotSupported, OutOfMemory
from jird.runtime.device import Limits
from jird.runtime.device_numpy import NumpyDevice
from jird.weights.source import FileSource

from tests.tiny import Tiny


def load(path, device=None, progress=lambda p: None, cancel=None, **options):
    return asyncio.run(load_engine(device or NumpyDevice(), FileSource(path), EngineOptions(**options), progress, cancel))


class Changed(Tiny):
    """A tiny model whose tensor list is passed through `change`."""

    change = staticmethod(lambda tensors: tensors)

    def _tensors(self):
        return self.change(super()._tensors())


def changed(change, **kw):
    tiny = Changed(**kw)
    tiny.change = change
    return tiny


@pytest.mark.parametrize(("tiny", "error", "words"), [
    (Tiny(vocab=264, arch="llama"), None, ""),
    (changed(lambda ts: [t for t in ts if t[0] != "blk.1.ffn_up.weight"]), BadCheckpoint, "lacks 1 of .* tensors, the first is blk.1.ffn_up.weight"),
    (changed(lambda ts: [(n, (32, 96) if n == "blk.0.ffn_down.weight" else s, t) for n, s, t in ts]), BadCheckpoint, r"blk.0.ffn_down.weight is \[32, 96\]; the config says \[64, 96\]"),
    (changed(lambda ts: [*ts, ("blk.0.extra.weight", (4, 32), "F32")]), ModelNotSupported, "does not use, the first is blk.0.extra.weight"),
    (changed(lambda ts: [(n, (200, 64) if n == "token_embd.weight" else s, t) for n, s, t in ts]), BadCheckpoint, "the tokenizer has 263 tokens, the model's table 200 rows"),
], ids=["good", "missing", "misshapen", "unused", "vocabulary"])
def test_what_is_wrong_is_named(tmp_path, tiny, error, words):
    path = tiny.write(tmp_path / "m.gguf")
    if error is None:
        load(path).close()
        return
    with pytest.raises(error, match=words):
        load(path)


def test_an_unknown_architecture_is_named_with_what_is_known(tmp_path):
    w = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "mamba")
    w.add_tensor("x", np.zeros((1, 32), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with pytest.raises(ModelNotSupported, match="'mamba' is not supported; supported: .*llama"):
        load(tmp_path / "m.gguf")


def test_an_unknown_tensor_type_is_named(tmp_path):
    tiny = changed(lambda ts: [(n, s, "Q8_0" if n == "blk.0.ffn_up.weight" else t) for n, s, t in ts])
    path = tiny.write(tmp_path / "m.gguf")
    raw = bytearray(path.read_bytes())
    at = raw.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    assert raw[at: at + 4] == (8).to_bytes(4, "little")
    raw[at: at + 4] = (16).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises((ModelNotSupported, BadCheckpoint), match="blk.0.ffn_up.weight|IQ2_XXS|type 16"):
        load(path)


@pytest.mark.parametrize("keep", [3, 100, 4000, -64])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = Tiny().write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadCheckpoint):
        load(path)


def test_a_page_in_place_of_weights_is_said(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"<!DOCTYPE html><html><body>404 Not Found</body></html>")
    with pytest.raises(BadCheckpoint, match="(?i)html|web page"):
        load(tmp_path / "m.gguf")


class Small(NumpyDevice):
    """A device that runs out after `room` bytes."""

    def __init__(self, room: int):
        super().__init__()
        self.room = room

    async def create_buffer(self, label, nbytes, *, uniform=False):
        if self.live_bytes + nbytes > self.room:
            raise OutOfMemory(f"buffer {label}: {nbytes} bytes asked, {self.room - self.live_bytes} are left")
        return await super().create_buffer(label, nbytes, uniform=uniform)


@pytest.mark.parametrize("room", [1000, 100_000, 400_000])
def test_out_of_memory_at_any_point_leaves_nothing(tmp_path, room):
    device = Small(room)
    with pytest.raises(OutOfMemory, match="bytes asked"):
        load(Tiny().write(tmp_path / "m.gguf"), device)
    assert device.live_bytes == 0


@pytest.mark.parametrize("stage", ["plan", "weights", "pipelines"])
def test_a_stop_at_any_stage_leaves_nothing(tmp_path, stage):
    device, cancel = NumpyDevice(), Cancel()

    def progress(p):
        if p.stage == stage:
            cancel.cancel()

    with pytest.raises(Aborted):
        load(Tiny().write(tmp_path / "m.gguf"), device, progress, cancel)
    assert device.live_bytes == 0


def test_a_closed_engine_leaves_nothing(tmp_path):
    device = NumpyDevice()
    load(Tiny().write(tmp_path / "m.gguf"), device).close()
    assert device.live_bytes == 0


def test_a_weight_over_the_binding_limit_is_refused_with_numbers(tmp_path):
    device = NumpyDevice(replace(Limits(), storage_buffers=64, storage_binding_bytes=4096))
    with pytest.raises(ModelNotSupported, match="binds at most 4096 at once"):
        load(Tiny().write(tmp_path / "m.gguf"), device)


def test_a_checkpoint_folder_without_its_config_is_said():
    with pytest.raises(BadCheckpoint, match="has no config.json; it has tokenizer.json"):
        sidecar_of({"tokenizer.json": b"{}"})
    with pytest.raises(BadCheckpoint, match="config.json is not JSON"):
        sidecar_of({"config.json": b"<html>", "tokenizer.json": b"{}"})


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"{", b"[" * 100_000, b"<html>", b"9" * 6000, b"[1]", b'"x"', b"5", b'{"a": 1}\0'], ids=lambda raw: repr(raw[:8]))
def test_a_file_beside_the_weights_that_is_not_what_it_says_is_named(name, raw):
    good = {"config.json": b"{}", "tokenizer.json": b'{"model": {"vocab": {"a": 0}}, "decoder": {"type": "Fuse"}}'}
    assert sidecar_of(good).spec.vocab_size == 1
    with pytest.raises(BadCheckpoint, match=name):
        sidecar_of({**good, name: raw})


def test_a_template_file_that_is_not_text_is_named():
    with pytest.raises(BadCheckpoint, match="chat_template.jinja is not UTF-8"):
        sidecar_of({"config.json": b"{}", "tokenizer.json": b'{"model": {"vocab": {"a": 0}}, "decoder": {"type": "Fuse"}}', "chat_template.jinja": b"\xff"})


@pytest.mark.parametrize("shape", [(7,), (9,), (4096, 64)])
def test_rope_factors_of_another_size_are_refused_before_they_are_read(tmp_path, shape):
    path = changed(lambda ts: [*ts, ("rope_freqs.weight", shape, "F32")]).write(tmp_path / "m.gguf")
    with pytest.raises(BadCheckpoint, match="rope_freqs.weight has .* values, head_dim 16 needs 8"):
        load(path)
