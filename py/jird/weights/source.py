"""Where a checkpoint's bytes come from: a file on disk (CPython), or a URL or a person's file through web/weights.js (Pyodide).

This is the one file of the room that knows JavaScript, and only inside functions: it imports in CPython.
"""

from __future__ import annotations

import os
from typing import Any, Sequence

from ..errors import Aborted, BadCheckpoint, FetchFailed, JirdError, QuotaExceeded

BLOCK = 16 << 20
ERRORS: dict[str, type[JirdError]] = {e.code: e for e in (FetchFailed, QuotaExceeded, Aborted, BadCheckpoint)}


class FileSource:
    """A file on disk.

    Raises: FetchFailed when it cannot be opened
    """

    def __init__(self, path: str | os.PathLike):
        try:
            self._file = open(path, "rb")
        except OSError as e:
            raise FetchFailed(f"{path} cannot be opened: {e.strerror}") from None
        self.name = os.fspath(path)
        self.size = self._file.seek(0, os.SEEK_END)

    async def read(self, offset: int, nbytes: int) -> bytes:
        _check_range(self.name, self.size, offset, nbytes)
        self._file.seek(offset)
        data = self._file.read(nbytes)
        if len(data) != nbytes:
            raise FetchFailed(f"{self.name}: {len(data)} of {nbytes} bytes at {offset} could be read; the file has shrunk")
        return data

    async def fill(self, device: Any, buffer: Any, buffer_offset: int, offset: int, nbytes: int) -> None:
        for start in range(0, nbytes, BLOCK):
            data = await self.read(offset + start, min(BLOCK, nbytes - start))
            device.write(buffer, buffer_offset + start, data + bytes(-len(data) % 4))

    def close(self) -> None:
        self._file.close()


class WebSource:
    """A file behind web/weights.js. `notice` says what a person should know (no room in the browser's storage), or ""."""

    def __init__(self, handle: Any):
        self._handle = handle
        self.name: str = handle.name
        self.size = int(handle.size)

    @property
    def notice(self) -> str:
        return self._handle.notice

    async def read(self, offset: int, nbytes: int) -> bytes:
        _check_range(self.name, self.size, offset, nbytes)
        return b"".join([piece.to_bytes() for piece in await _typed(self._handle.pieces(offset, nbytes))])[:nbytes]

    async def fill(self, device: Any, buffer: Any, buffer_offset: int, offset: int, nbytes: int) -> None:
        """Each piece is a JS Uint8Array that goes to the queue as it is."""
        _check_range(self.name, self.size, offset, nbytes)
        for piece in await _typed(self._handle.pieces(offset, nbytes)):
            device.write(buffer, buffer_offset, piece)
            buffer_offset += piece.length

    def close(self) -> None:
        """Ends what is still being downloaded; what is stored stays."""
        self._handle.close()


async def open_url(url: str, *, parts: Sequence[str] = (), nbytes: int = 0, sha256: str = "", store: str = "") -> WebSource:
    """A file of this or another origin, kept in the browser's storage on the way.

    parts     the addresses of its parts in order; without them `url`, or `url`.00, .01, ... where `url` does not exist
    nbytes    the size it must have (0: not known); sha256: names the version, so that a stored copy is used without asking the server
    store     "" or "cache": CacheStorage; "none"
    Raises: FetchFailed
    """
    import js

    from ..runtime.device_web import js_obj

    options = js_obj({"parts": list(parts), "nbytes": nbytes, "sha256": sha256, "store": store or "cache"})
    return WebSource(await _typed(js.jirdShell.weights.openUrl(url, options)))


async def open_file(file: Any) -> WebSource:
    """A File or Blob that a person chose; it stays where it is."""
    import js

    return WebSource(js.jirdShell.weights.openFile(file))


async def _typed(promise: Any) -> Any:
    """Awaits a promise of weights.js; its errors carry the code of one of ours."""
    from pyodide.ffi import JsException

    try:
        return await promise
    except JsException as e:
        kind = ERRORS.get(str(getattr(e, "code", "")), FetchFailed)
        raise kind(str(getattr(e, "message", None) or e)) from None


def _check_range(name: str, size: int, offset: int, nbytes: int) -> None:
    if offset < 0 or nbytes < 0 or offset + nbytes > size:
        raise BadCheckpoint(f"{name}: bytes {offset} to {offset + nbytes} wanted, the file ends at {size}")
