"""Loading: file bytes through staging and convert kernels to buffers that hold gguf-py's and numpy's values, in the right rows."""

import asyncio

import gguf
import numpy as np
import pytest
from jird.errors import Aborted, BadCheckpoint, ModelNotSupported
from jird.graph.ir import Format
from jird.kernels.dequantise import dequantise
from jird.runtime.device_numpy import NumpyDevice
from jird.weights.checkpoint import Checkpoint, TensorInfo
from jird.weights.gguf import read_gguf
from jird.weights.load import WeightPart, load_weights, plan_spans
from jird.weights.quant import LOADABLE, TYPES, canonical, common
from jird.weights.safetensors import read_safetensors
from jird.weights.source import FileSource
from safetensors.numpy import save_file

ROWS, COLUMNS = 24, 512


def make_gguf(path, tensors):
    """tensors: name -> (type, raw array as gguf-py wants it)."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, (type_, raw) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[type_])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_raw(type_, rng, rows=ROWS, columns=COLUMNS):
    """A tensor of random bytes whose halves are moderate finite numbers."""
    weights, nbytes = TYPES[type_]
    if type_ == "F32":
        return rng.standard_normal((rows, columns), dtype=np.float32)
    if type_ == "F16":
        return rng.standard_normal((rows, columns)).astype(np.float16)
    if type_ == "BF16":
        return (rng.standard_normal((rows, columns), dtype=np.float32).view("<u4") >> 16).astype("<u2").view(np.uint8)
    raw = rng.integers(0, 256, (rows * columns // weights, nbytes), np.uint8)
    for at in {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(type_, (0,)):
        raw[:, at: at + 2] = rng.standard_normal(len(raw)).astype("<f2").view(np.uint8).reshape(-1, 2)
    return raw.reshape(rows, -1)


def values(type_, raw):
    return gguf.quants.dequantize(np.ascontiguousarray(raw), gguf.GGMLQuantizationType[type_]).reshape(ROWS, COLUMNS)


async def load(source, checkpoint, parts, sizes, **kwargs):
    """Loads onto a numpy device; sizes: weight -> (rows, columns). Returns the weights as f32 and checks that nothing else is left."""
    device = NumpyDevice()
    formats = {p.weight: p.format for p in parts}
    buffers = {}
    for weight, (rows, columns) in sizes.items():
        for part, nbytes in formats[weight].parts(rows, columns).items():
            buffers[weight, part] = await device.create_buffer(f"{weight}#{part}", nbytes)
    before = device.live_bytes
    await load_weights(device, source, checkpoint, parts, buffers, **kwargs)
    assert device.live_bytes == before
    return {w: as_f32(formats[w], {p: b.data for (name, p), b in buffers.items() if name == w}, *size) for w, size in sizes.items()}


def as_f32(format_, parts, rows, columns):
    if format_.is_quantised:
        return dequantise(format_, parts["q"].view("<u4"), parts["sb"].view("<u4"), rows, columns)
    raw = parts[""][: format_.parts(rows, columns)[""]].reshape(rows, -1)
    if format_.kind == "f32":
        return raw.view("<f4")[:, :columns]
    if format_.kind == "f16":
        return raw.view("<f2")[:, :columns].astype("<f4")
    return (raw.view("<u2")[:, :columns].astype("<u4") << 16).view("<f4")


@pytest.mark.parametrize("span_bytes", [16 << 20, 3000])
def test_every_gguf_type_loads_to_gguf_pys_values_bit_for_bit(tmp_path, span_bytes):
    rng = np.random.default_rng(1)
    raw = {t: random_raw(t, rng) for t in LOADABLE}
    make_gguf(tmp_path / "m.gguf", {t.lower(): (t, r) for t, r in raw.items()})
    source = FileSource(tmp_path / "m.gguf")

    async def run():
        checkpoint = await read_gguf(source)
        parts = [WeightPart(t, t.lower(), 0, ROWS, COLUMNS, canonical(t, COLUMNS)) for t in reversed(LOADABLE)]
        return await load(source, checkpoint, parts, dict.fromkeys(LOADABLE, (ROWS, COLUMNS)), span_bytes=span_bytes)

    got = asyncio.run(run())
    for t in LOADABLE:
        np.testing.assert_array_equal(got[t], values(t, raw[t]), err_msg=t)


@pytest.mark.parametrize("types", [("Q4_0", "Q4_1", "Q8_0"), ("Q4_K", "Q6_K", "Q4_K"), ("BF16", "F16", "F32")])
def test_rows_of_several_tensors_make_one_weight_with_q_and_k_in_half_split_order(tmp_path, types):
    rng = np.random.default_rng(2)
    raw = [random_raw(t, rng) for t in types]
    make_gguf(tmp_path / "m.gguf", {name: (t, r) for name, t, r in zip("qkv", types, raw, strict=True)})
    source, head = FileSource(tmp_path / "m.gguf"), 8
    format_ = common([canonical(t, COLUMNS) for t in types])

    async def run():
        parts = [WeightPart("qkv", "v", 2 * ROWS, ROWS, COLUMNS, format_),
                 WeightPart("qkv", "q", 0, ROWS, COLUMNS, format_, "unpermute_rope", head),
                 WeightPart("qkv", "k", ROWS, ROWS, COLUMNS, format_, "unpermute_rope", head)]
        return await load(source, await read_gguf(source), parts, {"qkv": (3 * ROWS, COLUMNS)}, span_bytes=5000)

    q, k, v = (values(t, r) for t, r in zip(types, raw, strict=True))
    half_split = [w.reshape(ROWS // head, head // 2, 2, COLUMNS).swapaxes(1, 2).reshape(ROWS, COLUMNS) for w in (q, k)]
    np.testing.assert_array_equal(asyncio.run(run())["qkv"], np.concatenate([*half_split, v]))


def test_a_tensor_cut_by_rows_fills_several_weights(tmp_path):
    raw = random_raw("Q8_0", np.random.default_rng(3))
    make_gguf(tmp_path / "m.gguf", {"t": ("Q8_0", raw)})
    source, format_ = FileSource(tmp_path / "m.gguf"), canonical("Q8_0", COLUMNS)

    async def run():
        parts = [WeightPart("a", "t", 0, 10, COLUMNS, format_), WeightPart("b", "t", 0, 14, COLUMNS, format_, source_row=10)]
        return await load(source, await read_gguf(source), parts, {"a": (10, COLUMNS), "b": (14, COLUMNS)}, span_bytes=4000)

    got = asyncio.run(run())
    np.testing.assert_array_equal(np.concatenate([got["a"], got["b"]]), values("Q8_0", raw))


def test_safetensors_at_odd_offsets_load_and_vectors_widen_to_f32(tmp_path):
    rng = np.random.default_rng(4)
    arrays = {"a": rng.integers(0, 255, 3, np.uint8), "m": rng.standard_normal((5, 7)).astype(np.float16), "norm": rng.standard_normal(9).astype(np.float16),
              "bias": rng.standard_normal(8).astype(np.float32)}
    save_file(arrays, tmp_path / "m.safetensors")
    source = FileSource(tmp_path / "m.safetensors")

    async def run():
        checkpoint = await read_safetensors(source)
        parts = [WeightPart("m", "m", 0, 5, 7, canonical("F16", 7)), WeightPart("norm", "norm", 0, 1, 9, Format("f32")),
                 WeightPart("bias", "bias", 0, 8, 1, Format("f32"), "unpermute_rope", 4)]
        return await load(source, checkpoint, parts, {"m": (5, 7), "norm": (1, 9), "bias": (8, 1)})

    got = asyncio.run(run())
    np.testing.assert_array_equal(got["m"], arrays["m"].astype(np.float32))
    np.testing.assert_array_equal(got["norm"][0], arrays["norm"].astype(np.float32))
    np.testing.assert_array_equal(got["bias"].ravel(), arrays["bias"].reshape(2, 2, 2).swapaxes(1, 2).ravel())


def test_spans_stay_under_their_limit_and_take_every_row_once():
    tensors = {f"t{i}": TensorInfo(f"t{i}", (rows, 32), "Q8_0", 100 + 34 * i * 1000, rows * 34) for i, rows in enumerate((1, 900, 1000, 3))}
    parts = [WeightPart(f"w{i}", f"t{i}", 0, t.shape[0], 32, canonical("Q8_0", 32)) for i, t in enumerate(tensors.values())]
    spans = plan_spans(Checkpoint("gguf", "llama", {}, tensors), [*parts, parts[1]], span_bytes=4096)
    rows = {}
    for span in spans:
        assert span.nbytes <= 4096
        for p in span.pieces:
            assert span.offset <= p.offset and p.offset + p.nbytes <= span.offset + span.nbytes
            assert p.offset == tensors[p.part.source].offset + p.first * 34 and p.nbytes == p.rows * 34
            rows.setdefault(p.part.weight, []).extend(range(p.first, p.first + p.rows))
    assert {w: sorted(r) for w, r in rows.items()} == {"w0": [0], "w1": sorted([*range(900)] * 2), "w2": list(range(1000)), "w3": [0, 1, 2]}


def one_part(**changes):
    return WeightPart(**{"weight": "w", "source": "t", "row": 0, "rows": 4, "columns": 32, "format": canonical("Q8_0", 32), **changes})


@pytest.mark.parametrize("part, error, words", [
    (one_part(source="u"), BadCheckpoint, "weight w: the file has no tensor u"),
    (one_part(rows=5), BadCheckpoint, r"rows 0 to 5 of 32 were expected of tensor t, which is \[4, 32\]"),
    (one_part(columns=16), BadCheckpoint, "of 16 were expected"),
    (one_part(format=Format("int4", 32, "f16")), ModelNotSupported, "Q8_0, which does not go into"),
    (one_part(transform="unpermute_rope", head_dim=8), BadCheckpoint, "whole heads of 8"),
    (one_part(transform="transpose"), ValueError, "known: unpermute_rope"),
])
def test_what_does_not_fit_is_refused_before_anything_is_read(part, error, words):
    checkpoint = Checkpoint("gguf", "llama", {}, {"t": TensorInfo("t", (4, 32), "Q8_0", 0, 136)})
    with pytest.raises(error, match=words):
        plan_spans(checkpoint, [part])


class Stop:
    """Cancelled after `spans` looks of the loader at a new span."""

    def __init__(self, after):
        self.after = after

    def check(self):
        if self.after == 0:
            raise Aborted("stopped")
        self.after -= 1


class NeverComing(FileSource):
    async def fill(self, *args):
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("kind, after", [(FileSource, 0), (FileSource, 3), (NeverComing, 1)])
def test_abort_ends_a_load_at_once_and_frees_its_staging(tmp_path, kind, after):
    raw = random_raw("Q4_0", np.random.default_rng(5))
    make_gguf(tmp_path / "m.gguf", {"t": ("Q4_0", raw)})
    source, format_ = kind(tmp_path / "m.gguf"), canonical("Q4_0", COLUMNS)
    seen = []

    async def run():
        device = NumpyDevice()
        buffers = {("w", part): await device.create_buffer(part, nbytes) for part, nbytes in format_.parts(ROWS, COLUMNS).items()}
        before = device.live_bytes
        with pytest.raises(Aborted):
            await load_weights(device, source, await read_gguf(source), [WeightPart("w", "t", 0, ROWS, COLUMNS, format_)], buffers,
                               progress=lambda done, total: seen.append((done, total)), cancel=Stop(after), span_bytes=1000)
        assert device.live_bytes == before

    asyncio.run(run())
    assert seen[0] == (0, raw.size) and seen[-1][0] < raw.size


def test_progress_counts_the_files_bytes_to_the_end(tmp_path):
    raw = random_raw("Q4_0", np.random.default_rng(6))
    make_gguf(tmp_path / "m.gguf", {"t": ("Q4_0", raw)})
    source, format_, seen = FileSource(tmp_path / "m.gguf"), canonical("Q4_0", COLUMNS), []

    async def run():
        await load(source, await read_gguf(source), [WeightPart("w", "t", 0, ROWS, COLUMNS, format_)], {"w": (ROWS, COLUMNS)},
                   progress=lambda done, total: seen.append((done, total)), span_bytes=1000)

    asyncio.run(run())
    assert seen[0] == (0, raw.size) and seen[-1] == (raw.size, raw.size) and seen == sorted(seen) and len(seen) > 3


def test_the_bundled_model_loads_to_gguf_pys_values(model_path):
    """Every kind of tensor of the real file: the table, first and last layer's, a vector."""
    names = ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight", "blk.29.ffn_gate.weight", "output_norm.weight", "blk.7.attn_norm.weight"]
    source = FileSource(model_path)
    checkpoint = asyncio.run(read_gguf(source))

    async def run():
        parts = [WeightPart(n, n, 0, i.rows, i.columns, canonical(i.type, i.columns)) for n, i in checkpoint.tensors.items() if n in names]
        return await load(source, checkpoint, parts, {p.weight: (p.rows, p.columns) for p in parts})

    got = asyncio.run(run())
    for n in names:
        info = checkpoint.tensors[n]
        raw = np.fromfile(model_path, np.uint8, info.nbytes, offset=info.offset)
        np.testing.assert_array_equal(got[n].ravel(), gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[info.type]), err_msg=n)
