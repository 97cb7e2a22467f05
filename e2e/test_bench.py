"""bench.html: every leg gives figures that fit together, also when time is short (tiny-chat, Chromium)."""

from __future__ import annotations

MODEL = {"name": "tiny-chat", "title": "tiny-chat", "url": "local/tiny/tiny-chat.gguf"}


def test_the_bench_reports_each_leg_and_all_figures_at_the_end(run_page, tiny_chat, chromium_path):
    query = "bench.html?auto=1&prefill=24&decode=16&at=8&in_flight=2"
    last, reports = run_page(query, {"op": "bench", "model": MODEL}, mounts={"tiny": tiny_chat}, timeout_s=300)
    assert last["ev"] == "result", last
    legs = {r["name"]: r for r in reports if r["ev"] == "leg"}
    assert list(legs) == ["load", "prefill_24", "decode_at_8", "profile"]
    assert legs["load"]["bytes"] == (tiny_chat / "tiny-chat.gguf").stat().st_size and legs["load"]["ms"] > 0
    prefill, decode = legs["prefill_24"], legs["decode_at_8"]
    assert prefill["tokens"] == 24 and abs(prefill["tok_s"] - 24e3 / prefill["ms"]) < 0.01 * prefill["tok_s"]
    assert decode["tokens"] == 16 and decode["in_flight"] == 2
    assert abs(decode["tok_s"] - 15e3 / decode["ms"]) < 0.01 * decode["tok_s"]
    assert decode["gap_ms"]["p10"] <= decode["gap_ms"]["p50"] <= decode["gap_ms"]["max"] <= decode["ms"]
    if legs["profile"]["has_timestamps"]:
        assert legs["profile"]["dispatches"] == decode["dispatches_per_token"] == sum(k["dispatches"] for k in legs["profile"]["kernels"])
        assert legs["profile"]["gpu_us"] > 0
    assert last["adapter"] and last["model"] == "tiny-chat" and last["decode_at_8"]["tok_s"] == decode["tok_s"]


def test_a_bench_that_cannot_load_ends_with_the_error(run_page, chromium_path):
    missing = {"name": "none", "title": "none", "url": "local/none.gguf"}
    last, _ = run_page("bench.html?auto=1", {"op": "bench", "model": missing}, timeout_s=300)
    assert last["ev"] == "error" and last["code"] == "fetch_failed" and "404" in last["message"]
