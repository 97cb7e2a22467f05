"""What a checkpoint file holds, whatever its kind, and how its bytes are reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Protocol

from ..errors import BadCheckpoint


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in a file. shape: row-major, slowest axis first. type: "F32", "BF16", "Q4_0", ... (weights/quant.py TYPES).

    Units: offset (absolute, from the file's first byte) and nbytes in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int

    @property
    def columns(self) -> int:
        """Length of the fastest axis, along which blocks lie."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        total = 1
        for d in self.shape[:-1]:
            total *= d
        return total


@dataclass(frozen=True)
class Checkpoint:
    """kind "gguf" | "safetensors"; architecture as the file names it ("" when it does not); meta: the file's own keys."""

    kind: str
    architecture: str
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)


class Source(Protocol):
    """Bytes of one checkpoint file."""

    size: int

    async def read(self, offset: int, nbytes: int) -> bytes:
        """Exactly nbytes at offset, for headers.

        Raises: BadCheckpoint when the range passes the end; FetchFailed when the bytes do not come.
        """

    async def fill(self, device: Any, buffer: Any, buffer_offset: int, offset: int, nbytes: int) -> None:
        """Queues the file's bytes [offset, offset + nbytes) into a device buffer at buffer_offset (a multiple of 4).

        nbytes need not be a multiple of 4: zeros fill the last word. In a browser the bytes go store -> JS -> GPU and never
        enter the wasm heap. Raises as `read`.
        """


def refuse_text(head: bytes, expected: str) -> None:
    """Names what stands in place of a checkpoint when its first bytes are text.

    Raises: BadCheckpoint for an HTML page, a Git LFS pointer, JSON or plain text
    """
    text = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        found = "an HTML page (often a server's error page)"
    elif text.startswith(b"version https://git-lfs"):
        found = "a Git LFS pointer, not the file it points to"
    elif text.startswith((b"{", b"[")):
        found = "JSON"
    else:
        return
    raise BadCheckpoint(f"{expected} was expected, found {found}: {bytes(head[:60])!r}")
