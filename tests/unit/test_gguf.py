"""GGUF headers: what a good file says is read whole, and a bad one is refused with its numbers before anything big is made."""

import asyncio
import struct

import gguf
import numpy as np
import pytest
from jird.engine.model import model_of
from jird.errors import MESSAGE_CHARS, BadCheckpoint, JirdError, ModelNotSupported
from jird.text.gguf_tokenizer import spec_from_gguf
from jird.weights.gguf import read_gguf

from tests.tiny import Tiny

STRING, ARRAY = 8, 9


class Bytes:
    """A source over bytes that remembers what was read; `size` may claim more than there is."""

    def __init__(self, data, size=None):
        self.data, self.size, self.largest = data, len(data) if size is None else size, 0

    async def read(self, offset, nbytes):
        assert offset + nbytes <= self.size
        self.largest = max(self.largest, nbytes)
        return self.data[offset: offset + nbytes]


def text(s):
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def key(name, type_, value):
    return text(name) + struct.pack("<I", type_) + value


def array(type_, items, count=None):
    return struct.pack("<IQ", type_, len(items) if count is None else count) + b"".join(items)


def tensor(name, dims, type_, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_, offset)


def file(keys=(), tensors=(), data=b"", version=3, magic=b"GGUF", n_keys=None, n_tensors=None, align=32):
    head = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % align) + data


def read(data, size=None):
    return asyncio.run(read_gguf(Bytes(data, size)))


def refused(data, words, error=BadCheckpoint, size=None):
    source = Bytes(data, size)
    with pytest.raises(error, match=words):
        asyncio.run(read_gguf(source))
    assert source.largest <= max(1 << 20, len(data))


def test_every_value_type_and_nested_arrays_are_read():
    numbers = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60000), 3: ("h", -5), 4: ("I", 1 << 31), 5: ("i", -7), 6: ("f", 0.5), 7: ("?", True),
               10: ("Q", 1 << 63), 11: ("q", -9), 12: ("d", 0.1)}
    keys = [key(f"n{t}", t, struct.pack("<" + c, v)) for t, (c, v) in numbers.items()]
    keys += [key(f"a{t}", ARRAY, array(t, [struct.pack("<" + c, v)] * 2)) for t, (c, v) in numbers.items()]
    keys.append(key("nested", ARRAY, array(ARRAY, [array(4, [struct.pack("<I", 5)]), array(STRING, [text("x"), text("")])])))
    keys.append(key("empty", ARRAY, array(STRING, [])))
    meta = read(file(keys)).meta
    for t, (_, v) in numbers.items():
        assert meta[f"n{t}"] == v and type(meta[f"n{t}"]) is type(v)
        assert meta[f"a{t}"] == [v, v]
    assert meta["nested"] == [[5], ["x", ""]] and meta["empty"] == []


@pytest.mark.parametrize("odd", [None, "", "x" * 300, "a\0b", "\u00e9\U0001f600", "\x01"])
def test_long_string_arrays_are_the_same_whatever_is_in_them(odd):
    words = [f"w{i}" for i in range(1000)]
    if odd is not None:
        words[500] = odd
    data = file([key("v", ARRAY, array(STRING, [text(w) for w in words])), key("after", 4, struct.pack("<I", 7))])
    meta = read(data).meta
    assert meta["v"] == words and meta["after"] == 7


def test_a_header_longer_than_the_first_read_is_read_on():
    words = [f"token number {i}" for i in range(60000)]
    data = file([key("v", ARRAY, array(STRING, [text(w) for w in words]))], [tensor("t", [4], 0, 0)], np.arange(4, dtype="<f4").tobytes())
    checkpoint = read(data)
    assert checkpoint.meta["v"] == words
    assert data[checkpoint.tensors["t"].offset:] == np.arange(4, dtype="<f4").tobytes()


@pytest.mark.parametrize("version", [2, 3])
def test_tensors_are_placed_after_alignment_with_shapes_slowest_first(version):
    data = file([key("general.alignment", 4, struct.pack("<I", 64)), key("general.architecture", STRING, text("llama"))],
                [tensor("a", [32, 3], 2, 0), tensor("b", [5], 30, 64)], bytes(64 + 10), version, align=64)
    checkpoint = read(data)
    a, b = checkpoint.tensors["a"], checkpoint.tensors["b"]
    assert checkpoint.architecture == "llama" and checkpoint.kind == "gguf"
    assert (a.shape, a.type, a.nbytes, a.rows, a.columns) == ((3, 32), "Q4_0", 54, 3, 32)
    assert (b.shape, b.type, b.nbytes, b.offset) == ((5,), "BF16", 10, len(data) - 10)
    assert a.offset == b.offset - 64 and a.offset % 64 == 0


def test_files_of_the_gguf_package_read_the_same(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(2)
    writer.add_token_list([f"t{i}" for i in range(100)])
    writer.add_tensor("x", np.ones((2, 3), np.float32))
    writer.add_tensor("y", gguf.quants.quantize(np.ones((2, 256), np.float32), gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = (tmp_path / "m.gguf").read_bytes()
    checkpoint = read(data)
    for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        info = checkpoint.tensors[t.name]
        assert (info.offset, info.nbytes, info.shape, info.type) == (t.data_offset, t.n_bytes, tuple(reversed(t.shape.tolist())), t.tensor_type.name)
    assert checkpoint.meta["llama.block_count"] == 2 and checkpoint.meta["tokenizer.ggml.tokens"][99] == "t99"


def test_wrong_magic_and_what_stands_in_its_place_are_named():
    refused(b"GGML" + bytes(100), "b'GGML'")
    refused(b"\n<!DOCTYPE html><html>not found</html>", "HTML page")
    refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer")
    refused(b'{"error": "no such file, sorry"}', "JSON")
    refused(b"GGUF", "24 bytes, this one has 4")


def test_unknown_versions_are_not_supported():
    refused(file(version=1), "version 0x1", ModelNotSupported)
    refused(b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian", ModelNotSupported)


@pytest.mark.parametrize("broken, words", [
    (file(n_tensors=1 << 60), "announces 1152921504606846976 tensors"),
    (file(n_keys=1 << 40), "announces 1099511627776 keys"),
    (file([text("k") + struct.pack("<I", STRING) + struct.pack("<Q", 1 << 50)]), "bytes of a string"),
    (file([key("k", ARRAY, array(STRING, [], 1 << 50))]), "strings of k"),
    (file([key("k", ARRAY, array(12, [], 1 << 50))]), "elements of k"),
    (file([key("k", ARRAY, array(ARRAY, [], 1 << 50))]), "arrays of k"),
])
def test_absurd_counts_are_refused_before_anything_is_made(broken, words):
    refused(broken, words)


@pytest.mark.parametrize("broken, words", [
    (file([key("k", 13, b"")]), "value type 13"),
    (file([key("k", ARRAY, array(13, []))]), "array of value type 13"),
    (file([key("k", 4, bytes(4))] * 2), "k stands twice"),
    (file([key("general.alignment", 4, struct.pack("<I", 48))]), "power of two"),
    (file([], [tensor("t", [4], 0, 0)] * 2, bytes(16)), "t stands twice"),
    (file([], [tensor("t", [4], 0, 8)], bytes(64)), "multiple of the alignment"),
    (file([], [tensor("t", [4, 0], 0, 0)], bytes(64)), "dimension is 0"),
    (file([], [tensor("t", [33], 2, 0)], bytes(64)), "blocks of 32"),
    (file([], [tensor("t", [2] * 9, 0, 0)], bytes(64)), "9 dimensions"),
    (file([key("k", ARRAY, array(ARRAY, [array(ARRAY, [array(ARRAY, [array(ARRAY, [array(4, [])])])])]))]), "nested deeper"),
])
def test_a_header_that_contradicts_itself_is_refused(broken, words):
    refused(broken, words)


def test_a_tensor_past_the_end_is_named_with_its_bytes():
    data = file([], [tensor("t", [8], 0, 0)], bytes(32))
    assert read(data).tensors["t"].nbytes == 32
    refused(data[:-1], rf"tensor t .* takes bytes {len(data) - 32} to {len(data)}; the file ends at {len(data) - 1}")
    refused(file([], [tensor("t", [1 << 62, 1 << 62], 0, 0)], bytes(64)), "the file ends at")


def test_a_file_cut_anywhere_in_its_header_is_truncated():
    data = file([key("a", STRING, text("some text")), key("v", ARRAY, array(STRING, [text("w")] * 100))], [tensor("t", [8], 0, 0)], bytes(32))
    for end in range(1, len(data) - 1, 7):
        refused(data[:end], ".", BadCheckpoint)


def test_tensor_types_that_cannot_be_weights():
    refused(file([], [tensor("t", [256], 10, 0)], bytes(256)), "t has type Q2_K; known: F32", ModelNotSupported)
    refused(file([], [tensor("t", [256], 99, 0)], bytes(256)), "t has type 99", ModelNotSupported)
    assert read(file([], [tensor("t", [4], 26, 0)], bytes(16))).tensors["t"].type == "I32"


def test_the_bundled_model_reads(model_path):
    with open(model_path, "rb") as f:
        checkpoint = read(f.read())
    assert len(checkpoint.tensors) == 272 and len(checkpoint.meta["tokenizer.ggml.tokens"]) == 49152
    assert checkpoint.tensors["blk.3.attn_q.weight"].type == "Q4_1" and checkpoint.tensors["token_embd.weight"].shape == (49152, 576)


def mutated(good, head, rng):
    """A copy with up to three damages before byte `head`: a byte, a u32 or u64 of odd value, bytes lost or put in; now and then cut short."""
    words = [0, 1, 7, 8, 9, 13, 255, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1]
    data = bytearray(good)
    for _ in range(rng.integers(1, 4)):
        at, word = int(rng.integers(4, head)), words[rng.integers(len(words))]
        kind = rng.integers(5)
        if kind == 0:
            data[at] = rng.integers(256)
        elif kind < 3:
            data[at: at + 4 * kind] = word.to_bytes(8, "little")[:4 * kind]
        elif kind == 3:
            del data[at: at + int(rng.integers(1, 9))]
        else:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
    return bytes(data[: int(rng.integers(len(data)))] if rng.integers(20) == 0 else data)


def test_a_damaged_header_is_refused_in_words_or_read_and_never_anything_else(tmp_path):
    good = Tiny().write(tmp_path / "m.gguf").read_bytes()
    head = good.index(b"blk.1.ffn_down.weight") + 60
    seen = set()

    async def attack():
        for i in range(600):
            try:
                checkpoint = await read_gguf(Bytes(mutated(good, head, np.random.default_rng([7, i]))))
                model_of(checkpoint)
                spec_from_gguf(dict(checkpoint.meta))
                seen.add("read")
            except JirdError as error:
                assert len(str(error)) <= MESSAGE_CHARS and all(c.isprintable() or c == "\n" for c in str(error))
                seen.add(error.code)

    asyncio.run(attack())
    assert seen == {"read", "bad_checkpoint", "model_not_supported"}


def test_many_arrays_of_strings_are_read_in_time_linear_in_the_header(monkeypatch):
    data = file([key("k", ARRAY, array(ARRAY, [array(STRING, [text("ab")] * 65)] * 300))])
    scanned, flatnonzero = [], np.flatnonzero
    monkeypatch.setattr(np, "flatnonzero", lambda a: scanned.append(a.size) or flatnonzero(a))
    assert read(data).meta["k"] == [["ab"] * 65] * 300
    assert len(scanned) == 300 and sum(scanned) < 50 * len(data)


def test_a_header_of_small_elements_does_not_fill_the_memory():
    n = 3 << 20
    refused(file([key(k, ARRAY, array(0, [], n) + bytes(n)) for k in "ab"]), "at most 4194304 can be meant")
