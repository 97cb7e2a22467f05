"""The local server: dist/ and mounted paths over HTTP/1.1 with ranges, ETags and the content policy; /job and /report."""

from __future__ import annotations

import json
import posixpath
import re
import sys
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Callable
from urllib.parse import unquote, urlsplit

CSP = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "img-src 'self'; style-src 'self'; media-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".jsonl": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".wgsl": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".zip": "application/zip",
    ".whl": "application/zip",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".webmanifest": "application/manifest+json",
    ".wav": "audio/wav",
}
REPORT_LIMIT = 64 << 20
BLOCK = 1 << 18


@dataclass
class Site:
    """What a server answers with. `mounts` maps a name under /local/ to a file or folder on disk."""

    root: Path
    mounts: dict[str, Path] = field(default_factory=dict)
    job: dict | None = None
    on_report: Callable[[dict], None] | None = None
    report_file: Path | None = None


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address) -> None:
        """A browser that is ended cuts its connections; that is no error here."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class Server:
    """A Site served on 127.0.0.1 by threads until close(); port 0 takes a free one."""

    def __init__(self, site: Site, port: int = 0, host: str = "127.0.0.1"):
        handler = type("SiteHandler", (Handler,), {"site": site, "report_lock": threading.Lock()})
        self._http = _Http((host, port), handler)
        self.url = f"http://{host}:{self._http.server_address[1]}/"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Block until the server ends."""
        self._thread.join()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Handler(BaseHTTPRequestHandler):
    """One connection; `site` is set on the subclass that Server makes."""

    protocol_version = "HTTP/1.1"
    server_version = "jird"
    site: Site
    report_lock: threading.Lock

    def do_GET(self) -> None:
        """Answer a file, a range of it, or the job."""
        if path_of(self.path) == "/job" and self.site.job is not None:
            self._answer(HTTPStatus.OK, json.dumps(self.site.job).encode(), "application/json")
            return
        path = find(self.site, self.path)
        if path is None:
            self._answer(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain; charset=utf-8")
            return
        self._file(path)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Take JSON lines at /report; every line goes to the file and to the callback, in order of arrival."""
        length = self.headers.get("Content-Length", "")
        wanted = self.site.on_report is not None or self.site.report_file is not None
        if path_of(self.path) != "/report" or not wanted:
            self.close_connection = True
            self._answer(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain; charset=utf-8")
            return
        if not re.fullmatch("[0-9]{1,12}", length) or int(length) > REPORT_LIMIT:
            self.close_connection = True
            self._answer(HTTPStatus.BAD_REQUEST, b"Content-Length missing or too large\n", "text/plain; charset=utf-8")
            return
        body = self.rfile.read(int(length))
        if len(body) != int(length):
            self.close_connection = True
            return
        try:
            events = parse_report(body)
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, f"{error}\n".encode(), "text/plain; charset=utf-8")
            return
        with self.report_lock:
            for event in events:
                self._take(event)
        self._answer(HTTPStatus.NO_CONTENT, b"", None)

    def _take(self, event: dict) -> None:
        if self.site.report_file is not None:
            with open(self.site.report_file, "a", encoding="utf-8") as file:
                file.write(json.dumps(event, ensure_ascii=False) + "\n")
        if self.site.on_report is not None:
            self.site.on_report(event)

    def _file(self, path: Path) -> None:
        try:
            file = open(path, "rb")
        except OSError:
            self._answer(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain; charset=utf-8")
            return
        with file:
            stat = path.stat()
            size, etag = stat.st_size, f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"'
            headers = {"ETag": etag, "Last-Modified": formatdate(stat.st_mtime, usegmt=True), "Accept-Ranges": "bytes"}
            if etag in re.findall(r'"[^"]*"', self.headers.get("If-None-Match", "")):
                self._head(HTTPStatus.NOT_MODIFIED, headers)
                return
            span = None
            if self.headers.get("If-Range", etag) in (etag, headers["Last-Modified"]):
                span = byte_range(self.headers.get("Range", ""), size)
            headers["Content-Type"] = TYPES.get(path.suffix.lower(), "application/octet-stream")
            if span == "unsatisfiable":
                self._head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
                return
            start, stop = span or (0, size)
            headers["Content-Length"] = str(stop - start)
            if span:
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
            self._head(HTTPStatus.PARTIAL_CONTENT if span else HTTPStatus.OK, headers)
            if self.command != "HEAD":
                self._send(file, start, stop)

    def _send(self, file, start: int, stop: int) -> None:
        file.seek(start)
        try:
            while start < stop:
                block = file.read(min(BLOCK, stop - start))
                if not block:
                    self.close_connection = True
                    return
                self.wfile.write(block)
                start += len(block)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Cache-Control": "no-cache", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, status: HTTPStatus, body: bytes, kind: str | None) -> None:
        headers = {"Cache-Control": "no-store"}
        if status != HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(len(body))
        if kind:
            headers["Content-Type"] = kind
        if self.close_connection:
            headers["Connection"] = "close"
        self._head(status, headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args) -> None:
        """Say nothing: the terminal is for the person."""


def find(site: Site, target: str) -> Path | None:
    """The file that a request target names, or None; nothing outside the root and the mounts is ever named."""
    parts = posixpath.normpath(unquote(path_of(target)).replace("\\", "/")).strip("/").split("/")
    if any(part in ("..", "") or "\0" in part or ":" in part for part in parts) and parts != [""]:
        return None
    if parts[0] == "local":
        mounted = site.mounts.get(parts[1]) if len(parts) > 1 else None
        if mounted is None:
            return None
        path = mounted.joinpath(*parts[2:])
    else:
        path = site.root.joinpath(*(part for part in parts if part and part != "."))
    try:
        if parts[0] != "local" and path.is_dir():
            path = path / "index.html"
        return path if path.is_file() else None
    except OSError:  # a name longer than the file system takes
        return None


def path_of(target: str) -> str:
    """The path of a request target; ":", which names nothing, where it cannot be read."""
    try:
        return urlsplit(target).path
    except ValueError:
        return ":"


def byte_range(header: str, size: int) -> tuple[int, int] | str | None:
    """(start, stop) of a single-range header, None to answer the whole, "unsatisfiable" past the end.

    Source: RFC 9110, section 14 (a header that is malformed or asks for several ranges may be ignored)
    """
    found = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", header.strip())
    if not found or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    return (start, stop) if start < stop else "unsatisfiable"


def parse_report(body: bytes) -> list[dict]:
    """The JSON objects of a report, one a line. Raises: ValueError when a line is no JSON object."""
    try:
        events = [json.loads(line) for line in body.decode("utf-8").splitlines() if line.strip()]
    except RecursionError:
        raise ValueError("a line of the report is nested too deep") from None
    if not all(isinstance(event, dict) for event in events):
        raise ValueError("every line of a report is a JSON object")
    return events
