"""web/weights.js in node against a local server: ranges, streams, parts, storage, resuming, and every way a download goes wrong."""

import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

WEB = Path(__file__).parents[2] / "web"
CHUNK = 1024
DATA = np.random.default_rng(0).integers(0, 256, 5 * CHUNK + 301, np.uint8).tobytes()

# One node for all tests: a line in is {base, script}, a line out what the script gave to out(). Each script has a new CacheStorage
# (which outlives a Remote), sums of bytes and errors as data.
DRIVER = """
import { openUrl, openFile } from "WEB/weights.js";
import { createInterface } from "node:readline";
class FakeCache {
  map = new Map(); room = Infinity;
  async match(key) { const e = this.map.get(key); return e && new Response(e.slice(0), { status: 200 }); }
  async put(key, response) {
    if (response.status === 206) throw new TypeError("a 206 cannot be put");
    const bytes = await response.arrayBuffer();
    if (bytes.byteLength > this.room) { const e = new Error("no room"); e.name = "QuotaExceededError"; throw e; }
    this.room -= bytes.byteLength;
    this.map.set(key, bytes);
  }
  async delete(key) { return this.map.delete(key); }
}
function tools(base) {
  const cache = new FakeCache(), said = [];
  globalThis.caches = { open: async () => cache };
  const parts = () => [...cache.map.keys()].filter((k) => k.includes("part-")).length;
  const hex = (bytes) => Buffer.from(bytes).toString("hex");
  return {
    base, cache, said, parts, hex, openFile,
    open: (path, options = {}) => openUrl(path.startsWith("http") ? path : base + path, { chunk: CHUNK, retryMs: 1, ...options }),
    all: async (file) => hex(await file.read(0, file.size)),
    stored: async (n) => { while (parts() < n) await new Promise((r) => setTimeout(r, 2)); },
    failure: async (promise) => promise.then(() => null, (e) => ({ code: e.code, message: e.message })),
    log: async () => (await fetch(base + "log")).json(),
    out: (value) => said.push(value),
  };
}
const AsyncFunction = (async () => {}).constructor;
for await (const line of createInterface({ input: process.stdin })) {
  const { base, script } = JSON.parse(line);
  const given = tools(base), fetch = globalThis.fetch;
  const late = new Promise((_, reject) => { setTimeout(reject, 20000, new Error("the script did not end in 20 s")).unref(); });
  const work = new AsyncFunction(...Object.keys(given), script)(...Object.values(given));
  const failed = await Promise.race([work, late]).then(() => "", (e) => String(e.stack));
  globalThis.fetch = fetch;
  console.log(JSON.stringify({ said: given.said, failed }));
}
"""


class Site:
    """path -> bytes, and what the server does wrong."""

    def __init__(self):
        self.files = {"m.gguf": DATA}
        self.log = []
        self.ranges, self.lengths, self.etag = True, True, '"1"'
        self.html = set()
        self.cut = []  # bytes after which the next answers to large ranges end
        self.status = {}


def handler_of(site):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = self.path.strip("/").split("?")[0]
            if path == "log":
                self.answer(200, json.dumps(site.log).encode(), {"Content-Type": "application/json"})
                site.log.clear()
                return
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            site.log.append([path, wanted and f"{wanted[1]}-{wanted[2]}"])
            if path in site.html:
                self.answer(200, b"<!doctype html>", {"Content-Type": "text/html; charset=utf-8"})
            elif site.status.get(path):
                self.answer(site.status[path], b"no")
            elif path not in site.files:
                self.answer(404, b"no")
            else:
                data = site.files[path]
                headers = {"ETag": site.etag} if site.etag else {}
                if wanted and site.ranges:
                    begin, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
                    self.answer(206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}, end - begin > 1)
                else:
                    self.answer(200, data, headers, True)

        def answer(self, status, body, headers=(), may_cut=False):
            self.send_response(status)
            for name, value in dict(headers).items():
                self.send_header(name, value)
            if site.lengths or not may_cut:
                self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                self.wfile.write(body[: site.cut.pop(0)] if may_cut and site.cut else body)
            except ConnectionError:
                pass  # a probe does not read the body
            self.close_connection = True

        def log_message(self, *args):
            pass

    return Handler


@pytest.fixture
def site():
    return Site()


@pytest.fixture(scope="module")
def node():
    path = shutil.which("node")
    assert path, "node is needed: build.py's environment has it"
    script = DRIVER.replace("WEB", WEB.as_uri()).replace("CHUNK", str(CHUNK))
    process = subprocess.Popen([path, "--input-type=module", "-e", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.stdin.close()
    process.wait(10)


@pytest.fixture
def js(site, node):
    """Runs a script against the site; returns what it gave to out()."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(site))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def run(script):
        node.stdin.write(json.dumps({"base": f"http://127.0.0.1:{server.server_address[1]}/", "script": script}) + "\n")
        node.stdin.flush()
        answer = json.loads(node.stdout.readline())
        assert not answer["failed"], answer["failed"]
        return answer["said"]

    yield run
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("store", ["cache", "none"])
@pytest.mark.parametrize("ranges, lengths", [(True, True), (False, True), (False, False)])
def test_a_file_reads_whole_whatever_the_server_knows(js, site, store, ranges, lengths):
    site.ranges, site.lengths = ranges, lengths
    size, name, whole, notice = js(f"""
        const f = await open("m.gguf", {{ store: "{store}" }});
        out(f.size); out(f.name); out(await all(f)); out(f.notice); f.close();""")
    assert (size, name, notice) == (len(DATA), "m.gguf", "")
    assert bytes.fromhex(whole) == DATA


def test_pieces_are_whole_words_at_any_offset_and_pad_the_last_with_zeros(js):
    ranges = [(0, 8), (1, 7), (CHUNK - 4, 8), (CHUNK - 3, 2 * CHUNK + 5), (2 * CHUNK, CHUNK + 301), (0, len(DATA)), (len(DATA) - 1, 1), (5, 0)]
    got = js(f"""
        const f = await open("m.gguf");
        for (const [offset, n] of {json.dumps(ranges)}) {{ out((await f.pieces(offset, n)).map((p) => [p.length, hex(p)])); }}
        f.close();""")
    for (offset, n), pieces in zip(ranges, got, strict=True):
        assert all(length % 4 == 0 for length, _ in pieces)
        assert bytes.fromhex("".join(h for _, h in pieces)) == DATA[offset: offset + n] + bytes(-n % 4)


def test_a_stored_file_is_not_fetched_again_and_needs_no_server(js, site):
    first, again, asked, offline, versioned, no_asking = js("""
        const a = await open("m.gguf", { sha256: "v1" }); await all(a); await stored(6); a.close(); out((await log()).length > 1);
        const b = await open("m.gguf"); out(await all(b)); b.close(); out(await log());
        const real = globalThis.fetch;
        globalThis.fetch = async () => { throw new TypeError("offline"); };
        const c = await open("m.gguf"); out(await all(c)); c.close();
        const d = await open("m.gguf", { sha256: "v1" }); out(await all(d)); d.close();
        globalThis.fetch = real; out(await log());""")
    assert first and asked == [["m.gguf", "0-0"]] and no_asking == []
    assert bytes.fromhex(again) == bytes.fromhex(offline) == bytes.fromhex(versioned) == DATA


def test_a_broken_off_download_goes_on_with_what_is_missing(js, site):
    whole, requests = js("""
        const stop = new AbortController();
        const a = await open("m.gguf", { signal: stop.signal }); await a.read(0, 2048); await stored(2); stop.abort();
        await new Promise((r) => setTimeout(r, 20)); const had = parts(); await log();
        for (const k of [...cache.map.keys()]) if (/part-[3-5]/.test(k)) cache.map.delete(k);
        const b = await open("m.gguf"); out(await all(b)); b.close(); out(await log());""")
    assert bytes.fromhex(whole) == DATA
    assert {"0-1023", "1024-2047"}.isdisjoint({r for _, r in requests}) and {"3072-4095", f"5120-{len(DATA) - 1}"} <= {r for _, r in requests}


@pytest.mark.parametrize("change", ["etag", "size", "sha256"])
def test_a_changed_file_is_fetched_anew(js, site, change):
    script = """
        const a = await open("m.gguf", { sha256: "v1" }); await all(a); await stored(6); a.close();
        await fetch(base + "change");
        const b = await open("m.gguf", { sha256: SHA }); out(await all(b)); b.close();"""
    if change == "etag":
        new, sha = DATA[::-1], ""
    elif change == "size":
        new, sha = DATA[:3000], ""
    else:
        new, sha = DATA[::-1], "v2"

    class Log(list):
        def append(self, entry):
            super().append(entry)
            if entry[0] == "change":
                site.files["m.gguf"] = new
                site.etag = '"2"' if change == "etag" else site.etag

    site.log = Log()
    assert bytes.fromhex(js(script.replace("SHA", json.dumps(sha)))[0]) == new


def test_parts_are_one_file_given_as_a_list_or_found_by_probing(js, site):
    site.files = {"p.gguf.00": DATA[:1500], "p.gguf.01": DATA[1500:4000], "p.gguf.02": DATA[4000:]}
    got = js("""
        for (const [url, parts] of [["p.gguf", []], ["p.gguf.00", []], ["p.gguf", ["p.gguf.00", "p.gguf.01", "p.gguf.02"].map((p) => base + p)]]) {
          cache.map.clear();
          const f = await open(url, { parts }); out(await all(f)); f.close();
        }""")
    assert [bytes.fromhex(g) for g in got] == [DATA] * 3


def test_what_comes_in_place_of_weights_is_named(js, site):
    site.html.add("page.gguf")
    site.status["down.gguf"] = 503
    site.files["short.gguf"] = DATA
    page, missing, down, size, refused = js("""
        for (const p of ["page.gguf", "gone.gguf", "down.gguf"]) { out(await failure(open(p))); }
        out(await failure(open("m.gguf", { nbytes: 7 })));
        out(await failure(open("http://127.0.0.1:9/x.gguf")));""")
    assert {e["code"] for e in (page, missing, down, size, refused)} == {"fetch_failed"}
    assert "HTML page where weights were expected" in page["message"]
    assert "gone.gguf answered 404" in missing["message"] and "answered 503" in down["message"]
    assert f"has {len(DATA)} bytes, 7 were expected" in size["message"] and "could not be read" in refused["message"]


def test_a_cut_connection_is_tried_again(js, site):
    site.cut = [100, 0, 50]
    assert bytes.fromhex(js("""const a = await open("m.gguf", { store: "none" }); out(await all(a)); a.close();""")[0]) == DATA


@pytest.mark.parametrize("ranges", [True, False])
def test_a_server_that_always_cuts_is_given_up(js, site, ranges):
    site.ranges, site.cut = ranges, [10] * 1000
    failed, = js("""const a = await open("m.gguf"); out(await failure(all(a))); a.close();""")
    assert failed["code"] == "fetch_failed"


@pytest.mark.parametrize("ranges", [True, False])
def test_storage_without_room_falls_back_to_memory_with_a_notice(js, site, ranges):
    site.ranges = ranges
    whole, notice, parts = js("""
        cache.room = 3000;
        const f = await open("m.gguf"); out(await all(f)); out(f.notice); f.close(); out(parts());""")
    assert bytes.fromhex(whole) == DATA and "no room" in notice and parts <= 2


def test_a_page_without_storage_reads_with_a_notice(js):
    whole, notice = js("""
        globalThis.caches = undefined;
        const f = await open("m.gguf"); out(await all(f)); out(f.notice); f.close();""")
    assert bytes.fromhex(whole) == DATA and "keeps no files" in notice


def test_a_chunk_that_the_browser_evicted_comes_again(js):
    whole, = js("""
        const a = await open("m.gguf"); await all(a); await stored(6);
        for (const k of [...cache.map.keys()]) if (/part-[14]/.test(k)) cache.map.delete(k);
        await a.read(0, 1); await a.read(a.size - 1, 1);
        out(await all(a)); a.close();""")
    assert bytes.fromhex(whole) == DATA


def test_the_download_goes_on_while_nothing_is_read(js):
    assert js("""const f = await open("m.gguf"); await stored(6); out(parts()); f.close();""") == [6]


def test_the_next_chunk_is_read_from_storage_while_one_is_used(js):
    requests, whole = js("""
        const a = await open("m.gguf"); await all(a); await stored(6); a.close(); await log();
        const b = await open("m.gguf"); const reads = [], match = cache.match;
        cache.match = async (key) => { reads.push(key.split("part-")[1]); return match.call(cache, key); };
        await b.read(0, 1); while (reads.length < 2) await new Promise((r) => setTimeout(r, 2));
        out([...reads]); out(await all(b)); b.close();""")
    assert requests == ["0", "1"] and bytes.fromhex(whole) == DATA


def test_without_storage_little_is_held_ahead_of_the_reader(js):
    requests, = js("""
        const f = await open("m.gguf", { store: "none", chunk: 256 }); await f.read(0, 1);
        await new Promise((r) => setTimeout(r, 100)); f.close(); out(await log());""")
    assert 1 < len(requests) <= 1 + 5


def test_progress_counts_to_the_end_and_stops_at_close(js):
    seen, stored_first = js("""
        let seen = []; const onProgress = (done, total) => seen.push([done, total]);
        const a = await open("m.gguf", { onProgress }); await all(a); await stored(6); out(seen); a.close();
        seen = []; const b = await open("m.gguf", { onProgress }); out(seen); b.close();""")
    assert seen[-1] == [len(DATA)] * 2 and stored_first == [[len(DATA)] * 2]
    assert seen == sorted(seen)


def test_abort_and_close_end_a_download(js, site):
    before, during = js("""
        const stop = new AbortController(); stop.abort();
        out(await failure(open("m.gguf", { signal: stop.signal })));
        const f = await open("m.gguf", { store: "none", chunk: 256 }); const late = failure(f.read(3000, 10)); f.close(); out(await late);""")
    assert before["code"] == during["code"] == "aborted"


def test_a_persons_file_reads_where_it_is(js):
    name, size, pieces, past = js("""
        const file = new File([Uint8Array.from({ length: 1003 }, (_, i) => i)], "mine.gguf");
        const f = openFile(file); out(f.name); out(f.size); out((await f.pieces(1, 1002)).map(hex)); out(await failure(f.read(1000, 4)));""")
    assert (name, size) == ("mine.gguf", 1003)
    assert bytes.fromhex("".join(pieces)) == bytes(i % 256 for i in range(1, 1003)) + bytes(2)
    assert past["code"] == "bad_checkpoint" and "1000 to 1004" in past["message"]
