"""GGUF v2 and v3 headers: keys, values and where each tensor's bytes are.

Source: the GGUF description in ggml's docs (layout) and specs/quant_formats.md section 6.

Every count and length is checked against the file's length before anything of that size is made or read. The header is read
in growing ranges. Integer and F64 tensors are listed and refused only when a model uses them (quant.canonical); a quantised
type that is not known is refused here, since its size is not known either.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any

import numpy as np

from ..errors import BadCheckpoint, ModelNotSupported
from .checkpoint import Checkpoint, Source, TensorInfo, refuse_text
from .quant import LOADABLE, TYPES, row_bytes

HEADER_LIMIT = 128 << 20
FIRST_READ = 512 << 10
MAX_DEPTH = 4
MAX_ELEMENTS = 1 << 22  # of all arrays of a header, as each becomes a Python object; real files have under a million
GGML_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K",
    14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}
# value type -> numpy code; 8 is a string, 9 an array
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9


class _Short(Exception):
    """The bytes read so far end before `need`."""

    def __init__(self, need: int):
        self.need = need


async def read_gguf(source: Source) -> Checkpoint:
    """The header of a GGUF file: meta holds str, int, float, bool and (nested) lists of them; shapes are row-major.

    Raises: BadCheckpoint (what was found, with numbers); ModelNotSupported for a version or tensor type that is not known
    """
    limit = min(source.size, HEADER_LIMIT)
    data = await source.read(0, min(FIRST_READ, limit))
    refuse_text(data, "a GGUF file")
    while True:
        try:
            return _Header(data, source.size).checkpoint()
        except _Short as short:
            if short.need > source.size:
                raise BadCheckpoint(f"GGUF header goes on past the end of the file: byte {short.need} of {source.size} wanted; the file is truncated") from None
            if short.need > HEADER_LIMIT:
                raise BadCheckpoint(f"GGUF header is longer than {HEADER_LIMIT} bytes") from None
            end = min(limit, max(4 * len(data), short.need))
            data = data + await source.read(len(data), end - len(data))


class _Header:
    """A cursor over the bytes read so far."""

    def __init__(self, data: bytes, size: int):
        self.data, self.size, self.at = data, size, 0
        self.elements = 0

    def checkpoint(self) -> Checkpoint:
        if self.size < 24:
            raise BadCheckpoint(f"a GGUF file has at least 24 bytes, this one has {self.size}")
        magic = self.take(4)
        if magic != b"GGUF":
            raise BadCheckpoint(f"a GGUF file starts with b'GGUF', found {magic!r}")
        version = self.number("<I")
        if version not in (2, 3):
            hint = " (a big-endian file)" if version & 0xFFFF == 0 else ""
            raise ModelNotSupported(f"GGUF version {version:#x}{hint}; known: 2 and 3, little-endian")
        n_tensors, n_keys = self.number("<Q"), self.number("<Q")
        self.check_count("tensors", n_tensors, 8 + 4 + 8 + 4 + 8)
        self.check_count("keys", n_keys, 8 + 4 + 1)
        meta: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.string()
            if key in meta:
                raise BadCheckpoint(f"GGUF key {key} stands twice in the header")
            meta[key] = self.value(self.number("<I"), key)
        infos = [self.tensor() for _ in range(n_tensors)]
        alignment = meta.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & alignment - 1:
            raise BadCheckpoint(f"general.alignment is {alignment!r}; it must be a power of two up to 1048576")
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, type_, offset in infos:
            if name in tensors:
                raise BadCheckpoint(f"tensor {name} stands twice in the header")
            tensors[name] = _place(name, shape, type_, offset, start, alignment, self.size)
        return Checkpoint("gguf", str(meta.get("general.architecture", "")), meta, tensors)

    def take(self, nbytes: int) -> bytes:
        end = self.at + nbytes
        if end > len(self.data):
            raise _Short(end)
        piece = self.data[self.at:end]
        self.at = end
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def check_count(self, what: str, count: int, least: int) -> None:
        """`count` things of at least `least` bytes must fit in what is left of the file."""
        if count * least > self.size - self.at:
            raise BadCheckpoint(f"GGUF header announces {count} {what}; {self.size - self.at} bytes are left in the file, {count * least} would be the least")

    def check_elements(self, what: str, count: int, least: int) -> None:
        """check_count for an array, and the sum over all arrays."""
        self.check_count(what, count, least)
        self.elements += count
        if self.elements > MAX_ELEMENTS:
            raise BadCheckpoint(f"GGUF header announces {count} {what}, {self.elements} array elements so far; at most {MAX_ELEMENTS} can be meant")

    def string(self) -> str:
        length = self.number("<Q")
        self.check_count("bytes of a string", length, 1)
        return self.take(length).decode("utf-8", "replace")

    def value(self, type_: int, key: str, depth: int = 0) -> Any:
        if type_ == _STRING:
            return self.string()
        if type_ == _ARRAY:
            return self.array(key, depth)
        if type_ not in _NUMBERS:
            raise BadCheckpoint(f"GGUF key {key} has value type {type_}; known: 0 to 12")
        return np.frombuffer(self.take(np.dtype(_NUMBERS[type_]).itemsize), _NUMBERS[type_])[0].item()

    def array(self, key: str, depth: int) -> list:
        if depth == MAX_DEPTH:
            raise BadCheckpoint(f"GGUF key {key}: arrays nested deeper than {MAX_DEPTH}")
        type_, count = self.number("<I"), self.number("<Q")
        if type_ in _NUMBERS:
            dtype = np.dtype(_NUMBERS[type_])
            self.check_elements(f"elements of {key}", count, dtype.itemsize)
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        if type_ == _STRING:
            self.check_elements(f"strings of {key}", count, 8)
            return self.strings(count)
        if type_ != _ARRAY:
            raise BadCheckpoint(f"GGUF key {key} is an array of value type {type_}; known: 0 to 12")
        self.check_elements(f"arrays of {key}", count, 12)
        return [self.array(key, depth + 1) for _ in range(count)]

    def strings(self, count: int) -> list[str]:
        """`count` strings; the common case (no empty string, none of 256 bytes or more, no NUL) is found by numpy, without a loop.

        A length word is then a byte that seven zeros follow, and nothing else is: the chain of lengths is checked whole.
        """
        if count > 64:
            raw = np.frombuffer(memoryview(self.data)[self.at: self.at + count * (8 + 255) + 8], np.uint8)  # no further: many arrays would scan the file often
            zero = raw == 0
            heads = ~zero[:-7]
            for i in range(1, 8):
                heads &= zero[i: i - 7 or None]
            starts = np.flatnonzero(heads)[:count]
            ends = starts + 8 + raw[starts]
            if starts.size and starts[0] == 0 and np.array_equal(ends[:-1], starts[1:]):
                total = int(ends[-1])
                if total + (8 if starts.size < count else 0) > len(self.data) - self.at:
                    raise _Short(self.at + total + 8 * (count - starts.size))
                if starts.size == count and np.count_nonzero(zero[:total]) == 7 * count:
                    keep = ~zero[:total]
                    keep[starts] = False
                    keep[starts + 7] = True  # one NUL a string, as its separator
                    self.at += total
                    return raw[:total][keep].tobytes().decode("utf-8", "replace").split("\0")[1:]
        return [self.string() for _ in range(count)]

    def tensor(self) -> tuple[str, tuple[int, ...], str, int]:
        name = self.string()
        n_dims = self.number("<I")
        if not 0 <= n_dims <= 8:
            raise BadCheckpoint(f"tensor {name} has {n_dims} dimensions; 8 are the most")
        fastest_first = struct.unpack(f"<{n_dims}Q", self.take(8 * n_dims))
        id_, offset = self.number("<I"), self.number("<Q")
        type_ = GGML_TYPES.get(id_)
        if type_ not in TYPES:
            raise ModelNotSupported(f"tensor {name} has type {type_ or id_}; known: {' '.join(LOADABLE)}")
        return name, tuple(reversed(fastest_first)), type_, offset


def _place(name: str, shape: tuple[int, ...], type_: str, offset: int, start: int, alignment: int, size: int) -> TensorInfo:
    """The tensor with its byte range checked against the file."""
    if 0 in shape:
        raise BadCheckpoint(f"tensor {name} has shape {list(shape)}: a dimension is 0")
    if offset % alignment:
        raise BadCheckpoint(f"tensor {name} starts at {offset}, which is not a multiple of the alignment {alignment}")
    try:
        row = row_bytes(type_, shape[-1] if shape else 1)
    except ValueError as e:
        raise BadCheckpoint(f"tensor {name}, shape {list(shape)}: {e}") from None
    nbytes = prod(shape[:-1]) * row
    if start + offset + nbytes > size:
        raise BadCheckpoint(f"tensor {name} ({type_}, shape {list(shape)}) takes bytes {start + offset} to {start + offset + nbytes}; the file ends at {size}")
    return TensorInfo(name, shape, type_, start + offset, nbytes)
