"""Streams a checkpoint's bytes to the GPU and converts them there: contiguous spans, two staging buffers in turn, one submit a span."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Protocol, Sequence

from ..errors import BadCheckpoint, ModelNotSupported
from ..graph.ir import Format
from ..kernels.convert import converter
from ..kernels.core import KERNELS, const_values, namespace, pack_params
from ..runtime.device import UNIFORM_ALIGN, Bound, Device, Slice
from .checkpoint import Checkpoint, Source, TensorInfo
from .quant import row_bytes

SPAN_BYTES = 16 << 20
GAP_BYTES = 64 << 10  # unused bytes that a span may carry between two tensors
CANCEL_POLL_S = 0.1


class Cancel(Protocol):
    def check(self) -> None:
        """Raises: Aborted once cancelled."""


@dataclass(frozen=True)
class WeightPart:
    """Rows [row, row + rows) of plan weight `weight`, filled from tensor `source` of the file.

    columns     of the weight; a vector of n may be [1, n] or [n, 1]
    transform   "" or "unpermute_rope": undo GGUF's pairwise-rope order of the rows within each head of head_dim
    source_row  first row of the tensor that is taken (a weight split by rows has several parts of one tensor)
    """

    weight: str
    source: str
    row: int
    rows: int
    columns: int
    format: Format
    transform: str = ""
    head_dim: int = 0
    source_row: int = 0


@dataclass(frozen=True)
class Piece:
    """Rows [first, first + rows) of a part, and where their bytes are in the file."""

    part: WeightPart
    first: int
    rows: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Span:
    """File bytes [offset, offset + nbytes) and the pieces that lie in them."""

    offset: int
    nbytes: int
    pieces: tuple[Piece, ...]


async def load_weights(device: Device, source: Source, checkpoint: Checkpoint, parts: Sequence[WeightPart], buffers: Mapping[tuple[str, str], Any],
                       progress: Callable[[int, int], None] = lambda done, total: None, cancel: Cancel | None = None,
                       span_bytes: int = SPAN_BYTES) -> None:
    """Fills `buffers` ((weight, "q" | "sb" | "") -> device buffer, as Format.parts names them) from the file; returns when the GPU has them.

    progress(done, total) counts file bytes. At most two spans are in flight.
    Raises: BadCheckpoint, ModelNotSupported (before anything is read), FetchFailed, Aborted, OutOfMemory; staging is freed in any case
    """
    spans = plan_spans(checkpoint, parts, span_bytes)
    if not spans:
        return
    total, done = sum(p.nbytes for s in spans for p in s.pieces), 0
    made: list[Any] = []
    try:
        staging = []
        for i in range(min(2, len(spans))):
            staging.append(await device.create_buffer(f"staging/{i}", -(-max(s.nbytes for s in spans) // 4) * 4))
            made.append(staging[-1])
        arena = await device.create_buffer("staging/params", max(len(s.pieces) for s in spans) * UNIFORM_ALIGN, uniform=True)
        made.append(arena)
        progress(0, total)
        for i, span in enumerate(spans):
            if i >= 2 and i % 2 == 0:
                await device.idle()  # bounds the copies that the browser's queue holds
            if cancel:
                cancel.check()
            await _unless_cancelled(source.fill(device, staging[i % 2], 0, span.offset, span.nbytes), cancel)
            await _convert(device, checkpoint, span, staging[i % 2], arena, buffers)
            done += sum(p.nbytes for p in span.pieces)
            progress(done, total)
        await device.idle()
        if cancel:
            cancel.check()
    finally:
        for buffer in made:
            device.destroy(buffer)


def plan_spans(checkpoint: Checkpoint, parts: Sequence[WeightPart], span_bytes: int = SPAN_BYTES) -> list[Span]:
    """Every part's rows in file order, cut into spans of at most `span_bytes` (at least one row each).

    Raises: BadCheckpoint when a tensor is missing or has another size; ModelNotSupported when its type does not go into the format
    """
    ordered = sorted(((_source_of(checkpoint, p), p) for p in parts), key=lambda found: found[0])
    spans: list[Span] = []
    pieces: list[Piece] = []
    start = end = 0

    def close() -> None:
        if pieces:
            spans.append(Span(start, end - start, tuple(pieces)))
            pieces.clear()

    for offset, part in ordered:
        nbytes = row_bytes(checkpoint.tensors[part.source].type, part.columns)
        first = 0
        while first < part.rows:
            at = offset + first * nbytes
            room = (start + span_bytes - at) // nbytes
            if not pieces or room < 1 or at < start or at > end + GAP_BYTES:
                close()
                start = end = at
                room = max(1, span_bytes // nbytes)
            rows = min(room, part.rows - first)
            pieces.append(Piece(part, first, rows, at, rows * nbytes))
            end = max(end, at + rows * nbytes)
            first += rows
    close()
    return spans


def _source_of(checkpoint: Checkpoint, part: WeightPart) -> int:
    """Where a part's bytes start in the file; everything about the part that can be wrong is found here."""
    info = checkpoint.tensors.get(part.source)
    if info is None:
        raise BadCheckpoint(f"weight {part.weight}: the file has no tensor {part.source}")
    if not _fits(info, part):
        raise BadCheckpoint(f"weight {part.weight}: rows {part.source_row} to {part.source_row + part.rows} of {part.columns} were expected "
                            f"of tensor {part.source}, which is {list(info.shape)}")
    if converter(info.type, part.format) is None:
        raise ModelNotSupported(f"weight {part.weight}: tensor {part.source} is {info.type}, which does not go into {part.format} without rounding")
    if part.transform not in ("", "unpermute_rope"):
        raise ValueError(f"weight {part.weight}: transform {part.transform!r}; known: unpermute_rope")
    if part.transform and (part.head_dim < 2 or part.head_dim % 2 or part.rows % part.head_dim or part.source_row % part.head_dim):
        raise BadCheckpoint(f"weight {part.weight}: {part.rows} rows from {part.source_row} are not whole heads of {part.head_dim}")
    return info.offset + part.source_row * row_bytes(info.type, part.columns)


def _fits(info: TensorInfo, part: WeightPart) -> bool:
    count = info.rows * info.columns
    same_rows = part.columns == info.columns or len(info.shape) < 2 and part.columns in (1, count)
    return same_rows and part.rows > 0 and part.source_row >= 0 and (part.source_row + part.rows) * part.columns <= count


async def _convert(device: Device, checkpoint: Checkpoint, span: Span, staging: Any, arena: Any, buffers: Mapping[tuple[str, str], Any]) -> None:
    """One submit: a dispatch a piece, their Params written to `arena` before."""
    dispatches = []
    packed = bytearray()
    for piece in span.pieces:
        part = piece.part
        path, given = converter(checkpoint.tensors[part.source].type, part.format)
        kernel = KERNELS[path]
        shader = kernel.shader(given)
        params = {"src": piece.offset - span.offset, "rows": piece.rows, "columns": part.columns, "dst_row": part.row, "first": piece.first,
                  "head_dim": part.head_dim if part.transform else 0}
        raw = pack_params(shader, params)
        where = {"src": Slice(staging), "w": Slice(buffers.get((part.weight, ""))), "q": Slice(buffers.get((part.weight, "q"))),
                 "sb": Slice(buffers.get((part.weight, "sb"))), "params": Slice(arena, len(packed), len(raw))}
        pipeline = await device.compile(path, given, ())
        dispatches.append(Bound(pipeline, tuple(where[b.name] for b in shader.bindings), kernel.grid(namespace(params), const_values(shader, given)),
                                f"load/{part.source}/{piece.first}"))
        packed += raw + bytes(-len(raw) % UNIFORM_ALIGN)
    device.write(arena, 0, bytes(packed))
    device.run(device.program([device.record(dispatches, f"load/{span.offset}")]))


async def _unless_cancelled(work: Any, cancel: Cancel | None) -> None:
    """Awaits `work`, looking at `cancel` now and then: a span can take long on a slow network."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=CANCEL_POLL_S))[0]:
            if cancel:
                cancel.check()
    except BaseException:
        task.cancel()
        raise
    await task
