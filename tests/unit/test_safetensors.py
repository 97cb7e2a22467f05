"""Safetensors headers: files of the safetensors package read the same; bad ones are refused with their numbers."""

import asyncio
import json
import struct

import numpy as np
import pytest
from jird.errors import BadCheckpoint, JirdError, ModelNotSupported
from jird.weights.safetensors import read_safetensors
from safetensors.numpy import save


class Bytes:
    def __init__(self, data):
        self.data, self.size = data, len(data)

    async def read(self, offset, nbytes):
        assert offset + nbytes <= self.size
        return self.data[offset: offset + nbytes]


def read(data):
    return asyncio.run(read_safetensors(Bytes(data)))


def file(header, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_files_of_the_safetensors_package_read_the_same():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.float16), "scalar": np.array(7, np.int64)}
    data = save(arrays, {"format": "pt"})
    checkpoint = read(data)
    assert checkpoint.kind == "safetensors" and checkpoint.meta == {"format": "pt"}
    for name, a in arrays.items():
        info = checkpoint.tensors[name]
        assert info.shape == a.shape and data[info.offset: info.offset + info.nbytes] == a.tobytes()
    assert [checkpoint.tensors[n].type for n in arrays] == ["F32", "F16", "I64"]
    assert checkpoint.tensors["scalar"].rows == checkpoint.tensors["scalar"].columns == 1


def test_a_padded_header_and_an_empty_file_of_tensors_read():
    assert read(file(b'{"t":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}   ', bytes(2))).tensors["t"].type == "BF16"
    assert read(file({})).tensors == {}


@pytest.mark.parametrize("broken, words", [
    (b"<html><body>404</body></html>", "HTML page"),
    (b"", "at least 10 bytes"),
    (struct.pack("<Q", 1 << 40) + b"{}", "announces 1099511627776 bytes"),
    (file(b"[]  "), "starts with"),
    (file(b'{"a": '), "not JSON"),
    (file(b"{" + b'"a":{' * 5000), "not JSON"),
    (file(b'{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)), "t twice"),
    (file({"t": {"dtype": "F32"}}), "lacks"),
    (file({"t": entry(shape=(-2, -1))}, bytes(8)), "whole numbers"),
    (file({"t": entry(shape=(2.0,))}, bytes(8)), "whole numbers"),
    (file({"t": entry(end=12)}, bytes(12)), "needs 8 bytes"),
    (file({"t": entry()}, bytes(7)), "the file ends at"),
    (file({"t": entry()}, bytes(9)), "the last tensor ends"),
    (file({"t": entry(begin=4, end=12)}, bytes(12)), "no gap or overlap"),
    (file({"t": entry(), "u": entry()}, bytes(8)), "no gap or overlap"),
    (file({"__metadata__": [1]}), "__metadata__"),
])
def test_a_file_that_is_not_what_it_says_is_refused(broken, words):
    with pytest.raises(BadCheckpoint, match=words):
        read(broken)


def test_an_unknown_element_type_is_named():
    with pytest.raises(ModelNotSupported, match="t has type F4"):
        read(file({"t": entry("F4")}, bytes(8)))


def test_a_damaged_header_is_refused_in_words_or_read_and_never_anything_else():
    good = save({"a": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float16)}, {"format": "pt"})
    seen = set()

    async def attack():
        for i in range(2000):
            rng = np.random.default_rng([7, i])
            data = bytearray(good)
            for at in rng.integers(0, len(data) - 30, rng.integers(1, 4)):
                data[at] = rng.integers(256)
            try:
                await read_safetensors(Bytes(bytes(data)))
                seen.add("read")
            except JirdError as error:
                seen.add(error.code)

    asyncio.run(attack())
    assert seen == {"read", "bad_checkpoint", "model_not_supported"}


@pytest.mark.parametrize("odd", [None, 7, True, 0.5, float("nan"), 10**30, "x", "\ud800", [], [[]], [0.5], {}, {"dtype": "F32"}])
@pytest.mark.parametrize("where", [(), ("dtype",), ("shape",), ("data_offsets",), ("shape", 0), ("data_offsets", 0)])
def test_a_header_value_of_any_type_is_refused(odd, where):
    header = {"t": {**entry(shape=(1, 2))}}
    *path, last = ("t", *where)
    at = header
    for step in path:
        at = at[step]
    at[last] = odd
    with pytest.raises(JirdError):
        read(file(header, bytes(8)))


def test_a_shape_of_thousands_of_long_numbers_is_refused_at_once():
    with pytest.raises(BadCheckpoint, match="3000 dimensions; 8 are the most"):
        read(file(b'{"t":{"dtype":"F32","shape":[' + b",".join([b"9" * 4000] * 3000) + b'],"data_offsets":[0,8]}}', bytes(8)))


def test_a_name_twice_among_very_many_is_found_at_once():
    names = b",".join(b'"%d":0' % i for i in range(60000))
    with pytest.raises(BadCheckpoint, match="names 59999 twice"):
        read(file(b"{" + names + b',"59999":1}'))
