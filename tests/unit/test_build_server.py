"""The local server: files, ranges, conditional requests, the content policy, mounts, the job and the reports."""

import http.client
import json
import os
import socket
from urllib.parse import urlsplit

import pytest

from tools.server import CSP, REPORT_LIMIT, Server, Site, byte_range, find, parse_report


def ask(server, target, method="GET", body=None, **headers):
    """(status, headers, body) of one request; the target goes out as it stands."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    got = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return got


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "dist"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (root / "index.html").write_text("<p>page</p>")
    (root / "a.mjs").write_text("export {}")
    (root / "a.wasm").write_bytes(b"\0asm")
    (root / "weights.gguf").write_bytes(bytes(range(256)) * 4)
    return root


@pytest.fixture
def server(folder):
    with Server(Site(folder)) as running:
        yield running


@pytest.mark.parametrize(
    "target, kind",
    [
        ("/", "text/html; charset=utf-8"),
        ("/index.html?job=1", "text/html; charset=utf-8"),
        ("/a.mjs", "text/javascript; charset=utf-8"),
        ("/a.wasm", "application/wasm"),
        ("/weights.gguf", "application/octet-stream"),
    ],
)
def test_file_has_its_type_and_the_policy(server, target, kind):
    status, headers, _ = ask(server, target)
    assert (status, headers["Content-Type"], headers["Content-Security-Policy"]) == (200, kind, CSP)


def test_policy_is_on_errors_and_not_modified_too(server):
    etag = ask(server, "/a.mjs")[1]["ETag"]
    for status, headers, _ in (ask(server, "/none"), ask(server, "/a.mjs", If_None_Match=etag), ask(server, "/report", "POST", "{}")):
        assert status in (404, 304) and headers["Content-Security-Policy"] == CSP


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/x/../../secret.txt",
        "/..\\secret.txt",
        "/local/../secret.txt",
        "/a\0b",
        "/c:/x",
    ],
)
def test_nothing_outside_the_root_is_named(folder, target):
    path = find(Site(folder), target)
    assert path is None or path.resolve().is_relative_to(folder.resolve())


def test_traversal_over_the_wire_is_not_found(server):
    assert ask(server, "/..%2fsecret.txt")[0] == 404


@pytest.mark.parametrize(
    "header, start, stop",
    [("bytes=0-3", 0, 4), ("bytes=1020-", 1020, 1024), ("bytes=-10", 1014, 1024), ("bytes=1000-9999", 1000, 1024)],
)
def test_range_answers_206_with_the_bytes_asked_for(server, folder, header, start, stop):
    status, headers, body = ask(server, "/weights.gguf", Range=header)
    assert (status, headers["Content-Range"]) == (206, f"bytes {start}-{stop - 1}/1024")
    assert body == (folder / "weights.gguf").read_bytes()[start:stop]


def test_range_past_the_end_answers_416_with_the_size(server):
    status, headers, _ = ask(server, "/weights.gguf", Range="bytes=1024-")
    assert (status, headers["Content-Range"]) == (416, "bytes */1024")


@pytest.mark.parametrize("header", ["", "bytes=", "bytes=-", "bytes=0-1,4-5", "lines=0-1", "bytes=5-2", "bytes=a-b"])
def test_malformed_or_several_ranges_mean_the_whole(header):
    assert byte_range(header, 100) is None


@pytest.mark.parametrize("header", ["bytes=-0", "bytes=100-", "bytes=200-300"])
def test_ranges_that_hold_no_byte_are_unsatisfiable(header):
    assert byte_range(header, 100) == "unsatisfiable"


def test_if_range_with_another_etag_sends_the_whole_changed_file(server, folder):
    path = folder / "weights.gguf"
    etag = ask(server, "/weights.gguf")[1]["ETag"]
    assert ask(server, "/weights.gguf", Range="bytes=8-", If_Range=etag)[0] == 206
    path.write_bytes(b"changed")
    os.utime(path, ns=(1, 1))
    status, headers, body = ask(server, "/weights.gguf", Range="bytes=2-", If_Range=etag)
    assert (status, body) == (200, b"changed") and headers["ETag"] != etag


def test_head_sends_the_length_and_no_body(server):
    status, headers, body = ask(server, "/weights.gguf", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "1024", b"")


def test_one_connection_serves_several_requests(server):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    for target, status in (("/a.mjs", 200), ("/none", 404), ("/weights.gguf", 200)):
        connection.request("GET", target)
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.version) == (status, 11)
    connection.close()


def test_mounts_serve_a_file_and_a_folder_of_the_disk(folder, tmp_path):
    checkpoint = tmp_path / "check point"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    with Server(Site(folder, mounts={"one.txt": tmp_path / "secret.txt", "cp": checkpoint})) as server:
        assert ask(server, "/local/one.txt")[2] == b"secret"
        assert ask(server, "/local/cp/config.json")[2] == b"{}"
        assert [ask(server, t)[0] for t in ("/local/cp", "/local/cp/none", "/local/two", "/local", "/local/cp/../secret.txt")] == [404] * 5


def test_job_is_handed_out_and_reports_arrive_in_order(folder, tmp_path):
    events, log = [], tmp_path / "report.jsonl"
    with Server(Site(folder, job={"op": "chat"}, on_report=events.append, report_file=log)) as server:
        assert json.loads(ask(server, "/job")[2]) == {"op": "chat"}
        assert ask(server, "/report", "POST", '{"ev": "token", "text": "é"}\n{"ev": "token", "text": "b"}\n'.encode())[0] == 204
        assert ask(server, "/report", "POST", b'{"ev": "result", "done": true}')[0] == 204
    assert [event["ev"] for event in events] == ["token", "token", "result"]
    assert [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] == events


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff"])
def test_report_that_is_no_json_object_is_refused(folder, body):
    events = []
    with Server(Site(folder, on_report=events.append)) as server:
        assert ask(server, "/report", "POST", body)[0] == 400
    assert events == []


def test_report_larger_than_the_limit_is_refused_before_it_is_read(folder):
    with Server(Site(folder, on_report=print)) as server:
        assert ask(server, "/report", "POST", None, Content_Length=str(REPORT_LIMIT + 1))[0] == 400


def test_without_a_job_there_is_no_job_and_no_report(server):
    assert (ask(server, "/job")[0], ask(server, "/report", "POST", b"{}")[0]) == (404, 404)


def test_parse_report_skips_empty_lines():
    assert parse_report(b'\n{"a": 1}\n\n') == [{"a": 1}]


def exchange(server, data):
    """What the server sends back for raw bytes, to the end of the connection."""
    with socket.create_connection(server._http.server_address, timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


END = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


@pytest.mark.parametrize("path", ["/" + "a" * 5000, "/" + "a/" * 3000, "http://[/x", "/local/" + "b" * 5000, "//["], ids=lambda path: path[:12])
def test_a_target_that_no_file_can_have_is_not_found(server, path):
    assert exchange(server, b"GET " + path.encode() + END + b"\r\n").startswith(b"HTTP/1.1 404")
    assert exchange(server, b"POST " + path.encode() + END + b"\r\n").startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("header", ["bytes=0-" + "9" * 5000, "bytes=" + "9" * 5000 + "-", "bytes=-" + "9" * 5000])
def test_a_range_of_thousands_of_digits_means_the_whole(server, header):
    assert ask(server, "/weights.gguf", Range=header)[0] == 200


@pytest.mark.parametrize("length", [b"-1", b"\xb2", b"9" * 5000, b"2 2", b"+2", b""])
def test_a_report_with_an_odd_length_is_refused(folder, length):
    events = []
    with Server(Site(folder, on_report=events.append)) as server:
        assert exchange(server, b"POST /report" + END + b"Content-Length: " + length + b"\r\n\r\n{}").startswith(b"HTTP/1.1 400")
    assert events == []


def test_a_report_that_is_cut_short_or_nested_without_end_is_not_taken(folder):
    events = []
    with Server(Site(folder, on_report=events.append)) as server:
        assert exchange(server, b"POST /report" + END + b"Content-Length: 10\r\n\r\n{}") == b""
        assert ask(server, "/report", "POST", b"[" * 100_000)[0] == 400
    assert events == []
