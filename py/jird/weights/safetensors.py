"""Safetensors headers (one file): where each tensor's bytes are.

Source: specs/quant_formats.md section 1 and the format page of the safetensors project: u64 N, N bytes of JSON, data without gaps.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any

from ..errors import BadCheckpoint, ModelNotSupported
from .checkpoint import Checkpoint, Source, TensorInfo, refuse_text
from .quant import TYPES

HEADER_LIMIT = 100_000_000  # the format's own limit
MAX_DIMS = 8


async def read_safetensors(source: Source) -> Checkpoint:
    """The header of a safetensors file; `__metadata__` is meta. Integer and F64 tensors are listed, refused only when used.

    Raises: BadCheckpoint (what was found, with numbers); ModelNotSupported for an element type that is not known
    """
    if source.size < 10:
        raise BadCheckpoint(f"a safetensors file has at least 10 bytes, this one has {source.size}")
    head = await source.read(0, min(source.size, 512))
    refuse_text(head, "a safetensors file")
    length = int.from_bytes(head[:8], "little")
    if length > min(source.size - 8, HEADER_LIMIT) or length < 2:
        raise BadCheckpoint(f"safetensors header announces {length} bytes; the file has {source.size - 8} after the length, {HEADER_LIMIT} are the most")
    raw = await source.read(8, length)
    if raw[:1] != b"{":
        raise BadCheckpoint(f"safetensors header starts with {raw[:8]!r}, '{{' was expected")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise BadCheckpoint(f"safetensors header is not JSON: {e}") from None
    meta = header.pop("__metadata__", None) or {}
    if not isinstance(meta, dict):
        raise BadCheckpoint(f"safetensors __metadata__ is {meta!r}; it must map names to text")
    base = 8 + length
    tensors = {name: _tensor(name, entry, base, source.size) for name, entry in header.items()}
    at = base
    for info in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if info.offset != at:
            raise BadCheckpoint(f"tensor {info.name} starts at byte {info.offset}; the one before ends at {at}, and no gap or overlap is allowed")
        at += info.nbytes
    if at != source.size:
        raise BadCheckpoint(f"the last tensor ends at byte {at}, the file at {source.size}")
    return Checkpoint("safetensors", "", meta, tensors)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadCheckpoint(f"safetensors header names {name} twice")
        found[name] = value
    return found


def _tensor(name: str, entry: Any, base: int, size: int) -> TensorInfo:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise BadCheckpoint(f"tensor {name}: {str(entry)[:80]} lacks dtype, shape or data_offsets")
    type_, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        raise BadCheckpoint(f"tensor {name}: shape {shape!r} and data_offsets {offsets!r} must be lists of whole numbers")
    if len(shape) > MAX_DIMS:
        raise BadCheckpoint(f"tensor {name} has {len(shape)} dimensions; {MAX_DIMS} are the most")
    if not isinstance(type_, str) or type_ not in TYPES or TYPES[type_][0] != 1:
        raise ModelNotSupported(f"tensor {name} has type {type_}; known: {' '.join(t for t in TYPES if TYPES[t][0] == 1)}")
    begin, end = offsets
    nbytes = prod(shape) * TYPES[type_][1]
    if end - begin != nbytes:
        raise BadCheckpoint(f"tensor {name} ({type_}, shape {shape}) needs {nbytes} bytes, data_offsets {offsets} give {end - begin}")
    if base + end > size:
        raise BadCheckpoint(f"tensor {name} takes bytes {base + begin} to {base + end}; the file ends at {size}")
    return TensorInfo(name, tuple(shape), type_, base + begin, nbytes)


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)
